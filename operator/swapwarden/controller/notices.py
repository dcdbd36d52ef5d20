"""Events and gauges about nodes, and about pods that their plans or their pressure concern."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from swapwarden.api import state
from swapwarden.api.conditions import ConditionType
from swapwarden.api.notices import Notice, Regarding
from swapwarden.policy.fleet.inventory import NodeInventory
from swapwarden.policy.node.observations import NodeObservation, NodeProblem
from swapwarden.policy.observed import nodes, pods, states
from swapwarden.policy.pressure import words
from swapwarden.policy.pressure.handling import Conclude, Evict
from swapwarden.policy.pressure.limits import HoldReason
from swapwarden.policy.verdict import pod_events
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

    def notices(self, node: nodes.NodeRow, problems: Iterable[NodeObservation]) -> Iterator[Notice]:
        """Measure a node's problems, and yield a notice for each that begins. Two leaders give it the same key."""
        messages = dict(problems)
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


LEFT_OUT = metrics.gauge(
    "swapwarden_controller_pods_left_out",
    f"Pods of a node that are not in its plan, which has room for {state.MAX_PODS} pods and"
    f" {state.MAX_PODS_BYTES // 1024} KiB; only nodes with such pods. Only the leader has it.",
    labels=("node",),
)

NOT_PLANNED: Final = "NotPlanned"
MAX_NAMESPACES: Final = 32
"""Limit of namespaces whose owners get a notice, on one node."""


class LeftOut:
    """Remembers, for one leadership, which namespaces on a node have had a notice."""

    def __init__(self) -> None:
        self._noticed: dict[str, set[str]] = {}

    def notices(self, node: str, profile: str, left_out: Iterable[pods.PodRow]) -> Iterator[Notice]:
        """Measure the pods without room in a node's plan, and yield a notice about one pod of each namespace."""
        by_namespace: dict[str, list[pods.PodRow]] = {}
        for row in left_out:
            by_namespace.setdefault(row.namespace, []).append(row)
        if not by_namespace:
            self.forget(node)
            return
        LEFT_OUT.set(sum(map(len, by_namespace.values())), node)
        # Once all pods of a namespace have room, the next one without gets a new notice.
        noticed = self._noticed[node] = self._noticed.get(node, set()) & by_namespace.keys()
        for namespace in sorted(by_namespace.keys() - noticed)[: MAX_NAMESPACES - len(noticed)]:
            noticed.add(namespace)
            rows = by_namespace[namespace]
            message = (
                f"node {node} has more pods, or larger ones, than one plan has room for: this pod and"
                f" {len(rows) - 1} more of its namespace are not in it, and get what swap.beforePlan of profile"
                f" {profile} says (Deny: no swap) until others are gone; delete pods on this node that never run"
            )
            # Urgent: else it would wait behind the warnings of all that is left out.
            yield Notice(pod_events.regarding(rows[0]), "Warning", NOT_PLANNED, message, urgent=True)

    def forget(self, node: str) -> None:
        """Forget a node: it was deleted, or its plan leaves nothing out."""
        if self._noticed.pop(node, None) is not None:
            LEFT_OUT.remove(node)

    def clear(self) -> None:
        """Forget all at the end of a leadership: the next leader measures."""
        for node in list(self._noticed):
            self.forget(node)


HELD = metrics.gauge(
    "swapwarden_controller_disabled_pods_swap_bytes",
    "Swap in use by pods that must have none by their policy, as the node's agent reports; only nodes with such pods.",
    labels=("node",),
)


def measure_swap(name: str, row: states.StateRow | None) -> None:
    """Publish what pods of a node hold in swap although their policy forbids it; None: the node's state is gone.

    Pods that have none by anything else, as by their QoS class, are not counted. An agent lists at most
    state.MAX_VIOLATIONS deviations, so that of very many such pods the sum is a lower bound.
    """
    held = 0
    if row is not None and row.draining_pods:
        reasons = states.reasons(row)
        held = sum(each.swap_bytes for each in row.draining_pods if reasons.get(each.pod) in pod_events.FORBID)
    if held:
        HELD.set(held, name)
    else:
        HELD.remove(name)


SILENT = metrics.gauge(
    "swapwarden_controller_nodes_silent",
    "Nodes whose agent acted on a state once and that have no Ready agent now. Every instance has it.",
)
SILENT_BY_NAME = metrics.reading(
    "gauge",
    "swapwarden_controller_node_silent",
    "1 for each node that swapwarden_controller_nodes_silent counts, and nothing for others.",
    labels=("node",),
)


def measure_silent(known: NodeInventory) -> None:
    """Publish the nodes whose agent is silent. A node that never had an agent may be meant to have none."""
    names = [name for name in known.nodes if _had_agent(known, name) and not known.has_agent(name)]
    SILENT.set(len(names))
    SILENT_BY_NAME.hold({(name,): 1.0 for name in names})


def _had_agent(known: NodeInventory, name: str) -> bool:
    # A deleted state is no sign of life.
    row = known.known(name).standing
    return row is not None and row.observed > 0


NODE_EVENT: Final = "MemoryPressureObserved"
POD_EVENT: Final = "WouldBeEvicted"
EVICTION_EVENT: Final = "SwapPressureEviction"


def pressure_notices(
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


def eviction_notices(
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
