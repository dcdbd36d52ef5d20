"""Whether memory has room for what was swapped out: asked before a cgroup's swap is cut."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Final

from swapwarden.agent.host import cgroupfs, values
from swapwarden.agent.node import node_info
from swapwarden.agent.reconcile import swap_drain

MOST: Final = 200
"""Cgroups inside of one that are looked at: whoever runs in a pod can make any number of them."""
NO_ROOM: Final = swap_drain.DrainUsage(1, 0, 0)
"""What cannot be read, or takes too long to be looked at, counts as having no room."""


class Headroom:
    """Knows what is about to come back: two pods may each fit into what the node has left, and both together not."""

    def __init__(self, cgroups: cgroupfs.Cgroups, proc: pathlib.Path) -> None:
        self._fs = cgroups
        self._proc = proc
        self._coming: dict[str, int] = {}

    def swapped_out_bytes(self, path: str) -> int:
        """Bytes that are in swap only; 0 where the cgroup is gone.

        Pages in the swap cache are in memory as well, and counted by both memory.current and memory.swap.current
        (`swapcached` in Documentation/admin-guide/cgroup-v2.rst). Their slots stay in use until the kernel looks at the
        pages again, which in a cgroup with room it may never do. Where memory.stat cannot be read, none count as such.
        CgroupError where memory.swap.current cannot be.
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
        """The cgroup at `path` was cut while it had swap in use: count what may come back, until `forget`."""
        with contextlib.suppress(cgroupfs.CgroupError):  # then what was known stays
            self._coming[path] = self.swapped_out_bytes(path)

    def release(self, path: str) -> None:
        """Nothing comes back to this cgroup any more, or what does may be swapped out again."""
        self._coming.pop(path, None)

    def usages(self, path: str) -> Iterator[swap_drain.DrainUsage]:
        """Everything that must have room before the cgroup at `path` may be cut: the cheapest to read comes first.

        That is the node, each cgroup above that has a limit, this cgroup, and those below that have swap in use. What
        goes meanwhile needs none; what cannot be read, or where there is too much to be read, has none.
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
        # What comes back to a container comes back to its pod, where both were cut.
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
        """One cgroup's; none where it is gone."""
        try:
            # At memory.high a process is not killed, but without swap it is stalled in reclaim, which is as bad.
            ceiling = min(self._fs.read(cgroupfs.join(path, cgroupfs.MEMORY_MAX)), self._high(path))
            if ceiling < values.NO_LIMIT:
                held = self._fs.read(cgroupfs.join(path, cgroupfs.MEMORY_CURRENT)) - self._fs.stat(path).inactive_file
                yield swap_drain.DrainUsage(held, back, ceiling)
        except cgroupfs.GoneError:
            return

    def _high(self, path: str) -> int:
        try:
            return self._fs.read(cgroupfs.join(path, cgroupfs.MEMORY_HIGH))
        except cgroupfs.GoneError:
            return values.NO_LIMIT


def _is_in(path: str, other: str) -> bool:
    """Whether `path` is `other`, or below it."""
    return path == other or path.startswith(f"{other}/")
