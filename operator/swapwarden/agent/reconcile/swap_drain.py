"""Decides the next value of a memory.swap.max on the way to its limit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs

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
    found: int,
    swap: int,
    usages: Callable[[], Iterable[DrainUsage]],
    *,
    cap: bool = False,
    held: int | None = None,
    units: bool = False,
    above: Callable[[], int] = lambda: cgroupfs.NO_LIMIT,
    page: int = 4096,
) -> Action:
    """Decide the next write to a file that holds `found`, towards `limit`, with `swap` bytes in use; all in bytes.

    A lower limit brings no page back, and can get a pod at its memory limit OOM-killed: a page that it touches cannot
    return while no other can be swapped out. So with (nearly) more in use than the limit, the file gets the limit only
    if each cgroup concerned (`usages`, read only then) has room for the returning pages. Otherwise it gets the swap in
    use and some room, and is never raised. Values are floored to the page.

    `cap`: a smaller value in the file is as good.
    `held` is the agent's last value in the file, None before the first one; more than that is another writer's doing.
    The pod could live with `held`, be it the limit or, during a drain, more. So it gets that again if no more is in
    use, and beyond it room only for swap that it took meanwhile. If the room were measured each time, each rewrite
    would raise the limit of a pod that uses all it may.
    `units`: `found` is systemd's value for the cgroup, which it writes without regard to the swap in use. If that is
    less than `held` during a drain, it is a cut like any other, and undone if it could get the pod killed.
    `above` returns the least limit of the cgroups above, read only before a cut. A limit of at least that has no effect
    yet: the file can be lowered to it whatever is in use, and must be, since the one above may be raised next.
    """
    undone = units and not cap and held is not None and max(found, limit) < held and swap > limit
    if found <= limit and not undone:
        return Action(None if cap or found == limit else limit, swap > limit)
    lived = held is not None and held <= limit
    eased = swap <= limit if lived else swap + swap // EASE_SHARE <= limit
    if eased or (bound := above()) <= limit or all(usage.fits for usage in usages()):
        return Action(None if found == limit else limit, swap > limit)
    goal = swap + max(swap // ROOM_SHARE, ROOM_BYTES)
    if held is not None:
        known = max(limit, held)
        goal = min(goal, known if swap <= known else swap + (swap - known) // ROOM_SHARE)
    goal = max(limit, min(bound, goal) // page * page)
    return Action(goal if goal < found or (undone and goal > found) else None, draining=True)
