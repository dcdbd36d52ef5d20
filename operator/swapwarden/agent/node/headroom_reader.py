"""Reads how much memory can still be taken before the kernel's OOM killer ends processes, with swap: the headroom.

Swap counts as far as something can move there. Free swap is of no use to pods that may not swap, or whose memory has
been swapped already. So each cgroup counts with its anonymous memory, and no more than it and those above may swap.
Pages in zram take memory. The next ones are expected to compress as well as those in it.

Nothing is kept but the watermarks, for some seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import pathlib
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs, files
from swapwarden.agent.inventory import inventory, records
from swapwarden.agent.node import node_info
from swapwarden.api import names, state
from swapwarden.telemetry import metrics

HEADROOM = metrics.reading(
    "gauge",
    "swapwarden_node_memory_headroom_bytes",
    "Memory that can still be taken before the OOM killer ends processes, by scope: node, and pods where all together"
    " have a limit. It is free memory, the page cache and what can be swapped: of each pod no more than it holds and"
    " may swap.",
    labels=("scope",),
)

COMPRESSED: Final = 0.5
"""Memory that zram keeps for each byte that is swapped to it, before it has shown it."""
SHOWN: Final = 1 << 20
"""Bytes in a zram device from which on it shows that."""
Sizes = dict[names.PressureScope, int]
"""Bytes by scope, without scopes that cannot be read."""
TURN_SECONDS: Final = 0.001
"""How long files are read before other work gets a turn."""
WATERMARK_SECONDS: Final = 60.0
"""How long the watermarks count as the same: /proc/zoneinfo has some lines for each CPU in each zone."""
_CONTAINERS: Final = 64
"""Most containers of a pod that are read."""
_TOP: Final = 64
"""Most top-level cgroups beside that of pods that are read."""
_ZRAM: Final = re.compile(r"/dev/(zram[0-9]{1,4})", re.ASCII)
_SIZE: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_PRIORITY: Final = re.compile(r"-?[0-9]{1,5}", re.ASCII)
_NEEDED: Final = ("MemFree", "Active(file)", "Inactive(file)", "SwapFree")


class NodeSizes(msgspec.Struct, frozen=True):
    """Sizes of a node in bytes, from /proc/meminfo and /proc/zoneinfo."""

    free: int
    minimum: int
    """The sum of all zones' min watermarks."""
    file: int
    """Active and inactive file pages."""
    slab: int
    """The part that the kernel can reclaim."""
    swap_free: int


class PodsSizes(msgspec.Struct, frozen=True):
    """Sizes of the cgroup above all pods, in bytes."""

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


def node_headroom(memory: NodeSizes, swappable: int, devices: Iterable[SwapSpace]) -> int:
    """Return the node's headroom in bytes; `swappable` bytes can move to these devices."""
    swap = freed(devices, min(memory.swap_free, swappable))
    return max(0, memory.free - memory.minimum) + memory.file + memory.slab // 2 + swap


def pods_headroom(pods: PodsSizes, swappable: int) -> int:
    """Return the headroom of all pods below their common limit, in bytes."""
    return max(0, pods.left) + pods.file + swappable


class _Read(msgspec.Struct, frozen=True):
    """The sizes from which the headroom follows, but for what can be swapped."""

    memory: NodeSizes
    root: str | None
    """The cgroup above all pods."""
    pods: PodsSizes | None
    """Sizes of the cgroup above all pods; None if it has no limit."""


