"""What is known of a node: the part of the Node object that is read, and the facts that decisions are made from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from swapwarden.api import names, state
from swapwarden.policy import quantity

TELLS_SWAP: Final = (1, 33)
"""From this version on kubelets report swap in nodeInfo.swap (k/k: pkg/kubelet/nodestatus/setters.go)."""


class WireSwap(msgspec.Struct, frozen=True):
    """status.nodeInfo.swap of a Node; without swap there is none."""

    capacity: int = 0


class WireNodeInfo(msgspec.Struct, frozen=True, rename="camel"):
    """status.nodeInfo of a Node, as far as it is read."""

    swap: WireSwap = WireSwap()
    kubelet_version: str = ""


class WireCapacity(msgspec.Struct, frozen=True):
    """status.capacity of a Node, as far as it is read."""

    memory: str | int | float = 0
    swap: str | int | float | None = msgspec.field(default=None, name=names.SWAP_RESOURCE)


class WireNodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    """Status of a Node, as far as it is read."""

    node_info: WireNodeInfo = WireNodeInfo()
    capacity: WireCapacity = WireCapacity()


class WireNodeMeta(msgspec.Struct, frozen=True, rename="camel"):
    """Metadata of a Node, as far as it is read."""

    name: str
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    resource_version: str = ""


class WireTaint(msgspec.Struct, frozen=True):
    """A taint of a Node, as far as it is read."""

    key: str = ""
    effect: str = ""


class WireNodeSpec(msgspec.Struct, frozen=True):
    """Spec of a Node, as far as it is read."""

    taints: list[WireTaint] = []


class WireNode(msgspec.Struct, frozen=True):
    """A Node as it comes from the API server or from a file."""

    metadata: WireNodeMeta
    spec: WireNodeSpec = WireNodeSpec()
    status: WireNodeStatus = WireNodeStatus()


class NodeRow(msgspec.Struct, frozen=True):
    """A Node in the form in which it is kept. Capacities in bytes, 0 where the Node says nothing."""

    name: str
    uid: str
    labels: dict[str, str]
    swap_bytes: int
    memory_bytes: int
    nfd: frozenset[str] = frozenset()
    """Those of the labels that are published which Node Feature Discovery has set here, and keeps as its own."""
    taints: tuple[WireTaint, ...] = ()
    tells_swap: bool = False
    """Whether its kubelet is one that says how much swap it found when it started."""
    swap_resource: int | None = None
    """What the node offers of the extended resource, in bytes; None where it has none of it."""

    def place(self, key: str) -> int | None:
        """Where a taint stands among the node's; None where it has none of that key."""
        return next((number for number, taint in enumerate(self.taints) if taint.key == key), None)


class NodeFacts(msgspec.Struct, frozen=True):
    """What decisions about a node's pods are made from; sizes in bytes."""

    compatible: bool
    """Whether pods' cgroups have memory.swap.max: cgroup v2 with the swap controller."""
    swap_bytes: int
    memory_bytes: int
    page_size: int = 4096
    devices: tuple[state.SwapDevice, ...] = ()
    """What the swap is on; empty where that is not known."""
    kubelet_swap_bytes: int | None = None
    """What the kubelet found when it started, where it is not what the agent sees now; None elsewhere."""
    kernel: str = ""
    """Its release; empty where that is not known."""
    tmpfs_noswap: bool = False
    """Whether the kubelet is known to keep tmpfs volumes out of swap."""
    reported: bool = True
    """Whether an agent found this. What the Node alone does not say is not known, rather than missing."""


def project(wire: WireNode) -> NodeRow:
    """Reduce a Node to its row. QuantityError where a capacity is no quantity."""
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
        tells_swap=_tells_swap(wire.status.node_info),
        swap_resource=None if offered is None else quantity.capped(str(offered)),
    )


def _tells_swap(info: WireNodeInfo) -> bool:
    """Kubelets leave nodeInfo.swap out where they found none, and those before TELLS_SWAP always do."""
    version = re.match(r"v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", info.kubelet_version, re.ASCII)
    return info.swap.capacity > 0 or (version is not None and (int(version[1]), int(version[2])) >= TELLS_SWAP)


def quantities(wire: WireNode) -> Iterator[tuple[str, str]]:
    """Yield the capacities that are read, with their paths, to check those of a Node from a file."""
    capacity = wire.status.capacity
    yield "status.capacity.memory", str(capacity.memory)
    if capacity.swap is not None:
        yield f"status.capacity[{names.SWAP_RESOURCE}]", str(capacity.swap)


def _labels(features: str) -> Iterator[str]:
    """The labels that Node Feature Discovery lists; those of its own domain stand there without it."""
    for feature in features.split(","):
        yield feature if "/" in feature else f"{names.NFD_DOMAIN}/{feature}"


def facts(node: NodeRow, found: state.Facts | None = None) -> NodeFacts:
    """What the agent found, where it reported already; else what the Node says, taken for compatible."""
    if found is None:
        return NodeFacts(compatible=True, swap_bytes=node.swap_bytes, memory_bytes=node.memory_bytes, reported=False)
    return NodeFacts(
        compatible=found.cgroup_version == 2 and found.swap_controller,
        swap_bytes=found.swap_bytes,
        memory_bytes=found.memory_bytes,
        page_size=found.page_size,
        devices=tuple(found.devices),
        kubelet_swap_bytes=node.swap_bytes if node.tells_swap and node.swap_bytes != found.swap_bytes else None,
        kernel=found.kernel,
        tmpfs_noswap=found.tmpfs_noswap,
    )
