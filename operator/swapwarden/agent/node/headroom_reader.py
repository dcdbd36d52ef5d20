"""Reads the headroom of a node's memory. Nothing is kept but the watermarks, for some seconds."""

from __future__ import annotations

import asyncio
import itertools
import math
import pathlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs, files
from swapwarden.agent.inventory import inventory, records
from swapwarden.agent.node import memory_headroom, node_info, swap_devices
from swapwarden.api import names
from swapwarden.telemetry import metrics

HEADROOM = metrics.reading(
    "gauge",
    "swapwarden_node_memory_headroom_bytes",
    "Memory that can still be taken before the OOM killer ends processes, by scope: node, and pods where all together"
    " have a limit. It is free memory, the page cache and what can be swapped: of each pod no more than it holds and"
    " may swap.",
    labels=("scope",),
)
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
_NEEDED: Final = ("MemFree", "Active(file)", "Inactive(file)", "SwapFree")


class _Read(msgspec.Struct, frozen=True):
    """The sizes from which the headroom follows, but for what can be swapped."""

    memory: memory_headroom.NodeSizes
    root: str | None
    """The cgroup above all pods."""
    pods: memory_headroom.PodsSizes | None
    """None if it has no limit."""


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
    """Not thread-safe: only the event loop may use it."""

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
        found = self._read()
        return {} if found is None else _sizes(found, 0, 0, ())

    async def read(self, pause: Callable[[], Awaitable[None]]) -> Sizes:
        """Return the headroom; `pause` lets other work run."""
        found = self._read()
        if found is None:
            return {}
        left: dict[str, int] = {}
        of_pods = 0
        for pod in list(self._known.pods.values()):
            of_pods += self._pod(pod, left)
            await pause()
        if found.root is not None:
            of_pods = min(of_pods, self._left(found.root, left))
        of_pods = min(of_pods, found.memory.swap_free)
        devices = swap_devices.space(self._proc, self._block)
        return _sizes(found, of_pods, self._others(found.root, left), devices)

    def _read(self) -> _Read | None:
        sizes = node_info.meminfo(files.text(self._proc / "meminfo") or "")
        now = self._clock()
        if now - self._minimum_at >= WATERMARK_SECONDS:
            zones = node_info.zones(self._proc, self._fs.page)
            self._minimum, self._minimum_at = zones.minimum, now if zones.low else -math.inf
        if self._minimum_at == -math.inf or any(name not in sizes for name in _NEEDED):
            return None
        memory = memory_headroom.NodeSizes(
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

    def _limited(self, root: str) -> memory_headroom.PodsSizes | None:
        limit, used = (self._fs.number(root, file) for file in (cgroupfs.MEMORY_MAX, cgroupfs.MEMORY_CURRENT))
        if limit is None or used is None or limit >= cgroupfs.NO_LIMIT:
            return None
        try:
            stat = self._fs.stat(root)
        except cgroupfs.CgroupError:
            return None
        return memory_headroom.PodsSizes(limit - used, stat.active_file + stat.inactive_file)


def _sizes(found: _Read, of_pods: int, others: int, devices: Iterable[memory_headroom.SwapSpace]) -> Sizes:
    sizes = {names.PressureScope.NODE: memory_headroom.of_node(found.memory, of_pods + others, devices)}
    if found.pods is not None:
        sizes[names.PressureScope.PODS] = memory_headroom.of_pods(found.pods, of_pods)
    return sizes
