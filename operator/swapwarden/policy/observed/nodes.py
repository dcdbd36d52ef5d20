"""Nodes: the fields that are read, and the facts that decisions use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from swapwarden.api import names, quantity, state

TELLS_SWAP: Final = (1, 33)
"""The first version of kubelets that report swap in nodeInfo.swap (k/k: pkg/kubelet/nodestatus/setters.go)."""


class WireSwap(msgspec.Struct, frozen=True):
    """status.nodeInfo.swap of a Node; absent without swap."""

    capacity: int = 0


class WireNodeInfo(msgspec.Struct, frozen=True, rename="camel"):
    """status.nodeInfo of a Node: the fields that are read."""

    swap: WireSwap = WireSwap()
    kubelet_version: str = ""


class WireCapacity(msgspec.Struct, frozen=True):
    """status.capacity of a Node: the fields that are read."""

    memory: str | int | float = 0
    swap: str | int | float | None = msgspec.field(default=None, name=names.SWAP_RESOURCE)


class WireNodeCondition(msgspec.Struct, frozen=True):
    """A condition of a Node: the fields that are read."""

    type: str = ""
    status: str = ""


class WireNodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    """Status of a Node: the fields that are read."""

    node_info: WireNodeInfo = WireNodeInfo()
    capacity: WireCapacity = WireCapacity()
    conditions: list[WireNodeCondition] = []


class WireNodeMeta(msgspec.Struct, frozen=True, rename="camel"):
    """Metadata of a Node: the fields that are read."""

    name: str
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    resource_version: str = ""


class WireTaint(msgspec.Struct, frozen=True):
    """A taint of a Node: the fields that are read."""

    key: str = ""
    effect: str = ""


class WireNodeSpec(msgspec.Struct, frozen=True):
    """Spec of a Node: the fields that are read."""

    taints: list[WireTaint] = []


class WireNode(msgspec.Struct, frozen=True):
    """A Node as received from the API server or read from a file."""

    metadata: WireNodeMeta
    spec: WireNodeSpec = WireNodeSpec()
    status: WireNodeStatus = WireNodeStatus()


class NodeRow(msgspec.Struct, frozen=True):
    """A row of a Node. Capacities in bytes, 0 if the Node has none."""

    name: str
    uid: str
    labels: dict[str, str]
    swap_bytes: int
    memory_bytes: int
    nfd: frozenset[str] = frozenset()
    """Published labels that Node Feature Discovery has set on the Node, and owns."""
    taints: tuple[WireTaint, ...] = ()
    reports_swap: bool = False
    """Whether its kubelet reports how much swap the node had when it started."""
    swap_resource: int | None = None
    """The node's offer of the extended resource, in bytes; None if it has none."""
    memory_pressure: bool = False
    """Whether the kubelet has less memory than its threshold for evictions, or had within some minutes."""

    def place(self, key: str) -> int | None:
        """Return the index of a taint; None if the node has none of that key."""
        return next((number for number, taint in enumerate(self.taints) if taint.key == key), None)


class NodeFacts(msgspec.Struct, frozen=True):
    """The facts for decisions about a node's pods; sizes in bytes."""

    compatible: bool
    """Whether pods' cgroups have memory.swap.max: cgroup v2 with the swap controller."""
    swap_bytes: int
    memory_bytes: int
    page_size: int = 4096
    devices: tuple[state.SwapDevice, ...] = ()
    """The devices of the swap; empty if unknown."""
    kubelet_swap_bytes: int | None = None
    """The node's swap when the kubelet started, in bytes, if it differs from what the agent observes now; else None."""
    kernel_release: str = ""
    """The release of the node's kernel; empty if it is not known."""
    tmpfs_noswap: bool = False
    """Whether the kubelet is known to keep tmpfs volumes out of swap."""
    recursive_protection: bool = True
    """Whether cgroups are mounted with memory_recursiveprot, as systemd does."""
    reported: bool = True
    """Whether an agent observed these facts. Those that the Node alone does not hold are unknown, not missing."""


def project(wire: WireNode) -> NodeRow:
    """Reduce a Node to its row. QuantityError if a capacity is no quantity."""
    offered = wire.status.capacity.swap
    return NodeRow(
        name=wire.metadata.name,
        uid=wire.metadata.uid,
        labels=wire.metadata.labels,
        swap_bytes=max(0, wire.status.node_info.swap.capacity),
        memory_bytes=quantity.capped(str(wire.status.capacity.memory)),
        nfd=frozenset(
            label
            for key, features in wire.metadata.annotations.items()
            if key.endswith(names.NFD_OWNS_ANNOTATION)
            for label in _labels(features)
            if label in names.PUBLIC_LABELS
        ),
        taints=tuple(wire.spec.taints),
        reports_swap=_reports_swap(wire.status.node_info),
        swap_resource=None if offered is None else quantity.capped(str(offered)),
        memory_pressure=any(one.type == "MemoryPressure" and one.status == "True" for one in wire.status.conditions),
    )


def _reports_swap(info: WireNodeInfo) -> bool:
    """Return whether the kubelet reports swap. All omit it if there is none; those before TELLS_SWAP always do."""
    version = re.match(r"v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", info.kubelet_version, re.ASCII)
    return info.swap.capacity > 0 or (version is not None and (int(version[1]), int(version[2])) >= TELLS_SWAP)


def quantities(wire: WireNode) -> Iterator[tuple[str, str]]:
    """Yield the capacities that are read, with their paths, to check those of a Node from a file."""
    capacity = wire.status.capacity
    yield "status.capacity.memory", str(capacity.memory)
    if capacity.swap is not None:
        yield f"status.capacity[{names.SWAP_RESOURCE}]", str(capacity.swap)


def _labels(features: str) -> Iterator[str]:
    """Yield the labels that Node Feature Discovery lists; it lists those of its own domain without the domain."""
    for feature in features.split(","):
        yield feature if "/" in feature else f"{names.NFD_DOMAIN}/{feature}"


def facts(node: NodeRow, reported: state.Facts | None = None) -> NodeFacts:
    """Return the agent's facts if it has reported; else the Node's, with the node assumed to be compatible."""
    if reported is None:
        return NodeFacts(compatible=True, swap_bytes=node.swap_bytes, memory_bytes=node.memory_bytes, reported=False)
    return NodeFacts(
        compatible=reported.cgroup_version == 2 and reported.swap_controller,
        swap_bytes=reported.swap_bytes,
        memory_bytes=reported.memory_bytes,
        page_size=reported.page_size,
        devices=tuple(reported.devices),
        kubelet_swap_bytes=node.swap_bytes if node.reports_swap and node.swap_bytes != reported.swap_bytes else None,
        kernel_release=reported.kernel_release,
        tmpfs_noswap=reported.tmpfs_noswap,
        recursive_protection=reported.recursive_protection,
    )
