"""Notices about Nodes with a problem that no agent reports, and the metric of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from swapwarden.controller.notices import regarding
from swapwarden.kube.events import Notice
from swapwarden.policy.node.observations import NodeObservation, NodeProblem
from swapwarden.policy.observed import nodes
from swapwarden.telemetry import metrics

PROBLEMS = metrics.gauge(
    "swapwarden_controller_node_problem",
    "1 for each problem of a node that follows from its profile, its Node and its agent's facts: RequirementUnmet,"
    " SettingsRefused or KubeletRestartNeeded. Only the leader has it.",
    labels=("node", "problem"),
)

_REASONS: Final[dict[NodeProblem, str]] = {
    NodeProblem.REQUIREMENT_UNMET: "SwapRequirementUnmet",
    NodeProblem.SETTINGS_REFUSED: "SwapSettingsNotAsSpecified",
    NodeProblem.KUBELET_RESTART_NEEDED: NodeProblem.KUBELET_RESTART_NEEDED,
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
                yield Notice(regarding.node(node), "Warning", _REASONS[problem], f"{problem}: {message}", key)

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
