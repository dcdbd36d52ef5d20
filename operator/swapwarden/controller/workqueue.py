"""A queue of names that need work. It coalesces and delays, and never gives one name to two workers.

The owners of the work take turns: whatever the number of names that one owner has waiting, another owner's first name
waits for as many turns as there are other owners.

By hand: no maintained Python package has such a queue. asyncio's neither coalesce names nor give owners turns.
"""

from __future__ import annotations

import asyncio
import collections
import heapq
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from swapwarden.kube import backoff, errors
from swapwarden.telemetry import metrics

DEPTH = metrics.gauge(
    "swapwarden_queue_depth", "Waiting objects by queue, including those that are not due yet.", labels=("queue",)
)
WAIT = metrics.histogram(
    "swapwarden_queue_wait_seconds",
    "Time from when an object was due to when a worker took it, by queue.",
    labels=("queue",),
)


SLACK: Final = 64
"""Up to this number, outdated entries are not cleared."""
OF_ALL: Final = 4
"""One of this many turns is not for urgent names. It serves, in turns, the name that has been due longest, urgent or
not, and the next owner of other names."""


NOBODY: Final = frozenset[str]()

Work = Callable[[str], Coroutine[Any, Any, object]]
Failed = Callable[[str, Exception, float], None]
"""Gets the name, the error, and the seconds until the work is tried again."""


class _Wish(NamedTuple):
    """When a name is due and for which owners, and whether it precedes others."""

    due: float
    urgent: frozenset[str]
    others: frozenset[str]

    def joined(self, other: _Wish | None) -> _Wish:
        if other is None:
            return self
        return _Wish(min(self.due, other.due), self.urgent | other.urgent, self.others | other.others)


class _OwnerTurns:
    """Names that are due, each for one or several owners, who take turns; each owner's are in the order of arrival."""

    def __init__(self) -> None:
        # The owner with the next turn is first.
        self._owners: collections.OrderedDict[str, collections.OrderedDict[str, None]] = collections.OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._owners)

    def __len__(self) -> int:
        return sum(map(len, self._owners.values()))

    def add(self, name: str, owners: frozenset[str]) -> None:
        for owner in owners:
            self._owners.setdefault(owner, collections.OrderedDict()).setdefault(name)

    def remove(self, name: str, owners: frozenset[str]) -> None:
        for owner in owners:
            waiting = self._owners[owner]
            del waiting[name]
            if not waiting:
                del self._owners[owner]

    def next(self) -> str:
        """Take the oldest name of the first owner, who then becomes the last."""
        owner, waiting = next(iter(self._owners.items()))
        self._owners.move_to_end(owner)
        return next(iter(waiting))


class _DueName:
    """Names that are due, by turn and by age."""

    def __init__(self) -> None:
        self.urgent, self.others = _OwnerTurns(), _OwnerTurns()
        # The longest due is first.
        self._names: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._turn = 0

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str, wish: _Wish) -> None:
        """Queue a name for its owners' turns; once more if its entry has changed."""
        self._names.setdefault(name)
        self.urgent.add(name, wish.urgent)
        self.others.add(name, wish.others)

    def next(self) -> str:
        """Return the name whose turn it is; there is one."""
        self._turn = (self._turn + 1) % (2 * OF_ALL)
        if self._turn == 0:
            return next(iter(self._names))
        if self._turn == OF_ALL:
            return (self.others or self.urgent).next()
        return (self.urgent or self.others).next()

    def remove(self, name: str, wish: _Wish) -> None:
        del self._names[name]
        self.urgent.remove(name, wish.urgent)
        self.others.remove(name, wish.others)


