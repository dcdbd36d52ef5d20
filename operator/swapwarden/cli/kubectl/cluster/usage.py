"""Who uses how much swap, from what agents, states and metrics.k8s.io say. Pure; sizes are bytes."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from swapwarden.api import names, quantity, state
from swapwarden.cli import wire
from swapwarden.cli.kubectl.cluster import agents
from swapwarden.policy.observed import pods

POD_USED: Final = "swapwarden_pod_swap_usage_bytes"
POD_LIMIT: Final = "swapwarden_pod_swap_limit_bytes"
CONTAINER_USED: Final = "swapwarden_container_swap_usage_bytes"
CONTAINER_LIMIT: Final = "swapwarden_container_swap_limit_bytes"
OF_PODS: Final = frozenset({POD_USED, POD_LIMIT, CONTAINER_USED, CONTAINER_LIMIT})
OTHER: Final = "other"
"""Stands for the pods that an agent does not list: those that use least."""

NODE_TOTAL: Final = "swapwarden_node_swap_total_bytes"
NODE_USED: Final = "swapwarden_node_swap_usage_bytes"
NODE_RESERVED: Final = "swapwarden_node_swap_reserved_bytes"
NODE_ACCESSIBLE: Final = "swapwarden_node_swap_accessible_bytes"
NODE_UNASSIGNED: Final = "swapwarden_node_swap_unassigned_bytes"
NODE_HEADROOM: Final = "swapwarden_node_memory_headroom_bytes"
NODE_STALL: Final = "swapwarden_node_memory_stall_ratio"
OF_NODES: Final = frozenset({NODE_TOTAL, NODE_USED, NODE_RESERVED, NODE_ACCESSIBLE, NODE_UNASSIGNED, NODE_HEADROOM})

Limit = int | Literal["max"] | None
"""In bytes; "max" for no limit; None if unknown."""


class Use(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The usage of something; None where unknown."""

    name: str
    swap_bytes: int | None = None
    cpu_millicores: int | None = None
    memory_bytes: int | None = None
    """Working set, as reported by metrics.k8s.io."""


class LimitedUse(Use, frozen=True, kw_only=True, rename="camel"):
    """Usage and limit of a running container, or of more."""

    limit_bytes: Limit = None


class MemoryUse(msgspec.Struct, frozen=True, rename="camel"):
    """The plan of a pod's memory files, in bytes, and the throttling that its agent reports."""

    protected_bytes: int | None = None
    """memory.low, or memory.min; None if neither is planned."""
    high_bytes: int | None = None
    """memory.high of the pod's cgroup."""
    container_high_bytes: dict[str, int] = {}
    """memory.high of its containers, by name."""
    throttled: int | None = None
    """How many times, the pod and its containers together; 0 if not in the last ten minutes, None if unknown."""
    stalled_milliseconds: int = 0
    """For how long a task stalled meanwhile."""
    guard: str = ""
    """How the guard has raised a memory.high: Stepped, Released or Latched; empty if it has not."""


class PodUse(LimitedUse, frozen=True, kw_only=True, rename="camel"):
    """Usage and limit of a pod and its running containers."""

    namespace: str
    node: str
    policy: str | None = None
    containers: list[LimitedUse] = []
    memory_qos: MemoryUse | None = None
    """None if none is planned, or it was not read."""


class NamespaceUse(LimitedUse, frozen=True, kw_only=True, rename="camel"):
    """Sums over the pods of a namespace: of usage where it is known, None if it is of none.

    Of limits: "max" if a pod has none, None if one is unknown.
    """

    pods: int
    pods_unknown: int = 0
    """Pods of unknown usage."""


class NodeUse(Use, frozen=True, kw_only=True, rename="camel"):
    """The swap usage of a node."""

    total_bytes: int | None = None
    accessible_bytes: int | None = None
    """Available to all pods together."""
    reserved_bytes: int | None = None
    unassigned_bytes: int | None = None
    """Accessible, less the limits of pods."""
    headroom_bytes: int | None = None
    """Memory that can still be taken before an OOM kill, on the node or by its pods: the lower value."""


class _Usage(msgspec.Struct, frozen=True):
    swap: str = ""
    cpu: str = ""
    memory: str = ""


class _MeasuredContainer(msgspec.Struct, frozen=True):
    name: str
    usage: _Usage = _Usage()


class WirePodMetrics(wire.Named, frozen=True):
    """PodMetrics of metrics.k8s.io, as far as it is read; swap is in it where the metrics server reports it."""

    containers: tuple[_MeasuredContainer, ...] = ()


class WireNodeMetrics(wire.Named, frozen=True):
    """NodeMetrics of metrics.k8s.io: the fields that are read."""

    usage: _Usage = _Usage()


