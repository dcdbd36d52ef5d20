"""Notices about nodes under memory pressure, and about the pods that are evicted, or would be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from swapwarden.api import state
from swapwarden.controller.inventory import states
from swapwarden.kube.events import Notice, Regarding
from swapwarden.policy.observed import nodes
from swapwarden.policy.pressure import words
from swapwarden.policy.pressure.handling import Conclude, Evict
from swapwarden.policy.pressure.limits import HoldReason

NODE_EVENT: Final = "MemoryPressureObserved"
POD_EVENT: Final = "WouldBeEvicted"
EVICTION_EVENT: Final = "SwapPressureEviction"


def notices(
    node: nodes.NodeRow, row: states.StateRow, thresholds: state.PressureSettings, decision: Conclude
) -> Iterator[Notice]:
    """Yield notices of the decision on a node's report, once for as long as the pressure lasts.

    Two leaders give it the same key.
    """
    report, hold = row.pressure, decision.hold
    # An eviction that is under way, or was a moment ago, has its own notices.
    if report is None or hold is None or hold == HoldReason.SETTLING:
        return
    of_node = Regarding("v1", "Node", "", node.name, node.uid)
    pressure, key = words.pressure(report, thresholds), f"{row.uid}/{report.since}/{hold}"
    if decision.named is None:
        yield Notice(of_node, "Warning", NODE_EVENT, f"{pressure}; {words.WHY_HELD[HoldReason(hold)]}", key)
        return
    pod, sums = decision.named.pod, words.arithmetic(decision.named)
    asked = "disruption budgets allow it" if decision.allowed else "disruption budgets were not asked"
    key = f"{key}/{pod.uid}"
    text = f"{pressure}; pod {pod.namespace}/{pod.name} would be evicted first: {sums}; {asked}"
    yield Notice(of_node, "Warning", NODE_EVENT, text, key)
    of_pod = Regarding("v1", "Pod", pod.namespace, pod.name, pod.uid)
    text = f"this pod would be evicted first from node {node.name}: {sums}; {pressure}; {asked}"
    yield Notice(of_pod, "Warning", POD_EVENT, text, key)


def evicted(
    node: nodes.NodeRow, row: states.StateRow, thresholds: state.PressureSettings, request: Evict
) -> Iterator[Notice]:
    """Yield notices of an eviction."""
    pod, sums = request.victim.pod, words.arithmetic(request.victim)
    pressure, key = words.pressure(request.report, thresholds), f"{row.uid}/{pod.uid}"
    of_node = Regarding("v1", "Node", "", node.name, node.uid)
    text = f"{pressure}; pod {pod.namespace}/{pod.name} is evicted: {sums}"
    yield Notice(of_node, "Warning", EVICTION_EVENT, text, key)
    of_pod = Regarding("v1", "Pod", pod.namespace, pod.name, pod.uid)
    text = f"this pod is evicted from node {node.name}: {sums}; {pressure}"
    yield Notice(of_pod, "Warning", EVICTION_EVENT, text, key)
