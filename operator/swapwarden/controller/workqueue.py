"""A queue of names that need work: it coalesces, it delays, and it never gives one name to two workers."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Final, NamedTuple

from swapwarden.telemetry import metrics

DEPTH = metrics.gauge(
    "swapwarden_queue_depth",
    "Objects that wait to be looked at, also those that are not due yet, by queue.",
    labels=("queue",),
)
WAIT = metrics.histogram(
    "swapwarden_queue_wait_seconds",
    "Time from when an object was due to when a worker took it, by queue.",
    labels=("queue",),
)


SLACK: Final = 64
"""So many outdated entries are not worth tidying up."""
OF_ALL: Final = 4
"""One of so many turns is for the name that has been due longest, urgent or not."""


class _Wish(NamedTuple):
    """When a name wants work, and whether before others that are due."""

    due: float
    urgent: bool

    def joined(self, other: _Wish | None) -> _Wish:
        return self if other is None else _Wish(min(self.due, other.due), self.urgent or other.urgent)


class WorkQueue:
    """Names with the time at which they are due. Of those that are, urgent ones come first, then the longest due.

    One of four turns goes to the longest due whatever it is: urgent work that never ends keeps no other waiting for
    ever. No name is there twice, so that one which changes all the time has no more turns than others.

    A name that is added again while it waits keeps the earlier time, and stays urgent. A name that is added while a
    worker has it waits until the worker is done, so that work on one name never overlaps and no change is missed.

    `now` is a monotonic clock in seconds, by default that of the running event loop. `hold` gives the seconds for which
    no name is to be given out, for whatever reason, or 0.
    """

    def __init__(
        self, name: str, now: Callable[[], float] | None = None, *, hold: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._name = name
        WAIT.begin([(name,)])
        self._now = now
        self._hold = hold
        self._waiting: dict[str, _Wish] = {}
        # What is yet to be due, and what is: by urgency and time, and by time alone. Entries that are not as in
        # _waiting are outdated.
        self._later: list[tuple[float, str]] = []
        self._ready: list[tuple[bool, float, str]] = []
        self._oldest: list[tuple[float, str]] = []
        self._turn = 0
        self._busy: dict[str, _Wish] = {}
        self._again: dict[str, _Wish] = {}
        self._barred: dict[str, float] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._again)

    def _clock(self) -> float:
        return self._now() if self._now else asyncio.get_running_loop().time()

    def add(self, name: str, delay: float = 0.0, *, urgent: bool = False) -> None:
        """Make `name` due in `delay` seconds, or earlier where it already is."""
        self._add(name, _Wish(self._clock() + delay, urgent))

    def retry(self, name: str, delay: float, *, at_least: float = 0.0) -> None:
        """Before done(): make `name` due again in `delay` seconds, as urgent as it was taken.

        Nothing brings it back in less than `at_least` seconds; else another change of it may.
        """
        now = self._clock()
        self._barred[name] = now + at_least
        self._add(name, _Wish(now + delay, self._busy[name].urgent))

    def _add(self, name: str, wish: _Wish) -> None:
        if name in self._busy:
            self._again[name] = wish.joined(self._again.get(name))
        else:
            before = self._waiting.get(name)
            after = wish._replace(due=max(wish.due, self._barred.get(name, wish.due))).joined(before)
            if after != before:
                self._waiting[name] = after
                heapq.heappush(self._later, (after.due, name))
                self._tidy()
                self._changed.set()
        DEPTH.set(len(self), self._name)

    def _tidy(self) -> None:
        """Drop outdated entries: there may be one for minutes where a label waits to be taken away."""
        if len(self._later) + len(self._ready) + len(self._oldest) > 3 * len(self._waiting) + SLACK:
            self._later = [(wish.due, name) for name, wish in self._waiting.items()]
            self._ready, self._oldest = [], []
            heapq.heapify(self._later)

    def _sort(self) -> None:
        """Move what is due by now from one heap to the others."""
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, name = heapq.heappop(self._later)
            wish = self._waiting.get(name)
            if wish is not None and wish.due == due:
                heapq.heappush(self._ready, (not wish.urgent, due, name))
                heapq.heappush(self._oldest, (due, name))
        while self._ready and self._waiting.get(self._ready[0][2]) != (self._ready[0][1], not self._ready[0][0]):
            heapq.heappop(self._ready)
        while self._oldest and self._due(self._oldest[0][1]) != self._oldest[0][0]:
            heapq.heappop(self._oldest)

    def _due(self, name: str) -> float | None:
        wish = self._waiting.get(name)
        return None if wish is None else wish.due

    async def get(self) -> str:
        """Wait for the next name that is due and take it; call done() with it after the work."""
        while True:
            self._changed.clear()
            self._sort()
            held = self._hold() if self._ready else 0.0
            if self._ready and held <= 0:
                return self._take()
            until = held if self._ready else self._later[0][0] - self._clock() if self._later else None
            try:
                async with asyncio.timeout(until):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _take(self) -> str:
        self._turn = (self._turn + 1) % OF_ALL
        due, name = self._ready[0][1:] if self._turn else self._oldest[0]
        self._busy[name] = self._waiting.pop(name)
        self._barred.pop(name, None)
        WAIT.observe(self._clock() - due, self._name)
        DEPTH.set(len(self), self._name)
        if self._ready or self._later:
            self._changed.set()  # another worker may sleep until a time that has come
        return name

    def done(self, name: str) -> None:
        """Give `name` back; it is due again where it was added meanwhile."""
        del self._busy[name]
        wish = self._again.pop(name, None)
        if wish is not None:
            self._add(name, wish)
