from __future__ import annotations

from swapwarden.controller import notices
from swapwarden.policy.node.observations import NodeObservation, NodeProblem
from swapwarden.policy.observed import nodes

NODE = nodes.NodeRow(name="n", uid="node-uid", labels={}, swap_bytes=0, memory_bytes=0)
UNMET = NodeObservation(NodeProblem.REQUIREMENT_UNMET, "encrypted: no")
REFUSED = NodeObservation(NodeProblem.SETTINGS_REFUSED, "too much")
RESTART = NodeObservation(NodeProblem.KUBELET_RESTART_NEEDED, "restart it")


def reasons(known: notices.NodeProblems, *found: NodeObservation) -> list[str]:
    return [notice.reason for notice in known.notices(NODE, found)]


def measured() -> set[tuple[str, ...]]:
    return {tuple(value for _, value in sample.labels) for sample in notices.PROBLEMS.samples()}


def test_each_problem_is_reported_where_it_begins_and_measured_while_it_lasts() -> None:
    known = notices.NodeProblems()
    assert reasons(known, UNMET, REFUSED) == ["SwapRequirementUnmet", "SwapSettingsNotAsSpecified"]
    assert reasons(known, UNMET, REFUSED, RESTART) == ["KubeletRestartNeeded"]
    assert measured() == {("n", "RequirementUnmet"), ("n", "SettingsRefused"), ("n", "KubeletRestartNeeded")}
    assert reasons(known, REFUSED) == []
    assert measured() == {("n", "SettingsRefused")}
    assert reasons(known, UNMET) == ["SwapRequirementUnmet"], "it is back"
    known.forget("n")
    assert measured() == set()
    assert reasons(known, UNMET) == ["SwapRequirementUnmet"]
    known.clear()
    assert measured() == set()


def test_two_leaders_report_the_same_problem_by_the_same_key() -> None:
    first, second = notices.NodeProblems(), notices.NodeProblems()
    (one,), (other,) = first.notices(NODE, [UNMET]), second.notices(NODE, [UNMET])
    first.clear()
    second.clear()
    assert one == other
    assert one.key
    assert (one.regarding.kind, one.regarding.uid, one.message) == (
        "Node",
        "node-uid",
        "RequirementUnmet: encrypted: no",
    )