class OfAgent:
    """The metrics of one agent about its node's pods."""

    def __init__(self, samples: Iterable[agents.MetricSample]) -> None:
        self._values: dict[tuple[str, str, str], float] = {}
        for sample in samples:
            uid, container = sample.labels.get("pod_uid", ""), sample.labels.get("container_id", "")
            self._values[sample.name, uid, container] = sample.value
        self._lists_all = not self._values.get((POD_USED, OTHER, ""), 0)

    def used(self, uid: str, container: str = "") -> int | None:
        """Return the usage of a listed pod; 0 for other pods where all of these together use nothing."""
        value = self._values.get((CONTAINER_USED if container else POD_USED, uid, container))
        if value is None and not container and self._values and self._lists_all:
            return 0
        return None if value is None or value == math.inf else int(value)

    def limit(self, uid: str, container: str = "") -> Limit:
        """Return the least limit over all that are above."""
        value = self._values.get((CONTAINER_LIMIT if container else POD_LIMIT, uid, container))
        return None if value is None else "max" if value == math.inf else int(value)


def of_pods(
    rows: Iterable[pods.PodRow],
    scraped: Mapping[str, Iterable[agents.MetricSample]],
    states: Mapping[str, state.StateSpec],
    measured: Mapping[tuple[str, str], WirePodMetrics],
) -> list[PodUse]:
    """Return usage and limit of each pod: by its node's agent, else by metrics.k8s.io and the state.

    CPU and memory are those of metrics.k8s.io.
    `scraped` and `states` are by node, `measured` is by namespace and name.
    """
    reported = {node: OfAgent(samples) for node, samples in scraped.items()}
    nothing = OfAgent(())
    return [
        _of_pod(row, reported.get(row.node, nothing), states.get(row.node), measured.get((row.namespace, row.name)))
        for row in rows
    ]


def _of_pod(row: pods.PodRow, agent: OfAgent, spec: state.StateSpec | None, measured: WirePodMetrics | None) -> PodUse:
    usage = {each.name: each.usage for each in measured.containers} if measured else {}
    planned, planned_by_name = _planned(spec, row)
    used, limit = agent.used(row.key), agent.limit(row.key)
    containers = []
    for one in row.containers:
        if not one.id:
            continue
        reported = usage.get(one.name, _Usage())
        # A container uses nothing, and may use nothing, if its pod does.
        own_used = 0 if used == 0 else agent.used(row.key, one.id)
        own_limit = 0 if limit == 0 else agent.limit(row.key, one.id)
        containers.append(
            LimitedUse(
                name=one.name,
                swap_bytes=_bytes(reported.swap) if own_used is None else own_used,
                limit_bytes=planned_by_name.get(one.name) if own_limit is None else own_limit,
                cpu_millicores=_millicores(reported.cpu),
                memory_bytes=_bytes(reported.memory),
            )
        )
    return PodUse(
        namespace=row.namespace,
        name=row.name,
        node=row.node,
        policy=row.policy,
        swap_bytes=_sum(_bytes(each.swap) for each in usage.values()) if used is None else used,
        limit_bytes=planned if limit is None else limit,
        containers=containers,
        cpu_millicores=_sum(_millicores(each.cpu) for each in usage.values()),
        memory_bytes=_sum(_bytes(each.memory) for each in usage.values()),
    )


def _planned(spec: state.StateSpec | None, row: pods.PodRow) -> tuple[Limit, dict[str, Limit]]:
    """Return the limit of a pod by its node's state, and those of its containers by name; None if not enforced.

    Of a container it is the pod's, or its own if less; a value that nobody writes may be anything, such as that of a
    pod where the kubelet decides.
    """
    pod = spec.pods.get(row.key) if spec is not None and spec.mode is names.Mode.ENFORCE else None
    if spec is None or pod is None or state.reason_of(spec, pod) is names.Reason.NODE_INCOMPATIBLE:
        return None, {}
    given = [pod.swap_max or pod.swap_at_most, spec.kubepods.swap_max if spec.kubepods else None]
    whole = least(*(_limit(each or names.MAX_SWAP) for each in given))
    by_name: dict[str, Limit] = {}
    for one in row.containers:
        settings = pod.containers.get(one.name) or pod.container_default
        own = (settings.swap_max or settings.swap_at_most) if settings else None
        by_name[one.name] = 0 if whole == 0 else None if own is None else least(whole, _limit(own))
    return whole if any(given) else None, by_name


def _limit(text: str) -> Limit:
    return "max" if text == names.MAX_SWAP else int(text)


