from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.cli.kubectl.explain import model
from swapwarden.policy.observed import pods, states

from tests.unit.cli.kubectl.explained import GI, MI, container, planned, pod, profile, reported
from tests.unit.objects import wired

POD = pod(container("app", "1Gi"))
ROW = pods.project(POD)
SPEC = planned(POD, profile())


def look(
    *violations: state.Violation, pod: pods.PodRow = ROW, has_agent: bool | None = True, **fields: Any
) -> model.KernelState:
    found = reported(SPEC, *violations, **fields)
    return model.kernel_state(states.project(wired(found)), found.status, pod, has_agent=has_agent)


def test_since_when() -> None:
    assert look().since == "2026-01-01T00:10:00Z"
    later = msgspec.structs.replace(ROW, started="2026-01-02T00:00:00Z")
    assert look(pod=later).since == "2026-01-02T00:00:00Z"
    # Another pod of the node drains; this one is held since its start.
    draining = (state.Condition("Applied", "False", "Draining", last_transition_time="2026-01-03T00:00:00Z"),)
    assert look(conditions=draining).since == "2026-01-01T00:00:00Z"
    assert look(state.Violation("uid-1", "Draining")).since == ""


@pytest.mark.parametrize(
    ("violation", "detail"),
    [
        (
            state.Violation(
                "uid-1", "Draining", desired="0", observed=str(64 * MI), swap_bytes=48 * MI, message="they grow little"
            ),
            "they grow little; desired 0, observed 67108864 (64Mi); 48Mi in use",
        ),
        # Values that are none are left out.
        (state.Violation("uid-1", "WriteFailed", desired="0", observed="\x1b[2J", message="read-only"), "read-only"),
        (
            state.Violation(
                "uid-1", "Yielded", container="id-app", desired=str(GI), observed="0", message="left alone"
            ),
            "left alone; a container; desired 1073741824 (1Gi), observed 0",
        ),
        (state.Violation("uid-1", "Audit", desired="0", observed="max"), "desired 0, observed max"),
        (state.Violation("uid-1", "AwaitingState", message="x"), ""),
        (state.Violation("another", "Draining", message="x"), ""),
        (state.Violation("uid-1", "WriteFailed", setting="memoryLow", message="x"), ""),
    ],
)
def test_the_values_that_the_agent_reports(violation: state.Violation, detail: str) -> None:
    found = look(violation)
    assert (found.detail, found.status) == (detail, "False" if detail else "True")


def test_exposure() -> None:
    exposed = state.ExposedPod(
        "uid-1",
        count=2,
        milliseconds=35,
        swap_bytes=3 * MI,
        causes=[names.Cause.RELOAD, names.Cause.START],
    )
    found = look(exposures=[exposed])
    assert (found.status, found.exposures, found.exposed_milliseconds, found.exposed_bytes) == (
        "True", 2, 35, 3 * MI,
    )  # fmt: skip
    assert found.exposed_text == "above its limit 2 times, 35 ms in all (Reload, Start); swapped 3Mi meanwhile"
    once = look(exposures=[state.ExposedPod("uid-1", count=1, milliseconds=4), state.ExposedPod("uid-2", count=9)])
    assert (once.exposed_bytes, once.exposed_text) == (0, "above its limit once, 4 ms in all; swapped 0 meanwhile")
    assert look().exposed_text == ""


def test_drift() -> None:
    assert look(conditions=(state.Condition("Drifted", "True", "OtherWriter", "some tool"),)).drift == "some tool"
    assert look(conditions=(state.Condition("Drifted", "False", "Quiet", "x"),)).drift == ""
