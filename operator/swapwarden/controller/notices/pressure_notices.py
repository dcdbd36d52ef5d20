"""Notices about nodes under memory pressure, and about the pods that are evicted, or would be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from swapwarden.api import state
from swapwarden.api.notices import Notice, Regarding
from swapwarden.policy.observed import nodes, states
from swapwarden.policy.pressure import words
from swapwarden.policy.pressure.choice import Choice, Evict, HoldReason, NoVictim
from swapwarden.policy.pressure.ranking import Ranked

NODE_EVENT: Final = "MemoryPressureObserved"
POD_EVENT: Final = "WouldBeEvicted"
EVICTION_EVENT: Final = "SwapPressureEviction"


def notices(
    node: nodes.NodeRow,
    row: states.StateRow,
    thresholds: state.PressureSettings,
    chosen: Choice,
    *,
    allowed: bool,
) -> Iterator[Notice]:
    """Yield notices of the decision on a node's report, once for as long as the pressure lasts.

    Two leaders give it the same key. `allowed` is whether the API server would evict the pod; else it was not asked.
    """
    report = row.pressure
    # An eviction that is under way, or was a moment ago, has its own notices.
    if report is None or isinstance(chosen, Evict) or chosen.hold is HoldReason.SETTLING:
        return
    of_node = Regarding("v1", "Node", "", node.name, node.uid)
    pressure, key = words.pressure(report, thresholds), f"{row.uid}/{report.since}/{chosen.hold}"
    if isinstance(chosen, NoVictim):
        yield Notice(of_node, "Warning", NODE_EVENT, f"{pressure}; {words.WHY_HELD[chosen.hold]}", key)
        return
    pod, sums = chosen.victim.pod, words.arithmetic(chosen.victim)
    asked = "disruption budgets allow it" if allowed else "disruption budgets were not asked"
    key = f"{key}/{pod.uid}"
    text = f"{pressure}; pod {pod.namespace}/{pod.name} would be evicted first: {sums}; {asked}"
    yield Notice(of_node, "Warning", NODE_EVENT, text, key)
    of_pod = Regarding("v1", "Pod", pod.namespace, pod.name, pod.uid)
    text = f"this pod would be evicted first from node {node.name}: {sums}; {pressure}; {asked}"
    yield Notice(of_pod, "Warning", POD_EVENT, text, key)


def evicted(
    node: nodes.NodeRow, row: states.StateRow, thresholds: state.PressureSettings, victim: Ranked
) -> Iterator[Notice]:
    """Yield notices of an eviction."""
    report, pod = row.pressure, victim.pod
    if report is None:
        return
    pressure, sums, key = words.pressure(report, thresholds), words.arithmetic(victim), f"{row.uid}/{pod.uid}"
    of_node = Regarding("v1", "Node", "", node.name, node.uid)
    text = f"{pressure}; pod {pod.namespace}/{pod.name} is evicted: {sums}"
    yield Notice(of_node, "Warning", EVICTION_EVENT, text, key)
    of_pod = Regarding("v1", "Pod", pod.namespace, pod.name, pod.uid)
    text = f"this pod is evicted from node {node.name}: {sums}; {pressure}"
    yield Notice(of_pod, "Warning", EVICTION_EVENT, text, key)
