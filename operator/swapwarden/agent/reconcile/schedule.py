"""The times at which keys are due: one table, and one timer of the event loop.

| why | key | when |
|---|---|---|
| RETRY | file | after a failure 2 to 120 s, of a new cgroup's files 0.01 to 5 s, contested 0.01 s |
| RETRY | file that a thread writes | each 30 s, which is logged; the end of the write marks the file by itself |
| RETRY | file that drains | half the time since something changed, 2 to 30 s |
| RETRY | file that is left to another writer | an hour after that began |
| SETTLED | container | 3 s after it came; 1 s if it causes events in a loop |
| FAILED | any | 2 to 120 s; of new cgroups 0.01 to 5 s, nine times |
| DUE | search for the tree | 1 to 10 s, while there is none |
| DUE | comparison of all | 1 s, while not everything can be watched |
| DUE | causes | 1 s after the first value that was written over and has none yet |
| DUE | the runtime's values | 2 to 120 s after it refused one; 3 s after a container came; if a plugin is missing |
| DUE | messages to a plugin of the runtime | 2 s after the first that it may not have read |
| DUE | units of the node | 2 to 120 s after io.latency or io.weight was refused |
| DUE | cgroups that the kernel throttles | 2 s; 10 s after the hold of a released one |
| AWAITS | pod | 5 s after it came, if no state names it: from then on that is reported |

Not here are waits of which no key is due at the end: the comparison at each `--resync-interval` and signs of life
(`agent.py`), requests and their failures (`desired/state_watch.py`, `report/status_writer.py`), the state's copy on the
disk (`desired/state_cache.py`), refused kernel settings (`settings.py`), the next look at memory pressure
(`pressure/sampler.py`), a plugin that could not connect (`host/runtime_link.py`), and the thread that moves idle memory
(`reclaim/reclaimer.py`).
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

_SLACK: Final = 64
K = TypeVar("K")


class Why(enum.StrEnum):
    """Reasons for which a key is due."""

    RETRY = "retry"
    SETTLED = "settled"
    FAILED = "failed"
    DUE = "due"
    AWAITS = "awaits"


class Schedule(Generic[K]):
    """The table of keys that are due, and when. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.times: dict[tuple[K, Why], float] = {}
        """When each key is due, by reason. Only methods change it."""
        self._heap: list[tuple[float, int, tuple[K, Why]]] = []
        """Entries whose time is not that of `times` are skipped."""
        self._count = itertools.count()

    def at(self, key: K, why: Why, when: float) -> None:
        """Have a key due, in place of an earlier time for the same reason."""
        self.times[key, why] = when
        heapq.heappush(self._heap, (when, next(self._count), (key, why)))
        if len(self._heap) > 2 * len(self.times) + _SLACK:  # a tenant may cause any number of new times
            self._heap = [(at, next(self._count), entry) for entry, at in self.times.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: K, why: Why) -> None:
        """Have a key not due for this reason any more."""
        self.times.pop((key, why), None)

    def clear(self) -> None:
        """Have no key due any more."""
        self.times.clear()
        self._heap.clear()

    @property
    def next(self) -> float | None:
        """When the first of all is due."""
        while self._heap and self.times.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[tuple[K, Why]]:
        """Yield and remove all that is due, the earliest first."""
        while (first := self.next) is not None and first <= now:
            entry = heapq.heappop(self._heap)[2]
            del self.times[entry]
            yield entry


class Alarm:
    """The one timer of the event loop."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.on = False
        """Whether it may be set: from the start to the end of the agent."""
        self._when: float | None = None
        self.timer: asyncio.TimerHandle | None = None

    def set(self, when: float | None, now: float) -> None:
        """Call `wake` then, in monotonic seconds and once, in place of an earlier order; None: not at all."""
        if when == self._when:
            return
        if self.timer is not None:
            self.timer.cancel()
        self._when = when
        self.timer = None
        if when is not None:
            self.timer = asyncio.get_running_loop().call_later(max(0.0, when - now), self._ring)

    def _ring(self) -> None:
        self._when = self.timer = None
        self._wake()
