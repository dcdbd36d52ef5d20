"""Evicts the pod that was chosen on a node, one at a time: it is recorded in the node's state before the request.

A new leader finds the record and finishes that eviction, whatever became of the request; it chooses no second pod.
"""

from __future__ import annotations

import enum
import logging
import math
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec

from swapwarden.api import decoding, state, times
from swapwarden.api.notices import Notice
from swapwarden.controller.pressure.budgets import EvictionAnswer
from swapwarden.controller.term import TermOver
from swapwarden.controller.writers import victims
from swapwarden.kube import errors, events, transport
from swapwarden.policy.fleet import cluster
from swapwarden.policy.observed import states
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.pressure import limits
from swapwarden.policy.pressure.candidates import Candidate
from swapwarden.policy.pressure.choice import HoldReason, Limited, NoVictim
from swapwarden.policy.pressure.ranking import Ranked
from swapwarden.policy.pressure.thresholds import Eviction
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

STALE_SECONDS: Final = 15.0
"""How old a report may be from which a pod is evicted."""
LOOK_SECONDS: Final = 2.0
"""Between two looks at a pod that ends."""
PATIENCE_SECONDS: Final = 30.0
"""How long a new leader waits for a report before it gives up a recorded eviction that was never asked for. Each agent
reports more often while its node is under pressure."""

EVICTIONS = metrics.counter(
    "swapwarden_controller_evictions_total",
    "Pods that were chosen to be evicted from nodes under memory pressure, by result: Evicted, Budget, SeveralBudgets"
    " (disruption budgets forbid it), Gone (it ended or was replaced before), Cancelled (the pressure ended before, or"
    " the pod no longer exceeds), or Error (no answer, or another refusal; it is tried again).",
    labels=("result",),
    known=[(each,) for each in ("Evicted", "Budget", "SeveralBudgets", "Gone", "Cancelled", "Error")],
)
POST_SECONDS = metrics.histogram(
    "swapwarden_controller_eviction_request_seconds",
    "Time from when this process received a report of memory pressure to its request to evict a pod.",
)


class PodLife(enum.Enum):
    """The life of a pod."""

    ALIVE = enum.auto()
    ENDING = enum.auto()
    """It was deleted, and its containers may still run."""
    GONE = enum.auto()
    """It ended, or another pod has its name."""


class _Attempt(msgspec.Struct):
    """The eviction of a node's recorded pod."""

    victim: state.EvictedPod
    since: float
    notices: tuple[Notice, ...] = ()
    """About it; none unless this instance asked for it."""
    counted: bool = False
    unsure: bool = False
    """Whether a request had no answer: it may yet be executed."""


Rank = Callable[[], Awaitable[Sequence[Ranked]]]
Evict = Callable[[Candidate, int], Awaitable[EvictionAnswer]]
MakeNotices = Callable[[Ranked], Iterable[Notice]]
"""Makes the notices of an eviction."""


