"""Decides the next value of a memory.swap.max on the way to its limit (`next_write`, pure), by the room in memory."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import records
from swapwarden.agent.node import node_info

FIT_PERCENT: Final = 90
"""Memory and swap in use together fit well under a memory limit when they fill no more of it than this.

Once swap is cut, swapped-out pages return to memory as the pod touches them, and new allocations stay there. A tenth of
the limit is room for that growth, and for the page cache that the kernel needs to make progress.
"""


ROOM_SHARE: Final = 4
"""One part in so many of the swap in use is left as room if it cannot be cut at once.

A process that keeps touching more than its memory limit needs a free slot to swap one page out before it can have
another one in, and pages on their way hold slots as well. Measured on kernel 6.1 (a pod limited to 64 MiB that touches
96 MiB in turn, 37 to 42 MiB of swap in use): with an eighth of room or less it was OOM-killed, with a quarter never.
"""
ROOM_BYTES: Final = 16 << 20
"""Least room after a change of policy: the number of pages on their way does not shrink with the swap in use."""
EASE_SHARE: Final = 8
"""Swap in use varies by some percent: a limit this part above it counts as above its peaks."""


MOST: Final = 200
"""Most cgroups that are read inside one: the processes of a pod can make any number of them."""


class DrainUsage(msgspec.Struct, frozen=True):
    """A cgroup, or the node, to which pages would come back from swap, in bytes.

    `memory` is what it holds, less what can be dropped without swapping; `back` what would come; `ceiling` what stops
    it from growing.
    """

    memory: int
    back: int
    ceiling: int

    @property
    def fits(self) -> bool:
        """Whether everything could come back without getting near the ceiling."""
        return (self.memory + self.back) * 100 <= self.ceiling * FIT_PERCENT


class Action(msgspec.Struct, frozen=True):
    """The value to write to a file, or None; and whether more swap is still in use than its limit."""

    write: int | None
    draining: bool


def next_write(
    limit: int,
    observed: int,
    swap: int,
    usages: Callable[[], Iterable[DrainUsage]],
    *,
    cap: bool = False,
    held: int | None = None,
    units: bool = False,
    above: Callable[[], int] = lambda: cgroupfs.NO_LIMIT,
    page: int = 4096,
) -> Action:
    """Decide the next write to a file that holds `observed`, towards `limit`, with `swap` bytes in use; all in bytes.

    A lower limit brings no page back, and can get a pod at its memory limit OOM-killed: a page that it touches cannot
    return while no other can be swapped out. So with (nearly) more in use than the limit, the file gets the limit only
    if each cgroup concerned (`usages`, read only then) has room for the returning pages. Otherwise it gets the swap in
    use and some room, and is never raised. Values are floored to the page.

    `cap`: a smaller value in the file is as good.
    `held` is the agent's last value in the file, None before the first one; more than that is another writer's doing.
    The pod could live with `held`, be it the limit or, during a drain, more. So it gets that again if no more is in
    use, and beyond it room only for swap that it took meanwhile. If the room were measured each time, each rewrite
    would raise the limit of a pod that uses all it may.
    `units`: `observed` is systemd's value for the cgroup, which it writes without regard to the swap in use. If that is
    less than `held` during a drain, it is a cut like any other, and undone if it could get the pod killed.
    `above` returns the least limit of the cgroups above, read only before a cut. A limit of at least that has no effect
    yet: the file can be lowered to it whatever is in use, and must be, since the one above may be raised next.
    """
    undone = units and not cap and held is not None and max(observed, limit) < held and swap > limit
    if observed <= limit and not undone:
        return Action(None if cap or observed == limit else limit, swap > limit)
    lived = held is not None and held <= limit
    eased = swap <= limit if lived else swap + swap // EASE_SHARE <= limit
    if eased or (bound := above()) <= limit or all(usage.fits for usage in usages()):
        return Action(None if observed == limit else limit, swap > limit)
    goal = swap + max(swap // ROOM_SHARE, ROOM_BYTES)
    if held is not None:
        known = max(limit, held)
        goal = min(goal, known if swap <= known else swap + (swap - known) // ROOM_SHARE)
    goal = max(limit, min(bound, goal) // page * page)
    return Action(goal if goal < observed or (undone and goal > observed) else None, draining=True)


NO_ROOM: Final = DrainUsage(1, 0, 0)
"""Stands for cgroups that are unreadable, or too many to read."""


class Headroom:
    """Finds whether memory has room for swapped-out pages before a cgroup's swap is cut.

    It counts pages that are about to return: each of two pods may fit into the node's free memory, but not both.
    """

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
                limit = self._fs.read(cgroupfs.join(path, file.spec.name))
                if file.pod is not None and path == file.pod.path:
                    limit = max(limit, file.pod.file.last_applied or 0)
                least = min(least, limit)
        return least

    def usages(self, path: str) -> Iterator[DrainUsage]:
        """Yield all that must have room before the cgroup at `path` may be cut, the cheapest to read first.

        That is the node, each cgroup above with a limit, this cgroup, and those below with swap in use. A cgroup that
        is removed meanwhile needs no room; one that is unreadable, or has too many below it, counts as without room.
        """
        try:
            yield from self._usages(path)
        except cgroupfs.CgroupError:
            yield NO_ROOM

    def _usages(self, path: str) -> Iterator[DrainUsage]:
        back = self.swapped_out_bytes(path)
        others = {
            other: size for other, size in self._coming.items() if not (_is_in(other, path) or _is_in(path, other))
        }
        # If a container and its pod were both cut, pages that return to the container count for the pod only.
        others = {
            other: size for other, size in others.items() if not any(map(others.__contains__, cgroupfs.above(other)))
        }
        yield DrainUsage(0, back + sum(others.values()), node_info.available(self._proc))
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

    def _usage(self, path: str, back: int) -> Iterator[DrainUsage]:
        """Yield the use of one cgroup; nothing if it is gone."""
        try:
            # At memory.high a process is not killed, but without swap it is stalled in reclaim, which is as bad.
            ceiling = min(self._fs.read(cgroupfs.join(path, cgroupfs.MEMORY_MAX)), self._high(path))
            if ceiling < cgroupfs.NO_LIMIT:
                held = self._fs.read(cgroupfs.join(path, cgroupfs.MEMORY_CURRENT)) - self._fs.stat(path).inactive_file
                yield DrainUsage(held, back, ceiling)
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
