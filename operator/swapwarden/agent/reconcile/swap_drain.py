"""How to get one memory.swap.max to what it is to hold. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from swapwarden.agent.host import values

FIT_PERCENT: Final = 90
"""Memory and swap in use together fit well under a memory limit when they fill no more of it than this.

Once swap is cut, what the pod swapped out comes back as it is touched and what it allocates from then on stays in
memory; a tenth of the limit is room for that growth and for the page cache that the kernel needs to make progress.
"""


ROOM_SHARE: Final = 4
"""One part in so many of the swap in use is left as room where it cannot be cut at once.

A process that keeps touching more than its memory limit needs a free slot to swap one page out before it can have
another one in, and pages on their way hold slots as well. Measured on kernel 6.1 (a pod limited to 64 MiB that touches
96 MiB in turn, 37 to 42 MiB of swap in use): with an eighth of room or less it was OOM-killed, with a quarter never.
"""
ROOM_BYTES: Final = 16 << 20
"""Least room after a change of policy: what is on its way does not shrink with the swap in use."""
EASE_SHARE: Final = 8
"""What is in use goes up and down by some percent: a limit this part above it counts as above its peaks."""


class DrainUsage(NamedTuple):
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


class Action(NamedTuple):
    """What to do with a file: the value to write, None for none; and whether it is still above what is wanted."""

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
    above: Callable[[], int] = lambda: values.NO_LIMIT,
    page: int = 4096,
) -> Action:
    """How to get a file that holds `found` to `limit`, with `swap` bytes in use; all floored to the page (bytes).

    Lowering a limit brings no page back, and it gets a pod at its memory limit OOM-killed, since what it touches cannot
    come in while nothing can go out. So with (nearly) more in use than wanted, the limit goes to what is wanted only
    where each cgroup concerned (`usages`, asked for only then) has room for what would come back; else to what is in
    use and some room, and never up.

    With `cap` a smaller value that the file holds already is as good.
    `held` is what the file held as the agent left it, None where it did not yet; what it holds above that, another
    writer gave it. The pod could live with that value, be it the limit or, while it drains, more: so it has it back if
    no more is in use, and beyond it room only for what it took meanwhile. Were the room measured anew each time, each
    rewrite would raise the limit of a pod that uses what it is let.
    `units`: `found` is what systemd holds for the cgroup, and writes without regard to what is in use. Where that is
    less than what it held while it drained, that is a cut like any other, and undone where it could get it killed.
    `above` gives the least limit of the cgroups above, asked for only where swap would be cut. What is to hold more
    than that, or as much, binds nothing yet: down to it a file can be lowered whatever is in use, and has to be, for
    what is above may be raised next.
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
