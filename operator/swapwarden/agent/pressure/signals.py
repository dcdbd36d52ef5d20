"""Decides whether a node is under memory pressure. Pure: the caller reads the files and a monotonic clock.

A stall is the time in which all tasks wait for memory at once (PSI, full), as a share of the time between two looks at
the kernel's own total: its averages are decaying means. A pod at its own limit stalls too, with any amount of memory
free. So a stall counts for the node only if the kernel reclaimed for want of memory meanwhile, and for all pods only if
their common limit was hit. One that grows and has others swapped out waits for the disk, and needs no help while there
is headroom: so part of the reclaimed pages must be needed again.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from typing import Final

import msgspec

from swapwarden.api import names, state

NEAR_SECONDS: Final = 1.0
"""Seconds between looks while a signal is on or near."""
RARE_SECONDS: Final = 16.0
"""Most seconds between looks while no signal is near."""
FASTEST: Final = 128 << 20
"""Bytes a second at which the headroom must be expected to fall at any moment, unless `below` is less: what falls by
more than `below` between two looks is not seen in time, however soon the first of them is.
"""
RETURNS: Final = 8
"""Most reclaimed pages for each one that is needed again: if fewer return, tasks do not stall for want of memory."""


class StallTotals(msgspec.Struct, frozen=True):
    """Totals of the kernel for one scope."""

    full: float
    """Seconds in which all tasks waited for memory."""
    shortages: int | None
    """Signs that memory is short in this scope: pages that the kernel scanned, or hits of limits. None: unknown."""
    reclaimed: int = 0
    """Pages that were reclaimed in this scope."""
    refaulted: int = 0
    """Pages that were needed again after that."""


class MemoryReading(msgspec.Struct, frozen=True):
    """Sizes and totals at one time, without scopes that could not be read."""

    at: float
    """Monotonic seconds."""
    cheap: Mapping[names.PressureScope, int]
    """The headroom without swap, in bytes."""
    headroom: Mapping[names.PressureScope, int]
    """The headroom in bytes; without swap if that is enough."""
    stalls: Mapping[names.PressureScope, StallTotals]


class Verdict(msgspec.Struct, frozen=True):
    """Whether the node is under pressure, and the numbers that show it."""

    signal: names.PressureSignal | None = None
    scope: names.PressureScope = names.PressureScope.NODE
    headroom: int | None = None
    """The lowest in bytes; None: unknown."""
    since: float = 0.0
    """When the signal came on, in monotonic seconds."""
    on: frozenset[tuple[names.PressureSignal, names.PressureScope]] = frozenset()
    stalls: Mapping[names.PressureScope, int] = {}
    """Permille of the time, by scope."""
    of_a_pod: bool = False
    """Whether tasks stall though memory is short in neither scope: a pod is at its own limit."""
    near: bool = False
    """Whether a signal is on or may be soon."""

    @property
    def stall(self) -> int:
        """The stall of the verdict's scope in permille; 0 if it is unknown."""
        return self.stalls.get(self.scope, 0)


class _Stall(msgspec.Struct, frozen=True):
    permille: int
    whole: bool
    """Whether the looks cover the whole time over which the share is taken."""
    short: bool
    """Whether memory was short in this scope meanwhile."""
    thrash: bool
    """Whether it was, and part of the reclaimed pages were needed again."""


_NO_STALL: Final = _Stall(0, whole=False, short=False, thrash=False)


class StallWindow:
    """The totals of one scope at the looks of the last seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: collections.deque[tuple[float, StallTotals]] = collections.deque()

    def restart(self) -> None:
        """Forget all looks but the last."""
        while len(self._seen) > 1:
            self._seen.popleft()

    def add(self, at: float, totals: StallTotals | None) -> _Stall:
        """Return the stall at a new look. Totals or a clock that go back begin a new window."""
        if totals is None:
            self._seen.clear()
            return _NO_STALL
        if self._seen and not _follows((at, totals), self._seen[-1]):
            self._seen.clear()
        self._seen.append((at, totals))
        while len(self._seen) > 1 and self._seen[1][0] <= at - self._seconds:
            self._seen.popleft()
        begin, before = self._seen[0]
        passed = at - begin
        if passed <= 0:
            return _NO_STALL
        permille = min(1000, round(1000 * (totals.full - before.full) / passed))
        short = (totals.shortages or 0) > (before.shortages or 0)
        returned = RETURNS * (totals.refaulted - before.refaulted) >= totals.reclaimed - before.reclaimed
        return _Stall(permille, whole=passed >= self._seconds, short=short, thrash=short and returned)


def _follows(new: tuple[float, StallTotals], last: tuple[float, StallTotals]) -> bool:
    (at, totals), (before, known) = new, last
    counts = (totals.reclaimed >= known.reclaimed, totals.refaulted >= known.refaulted, totals.full >= known.full)
    return at > before and all(counts) and (totals.shortages is None) == (known.shortages is None)


class _Latch:
    """A signal of one scope: on once its condition has held for some seconds, off at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began: float | None = None
        """When the condition to come on was met first; None: it is not met."""
        self.since: float | None = None
        """When it came on; None while it is off."""
        self._ended = -math.inf

    def step(self, at: float, *, begins: bool, stays: bool, hurries: bool = False) -> bool:
        """Return whether it is on, where the condition to begin or to stay on is met.

        One that `hurries` does not wait, unless it was on in the same time before.
        """
        if self.since is not None:
            if not stays:
                self.since = self._began = None
                self._ended = at
        elif not begins:
            self._began = None
        else:
            if self._began is None or at < self._began:
                self._began = at
            if at - self._began >= self._seconds or (hurries and not 0 <= at - self._ended < self._seconds):
                self.since = at
        return self.since is not None

    @property
    def begun(self) -> bool:
        """Whether it is on, or will be if the condition holds."""
        return self._began is not None


