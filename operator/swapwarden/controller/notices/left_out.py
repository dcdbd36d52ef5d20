"""Notices about pods for which a node's plan has no room, one for each of their namespaces, and their metric."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from swapwarden.api import state
from swapwarden.controller.notices import regarding
from swapwarden.kube.events import Notice
from swapwarden.policy.observed import pods
from swapwarden.telemetry import metrics

PODS = metrics.gauge(
    "swapwarden_controller_pods_left_out",
    f"Pods of a node that are not in its plan, which has room for {state.MAX_PODS} pods and"
    f" {state.MAX_PODS_BYTES // 1024} KiB; only nodes with such pods. Only the leader has it.",
    labels=("node",),
)

REASON: Final = "NotPlanned"
MAX_NAMESPACES: Final = 32
"""Limit of namespaces whose owners get a notice, on one node."""


class LeftOut:
    """Remembers, for one leadership, which namespaces on a node have had a notice."""

    def __init__(self) -> None:
        self._noticed: dict[str, set[str]] = {}

    def notices(self, node: str, profile: str, left_out: Iterable[pods.PodRow]) -> Iterator[Notice]:
        """Measure the pods without room in a node's plan, and yield a notice about one pod of each namespace."""
        found: dict[str, list[pods.PodRow]] = {}
        for row in left_out:
            found.setdefault(row.namespace, []).append(row)
        if not found:
            self.forget(node)
            return
        PODS.set(sum(map(len, found.values())), node)
        # Once all pods of a namespace have room, the next one without gets a new notice.
        noticed = self._noticed[node] = self._noticed.get(node, set()) & found.keys()
        for namespace in sorted(found.keys() - noticed)[: MAX_NAMESPACES - len(noticed)]:
            noticed.add(namespace)
            rows = found[namespace]
            message = (
                f"node {node} has more pods, or larger ones, than one plan has room for: this pod and"
                f" {len(rows) - 1} more of its namespace are not in it, and get what swap.beforePlan of profile"
                f" {profile} says (Deny: no swap) until others are gone; delete pods on this node that never run"
            )
            # Urgent: else it would wait behind the warnings of all that is left out.
            yield Notice(regarding.pod(rows[0]), "Warning", REASON, message, urgent=True)

    def forget(self, node: str) -> None:
        """Forget a node: it was deleted, or its plan leaves nothing out."""
        if self._noticed.pop(node, None) is not None:
            PODS.remove(node)

    def clear(self) -> None:
        """Forget all at the end of a leadership: the next leader measures."""
        for node in list(self._noticed):
            self.forget(node)
