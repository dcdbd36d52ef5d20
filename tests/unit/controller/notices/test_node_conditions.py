from __future__ import annotations

from typing import Any

import pytest
from swapwarden.controller import notices
from swapwarden.policy.observed import nodes, states

from tests.unit.controller.notices.reports import told

NODE = nodes.NodeRow(name="n", uid="node-uid", labels={}, swap_bytes=0, memory_bytes=0)


def reasons(old: states.StateRow | None, new: states.StateRow) -> list[str]:
    return [notice.reason for notice in notices.condition_notices(old, new, NODE)]


@pytest.mark.parametrize(
    ("kind", "status", "reason", "wanted"),
    [
        ("Compatible", "False", "NoCgroupV2", ["SwapIncompatible"]),
        ("Compatible", "Unknown", "Searching", []),
        ("Degraded", "True", "WriteFailed", ["SwapDegraded"]),
        ("Degraded", "False", "AsExpected", []),
        ("Drifted", "True", "Yielded", ["SwapLimitsContested"]),
        ("Drifted", "True", "OtherWriter", ["SwapLimitsContested"]),
        ("Drifted", "True", "Rewritten", []),
        ("StrictInEffect", "False", "NotInForce", ["SwapGuaranteeNotAsSpecified"]),
        ("MemoryQoS", "False", "KubeletOwned", ["MemoryLeftToKubelet"]),
        ("StrictInEffect", "Unknown", "AwaitingEvidence", []),
        ("NriUnavailable", "True", "PluginAway", ["NriUnavailable"]),
        ("SettingsApplied", "False", "NotSupported", ["SwapSettingsNotAsSpecified"]),
        ("KubeletWillNotStart", "True", "FailSwapOn", ["KubeletWillNotStart"]),
        ("Applied", "False", "Draining", []),
        ("Novel", "True", "Unheard", []),
    ],
)
def test_a_problem_of_a_node_is_reported(kind: str, status: str, reason: str, wanted: list[str]) -> None:
    conditions: Any = {kind: (status, reason)}
    assert reasons(told(), told(**conditions)) == wanted


def test_a_lasting_problem_is_reported_once_and_another_reason_is_news() -> None:
    before = told(Degraded=("True", "Polling"))
    assert reasons(before, told(Degraded=("True", "Polling"))) == []
    assert reasons(before, told(Degraded=("True", "WriteFailed"))) == ["SwapDegraded"]


def test_two_leaders_report_a_node_problem_by_the_same_key() -> None:
    now = told(Degraded=("True", "Polling"))
    (first,), (second,) = (
        notices.condition_notices(told(), now, NODE),
        notices.condition_notices(None, now, NODE),
    )
    assert first == second
    assert first.key
    assert (first.regarding.kind, first.regarding.uid, first.message) == ("Node", "node-uid", "Polling: why")
