from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.cli.kubectl.explain import kernelview
from swapwarden.cli.kubectl.explain.kernelview import LimitStatus
from swapwarden.policy.observed import pods

from tests.unit.cli.kubectl.explained import GI, MI, container, planned, pod, profile, reported

POD = pod(container("app", "1Gi"))
ROW = pods.project(POD)
SPEC = planned(POD, profile())


def look(
    *violations: state.Violation, spec: state.StateSpec = SPEC, has_agent: bool | None = True, **fields: Any
) -> kernelview.KernelState:
    return kernelview.observe(reported(spec, *violations, **fields), ROW, has_agent=has_agent)


def held(*violations: state.Violation, **fields: Any) -> tuple[LimitStatus, str]:
    found = look(*violations, **fields)
    return found.status, found.text


def test_a_limit_without_a_violation_is_held() -> None:
    assert held()[0] is LimitStatus.HELD
    assert held(state.Violation("another", "Draining")) == held()
    assert held(has_agent=None) == held()


@pytest.mark.parametrize(
    ("holds", "holder"),
    [
        (state.Holds(runtime=True), names.Holder.RUNTIME),
        (state.Holds(systemd=True), names.Holder.SYSTEMD),
        (state.Holds(runtime=True, agent_only=[ROW.key]), names.Holder.AGENT),
    ],
)
def test_by_whom_it_is_held(holds: state.Holds, holder: names.Holder) -> None:
    assert held(holds=holds) == (LimitStatus.HELD, held()[1] + pods.held_by(holder))


def test_a_list_that_is_cut_says_nothing_of_a_pod() -> None:
    assert held(holds=state.Holds(runtime=True, agent_only_omitted=1)) == held()


def test_since_when() -> None:
    assert look().since == "2026-01-01T00:10:00Z"
    later = msgspec.structs.replace(ROW, started="2026-01-02T00:00:00Z")
    assert kernelview.observe(reported(SPEC), later, has_agent=True).since == "2026-01-02T00:00:00Z"
    # Another pod of the node drains; this one is held since its start.
    draining = (state.Condition("Applied", "False", "Draining", last_transition_time="2026-01-03T00:00:00Z"),)
    assert look(conditions=draining).since == "2026-01-01T00:00:00Z"
    assert look(state.Violation("uid-1", "Draining")).since == ""


@pytest.mark.parametrize(
    ("violation", "status", "parts"),
    [
        (
            state.Violation(
                "uid-1",
                "Draining",
                desired="0",
                observed=str(64 * MI),
                swap_bytes=48 * MI,
                message="they can grow little",
            ),
            LimitStatus.DRAINING,
            ["they can grow little", "desired 0, observed 67108864 (64Mi)", "48Mi in use"],
        ),
        (
            state.Violation(
                "uid-1", "WriteFailed", desired="0", observed="\x1b[2J", message="memory.swap.max: read-only"
            ),
            LimitStatus.WRITE_FAILED,
            [..., "memory.swap.max: read-only"],
        ),
        (
            state.Violation("uid-1", "Yielded", container="id-app", desired=str(GI), observed="0", message="it is let"),
            LimitStatus.YIELDED,
            ["it is let", "a container", "desired 1073741824 (1Gi), observed 0"],
        ),
        (
            state.Violation("uid-1", "Audit", desired="0", observed="max"),
            LimitStatus.NOT_WRITTEN,
            [..., "desired 0, observed max"],
        ),
        (
            state.Violation("uid-1", "AwaitingState"),
            LimitStatus.AWAITING_STATE,
            [...],
        ),
    ],
)
def test_listed_violations(violation: state.Violation, status: LimitStatus, parts: list[Any]) -> None:
    found, text = held(violation)
    assert found is status
    said = text.split("; ")
    assert len(said) == len(parts), "values that are none are left out"
    assert all(part in {each, ...} for each, part in zip(said, parts, strict=True)), said


def test_reasons_for_an_unknown_status() -> None:
    assert kernelview.observe(None, ROW, has_agent=True).status is LimitStatus.UNKNOWN
    assert held(conditions=(state.Condition("Compatible", "False", "NoCgroupV2", "why"),)) == (
        LimitStatus.NOT_WRITTEN,
        "why",
    )
    assert held(spec=state.StateSpec(SPEC.profile_ref))[0] is LimitStatus.AWAITING_STATE
    status, text = held(observed_generation=11)
    assert (status, "generation 11" in text) == (LimitStatus.BEHIND, True)
    status, text = held(violations_omitted=2)
    assert (status, text.startswith("2 ")) == (LimitStatus.UNKNOWN, True)
    assert held(has_agent=False)[0] is LimitStatus.UNREPAIRED
    audit = msgspec.structs.replace(SPEC, mode=names.Mode.AUDIT)
    assert held(spec=audit)[0] is LimitStatus.NOT_WRITTEN
    restored = msgspec.structs.replace(SPEC, mode=names.Mode.RESTORE)
    assert held(spec=restored)[0] is LimitStatus.NOT_WRITTEN
    unreported = kernelview.observe(
        state.NodeSwapState(metadata=state.ObjectMeta(generation=1), spec=SPEC), ROW, has_agent=False
    )
    assert unreported.status is LimitStatus.UNKNOWN


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
        LimitStatus.HELD, 2, 35, 3 * MI,
    )  # fmt: skip
    assert found.exposed_text == "above its limit 2 times, 35 ms in all (Reload, Start); swapped 3Mi meanwhile"
    once = look(exposures=[state.ExposedPod("uid-1", count=1, milliseconds=4), state.ExposedPod("uid-2", count=9)])
    assert (once.exposed_bytes, once.exposed_text) == (0, "above its limit once, 4 ms in all; swapped 0 meanwhile")
    assert look().exposed_text == ""


def test_drift() -> None:
    assert look(conditions=(state.Condition("Drifted", "True", "OtherWriter", "some tool"),)).drift == "some tool"
    assert look(conditions=(state.Condition("Drifted", "False", "Quiet", "x"),)).drift == ""
