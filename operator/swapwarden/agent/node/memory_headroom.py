"""How much memory can still be taken before the kernel's OOM killer ends processes, with swap: its headroom. Pure.

Swap counts as far as something can move there. Free swap is of no use to pods that may not swap, or whose memory has
been swapped already. So each cgroup counts with its anonymous memory, and no more than it and those above may swap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

COMPRESSED: Final = 0.5
"""Memory that zram keeps for each byte that is swapped to it, before it has shown it."""
SHOWN: Final = 1 << 20
"""Bytes in a zram device from which on it shows that."""


class NodeSizes(NamedTuple):
    """Of /proc/meminfo and /proc/zoneinfo, in bytes."""

    free: int
    minimum: int
    """The sum of all zones' min watermarks."""
    file: int
    """Active and inactive file pages."""
    slab: int
    """The part that the kernel can reclaim."""
    swap_free: int


class PodsSizes(NamedTuple):
    """Of the cgroup above all pods, in bytes."""

    left: int
    """memory.max less memory.current."""
    file: int


class SwapSpace(NamedTuple):
    """A swap device; sizes are bytes."""

    free: int
    original: int = 0
    """Bytes that were swapped to zram; 0 for other devices."""
    used: int = 0
    """Memory that zram uses for them."""
    in_memory: bool = False


def kept(devices: Iterable[SwapSpace]) -> float:
    """Return how much memory a swapped byte keeps, from 0 to 1: that of each device by its free space."""
    known = list(devices)
    free = sum(each.free for each in known)
    return sum(each.free * _kept(each) for each in known) / free if free else 0.0


def _kept(device: SwapSpace) -> float:
    if not device.in_memory:
        return 0.0
    return min(1.0, device.used / device.original) if device.original >= SHOWN else COMPRESSED


def of_node(memory: NodeSizes, swappable: int, share_kept: float) -> int:
    """Return the node's headroom in bytes; `swappable` bytes can move to swap, and keep this share of memory."""
    swap = min(memory.swap_free, swappable)
    return max(0, memory.free - memory.minimum) + memory.file + memory.slab // 2 + int(swap * (1 - share_kept))


def of_pods(pods: PodsSizes, swappable: int) -> int:
    """Return the headroom of all pods below their common limit, in bytes."""
    return max(0, pods.left) + pods.file + swappable
