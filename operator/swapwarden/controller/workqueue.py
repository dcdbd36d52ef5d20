"""A queue of names that need work: it coalesces, it delays, and it never gives one name to two workers."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

from swapwarden.telemetry import metrics

DEPTH = metrics.gauge("swapwarden_queue_depth", "Names that wait for work.", labels=("queue",))
WAIT = metrics.histogram(
    "swapwarden_queue_wait_seconds", "Time from when a name was due to when a worker took it.", labels=("queue",)
)


SLACK: Final = 64
"""So many outdated entries are not worth tidying up."""


class WorkQueue:
    """Names with the time at which they are due.

    A name that is added again while it waits keeps the earlier time. A name that is added while a worker has it waits
    until the worker is done, so that work on one name never overlaps and no change is missed.

    `now` is a monotonic clock in seconds, by default that of the running event loop.
    """

    def __init__(self, name: str, now: Callable[[], float] | None = None) -> None:
        self._name = name
        self._now = now
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._busy: set[str] = set()
        self._again: dict[str, float] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due) + len(self._again)

    def _clock(self) -> float:
        return self._now() if self._now else asyncio.get_running_loop().time()

    def add(self, name: str, delay: float = 0.0) -> None:
        """Make `name` due in `delay` seconds, or earlier where it already is."""
        due = self._clock() + delay
        if name in self._busy:
            self._again[name] = min(due, self._again.get(name, due))
        elif due < self._due.get(name, float("inf")):
            self._due[name] = due
            heapq.heappush(self._heap, (due, name))
            if len(self._heap) > 2 * len(self._due) + SLACK:
                # What was made due earlier leaves an entry behind, for minutes where a label waits to be taken away.
                self._heap = [(at, each) for each, at in self._due.items()]
                heapq.heapify(self._heap)
            self._changed.set()
        DEPTH.set(len(self), self._name)

    async def get(self) -> str:
        """Wait for the next name that is due and take it; call done() with it after the work."""
        while True:
            self._changed.clear()
            due, name = self._heap[0] if self._heap else (float("inf"), "")
            if name and self._due.get(name) != due:
                heapq.heappop(self._heap)  # it was made due earlier, and that entry was taken
                continue
            late = self._clock() - due
            if late >= 0:
                heapq.heappop(self._heap)
                del self._due[name]
                self._busy.add(name)
                WAIT.observe(late, self._name)
                DEPTH.set(len(self), self._name)
                if self._heap:
                    self._changed.set()  # another worker may sleep until a time that has come
                return name
            try:
                async with asyncio.timeout(None if due == float("inf") else -late):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def done(self, name: str) -> None:
        """Give `name` back; it is due again where it was added meanwhile."""
        self._busy.discard(name)
        due = self._again.pop(name, None)
        if due is not None:
            self.add(name, max(0.0, due - self._clock()))
