"""What is known of a node: the part of the Node object that is read, and the facts that decisions are made from."""

from __future__ import annotations

import msgspec

from swapwarden.api import names, state
from swapwarden.policy import quantity


class WireSwap(msgspec.Struct, frozen=True):
    """status.nodeInfo.swap of a Node; without swap there is none."""

    capacity: int = 0


class WireNodeInfo(msgspec.Struct, frozen=True):
    """status.nodeInfo of a Node, as far as it is read."""

    swap: WireSwap = WireSwap()


class WireCapacity(msgspec.Struct, frozen=True):
    """status.capacity of a Node, as far as it is read."""

    memory: str | int | float = 0


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
    nfd: bool = False
    """Whether Node Feature Discovery says here that swap is on."""
    startup_taint: int | None = None
    """Where the startup taint stands among the node's taints; None where it has none."""


class NodeFacts(msgspec.Struct, frozen=True):
    """What decisions about a node's pods are made from; sizes in bytes."""

    compatible: bool
    """Whether pods' cgroups have memory.swap.max: cgroup v2 with the swap controller."""
    swap_bytes: int
    memory_bytes: int
    page_size: int = 4096


def project(wire: WireNode) -> NodeRow:
    """Reduce a Node to its row. QuantityError where the memory capacity is no quantity."""
    return NodeRow(
        name=wire.metadata.name,
        uid=wire.metadata.uid,
        labels=wire.metadata.labels,
        swap_bytes=max(0, wire.status.node_info.swap.capacity),
        memory_bytes=quantity.capped(str(wire.status.capacity.memory)),
        nfd=any(
            key.endswith(names.NFD_OWNS_ANNOTATION) and names.NFD_SWAP_FEATURE in features.split(",")
            for key, features in wire.metadata.annotations.items()
        ),
        startup_taint=next(
            (number for number, taint in enumerate(wire.spec.taints) if taint.key == names.STARTUP_TAINT), None
        ),
    )


def facts(node: NodeRow, found: state.Facts | None = None) -> NodeFacts:
    """What the agent found, where it reported already; else what the Node says, taken for compatible."""
    if found is None:
        return NodeFacts(compatible=True, swap_bytes=node.swap_bytes, memory_bytes=node.memory_bytes)
    return NodeFacts(
        compatible=found.cgroup_version == 2 and found.swap_controller,
        swap_bytes=found.swap_bytes,
        memory_bytes=found.memory_bytes,
        page_size=found.page_size,
    )
