"""Whether this instance leads: once it is in sync and elected, a term begins. The only place that decides this."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from swapwarden.controller import supervise
from swapwarden.controller.leader import Leader, StepDown
from swapwarden.controller.term import Term
from swapwarden.kube.election import election, elector
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

LEADER = metrics.gauge(
    "swapwarden_leader", "1 while this instance of the controller leads: one at a time plans and writes."
)
EPOCH = metrics.gauge(
    "swapwarden_controller_epoch", "Leadership term in this process's writes; 0 while it does not lead."
)

PART: Final = "term"
"""The part's name in the metrics of supervise."""
SYNC_SECONDS: Final = 5.0
"""Seconds between two checks of whether all is in sync."""
LAG_SECONDS: Final = 420.0
"""After so many seconds without news of a collection, plans are not trusted: a working watch ends within 90 seconds,
and a list may take five minutes."""


class Heard(Protocol):
    """A collection with regular news."""

    @property
    def name(self) -> str: ...

    @property
    def heard(self) -> float:
        """Return when it last had news, on the clock of time.monotonic()."""


class Readiness:
    """Whether all inputs of a plan are known."""

    def __init__(self, collections: Mapping[str, asyncio.Event], watched: Iterable[Heard]) -> None:
        """`collections` are set once they are known, by name."""
        self.collections: Final = collections
        self._watched: Final = tuple(watched)

    def unready(self) -> str | None:
        """Return the missing or outdated collections; None if there are none. An instance that stands by is ready."""
        waiting = [name for name, synced in self.collections.items() if not synced.is_set()]
        return f"waiting for {', '.join(waiting)}" if waiting else self.lagging()

    def lagging(self) -> str | None:
        """Return the collections without news for LAG_SECONDS, since plans could be outdated; None if all have news."""
        late = time.monotonic() - LAG_SECONDS
        lagging = [one.name for one in self._watched if one.heard < late]
        return f"nothing was heard of {', '.join(lagging)} for {LAG_SECONDS:g} s" if lagging else None

    async def wait(self, seconds: float) -> None:
        """Wait until the next collection is known, at most this long."""
        waiting = [synced for synced in self.collections.values() if not synced.is_set()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await (waiting[0] if waiting else asyncio.Event()).wait()


class Leadership:
    """Begins and ends terms, all in one event loop."""

    def __init__(
        self,
        readiness: Readiness,
        make: Callable[..., elector.Elector],
        *,
        largest_epoch: Callable[[], int],
        leads: Callable[[Term, StepDown], Leader],
    ) -> None:
        """`make` makes the elector, from `on_started` and `on_stopped`; `leads` makes a leader for each term.

        `largest_epoch` is that of all states.
        """
        loop = asyncio.get_running_loop()
        self._readiness = readiness
        self._largest_epoch = largest_epoch
        self._leads = leads
        # It has a thread of its own.
        self.elector = make(
            on_started=lambda leadership: _call_in(loop, self.on_elected, leadership),
            on_stopped=lambda leadership, reason: _call_in(loop, self.on_lost, leadership, reason),
        )
        self._elected: elector.Tenure | None = None
        self.leader: Leader | None = None
        """The leader of this term, even if no write may begin any more."""
        self._tasks = set[asyncio.Task[None]]()
        self._unsure_until = -math.inf
        self._stopping = False

    async def compete(self, before_each: Callable[[], None]) -> None:
        """Compete for the Lease only while all inputs of a plan are known, until cancelled.

        Calls `before_each` before each check of that.
        """
        while True:
            before_each()
            unready, lagging = self._readiness.unready(), self._readiness.lagging()
            self.elector.stand(candidate=unready is None)
            if unready is None:
                self.begin()
            elif lagging is not None and self._elected is not None:
                self.elector.step_down(lagging, self._elected)
            await self._readiness.wait(SYNC_SECONDS)

    def on_elected(self, leadership: elector.Tenure) -> None:
        """Begin to lead: this instance holds the Lease, or its count has risen."""
        self._elected = leadership
        self.begin()

    def on_lost(self, leadership: elector.Tenure, reason: str) -> None:
        """End the leadership whose Lease is lost."""
        if self._elected is not leadership:
            return
        self._elected = None
        self.end()
        log.warning("this instance does not lead any more", extra={"reason": reason})

    def begin(self) -> None:
        """Begin to lead if this instance is elected and all inputs of a plan are known."""
        leadership = self._elected
        if self._stopping or leadership is None or leadership.left() <= 0 or self._readiness.unready() is not None:
            return
        if self.leader is not None and self.leader.term.leadership is leadership:
            return
        transitions, largest = leadership.transitions, self._largest_epoch()
        if transitions < largest <= election.MAX_TRANSITIONS:
            # A Lease that was deleted counts from 0 again. The Lease must have the term before the first write in
            # it: the next leader may see nothing else of that term, and would take the same.
            self.elector.count_from(largest)
            return
        self._drop()
        term = Term(1 + max(transitions, largest), leadership)
        self.leader = self._leads(term, self.step_down)
        LEADER.set(1)
        EPOCH.set(term.epoch)
        task = asyncio.create_task(self._lead(self.leader, tuple(self._tasks)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _lead(self, leader: Leader, earlier: tuple[asyncio.Task[None], ...]) -> None:
        """Lead once earlier leaders have ended: their last writes must not follow the first ones of this one."""
        if earlier:
            await asyncio.wait(earlier)
        del earlier  # their errors keep all of their memory alive
        try:
            await leader.run()
        except Exception as error:
            # One that keeps the Lease and does nothing is worse than none.
            supervise.FAULTS.inc(PART)
            log.exception("unexpected error in a term, which ends: this instance or another one begins the next")
            self.step_down(leader.term, f"unexpected error: {error!r}")

    def step_down(self, term: Term, reason: str) -> None:
        """Lead no longer, unless another term than this one has begun."""
        if self.leader is not None and term is self.leader.term and self._elected is not None:
            self.elector.step_down(reason, self._elected)

    def end(self) -> None:
        """Stop all further writes, and drop the term with its memory."""
        self._drop()
        LEADER.set(0)
        EPOCH.set(0)

    def _drop(self) -> None:
        ended, self.leader = self.leader, None
        if ended is not None:
            ended.end()
            self._unsure_until = max(self._unsure_until, ended.term.unsure_until)
        for task in self._tasks:
            task.cancel()

    async def drain(self) -> None:
        """Let no further term or write begin, and wait for writes in flight."""
        self._stopping = True
        if self.leader is not None:
            await self.leader.term.drain()

    async def stop(self) -> None:
        """End, and release the Lease, unless the API server may still execute a write that had no answer."""
        self._stopping = True
        self.end()
        if self._tasks:
            await asyncio.wait(self._tasks)
        # Others wait until the Lease expires then.
        unsure = asyncio.get_running_loop().time() < self._unsure_until
        await asyncio.to_thread(self.elector.stop, release=not unsure)


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: object) -> None:
    """Call back in the loop, from another thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed when the process ends
        loop.call_soon_threadsafe(callback, *arguments)
