from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.controller import rows, troubles
from swapwarden.policy import nodes

from tests.unit.policy.rows import container, pod

NODE = nodes.NodeRow(name="n", uid="node-uid", labels={}, swap_bytes=0, memory_bytes=0)
PODS = [pod(container(), key=key, name=f"pod-{key}", node="n") for key in "xy"]
SINCE = "2026-01-01T00:00:00Z"


def told(*violations: tuple[str, str], omitted: int = 0, mode: str = "Enforce", **conditions: tuple[str, str]) -> Any:
    """A state whose agent reports these violations, of pod and reason, and conditions, with status and reason."""
    body = {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {"profile": {"name": "p"}, "mode": mode},
        "status": {
            "violations": [{"pod": key, "reason": reason} for key, reason in violations],
            "violationsOmitted": omitted,
            "conditions": [
                {"type": kind, "status": status, "reason": reason, "message": "why", "lastTransitionTime": SINCE}
                for kind, (status, reason) in conditions.items()
            ],
        },
    }
    return rows.decode(msgspec.json.encode(body))


def of_node(old: rows.StateRow | None, new: rows.StateRow) -> list[str]:
    return [news.reason for news in troubles.of_node(old, new, NODE)]


def of_pods(old: rows.StateRow, new: rows.StateRow) -> list[tuple[str, str]]:
    return [(news.regarding.name, news.reason) for news in troubles.of_pods(old, new, PODS)]


@pytest.mark.parametrize(
    ("kind", "status", "reason", "wanted"),
    [
        ("Compatible", "False", "NoCgroupV2", ["SwapIncompatible"]),
        ("Compatible", "Unknown", "Searching", []),
        ("Degraded", "True", "WriteFailed", ["SwapDegraded"]),
        ("Degraded", "False", "AsExpected", []),
        ("Drift", "True", "Yielded", ["SwapLimitsContested"]),
        ("Drift", "True", "OtherWriter", ["SwapLimitsContested"]),
        ("Drift", "True", "Rewritten", []),
        ("Strict", "False", "NotInForce", ["SwapNotHeldBySystemd"]),
        ("Strict", "Unknown", "AwaitingEvidence", []),
        ("RequirementsMet", "False", "RequirementUnmet", ["SwapRequirementUnmet"]),
        ("NodeSettings", "False", "NotSupported", ["SwapSettingsNotAsSpecified"]),
        ("KubeletWillNotStart", "True", "FailSwapOn", ["KubeletWillNotStart"]),
        ("Applied", "False", "Draining", []),
        ("Novel", "True", "Unheard", []),
    ],
)
def test_what_is_amiss_on_a_node_is_told(kind: str, status: str, reason: str, wanted: list[str]) -> None:
    conditions: Any = {kind: (status, reason)}
    assert of_node(told(), told(**conditions)) == wanted


def test_what_goes_on_is_told_once_and_another_reason_is_news() -> None:
    before = told(Degraded=("True", "Polling"))
    assert of_node(before, told(Degraded=("True", "Polling"))) == []
    assert of_node(before, told(Degraded=("True", "WriteFailed"))) == ["SwapDegraded"]


def test_two_leaders_tell_of_the_same_trouble_by_the_same_key() -> None:
    now = told(Degraded=("True", "Polling"))
    (first,), (second,) = troubles.of_node(told(), now, NODE), troubles.of_node(None, now, NODE)
    assert first == second
    assert first.key
    assert (first.regarding.kind, first.regarding.uid, first.message) == ("Node", "node-uid", "Polling: why")


def test_a_pod_is_told_when_its_limit_does_not_hold_and_when_it_has_drained() -> None:
    draining = told(("x", "Draining"), ("x", "Draining"), ("z", "Draining"))
    assert of_pods(told(), draining) == [("pod-x", "SwapDraining")]
    assert of_pods(draining, draining) == []
    assert of_pods(draining, told(("x", "Draining"), ("y", "WriteFailed"))) == [("pod-y", "SwapLimitNotWritten")]
    assert of_pods(draining, told(("x", "Yielded"))) == [("pod-x", "SwapLimitContested"), ("pod-x", "SwapDrained")]
    assert of_pods(draining, told()) == [("pod-x", "SwapDrained")]


def test_no_end_is_told_where_it_is_not_known_or_nothing_is_enforced() -> None:
    draining = told(("x", "Draining"))
    assert of_pods(draining, told(("y", "Draining"), omitted=1)) == [("pod-y", "SwapDraining")]
    assert of_pods(draining, told(mode="Audit")) == []
    assert of_pods(draining, told(("x", "Audit"), mode="Audit")) == []
