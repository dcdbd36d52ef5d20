"""How much memory can still be taken before the kernel's OOM killer ends processes, with swap: its headroom. Pure.

Swap counts as far as something can move there. Free swap is of no use to pods that may not swap, or whose memory has
been swapped already. So each cgroup counts with its anonymous memory, and no more than it and those above may swap.
Pages in zram take memory. The next ones are expected to compress as well as those in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

COMPRESSED: Final = 0.5
"""Memory that zram keeps for each byte that is swapped to it, before it has shown it."""
SHOWN: Final = 1 << 20
"""Bytes in a zram device from which on it shows that."""


class NodeSizes(msgspec.Struct, frozen=True):
    """Of /proc/meminfo and /proc/zoneinfo, in bytes."""

    free: int
    minimum: int
    """The sum of all zones' min watermarks."""
    file: int
    """Active and inactive file pages."""
    slab: int
    """The part that the kernel can reclaim."""
    swap_free: int


class PodsSizes(msgspec.Struct, frozen=True):
    """Of the cgroup above all pods, in bytes."""

    left: int
    """memory.max less memory.current."""
    file: int


class SwapSpace(msgspec.Struct, frozen=True):
    """A swap device; sizes are bytes."""

    free: int
    priority: int = 0
    """The kernel fills devices of higher priority first."""
    original: int = 0
    """Bytes that were swapped to zram; 0 for other devices."""
    used: int = 0
    """Memory that zram uses for them."""
    limit: int = 0
    """Memory that zram may use, after which it takes no more (mem_limit); 0: all."""
    in_memory: bool = False


def freed(devices: Iterable[SwapSpace], size: int) -> int:
    """Return how much memory is free once so many bytes have moved to swap. Unknown devices take no memory."""
    least_first = sorted(devices, key=lambda each: (-each.priority, -_kept(each)))
    gained = 0
    for device in least_first:
        share = _kept(device)
        moved = min(size, device.free)
        size -= moved
        if device.limit and share:
            moved = min(moved, int(max(0, device.limit - device.used) / share))
        gained += int(moved * (1 - share))
    return gained + size


def _kept(device: SwapSpace) -> float:
    """Return how much memory a byte takes that moves to a device, from 0 to 1."""
    if not device.in_memory:
        return 0.0
    return min(1.0, device.used / device.original) if device.original >= SHOWN else COMPRESSED


def of_node(memory: NodeSizes, swappable: int, devices: Iterable[SwapSpace]) -> int:
    """Return the node's headroom in bytes; `swappable` bytes can move to these devices."""
    swap = freed(devices, min(memory.swap_free, swappable))
    return max(0, memory.free - memory.minimum) + memory.file + memory.slab // 2 + swap


def of_pods(pods: PodsSizes, swappable: int) -> int:
    """Return the headroom of all pods below their common limit, in bytes."""
    return max(0, pods.left) + pods.file + swappable
