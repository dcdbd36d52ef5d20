"""What to write into one memory.swap.max. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from swapwarden.agent import limits, wanted
from swapwarden.api import names

FIT_PERCENT: Final = 90
"""Memory and swap in use together fit well under a memory limit when they fill no more of it than this.

Once swap is cut, what the pod swapped out comes back as it is touched and what it allocates from then on stays in
memory; a tenth of the limit is room for that growth and for the page cache that the kernel needs to make progress.
"""


class Usage(NamedTuple):
    """One memory cgroup with swap in use, in bytes. `ceiling` is the least of what may stop it from growing."""

    memory: int
    swap: int
    ceiling: int

    @property
    def fits(self) -> bool:
        """Whether everything swapped out could come back without the cgroup getting near its ceiling."""
        return (self.memory + self.swap) * 100 <= self.ceiling * FIT_PERCENT


class Action(NamedTuple):
    """What to do with a file: the value to write, None for none; and whether more swap is in use than is wanted."""

    write: int | None
    draining: bool


def decide(limit: int, found: int, swap: int, usages: Callable[[], Iterable[Usage]]) -> Action:
    """How to get a file that holds `found` to `limit`, with `swap` bytes in use; everything floored to the page.

    Lowering a limit brings no page back, and it gets a pod at its memory limit OOM-killed, since what it touches cannot
    come in while nothing can go out. So with more in use than wanted the limit goes to what is wanted only where each
    cgroup concerned (`usages`, asked for only then) has room; else to what is in use, which stops growth. Never to more
    than is wanted or in use.
    """
    draining = swap > limit
    goal = limit
    if draining and found > limit and not all(usage.fits for usage in usages()):
        goal = min(swap, found)
    return Action(None if goal == found else goal, draining)


class Hold(enum.Enum):
    """What a file is to hold where it is not a number."""

    LEAVE = "leave"
    """Whatever it holds."""
    PUT_BACK = "put back"
    """What it held before the agent's first write."""


Target = int | Hold


class Origin(enum.Enum):
    """How a pod's cgroup came to be known."""

    FOUND = "found"
    """It was there when the agent first came up, or appeared while nothing was enforced."""
    APPEARED = "appeared"
    """It appeared while the agent enforced, or while none ran."""


def pod_target(
    state: wanted.State | None, pod: wanted.Pod | None, *, mode: names.Mode, origin: Origin, last: int | None
) -> Target:
    """What a pod's cgroup is to hold.

    `state` is the state in force (None before any ever arrived), `pod` its entry for this pod, `last` what this pod was
    last given by an entry that is no longer there: a pod that ends leaves the state before its cgroup goes.
    """
    if mode is not names.Mode.ENFORCE:
        return Hold.PUT_BACK
    if pod is not None:
        return Hold.PUT_BACK if pod.limit is None else pod.limit
    if last is not None:
        return last
    if origin is Origin.FOUND:
        return Hold.LEAVE
    allow = state is not None and state.on_unknown_pod is names.UnknownPod.ALLOW
    return Hold.PUT_BACK if allow else 0


def capped(target: int, found: int, *, cap: bool) -> int:
    """The number that a file is to hold: with `cap` a smaller one that is there already is left alone."""
    return min(target, found) if cap else min(target, limits.NO_LIMIT)