class Turn:
    """Work between two turns of others: a repair must not wait for it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()

    async def pause(self) -> None:
        """Give other work a turn if this has lasted long enough."""
        if self._clock() - self._began >= TURN_SECONDS:
            await asyncio.sleep(0)
            self._began = self._clock()


class HeadroomReader:
    """Reads the node's headroom. Not thread-safe: only the event loop may use it."""

    def __init__(
        self,
        cgroups: cgroupfs.Cgroups,
        proc: pathlib.Path,
        block: pathlib.Path,
        known: inventory.Inventory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`block` is /sys/block."""
        self._fs = cgroups
        self._proc = proc
        self._block = block
        self._known = known
        self._clock = clock
        self._minimum = 0
        self._minimum_at = -math.inf

    def without_swap(self) -> Sizes:
        """Return the headroom without what can be swapped: some files, whatever the number of pods."""
        reading = self._read()
        return {} if reading is None else _sizes(reading, 0, 0, ())

    async def read(self, pause: Callable[[], Awaitable[None]]) -> Sizes:
        """Return the headroom; `pause` lets other work run."""
        reading = self._read()
        if reading is None:
            return {}
        left: dict[str, int] = {}
        of_pods = 0
        for pod in list(self._known.pods.values()):
            of_pods += self._pod(pod, left)
            await pause()
        if reading.root is not None:
            of_pods = min(of_pods, self._left(reading.root, left))
        of_pods = min(of_pods, reading.memory.swap_free)
        devices = swap_space(self._proc, self._block)
        return _sizes(reading, of_pods, self._others(reading.root, left), devices)

    def _read(self) -> _Read | None:
        sizes = node_info.meminfo(files.text(self._proc / "meminfo") or "")
        now = self._clock()
        if now - self._minimum_at >= WATERMARK_SECONDS:
            zones = node_info.zones(self._proc, self._fs.page)
            self._minimum, self._minimum_at = zones.minimum, now if zones.low else -math.inf
        if self._minimum_at == -math.inf or any(name not in sizes for name in _NEEDED):
            return None
        memory = NodeSizes(
            free=sizes["MemFree"],
            minimum=self._minimum,
            file=sizes["Active(file)"] + sizes["Inactive(file)"],
            slab=sizes.get("SReclaimable", 0),
            swap_free=sizes["SwapFree"],
        )
        root = self._known.root_path
        return _Read(memory, root, None if root is None else self._limited(root))

    def _pod(self, pod: records.Pod, left: dict[str, int]) -> int:
        """Return the bytes of a pod that can move to swap: its containers may have limits of their own."""
        most = self._left(pod.path, left)
        if most <= 0:
            return 0
        paths = [each.path for each in itertools.islice(pod.containers.values(), _CONTAINERS)] or [pod.path]
        return min(most, sum(self._swappable(path, left) for path in paths))

    def _others(self, root: str | None, left: dict[str, int]) -> int:
        top = None if root is None else root.partition("/")[0]
        names = [name for name in self._fs.dirs("") if name != top]
        return sum(self._swappable(name, left) for name in names[:_TOP])

    def _swappable(self, path: str, left: dict[str, int]) -> int:
        most = self._left(path, left)
        if most <= 0:
            return 0
        try:
            stat = self._fs.stat(path)
        except cgroupfs.CgroupError:
            return 0
        return min(most, stat.active_anon + stat.inactive_anon)

    def _left(self, path: str, known: dict[str, int]) -> int:
        """Return the swap that a cgroup and those above it leave to it: 0 or less for none."""
        if not path:
            return cgroupfs.NO_LIMIT
        if path not in known:
            limit, used = (self._fs.number(path, file) for file in (cgroupfs.SWAP_MAX, cgroupfs.SWAP_CURRENT))
            own = cgroupfs.NO_LIMIT if limit is None or limit >= cgroupfs.NO_LIMIT else limit - (used or 0)
            known[path] = min(own, self._left(path.rpartition("/")[0], known))
        return known[path]

    def _limited(self, root: str) -> PodsSizes | None:
        limit, used = (self._fs.number(root, file) for file in (cgroupfs.MEMORY_MAX, cgroupfs.MEMORY_CURRENT))
        if limit is None or used is None or limit >= cgroupfs.NO_LIMIT:
            return None
        try:
            stat = self._fs.stat(root)
        except cgroupfs.CgroupError:
            return None
        return PodsSizes(limit - used, stat.active_file + stat.inactive_file)


def _sizes(reading: _Read, of_pods: int, others: int, devices: Iterable[SwapSpace]) -> Sizes:
    sizes = {names.PressureScope.NODE: node_headroom(reading.memory, of_pods + others, devices)}
    if reading.pods is not None:
        sizes[names.PressureScope.PODS] = pods_headroom(reading.pods, of_pods)
    return sizes


def swap_space(proc: pathlib.Path, block: pathlib.Path) -> list[SwapSpace]:
    """Return the free space of the swap devices, and the memory that zram takes; invalid lines are skipped."""
    devices = []
    for line in (files.text(proc / "swaps") or "").splitlines()[1 : state.MAX_DEVICES + 1]:
        words = line.split()
        if len(words) < 5 or not (all(map(_SIZE.fullmatch, words[2:4])) and _PRIORITY.fullmatch(words[4])):
            continue
        device = SwapSpace(max(0, int(words[2]) - int(words[3])) * 1024, int(words[4]))
        if match := _ZRAM.fullmatch(words[0]):
            # Original, compressed, used and most allowed bytes (Documentation/admin-guide/blockdev/zram.rst).
            words = (files.text(block / match[1] / "mm_stat") or "").split()[:4]
            sizes = [int(word) for word in words if _SIZE.fullmatch(word)]
            original, _, used, limit = sizes if len(sizes) == 4 else (0, 0, 0, 0)
            device = msgspec.structs.replace(device, original=original, used=used, limit=limit, in_memory=True)
        devices.append(device)
    return devices
