"""How much idle memory of a pod may be moved to swap now: feedback by its stalls and refaults. Pure.

A step is a share of the memory in use: smaller the longer tasks of the pod wait for memory, and nothing at the target.
The step itself is no stall of the pod: another process does it. If it took too much, stalls and refaults follow.
"""

from __future__ import annotations

from typing import Final

import msgspec

from swapwarden.api import names, state

STARTUP_SECONDS: Final = 600.0
"""Seconds from the start of a pod's newest container to the first step under Startup."""
GAINLESS_STEPS: Final = 3
"""Steps in a row that free too little, after which Startup ends and Continuous waits."""
GAIN_SHARE: Final = 8
"""A step that frees less than this part of what it took free is one of them: an eighth."""
REFAULT_SHARE: Final = 4
"""The part of a step that may be needed again between two looks: a quarter."""
WAIT_SECONDS: Final = 60.0
"""The first wait at the target. It doubles each time until a step succeeds, to MAX_WAIT_SECONDS."""
MAX_WAIT_SECONDS: Final = 3600.0
LEAST_PAGES: Final = 32
"""Smaller steps are not worth a look."""
MAX_STEP_BYTES: Final = 256 << 20
FULL_SHARE: Final = 0.01
"""Share of the time in which all tasks of the node stalled, from which on nothing is moved."""
DAY: Final = 24 * 3600.0
SLOT: Final = 3600.0
MAX_SLOTS: Final = 32


class PodSample(msgspec.Struct, frozen=True):
    """One look at a pod's cgroup. Bytes, if nothing else is said."""

    now: float
    """Monotonic seconds."""
    some: int
    """Microseconds in which a task stalled (memory.pressure)."""
    refaults: int
    """Pages that came back from swap soon after (workingset_refault_anon)."""
    current: int
    swap: int
    left: int
    """Swap that the pod may still use, by the limits of it and of those above."""
    protected: int


class NodeSample(msgspec.Struct, frozen=True):
    """One look at the node."""

    now: float
    direct: int
    """Pages that tasks scanned because memory was short (pgscan_direct)."""
    full: float
    """Seconds in which all tasks stalled."""
    swap_free: int
    """Bytes."""


class Decision(msgspec.Struct, frozen=True):
    """The next step of a pod."""

    size: int
    """Bytes to reclaim; 0: none."""
    hold: names.ReclaimHold


def is_pressed(before: NodeSample | None, seen: NodeSample) -> bool:
    """Return whether the node was short of memory since the look before; without one, that is not known: True."""
    if before is None or seen.now <= before.now or seen.direct != before.direct or seen.full < before.full:
        return True
    return seen.full - before.full >= FULL_SHARE * (seen.now - before.now)


class Pace:
    """The steps of one pod."""

    def __init__(self, mode: names.ReclaimMode, begins: float) -> None:
        """`begins`: when the first look may be, in monotonic seconds."""
        self.mode = mode
        self.due = begins
        """When to look next, in monotonic seconds."""
        self.done = False
        self._last: PodSample | None = None
        self._gainless = 0
        self._wait = 0.0

    def decide(
        self,
        seen: PodSample,
        bounds: state.ReclaimSettings,
        *,
        swap_free: int,
        writes_left: int,
        pressed: bool,
        page: int,
    ) -> Decision:
        """Take a look, and return the step. `took` must follow a step."""
        last, self._last = self._last, seen
        self.due = seen.now + bounds.interval_seconds
        if last is None or last.now >= seen.now or seen.some < last.some or seen.refaults < last.refaults:
            return Decision(0, names.ReclaimHold.FIRST_LOOK)
        if pressed or self.done:
            return Decision(0, names.ReclaimHold.DONE if self.done else names.ReclaimHold.NODE_PRESSURE)
        full = seen.current * bounds.step_percent // 100
        stalled = (seen.some - last.some) / 1000 / (seen.now - last.now)
        back = (seen.refaults - last.refaults) * page
        if stalled >= bounds.max_stall_permille or back * REFAULT_SHARE > full:
            stalls = stalled >= bounds.max_stall_permille
            return self._stop(seen.now, names.ReclaimHold.STALLED if stalls else names.ReclaimHold.REFAULTS)
        rooms = (
            (int(full * (1 - stalled / bounds.max_stall_permille)), names.ReclaimHold.SMALL),
            (MAX_STEP_BYTES, names.ReclaimHold.SMALL),
            (seen.current - seen.protected, names.ReclaimHold.PROTECTED),
            (seen.left, names.ReclaimHold.SWAP_LIMIT),
            (swap_free - bounds.keep_swap_free_bytes, names.ReclaimHold.SWAP_KEPT),
            (writes_left, names.ReclaimHold.WRITES),
        )
        size, least = min(rooms, key=lambda room: room[0])
        size = size // page * page
        if size < LEAST_PAGES * page:
            if self.mode is names.ReclaimMode.STARTUP and least in {
                names.ReclaimHold.SMALL,
                names.ReclaimHold.PROTECTED,
                names.ReclaimHold.SWAP_LIMIT,
            }:
                self.done = True
            self.due = max(self.due, seen.now + WAIT_SECONDS)
            return Decision(0, least)
        return Decision(size, names.ReclaimHold.STEP)

    def took(self, size: int, freed: int, now: float) -> None:
        """Take the effect of a step: how many bytes less are in use."""
        if freed * GAIN_SHARE >= size:
            self._gainless, self._wait = 0, 0.0
            return
        self._gainless += 1
        if self._gainless >= GAINLESS_STEPS:
            self._gainless = 0
            self._stop(now, names.ReclaimHold.WAITS)

    def look_anew(self, now: float, bounds: state.ReclaimSettings) -> None:
        """Compare with nothing: the pod could not be read."""
        self._last = None
        self.due = now + bounds.interval_seconds

    def _stop(self, now: float, why: names.ReclaimHold) -> Decision:
        """End Startup; let Continuous wait."""
        if self.mode is names.ReclaimMode.STARTUP:
            self.done = True
        self._wait = min(MAX_WAIT_SECONDS, 2 * self._wait or WAIT_SECONDS)
        self.due, self._last = max(self.due, now + self._wait), None
        return Decision(0, why)


class WriteBudget:
    """Bytes moved to swap within 24 hours. A slot counts for a day after its end, so that no day has more."""

    def __init__(self) -> None:
        self.slots: list[tuple[float, int]] = []
        """The beginning of an hour in monotonic seconds, and the bytes of that hour; the oldest first."""

    def left(self, now: float, per_day: int) -> int:
        """Return the bytes that may still be moved."""
        return max(0, per_day - sum(size for begin, size in self.slots if now < begin + SLOT + DAY))

    def spend(self, size: int, now: float) -> None:
        """Count bytes that were moved."""
        if size <= 0:
            return
        self.slots = [slot for slot in self.slots if now < slot[0] + SLOT + DAY][-MAX_SLOTS:]
        if self.slots and now < self.slots[-1][0] + SLOT:
            begin, known = self.slots[-1]
            self.slots[-1] = begin, known + size
        else:
            self.slots.append((now, size))
