"""Decides which is first when a node runs out of memory: swapping, an eviction, or an OOM kill.

The kubelet compares two sizes with evictionHard's memory.available. The first is the node's memory less anonymous and
file pages, plus inactive file pages: memory that only the kernel uses counts as available (opencontainers/cgroups:
fs2/memory.go). The second is what the working set of all pods leaves of the limit above them (k/k:
pkg/kubelet/eviction/helpers.go).

Both are estimated for two moments: when the kernel begins to swap, and when it kills. Before the first it drops file
pages, so none of these count then. Kernel memory and the memory beside pods are taken as they are now. A verdict other
than SWAP is certain under these terms: of reclaimable slab, each counts what contradicts it. A real kernel swapped
up to 216 MiB earlier, perhaps before its file pages had gone. So a threshold in between has a verdict and may be right.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import msgspec

_DRIFT: Final = 8
"""A size that changed by less than this part of it counts as the same."""
_LITTLE: Final = 16 << 20
"""Bytes by which any size may change and count as the same."""


class PodsMemory(msgspec.Struct, frozen=True):
    """Memory sizes of the cgroup above all pods, in bytes."""

    limit: int
    """memory.max."""
    working_set: int
    """memory.current less inactive file pages."""


class NodeMemory(msgspec.Struct, frozen=True):
    """How a node's memory is used, in bytes."""

    total: int
    free: int
    """Free memory, with the lists of processors, which empty as memory runs out."""
    inactive_file: int
    kernel: int
    """Neither free, anonymous nor file pages."""
    slab: int
    """The part of it that the kernel can reclaim."""
    minimum: int
    """The sum of all zones' min watermarks."""
    low: int
    """The sum of their low watermarks: kswapd then starts."""
    pods: PodsMemory | None = None
    """Memory of all pods; None if it has no limit."""


class FirstEvent(enum.Enum):
    """Events on a node that runs out of memory."""

    SWAP = enum.auto()
    """Swapping, then an eviction."""
    NODE_EVICTION = enum.auto()
    """An eviction by the node's memory, before the kernel swaps."""
    PODS_EVICTION = enum.auto()
    """An eviction by the limit of all pods, before the kernel swaps."""
    OOM_KILLER = enum.auto()
    """The kernel's OOM killer: the kubelet never evicts."""


class EvictionOrder(msgspec.Struct, frozen=True):
    """The first event, and the sizes in bytes that decide it."""

    first: FirstEvent
    threshold: int
    """The kubelet evicts below this size of memory.available; 0: never."""
    swaps: int
    """The kernel swaps below this size of memory.available."""
    kills: int
    """Size of memory.available below which the kernel certainly kills."""
    safe: int
    """The least threshold with which the kubelet certainly evicts before that."""
    pods_threshold: int = 0
    """The kubelet evicts above this working set of all pods."""
    pods_swap: int = 0
    """The kernel swaps above this working set of all pods."""
    reserved: int = 0
    """Memory that the limit of all pods leaves to the rest of the node."""
    reservable: int = 0
    """The most that may be reserved for pods to swap before they are evicted."""


def steady(before: NodeMemory | None, now: NodeMemory | None) -> NodeMemory | None:
    """Return `now`, or `before` if only sizes that change all the time differ from it, and little."""
    if before is None or now is None or _fixed(before) != _fixed(now):
        return now
    sizes = zip(_drifting(before), _drifting(now), strict=True)
    return before if all(abs(new - old) <= max(old // _DRIFT, _LITTLE) for old, new in sizes) else now


def _fixed(memory: NodeMemory) -> tuple[int | None, ...]:
    return memory.total, memory.minimum, memory.low, None if memory.pods is None else memory.pods.limit


def _drifting(memory: NodeMemory) -> tuple[int, ...]:
    of_pods = 0 if memory.pods is None else memory.pods.working_set
    return memory.kernel, memory.slab, memory.total - memory.free - memory.inactive_file - of_pods


def find(memory: NodeMemory, threshold: Callable[[int], int | None], *, limits_pods: bool) -> EvictionOrder | None:
    """Return the first event; None if the threshold is invalid.

    `threshold` returns the kubelet's threshold on this much memory: 0 if it has none, None if it is invalid.
    `limits_pods`: whether the kubelet enforces the limit of all pods.
    """
    of_node = threshold(memory.total)
    if of_node is None:
        return None
    order = EvictionOrder(
        FirstEvent.SWAP,
        threshold=of_node,
        swaps=memory.low + memory.kernel,
        kills=memory.minimum + max(0, memory.kernel - memory.slab),
        safe=memory.minimum + memory.kernel,
    )
    pods = memory.pods if limits_pods else None
    of_pods = 0 if pods is None else threshold(pods.limit) or 0
    if pods is None or not of_pods:
        return msgspec.structs.replace(order, first=_of_node(order))
    usable = memory.free + memory.inactive_file
    order = msgspec.structs.replace(
        order,
        pods_threshold=max(0, pods.limit - of_pods),
        pods_swap=pods.working_set + max(0, usable - memory.low),
        reserved=max(0, memory.total - pods.limit),
    )
    order = msgspec.structs.replace(order, reservable=max(0, memory.total - of_pods - order.pods_swap))
    if order.pods_threshold >= order.pods_swap:
        kills = pods.working_set + max(0, usable + memory.slab - memory.minimum)
        by_pods = order.pods_threshold < kills
        first = _of_node(order)
        return msgspec.structs.replace(
            order, first=FirstEvent.SWAP if by_pods and first is FirstEvent.OOM_KILLER else first
        )
    # Whichever the growth of pods reaches first.
    to_node = usable + memory.kernel - of_node
    if of_node > order.swaps and to_node < order.pods_threshold - pods.working_set:
        return msgspec.structs.replace(order, first=FirstEvent.NODE_EVICTION)
    return msgspec.structs.replace(order, first=FirstEvent.PODS_EVICTION)


def _of_node(order: EvictionOrder) -> FirstEvent:
    """Return the first event without a limit of all pods."""
    if order.threshold > order.swaps:
        return FirstEvent.NODE_EVICTION
    return FirstEvent.OOM_KILLER if order.threshold < order.kills else FirstEvent.SWAP