class PressureSignals:
    """The signals of one node. Each look must be later than the one before."""

    def __init__(self, settings: state.PressureSettings) -> None:
        self.settings = settings
        headroom, stall = settings.headroom, settings.stall
        self._below = headroom.below_bytes
        self._clear = headroom.clear_bytes
        self._fastest = max(1, min(headroom.below_bytes, FASTEST))
        self._full = stall.full_permille
        over = stall.over_milliseconds / 1000
        self._headroom = _Latch(headroom.for_milliseconds / 1000)
        self._windows = {scope: StallWindow(over) for scope in names.PressureScope}
        self._stalls = {scope: _Latch(0.0) for scope in names.PressureScope}
        self._last: MemoryReading | None = None
        self.pause = RARE_SECONDS
        """Seconds until the next look."""
        self._near = False

    def needs_swap(self, cheap: Mapping[names.PressureScope, int]) -> bool:
        """Return whether the headroom must be read with swap, by that without it."""
        return self._near or any(size <= self._clear for size in cheap.values())

    def step(self, look: MemoryReading) -> Verdict:
        """Return the verdict at a look."""
        on: dict[tuple[names.PressureSignal, names.PressureScope], float] = {}
        lowest, scope = min(((size, each) for each, size in look.headroom.items()), default=(None, None))
        stays = lowest is not None and lowest <= self._clear
        hurries = lowest is not None and stays and self._is_ending(look, lowest)
        begins = hurries or (lowest is not None and lowest < self._below)
        if self._headroom.step(look.at, begins=begins, stays=stays, hurries=hurries) and scope is not None:
            on[names.PressureSignal.HEADROOM, scope] = self._headroom.since or 0.0
        stalls = {scope: self._windows[scope].add(look.at, look.stalls.get(scope)) for scope in names.PressureScope}
        for each, stall in stalls.items():
            latch = self._stalls[each]
            was = latch.since is not None
            begins = stall.whole and stall.thrash and stall.permille >= self._full
            if latch.step(look.at, begins=begins, stays=stall.thrash and 2 * stall.permille >= self._full):
                on[names.PressureSignal.STALL, each] = latch.since or 0.0
            elif was:
                self._windows[each].restart()
        stalled = [stall for stall in stalls.values() if 2 * stall.permille >= self._full]
        near = bool(on or stalled) or self._headroom.begun or any(each <= self._clear for each in look.cheap.values())
        self.pause = NEAR_SECONDS if near else self._until(look)
        self._last, self._near = look, near
        verdict = Verdict(
            headroom=lowest,
            on=frozenset(on),
            stalls={each: stall.permille for each, stall in stalls.items() if each in look.stalls},
            of_a_pod=any(stall.whole and stall.permille >= self._full for stall in stalled)
            and not any(stall.short for stall in stalled),
            near=near,
        )
        if not on:
            return verdict
        signal, where = min(on)
        return msgspec.structs.replace(verdict, signal=signal, scope=where, since=on[signal, where])

    def _is_ending(self, look: MemoryReading, lowest: int) -> bool:
        """Return whether nothing is left before the headroom was low for its time, at the rate at which it falls."""
        if self._last is None or not self._last.headroom:
            return False
        passed, fell = look.at - self._last.at, min(self._last.headroom.values()) - lowest
        return passed > 0 and lowest * passed * 1000 <= fell * self.settings.headroom.for_milliseconds

    def _until(self, look: MemoryReading) -> float:
        """Return the seconds until the next look.

        At the rate at which the headroom fell it is then half way to low, and at the fastest rate just low.
        """
        last, soonest = self._last, RARE_SECONDS
        if last is None or look.at <= last.at:
            return NEAR_SECONDS
        for scope, size in look.cheap.items():
            fell = (last.cheap.get(scope, size) - size) / (look.at - last.at)
            soonest = min(soonest, (size - self._clear) / max(self._fastest, 2 * fell))
        return max(NEAR_SECONDS, soonest)
