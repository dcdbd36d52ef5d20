"""Pods for which a node's plan has no room: to be measured, and to be told of once in each of their namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from swapwarden.api import state
from swapwarden.kube import events
from swapwarden.policy import pods
from swapwarden.telemetry import metrics

PODS = metrics.gauge(
    "swapwarden_controller_pods_left_out",
    f"Pods of a node that are not in its plan, which has room for {state.MAX_PODS} pods and"
    f" {state.MAX_PODS_BYTES // 1024} KiB; only nodes with such pods. Only the leader has it.",
    labels=("node",),
)

REASON: Final = "NotPlanned"
MAX_NAMESPACES: Final = 32
"""Of how many namespaces on one node the owners are told."""


class News(NamedTuple):
    """An event to be."""

    regarding: events.Regarding
    message: str


class LeftOut:
    """Remembers for one leadership of which namespaces on a node it has told."""

    def __init__(self) -> None:
        self._told: dict[str, set[str]] = {}

    def news(self, node: str, profile: str, left_out: Iterable[pods.PodRow]) -> Iterator[News]:
        """Measure what is left out of a node's plan, and yield what is to be told: of one pod for each namespace."""
        found: dict[str, list[pods.PodRow]] = {}
        for row in left_out:
            found.setdefault(row.namespace, []).append(row)
        if not found:
            self.forget(node)
            return
        PODS.set(sum(map(len, found.values())), node)
        # A namespace of which nothing is left out is told again when that begins again.
        told = self._told[node] = self._told.get(node, set()) & found.keys()
        for namespace in sorted(found.keys() - told)[: MAX_NAMESPACES - len(told)]:
            told.add(namespace)
            rows = found[namespace]
            message = (
                f"node {node} has more pods, or larger ones, than one plan has room for: this pod and"
                f" {len(rows) - 1} more of its namespace are not in it, and get what onUnknownPod of profile"
                f" {profile} says (Deny: no swap) until others are gone; delete pods on this node that never run"
            )
            yield News(events.Regarding("v1", "Pod", namespace, rows[0].name, rows[0].uid), message)

    def forget(self, node: str) -> None:
        """Nothing is left out of this node's plan, or the node is gone."""
        if self._told.pop(node, None) is not None:
            PODS.remove(node)

    def clear(self) -> None:
        """The leadership is over: the next leader measures."""
        for node in list(self._told):
            self.forget(node)
