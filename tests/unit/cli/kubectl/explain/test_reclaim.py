"""The lines about moving idle memory of a pod to swap."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.cli.kubectl.explain import memory, model, screen
from swapwarden.policy.profile import compiled
from swapwarden.policy.reclaim.decisions import Reclaim

from tests.unit.cli.kubectl.explained import MI, container, planned, pod, profile, reported, seen
from tests.unit.objects import make_override

NOW = datetime.datetime(2026, 1, 1, 2, tzinfo=datetime.UTC)
Mode = names.ReclaimMode
KEY = names.RECLAIM_ANNOTATION
OFFERED = Reclaim(Mode.CONTINUOUS)
APP = container("app", "1Gi", "2Gi")


def of(found: Any, governing: compiled.Profile, **fields: Any) -> list[memory.MemoryLine]:
    told = model.explain(seen(found, governing, **fields))
    shown = screen.text(told, NOW)
    assert all(line.text in shown for line in told.memory)
    return told.memory


@pytest.mark.parametrize(
    ("annotations", "fields", "text"),
    [
        ({KEY: "Startup"}, {"reclaim": OFFERED}, f"Startup: annotation {KEY}"),
        ({KEY: "Continuous"}, {"reclaim": Reclaim(Mode.STARTUP)}, "Startup: batch-nodes offers no more"),
        ({KEY: "Startup"}, {}, "Off: not offered: set reclaim.mode in batch-nodes"),
        ({KEY: "Off"}, {"reclaim": OFFERED}, "Off: an annotation of the pod refuses it"),
        ({KEY: "Startup", names.POLICY_ANNOTATION: "Disabled"}, {"reclaim": OFFERED}, "Off: the pod has no swap"),
        (
            {KEY: "Startup"},
            {"reclaim": OFFERED, "overrides": (make_override(name="one", reclaim=Mode.OFF),)},
            "Off: refused: remove reclaim from overrides[one] of batch-nodes",
        ),
        (
            {},
            {"reclaim": OFFERED, "overrides": (make_override(name="one", reclaim=Mode.STARTUP),)},
            "Startup: overrides[one] of batch-nodes",
        ),
    ],
)
def test_the_decision_has_its_reason_and_the_remedy(
    annotations: dict[str, str], fields: dict[str, Any], text: str
) -> None:
    (line,) = of(pod(APP, annotations=annotations), profile(**fields))
    assert line.of == "reclaim"
    assert line.text.startswith(text)


def test_nothing_is_said_where_nobody_asks() -> None:
    assert of(pod(APP), profile(reclaim=OFFERED)) == []
    assert of(pod(APP), profile()) == []


def test_the_amounts_are_the_agents() -> None:
    found, governing = pod(APP, annotations={KEY: "Startup"}), profile(reclaim=OFFERED)
    node_state = reported(planned(found, governing))
    told = state.ReclaimedPod("uid-1", "Done", 120 * MI, 3 * MI, 1200)
    status = msgspec.structs.replace(node_state.status, reclaimed=[told])
    _, line = of(found, governing, state=msgspec.structs.replace(node_state, status=status))
    assert line.text == "120Mi to swap by it, in 1.2 s; 3Mi of swapped memory soon came back; Startup has ended"
    later = msgspec.structs.replace(status, reclaimed=[msgspec.structs.replace(told, hold="Later")])
    _, line = of(found, governing, state=msgspec.structs.replace(node_state, status=later))
    assert line.text.endswith("the agent reports Later")


def test_audit_moves_nothing() -> None:
    found, governing = pod(APP, annotations={KEY: "Startup"}), profile(reclaim=OFFERED, mode=names.Mode.AUDIT)
    _, line = of(found, governing, state=reported(planned(found, governing)))
    assert "mode Audit: nothing is moved" in line.text


def test_all_holds_of_the_agent_have_words() -> None:
    assert set(memory.HOLDS) == set(names.ReclaimHold)
