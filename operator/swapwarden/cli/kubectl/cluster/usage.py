"""Who uses how much swap, from what agents, states and metrics.k8s.io say. Pure; sizes are bytes."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
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
OF_NODES: Final = frozenset({NODE_TOTAL, NODE_USED, NODE_RESERVED, NODE_ACCESSIBLE, NODE_UNASSIGNED})

Limit = int | Literal["max"] | None
"""In bytes; "max" for no limit; None if unknown."""


class ContainerUse(msgspec.Struct, frozen=True, rename="camel"):
    """Usage and limits of a running container; None where unknown."""

    name: str
    swap_bytes: int | None = None
    limit_bytes: Limit = None
    cpu_millicores: int | None = None
    memory_bytes: int | None = None
    """Working set, as reported by metrics.k8s.io."""


class PodUse(msgspec.Struct, frozen=True, rename="camel"):
    """Usage and limits of a pod and its running containers."""

    namespace: str
    name: str
    node: str
    policy: str | None = None
    swap_bytes: int | None = None
    limit_bytes: Limit = None
    containers: list[ContainerUse] = []
    cpu_millicores: int | None = None
    memory_bytes: int | None = None


class NamespaceUse(msgspec.Struct, frozen=True, rename="camel"):
    """Usage and limits of all pods of a namespace together."""

    name: str
    pods: int
    swap_bytes: int | None = None
    """Sum of the pods whose usage is known; None if none is."""
    limit_bytes: Limit = None
    """Sum of all pods' limits; "max" if one has none; None if one is unknown."""
    pods_unknown: int = 0
    """Pods of unknown usage."""
    cpu_millicores: int | None = None
    """As swap_bytes: of the pods whose usage is known; a pod that has just started has none yet."""
    memory_bytes: int | None = None


class NodeUse(msgspec.Struct, frozen=True, rename="camel"):
    """The swap usage of a node; None where unknown."""

    name: str
    swap_bytes: int | None = None
    total_bytes: int | None = None
    accessible_bytes: int | None = None
    """Available to all pods together."""
    reserved_bytes: int | None = None
    unassigned_bytes: int | None = None
    """Accessible, less the limits of pods."""
    cpu_millicores: int | None = None
    memory_bytes: int | None = None


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

    def __init__(self, found: Iterable[agents.MetricSample]) -> None:
        self._values: dict[tuple[str, str, str], float] = {}
        for sample in found:
            uid, container = sample.labels.get("pod_uid", ""), sample.labels.get("container_id", "")
            self._values[sample.name, uid, container] = sample.value
        self._lists_all = not self._values.get((POD_USED, OTHER, ""), 0)

    def used(self, uid: str, container: str = "") -> int | None:
        """Return the usage of a listed pod; 0 for other pods where all of these together use nothing."""
        value = self._values.get((CONTAINER_USED if container else POD_USED, uid, container))
        if value is None and not container and self._values and self._lists_all:
            return 0
        return None if value is None or value == math.inf else int(value)

    def used_in(self, uid: str, container: str) -> int | None:
        """Return the usage of a container: nothing if its pod uses nothing."""
        return 0 if self.used(uid) == 0 else self.used(uid, container)

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
    reported = {node: OfAgent(found) for node, found in scraped.items()}
    nothing = OfAgent(())
    return [
        _of_pod(row, reported.get(row.node, nothing), states.get(row.node), measured.get((row.namespace, row.name)))
        for row in rows
    ]


def _of_pod(row: pods.PodRow, agent: OfAgent, spec: state.StateSpec | None, measured: WirePodMetrics | None) -> PodUse:
    usage = {each.name: each.usage for each in measured.containers} if measured else {}
    planned, planned_by_name = _planned(spec, row)
    containers = []
    for one in row.containers:
        if not one.id:
            continue
        used, reported = agent.used_in(row.key, one.id), usage.get(one.name, _Usage())
        limit = 0 if agent.limit(row.key) == 0 else agent.limit(row.key, one.id)
        containers.append(
            ContainerUse(
                one.name,
                _bytes(reported.swap) if used is None else used,
                planned_by_name.get(one.name) if limit is None else limit,
                _millicores(reported.cpu),
                _bytes(reported.memory),
            )
        )
    used, limit = agent.used(row.key), agent.limit(row.key)
    return PodUse(
        row.namespace,
        row.name,
        row.node,
        row.policy,
        _sum(_bytes(each.swap) for each in usage.values()) if used is None else used,
        planned if limit is None else limit,
        containers,
        _sum(_millicores(each.cpu) for each in usage.values()),
        _sum(_bytes(each.memory) for each in usage.values()),
    )