def least(one: Limit, other: Limit) -> Limit:
    """Return the smaller of two limits; None if one is not known."""
    if one is None or other is None:
        return None
    if one == "max" or other == "max":
        return other if one == "max" else one
    return min(one, other)


def _sum(amounts: Iterable[int | None]) -> int | None:
    """Return the sum; None if one is unknown, or if there is none."""
    values = list(amounts)
    return None if not values or None in values else sum(filter(None, values))


def _bytes(text: str) -> int | None:
    try:
        return quantity.capped(text) if text else None
    except quantity.QuantityError:
        return None


def _millicores(text: str) -> int | None:
    """Return millicores, rounded up as in kubectl top."""
    try:
        return -(-quantity.nano(text) // 10**6) if text else None
    except quantity.QuantityError:
        return None


def memory_of(row: pods.PodRow, spec: state.StateSpec | None, status: state.StateStatus) -> MemoryUse | None:
    """Return the memory QoS of a pod; None if its node's state plans none."""
    pod = spec.pods.get(row.key) if spec is not None and spec.mode is names.Mode.ENFORCE else None
    if pod is None:
        return None
    each = {one.name: pod.containers.get(one.name) or pod.container_default for one in row.containers}
    planned = {name: _amount(own.memory_high) for name, own in each.items() if own is not None}
    highs = {name: value for name, value in planned.items() if value is not None}
    high = _amount(pod.memory_high)
    recursive = status.facts is None or status.facts.recursive_protection
    protected = state.protected_bytes(pod, recursive=recursive)
    if not protected and high is None and not highs:
        return None
    reports = [one for one in status.throttled if one.pod == row.key]
    unknown = not reports and (status.throttled_omitted or not status.observed_generation)
    throttles = high is not None or bool(highs)
    return MemoryUse(
        protected_bytes=protected or None,
        high_bytes=high,
        container_high_bytes=highs,
        throttled=None if unknown or not throttles else sum(one.count for one in reports),
        stalled_milliseconds=sum(one.milliseconds for one in reports),
        guard=max((one.guard for one in reports), default="", key=_worse),
    )


_WORST: Final = ("Stepped", "Released", "Latched")


def _worse(guard: str) -> int:
    return _WORST.index(guard) if guard in _WORST else -1


def _amount(value: str | None) -> int | None:
    return None if value is None or value == names.MAX_SWAP else int(value)


def of_namespaces(uses: Iterable[PodUse]) -> list[NamespaceUse]:
    """Return usage and limits by namespace."""
    by_namespace: dict[str, list[PodUse]] = collections.defaultdict(list)
    for each in uses:
        by_namespace[each.namespace].append(each)
    return [_of_namespace(name, of_one) for name, of_one in by_namespace.items()]


def _of_namespace(name: str, uses: Sequence[PodUse]) -> NamespaceUse:
    def known(measure: Callable[[PodUse], int | None]) -> int | None:
        amounts = [each for each in map(measure, uses) if each is not None]
        return sum(amounts) if amounts else None

    limits = [each.limit_bytes for each in uses]
    return NamespaceUse(
        name=name,
        pods=len(uses),
        pods_unknown=sum(each.swap_bytes is None for each in uses),
        swap_bytes=known(lambda each: each.swap_bytes),
        limit_bytes="max" if "max" in limits else _sum(each for each in limits if each != "max"),
        # A pod that has just started has neither yet.
        cpu_millicores=known(lambda each: each.cpu_millicores),
        memory_bytes=known(lambda each: each.memory_bytes),
    )


def of_node(
    name: str, samples: Iterable[agents.MetricSample], total: int | None, measured: WireNodeMetrics | None
) -> NodeUse:
    """Return the swap usage of a node by its agent, else by metrics.k8s.io; `total` is the size by the Node."""
    reported: dict[str, int] = {}
    for sample in samples:
        if 0 <= sample.value < 2**63:
            # The headroom has a value for each scope.
            reported[sample.name] = min(int(sample.value), reported.get(sample.name, 2**63))
    used = reported.get(NODE_USED)
    if used is None and measured is not None:
        used = _bytes(measured.usage.swap)
    return NodeUse(
        name=name,
        swap_bytes=0 if used is None and total == 0 else used,
        total_bytes=reported.get(NODE_TOTAL, total),
        accessible_bytes=reported.get(NODE_ACCESSIBLE),
        reserved_bytes=reported.get(NODE_RESERVED),
        unassigned_bytes=reported.get(NODE_UNASSIGNED),
        headroom_bytes=reported.get(NODE_HEADROOM),
        cpu_millicores=_millicores(measured.usage.cpu) if measured else None,
        memory_bytes=_bytes(measured.usage.memory) if measured else None,
    )