class Evictor:
    """The evictions of one term."""

    def __init__(
        self,
        known: cluster.Cluster,
        api: transport.Reader,
        records: victims.VictimWriter,
        recorder: events.Recorder,
        *,
        evict: Evict,
        now: Callable[[], float] = time.monotonic,
        today: Callable[[], float] = time.time,
    ) -> None:
        """`evict(pod, seconds)` evicts a pod within the term, which then has so many seconds to end.

        `today` is the wall clock, in seconds since 1970.
        """
        self._known = known
        self._api = api
        self._records = records
        self._recorder = recorder
        self._evict = evict
        self._now = now
        self._today = today
        self._attempts: dict[str, _Attempt] = {}
        self._evictions = limits.Evictions(now())

    def is_under_way(self, node: str) -> bool:
        """Return whether there is an eviction from the node: proceed() is due in LOOK_SECONDS."""
        return node in self._attempts

    def is_settling(self, node: str, bounds: Eviction) -> bool:
        """Return whether an eviction from the node is under way, or has yet to show in its signals."""
        return self._evictions.is_settling(node, bounds.settle, self._now())

    def kubelet_acts(self, node: str) -> None:
        """Take in that the node's kubelet begins to evict pods for want of memory, or evicted one."""
        self._evictions.kubelet_acts(node, self._now())

    def is_kubelet_evicting(self, node: str, bounds: Eviction) -> bool:
        """Return whether the node's kubelet evicts pods, or did a moment ago."""
        return self._evictions.is_kubelet_evicting(node, bounds.settle, self._now())

    def limited(self, node: str, profile: str, bounds: Eviction) -> Limited | None:
        """Return what forbids another eviction from the node now."""
        return self._evictions.limited(node, profile, bounds.per_hour, self._now())

    def recall(self, row: states.StateRow) -> None:
        """Count the evictions that a state has from earlier terms."""
        today = self._today()
        read = {stamp: times.seconds(stamp) for stamp in row.evicted_at}
        past = {stamp: 0.0 if at is None else today - at for stamp, at in read.items()}
        self._evictions.recall(row.name, row.profile.name, past, self._now())

    def forget(self, node: str) -> None:
        """Take in that the node, its pod, or the record of the eviction is gone."""
        if self._attempts.pop(node, None) is not None:
            self._evictions.end(node, self._now())

    async def begin(
        self, row: states.StateRow, chosen: Ranked, bounds: Eviction, notices: MakeNotices, arrived: float
    ) -> NoVictim | EvictionAnswer | None:
        """Record the pod and evict it; return the answer, or why it is not evicted after all.

        `row` is the state by which it was chosen: if it has changed, ApiError (409) is raised, and nothing is recorded.
        After any other error, proceed() continues if there is a record. `arrived` is when the report came.
        """
        await self._records.ready()  # a write that waits must count when it is sent
        if self._now() - arrived > STALE_SECONDS:  # dry runs took long
            return NoVictim(HoldReason.STALE)
        limited = self.limited(row.name, row.profile.name, bounds)
        if limited is not None:  # another node was faster
            return NoVictim(limited)
        pod, seq = chosen.pod, row.pressure.seq if row.pressure else 1
        victim = state.EvictedPod(pod.uid, pod.namespace, pod.name, seq)
        attempt = self._attempt(row, victim)
        try:
            written = await self._records.record(row, victim)
        except BaseException as error:
            # Without an answer it may be executed all the same, and is found like that of an earlier leader: it counts.
            if isinstance(error, errors.ApiError) and error.status < 500:
                self._withdraw(row.name)
            raise
        log.info("a pod is evicted", extra={"node": row.name, "namespace": pod.namespace, "pod": pod.name})
        now = self._known.inventory.report_of(row.name)
        if now is None or now.pressure is None:
            await self._cancel(written, attempt)
            return None
        if self.is_kubelet_evicting(row.name, bounds):
            await self._cancel(written, attempt)
            return NoVictim(HoldReason.KUBELET_EVICTING)
        if await self._look(victim) is PodLife.GONE:
            # The API server would take the request, and delete the pod that the kubelet evicted.
            await self._gone(written)
            return NoVictim(HoldReason.SETTLING)
        POST_SECONDS.observe(self._now() - arrived)
        return await self._post(written, attempt, chosen, bounds, notices)

    async def proceed(
        self, row: states.StateRow, bounds: Eviction, rank: Rank, notices: MakeNotices, *, stands: bool | None
    ) -> EvictionAnswer | None:
        """Go on with the eviction in the node's record; return the answer if the API server was asked.

        `stands` is whether the node is under pressure by which pods may be evicted; None: that is not known yet.
        """
        victim = row.victim
        if victim is None:
            return None
        attempt = self._attempts.get(row.name)
        if attempt is None or attempt.victim != victim:
            attempt = self._attempt(row, victim)
        life = await self._look(victim)
        if life is PodLife.GONE:
            self._announce(attempt)
            await self._gone(row, counted=attempt.counted)
        elif life is PodLife.ENDING:
            self._announce(attempt)
        elif stands is not None or self._now() - attempt.since >= PATIENCE_SECONDS:
            ranked = await rank() if stands else ()
            chosen = next((one for one in ranked if one.pod.uid == victim.uid and one.spared is None), None)
            if chosen is not None:
                return await self._post(row, attempt, chosen, bounds, notices)
            await self._cancel(row, attempt)
        return None

    def _attempt(self, row: states.StateRow, victim: state.EvictedPod) -> _Attempt:
        now = self._now()
        self._evictions.withdraw(row.name)
        stamp = times.rfc3339(math.ceil(self._today()))  # never earlier: an hour must not be shorter
        self._evictions.begin(row.name, row.profile.name, now, stamp)
        self._attempts[row.name] = attempt = _Attempt(victim, now)
        return attempt

    async def _post(
        self, row: states.StateRow, attempt: _Attempt, chosen: Ranked, bounds: Eviction, notices: MakeNotices
    ) -> EvictionAnswer:
        attempt.notices = tuple(notices(chosen))
        try:
            answer = await self._evict(chosen.pod, bounds.grace)
        except (errors.KubeError, TermOver) as error:
            EVICTIONS.inc("Error")
            if isinstance(error, errors.ApiError) and error.status < 500:
                attempt.notices = ()  # nothing was done
                if error.status != 429:
                    await self._drop(row, attempt)
            else:
                attempt.unsure = True
            raise
        if answer in {EvictionAnswer.BUDGET, EvictionAnswer.SEVERAL_BUDGETS}:
            EVICTIONS.inc(answer)
            await self._drop(row, attempt)
            return answer
        if answer is EvictionAnswer.ALLOWED:
            self._announce(attempt)
        return answer

    def _announce(self, attempt: _Attempt) -> None:
        """Count an eviction that this instance asked for, and post its notices, once."""
        if attempt.notices and not attempt.counted:
            attempt.counted = True
            EVICTIONS.inc("Evicted")
            for notice in attempt.notices:
                self._recorder.post(notice)

    async def _gone(self, row: states.StateRow, *, counted: bool = False) -> None:
        if not counted:
            EVICTIONS.inc("Gone")
        await self._clear(row, counts=True)
        self.forget(row.name)

    async def _cancel(self, row: states.StateRow, attempt: _Attempt) -> None:
        EVICTIONS.inc("Cancelled")
        await self._drop(row, attempt)
        log.info("the eviction is cancelled", extra={"node": row.name})

    async def _drop(self, row: states.StateRow, attempt: _Attempt) -> None:
        """Give up an eviction, which counts all the same if a request may yet be executed."""
        await self._clear(row, counts=attempt.unsure)
        if attempt.unsure:
            self.forget(row.name)
        else:
            self._withdraw(row.name)

    def _withdraw(self, node: str) -> None:
        self._attempts.pop(node, None)
        self._evictions.withdraw(node)

    async def _look(self, victim: state.EvictedPod) -> PodLife:
        # A list, from the API server's storage as a GET is: the controller has no right to get pods.
        path = f"/api/v1/namespaces/{urllib.parse.quote(victim.namespace, safe='')}/pods"
        body = await self._api.get(path, params={"fieldSelector": f"metadata.name={victim.name}"})
        for item in decoding.page(body).items or ():
            pod = decoding.decode(item, WirePod)
            if pod.metadata.uid == victim.uid and pod.status.phase not in {"Succeeded", "Failed"}:
                return PodLife.ENDING if pod.metadata.deletion_timestamp else PodLife.ALIVE
        return PodLife.GONE

    async def _clear(self, row: states.StateRow, *, counts: bool = False) -> None:
        """Remove the record, unless it is gone with the state, or with the thresholds.

        `counts`: its pod was evicted, so it is one of those that a new leader must know.
        """
        if row.victim is not None:
            past = self._evictions.past(row.name, self._now(), ended=not counts)
            await self._records.clear(row, past[-state.MAX_EVICTED :])
