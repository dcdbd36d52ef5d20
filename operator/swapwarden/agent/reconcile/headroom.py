"""Finds whether memory has room for swapped-out pages before a cgroup's swap is cut."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Final

from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import records
from swapwarden.agent.node import node_info
from swapwarden.agent.reconcile import swap_drain

MOST: Final = 200
"""Most cgroups that are read inside one: the processes of a pod can make any number of them."""
NO_ROOM: Final = swap_drain.DrainUsage(1, 0, 0)
"""Stands for cgroups that are unreadable, or too many to read."""


class Headroom:
    """Counts pages that are about to return: each of two pods may fit into the node's free memory, but not both."""

    def __init__(self, cgroups: cgroupfs.Cgroups, proc: pathlib.Path) -> None:
        self._fs = cgroups
        self._proc = proc
        self._coming: dict[str, int] = {}

    def swapped_out_bytes(self, path: str) -> int:
        """Return the bytes that are only in swap; 0 if the cgroup is gone. CgroupError without memory.swap.current.

        Pages in the swap cache are also in memory, and counted by both memory.current and memory.swap.current
        (`swapcached` in Documentation/admin-guide/cgroup-v2.rst). Their slots stay in use until the kernel scans the
        pages again, which may never happen in a cgroup with room. If memory.stat cannot be read, none count as such.
        """
        try:
            used = self._fs.read(cgroupfs.join(path, cgroupfs.SWAP_CURRENT))
        except cgroupfs.GoneError:
            return 0
        try:
            return max(0, used - self._fs.stat(path).swapcached)
        except cgroupfs.CgroupError:
            return used

    def reserve(self, path: str) -> None:
        """Count the pages that may return to the cgroup at `path`, whose swap was cut, until `release`."""
        with contextlib.suppress(cgroupfs.CgroupError):  # then the earlier number stays
            self._coming[path] = self.swapped_out_bytes(path)

    def release(self, path: str) -> None:
        """Stop counting: no pages return to this cgroup any more, or they may be swapped out again."""
        self._coming.pop(path, None)

    def least_above(self, file: records.ControlFile) -> int:
        """Return the least limit of the cgroups above a file's; for a pod that others just lowered, its desired one."""
        least = cgroupfs.NO_LIMIT
        for path in cgroupfs.above(file.path):
            with contextlib.suppress(cgroupfs.CgroupError):
                found = self._fs.read(cgroupfs.join(path, file.spec.name))
                if file.pod is not None and path == file.pod.path:
                    found = max(found, file.pod.file.last_applied or 0)
                least = min(least, found)
        return least

    def usages(self, path: str) -> Iterator[swap_drain.DrainUsage]:
        """Yield all that must have room before the cgroup at `path` may be cut, the cheapest to read first.

        That is the node, each cgroup above with a limit, this cgroup, and those below with swap in use. A cgroup that
        is removed meanwhile needs no room; one that is unreadable, or has too many below it, counts as without room.
        """
        try:
            yield from self._usages(path)
        except cgroupfs.CgroupError:
            yield NO_ROOM

    def _usages(self, path: str) -> Iterator[swap_drain.DrainUsage]:
        back = self.swapped_out_bytes(path)
        others = {
            other: size for other, size in self._coming.items() if not (_is_in(other, path) or _is_in(path, other))
        }
        # If a container and its pod were both cut, pages that return to the container count for the pod only.
        others = {
            other: size for other, size in others.items() if not any(map(others.__contains__, cgroupfs.above(other)))
        }
        yield swap_drain.DrainUsage(0, back + sum(others.values()), node_info.available(self._proc))
        for above in cgroupfs.above(path):
            yield from self._usage(above, back + sum(size for other, size in others.items() if _is_in(other, above)))
        paths, looked = [path], 0
        while paths:
            here, looked = paths.pop(), looked + 1
            if back := self.swapped_out_bytes(here):
                yield from self._usage(here, back)
                paths += [cgroupfs.join(here, name) for name in self._fs.children(here, most=MOST)]
            if looked + len(paths) > MOST:
                yield NO_ROOM
                return

    def _usage(self, path: str, back: int) -> Iterator[swap_drain.DrainUsage]:
        """Yield the use of one cgroup; nothing if it is gone."""
        try:
            # At memory.high a process is not killed, but without swap it is stalled in reclaim, which is as bad.
            ceiling = min(self._fs.read(cgroupfs.join(path, cgroupfs.MEMORY_MAX)), self._high(path))
            if ceiling < cgroupfs.NO_LIMIT:
                held = self._fs.read(cgroupfs.join(path, cgroupfs.MEMORY_CURRENT)) - self._fs.stat(path).inactive_file
                yield swap_drain.DrainUsage(held, back, ceiling)
        except cgroupfs.GoneError:
            return

    def _high(self, path: str) -> int:
        try:
            return self._fs.read(cgroupfs.join(path, cgroupfs.MEMORY_HIGH))
        except cgroupfs.GoneError:
            return cgroupfs.NO_LIMIT


def _is_in(path: str, other: str) -> bool:
    """Return whether `path` is `other`, or below it."""
    return path == other or path.startswith(f"{other}/")
