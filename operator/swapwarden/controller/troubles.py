"""What is to be told of nodes on which something is amiss, and of pods whose limit does not hold, where it begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from swapwarden.api import names
from swapwarden.api.conditions import ConditionType
from swapwarden.api.violations import ViolationReason
from swapwarden.controller import deviations, rows
from swapwarden.kube import events
from swapwarden.policy import nodes, pods

_OF_NODES: Final[dict[str, str]] = {
    ConditionType.COMPATIBLE: "SwapIncompatible",
    ConditionType.DEGRADED: "SwapDegraded",
    ConditionType.DRIFT: "SwapLimitsContested",
    ConditionType.NODE_SETTINGS: "SwapSettingsNotAsSpecified",
    ConditionType.REQUIREMENTS_MET: "SwapRequirementUnmet",
    ConditionType.STRICT: "SwapNotHeldBySystemd",
}
"""Reasons of events by the condition that they tell of; a finding's own type says enough."""

_OF_PODS: Final[dict[str, str]] = {
    ViolationReason.ACCESS_DENIED: "SwapLimitNotWritten",
    ViolationReason.DRAINING: "SwapDraining",
    ViolationReason.INTERNAL_ERROR: "SwapLimitNotWritten",
    ViolationReason.UNREADABLE: "SwapLimitNotWritten",
    ViolationReason.WRITE_FAILED: "SwapLimitNotWritten",
    ViolationReason.YIELDED: "SwapLimitContested",
}
"""Reasons of events by the violation that they tell of."""

DRAINED: Final = "SwapDrained"


class News(NamedTuple):
    """An event to be."""

    regarding: events.Regarding
    type: events.EventType
    reason: str
    message: str
    key: str = ""
    """The same for the same trouble, whoever tells of it; empty where only who saw it begin can tell."""


def of_node(old: rows.StateRow | None, new: rows.StateRow, node: nodes.NodeRow) -> Iterator[News]:
    """Yield what is amiss on a node and was not, or not for that reason; `old` is None where that is not known."""
    before = {(each.type, each.reason) for each in old.amiss} if old is not None else set()
    for condition in new.amiss:
        if (condition.type, condition.reason) in before:
            continue
        yield News(
            events.Regarding("v1", "Node", "", node.name, node.uid),
            "Warning",
            _OF_NODES.get(condition.type, condition.type),
            f"{condition.reason}: {condition.message}",
            f"{new.uid}/{condition.type}/{condition.reason}/{condition.last_transition_time}",
        )


def of_pods(old: rows.StateRow, new: rows.StateRow, known: Iterable[pods.PodRow]) -> Iterator[News]:
    """Yield what no longer is as the state says of a node's pods, and which have given back what they had too much."""
    if old.deviating == new.deviating:
        return
    before, now = _reasons(old), _reasons(new)
    for row in known:
        regarding = events.Regarding("v1", "Pod", row.namespace, row.name, row.uid)
        for reason in now.get(row.key, set()) - before.get(row.key, set()):
            yield News(regarding, "Warning", _OF_PODS[reason], deviations.said(reason, row.node, new.profile.name))
        ended = before.get(row.key, set()) - now.get(row.key, set())
        # Of a list that is cut nothing can be told by what it lacks.
        if ViolationReason.DRAINING in ended and not row.terminal and not new.unlisted and _enforces(new):
            message = f"this pod has no more in swap than it may have on node {row.node}"
            yield News(regarding, "Normal", DRAINED, message)


def _reasons(row: rows.StateRow) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in row.deviating:
        if each.reason in _OF_PODS:
            found.setdefault(each.pod, set()).add(each.reason)
    return found


def _enforces(row: rows.StateRow) -> bool:
    return rows.told(row).mode in {"", names.Mode.ENFORCE}