class WorkQueue:
    """Names with the time at which they are due. Urgent ones precede the others.

    In both groups, the owners of the work take turns, and each owner's names are in the order in which they became due,
    or urgent. Of eight turns, the longest due name has one and names that are not urgent have one: urgent work that
    never ends keeps no other waiting for ever, and one owner's work keeps no other owner waiting for long. Each name is
    listed once, so that one which changes all the time has no more turns than others.

    A name that is added again while it waits keeps the earlier time, and stays urgent. A name that is added while a
    worker has it waits until the worker is done, so that work on one name never overlaps and no change is missed.

    `now` is a monotonic clock in seconds, by default that of the running event loop. `hold` gives the seconds for which
    no name may be given out, for whatever reason, or 0. `waits` bound those after failures, see serve().
    """

    def __init__(
        self,
        name: str,
        now: Callable[[], float] | None = None,
        *,
        hold: Callable[[], float] = lambda: 0.0,
        waits: tuple[float, float] = (1.0, 60.0),
        patient: bool = False,
    ) -> None:
        self._name = name
        WAIT.begin([(name,)])
        self._now = now
        self._hold = hold
        self._patient = patient
        self.backoffs = collections.defaultdict[str, backoff.Backoff](lambda: backoff.Backoff(*waits))
        """Waits after failures, by name."""
        self._waiting: dict[str, _Wish] = {}
        # Names that are not due yet, by time; entries that differ from _waiting are outdated.
        self._later: list[tuple[float, str]] = []
        self._due = _DueName()
        self.busy: dict[str, _Wish] = {}
        self._again: dict[str, _Wish] = {}
        self._barred: dict[str, float] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._again)

    @property
    def entries(self) -> int:
        """Return how many entries take memory, outdated ones included."""
        due = len(self._due) + len(self._due.urgent) + len(self._due.others)
        return len(self._later) + due + len(self) + len(self._barred)

    def _clock(self) -> float:
        return self._now() if self._now else asyncio.get_running_loop().time()

    def add(self, name: str, delay: float = 0.0, *, urgent: bool = False, owner: str = "") -> None:
        """Make `name` due in `delay` seconds, or earlier if it already is.

        `owner` is for whom that is, such as a namespace.
        """
        owners = frozenset((owner,))
        wish = _Wish(self._clock() + delay, owners, NOBODY) if urgent else _Wish(self._clock() + delay, NOBODY, owners)
        self._add(name, wish)

    def retry(self, name: str, delay: float, *, at_least: float = 0.0) -> None:
        """Make `name` due again in `delay` seconds, with the same urgency and owners. Call it before done().

        Nothing brings it back in less than `at_least` seconds; else another change of it may.
        """
        now = self._clock()
        self._barred[name] = now + at_least
        self._add(name, self.busy[name]._replace(due=now + delay))

    def _add(self, name: str, wish: _Wish) -> None:
        if name in self.busy:
            self._again[name] = wish.joined(self._again.get(name))
        else:
            before = self._waiting.get(name)
            after = wish._replace(due=max(wish.due, self._barred.get(name, wish.due))).joined(before)
            if after != before:
                self._waiting[name] = after
                if name in self._due:
                    self._due.add(name, after)
                else:
                    heapq.heappush(self._later, (after.due, name))
                    self._tidy()
                self._changed.set()
        DEPTH.set(len(self), self._name)

    def _tidy(self) -> None:
        """Drop outdated entries: a label that waits for its removal may leave one for minutes."""
        if len(self._later) > 2 * len(self._waiting) + SLACK:
            self._later = [(wish.due, name) for name, wish in self._waiting.items() if name not in self._due]
            heapq.heapify(self._later)

    def _sort(self) -> None:
        """Move the names that have become due."""
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, name = heapq.heappop(self._later)
            wish = self._waiting.get(name)
            if wish is not None and wish.due == due and name not in self._due:
                self._due.add(name, wish)

    async def get(self) -> str:
        """Wait for the next name that is due and take it; call done() with it after the work."""
        while True:
            self._changed.clear()
            self._sort()
            held = self._hold() if self._due else 0.0
            if self._due and held <= 0:
                return self._take()
            until = held if self._due else self._later[0][0] - self._clock() if self._later else None
            try:
                async with asyncio.timeout(until):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def close(self) -> None:
        """Drop all names: nobody takes any more."""
        DEPTH.set(0, self._name)

    async def serve(self, workers: int, work: Work, failed: Failed) -> None:
        """Do the work on each name when it is due, on several names at a time, until cancelled; then close.

        A name whose work raises is due again after a growing wait. A change of it may bring it back earlier, but not
        before the API server allows it. If the queue is `patient`, it stays until the end of the wait.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._serve(work, failed))
        finally:
            self.close()

    async def _serve(self, work: Work, failed: Failed) -> None:
        while True:
            name = await self.get()
            try:
                await work(name)
            except Exception as error:  # noqa: BLE001 one name must not keep the others from the work
                wait = self.backoffs[name].after(error)
                asked = error.retry_after if isinstance(error, errors.KubeError) else 0.0
                self.retry(name, wait, at_least=wait if self._patient else asked)
                failed(name, error, wait)
            else:
                self.backoffs.pop(name, None)
            finally:
                self.done(name)

    def _take(self) -> str:
        name = self._due.next()
        wish = self.busy[name] = self._waiting.pop(name)
        self._due.remove(name, wish)
        self._barred.pop(name, None)
        WAIT.observe(self._clock() - wish.due, self._name)
        DEPTH.set(len(self), self._name)
        if self._due or self._later:
            self._changed.set()  # another worker may sleep until a time that has come
        return name

    def done(self, name: str) -> None:
        """Give `name` back; it is due again if it was added meanwhile."""
        del self.busy[name]
        wish = self._again.pop(name, None)
        if wish is not None:
            self._add(name, wish)