def _planned(spec: state.StateSpec | None, row: pods.PodRow) -> tuple[Limit, dict[str, Limit]]:
    """Return the limit of a pod by its node's state, and those of its containers by name; None if not enforced.

    Of a container it is the pod's, or its own if less; a value that nobody writes may be anything.
    """
    pod = spec.pods.get(row.key) if spec is not None and spec.mode is names.Mode.ENFORCE else None
    if spec is None or pod is None or pod.swap_max is None:
        return None, {}
    above = spec.kubepods.swap_max if spec.kubepods else None
    whole = least(_limit(pod.swap_max), _limit(above or names.MAX_SWAP))
    by_name: dict[str, Limit] = {}
    for one in row.containers:
        found = pod.containers.get(one.name) or pod.container_default
        own = (found.swap_max or found.swap_at_most) if found else None
        by_name[one.name] = 0 if whole == 0 else None if own is None else least(whole, _limit(own))
    return whole, by_name


def _limit(text: str) -> Limit:
    return "max" if text == names.MAX_SWAP else int(text)


def least(one: Limit, other: Limit) -> Limit:
    """Return the smaller of two limits; None if one is not known."""
    if one is None or other is None:
        return None
    if one == "max" or other == "max":
        return other if one == "max" else one
    return min(one, other)


def _sum(found: Iterable[int | None]) -> int | None:
    """Return the sum; None if one is unknown, or if there is none."""
    values = list(found)
    known = [each for each in values if each is not None]
    return sum(known) if known and len(known) == len(values) else None


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


def of_namespaces(found: Iterable[PodUse]) -> list[NamespaceUse]:
    """Return usage and limits by namespace."""
    by_namespace: dict[str, list[PodUse]] = collections.defaultdict(list)
    for each in found:
        by_namespace[each.namespace].append(each)
    return [_of_namespace(name, uses) for name, uses in by_namespace.items()]


def _of_namespace(name: str, uses: Sequence[PodUse]) -> NamespaceUse:
    known = [each.swap_bytes for each in uses if each.swap_bytes is not None]
    cpu = [each.cpu_millicores for each in uses if each.cpu_millicores is not None]
    memory = [each.memory_bytes for each in uses if each.memory_bytes is not None]
    limits = [each.limit_bytes for each in uses]
    limit: Limit = "max" if "max" in limits else _sum(each for each in limits if each != "max")
    return NamespaceUse(
        name,
        pods=len(uses),
        swap_bytes=sum(known) if known else None,
        limit_bytes=limit,
        pods_unknown=len(uses) - len(known),
        cpu_millicores=sum(cpu) if cpu else None,
        memory_bytes=sum(memory) if memory else None,
    )


def of_node(
    name: str, found: Iterable[agents.MetricSample], total: int | None, measured: WireNodeMetrics | None
) -> NodeUse:
    """Return the swap usage of a node by its agent, else by metrics.k8s.io; `total` is the size by the Node."""
    reported = {sample.name: int(sample.value) for sample in found if sample.value < 2**63}
    used = reported.get(NODE_USED)
    if used is None and measured is not None:
        used = _bytes(measured.usage.swap)
    return NodeUse(
        name,
        swap_bytes=0 if used is None and total == 0 else used,
        total_bytes=reported.get(NODE_TOTAL, total),
        accessible_bytes=reported.get(NODE_ACCESSIBLE),
        reserved_bytes=reported.get(NODE_RESERVED),
        unassigned_bytes=reported.get(NODE_UNASSIGNED),
        cpu_millicores=_millicores(measured.usage.cpu) if measured else None,
        memory_bytes=_bytes(measured.usage.memory) if measured else None,
    )
