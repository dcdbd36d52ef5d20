"""Reads the headroom of a node's memory when metrics are scraped. Nothing is kept between scrapes."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Awaitable, Callable
from typing import Final

from swapwarden.agent.host import cgroupfs, files
from swapwarden.agent.inventory import inventory, records
from swapwarden.agent.node import memory_headroom, node_info, swap_devices
from swapwarden.telemetry import metrics

HEADROOM = metrics.reading(
    "gauge",
    "swapwarden_node_memory_headroom_bytes",
    "Memory that can still be taken before the OOM killer ends processes, by scope: node, and pods where all together"
    " have a limit. It is free memory, the page cache and what can be swapped: of each pod no more than it holds and"
    " may swap.",
    labels=("scope",),
)
NODE: Final = "node"
PODS: Final = "pods"
"""The values of the label scope."""
_CONTAINERS: Final = 64
"""Most containers of a pod that are read."""
_TOP: Final = 64
"""Most top-level cgroups beside that of pods that are read."""
_NEEDED: Final = ("MemFree", "Active(file)", "Inactive(file)", "SwapFree")


class HeadroomReader:
    """Not thread-safe: only the event loop may use it."""

    def __init__(
        self, cgroups: cgroupfs.Cgroups, proc: pathlib.Path, block: pathlib.Path, known: inventory.Inventory
    ) -> None:
        """`block` is /sys/block."""
        self._fs = cgroups
        self._proc = proc
        self._block = block
        self._known = known

    async def read(self, pause: Callable[[], Awaitable[None]]) -> dict[metrics.Reading, dict[tuple[str, ...], float]]:
        """Return the values by metric and labels, without those that cannot be read; `pause` lets other work run."""
        sizes = node_info.meminfo(files.text(self._proc / "meminfo") or "")
        minimum, low = node_info.watermarks(self._proc, self._fs.page)
        if not low or any(name not in sizes for name in _NEEDED):
            return {}
        root = None if self._known.root is None else self._known.root.path
        left: dict[str, int] = {}
        of_pods = 0
        for pod in list(self._known.pods.values()):
            of_pods += self._pod(pod, left)
            await pause()
        if root is not None:
            of_pods = min(of_pods, self._left(root, left))
        of_pods = min(of_pods, sizes["SwapFree"])
        memory = memory_headroom.NodeSizes(
            free=sizes["MemFree"],
            minimum=minimum,
            file=sizes["Active(file)"] + sizes["Inactive(file)"],
            slab=sizes.get("SReclaimable", 0),
            swap_free=sizes["SwapFree"],
        )
        share = memory_headroom.kept(swap_devices.space(self._proc, self._block))
        found = {NODE: memory_headroom.of_node(memory, of_pods + self._others(root, left), share)}
        limited = None if root is None else self._limited(root)
        if limited is not None:
            found[PODS] = memory_headroom.of_pods(limited, of_pods)
        return {HEADROOM: {(scope,): size for scope, size in found.items()}}

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
            limit, used = (self._bytes(path, file) for file in (cgroupfs.SWAP_MAX, cgroupfs.SWAP_CURRENT))
            own = cgroupfs.NO_LIMIT if limit is None or limit >= cgroupfs.NO_LIMIT else limit - (used or 0)
            known[path] = min(own, self._left(path.rpartition("/")[0], known))
        return known[path]

    def _limited(self, root: str) -> memory_headroom.PodsSizes | None:
        limit, used = (self._bytes(root, file) for file in (cgroupfs.MEMORY_MAX, cgroupfs.MEMORY_CURRENT))
        if limit is None or used is None or limit >= cgroupfs.NO_LIMIT:
            return None
        try:
            stat = self._fs.stat(root)
        except cgroupfs.CgroupError:
            return None
        return memory_headroom.PodsSizes(limit - used, stat.active_file + stat.inactive_file)

    def _bytes(self, path: str, file: str) -> int | None:
        try:
            return self._fs.read(cgroupfs.join(path, file))
        except cgroupfs.CgroupError:
            return None
