"""Notices about Nodes: problems that agents report by a condition, and problems that no agent reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from swapwarden.api.conditions import ConditionType
from swapwarden.api.notices import Notice, Regarding
from swapwarden.policy.node.observations import NodeObservation, NodeProblem
from swapwarden.policy.observed import nodes, states
from swapwarden.telemetry import metrics

_CONDITION_EVENTS: Final[dict[str, str]] = {
    ConditionType.COMPATIBLE: "SwapIncompatible",
    ConditionType.DEGRADED: "SwapDegraded",
    ConditionType.DRIFTED: "SwapLimitsContested",
    ConditionType.SETTINGS_APPLIED: "SwapSettingsNotAsSpecified",
    ConditionType.MEMORY_QOS: "MemoryLeftToKubelet",
    ConditionType.STRICT_IN_EFFECT: "SwapGuaranteeNotAsSpecified",
}
"""Reasons of events by the condition that they report; a diagnostic's own type says enough."""


def condition_notices(old: states.StateRow | None, new: states.StateRow, node: nodes.NodeRow) -> Iterator[Notice]:
    """Yield a notice for each problem that `new` reports and `old` did not, or for another reason.

    `old` is None if it is not known. Two leaders give one problem the same key.
    """
    before = {(each.type, each.reason) for each in old.abnormal_conditions} if old is not None else set()
    for condition in new.abnormal_conditions:
        if (condition.type, condition.reason) not in before:
            yield Notice(
                Regarding("v1", "Node", "", node.name, node.uid),
                "Warning",
                _CONDITION_EVENTS.get(condition.type, condition.type),
                f"{condition.reason}: {condition.message}",
                f"{new.uid}/{condition.type}/{condition.reason}/{condition.last_transition_time}",
            )


PROBLEMS = metrics.gauge(
    "swapwarden_controller_node_problem",
    "1 for each problem of a node that follows from its profile, its Node and its agent's facts: RequirementUnmet,"
    " SettingsRefused, KubeletRestartNeeded or ProtectionOvercommitted. Only the leader has it.",
    labels=("node", "problem"),
)

_PROBLEM_EVENTS: Final[dict[NodeProblem, str]] = {
    NodeProblem.REQUIREMENT_UNMET: "SwapRequirementUnmet",
    NodeProblem.SETTINGS_REFUSED: "SwapSettingsNotAsSpecified",
    NodeProblem.KUBELET_RESTART_NEEDED: NodeProblem.KUBELET_RESTART_NEEDED,
    NodeProblem.PROTECTION_OVERCOMMITTED: NodeProblem.PROTECTION_OVERCOMMITTED,
}


class NodeProblems:
    """Remembers for one leadership the problems that nodes have."""

    def __init__(self) -> None:
        self._known: dict[str, frozenset[NodeProblem]] = {}

    def notices(self, node: nodes.NodeRow, found: Iterable[NodeObservation]) -> Iterator[Notice]:
        """Measure a node's problems, and yield a notice for each that begins. Two leaders give it the same key."""
        messages = dict(found)
        before = self._known.get(node.name, frozenset())
        self._keep(node.name, frozenset(messages))
        for problem, message in messages.items():
            if problem not in before:
                key = f"{node.uid}/{problem}/{message}"
                yield Notice(
                    Regarding("v1", "Node", "", node.name, node.uid),
                    "Warning",
                    _PROBLEM_EVENTS[problem],
                    f"{problem}: {message}",
                    key,
                )

    def forget(self, node: str) -> None:
        """Forget a node that was deleted, or of which nothing is asked."""
        self._keep(node, frozenset())

    def clear(self) -> None:
        """Forget all at the end of a leadership: the next leader measures."""
        for node in list(self._known):
            self.forget(node)

    def _keep(self, node: str, now: frozenset[NodeProblem]) -> None:
        for problem in self._known.pop(node, frozenset()) - now:
            PROBLEMS.remove(node, problem)
        for problem in now:
            PROBLEMS.set(1, node, problem)
        if now:
            self._known[node] = now
