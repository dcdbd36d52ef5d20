"""Writes the status of NodeSwapProfiles: on a real difference only, and not too often."""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from swapwarden.api import merge, times
from swapwarden.controller import cluster, profilestatus, supervise, workqueue
from swapwarden.controller.inventory import profiles as profile_store
from swapwarden.controller.notices import profiles as notices
from swapwarden.controller.notices import regarding
from swapwarden.controller.planning import fleet
from swapwarden.controller.term import Term, TermOver, Wait
from swapwarden.controller.writers import profile_status
from swapwarden.controller.writers.fenced import Fenced, unless_superseded
from swapwarden.kube import backoff, decoding, errors, events
from swapwarden.policy import rollout
from swapwarden.policy.profile import compiled
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

NODES = metrics.reading(
    "gauge",
    "swapwarden_nodes",
    "Nodes that a profile governs, by state: each is applied, pending, incompatible or without_agent, and may be"
    " degraded or requirements_unmet besides; the statuses of profiles name them. Only the leader has it.",
    labels=("state",),
)

PART: Final = "profile_status"
"""Of the controller, see supervise."""
GATHER_SECONDS: Final = 1.0
"""How long reports of nodes gather before profiles are looked at."""
ANSWER_SECONDS: Final = 120.0
"""How long a rollout waits for an agent before it counts with those that do not answer."""
BACKOFF_SECONDS: Final = (1.0, 60.0)
WRITERS: Final = 4
"""Statuses that may be on their way at once: one that hangs keeps no other back."""


class _Judged(NamedTuple):
    """What was known of a profile when it was looked at last."""

    term: Term
    uid: str
    generation: int
    profile: compiled.Profile | None
    governed: Sequence[fleet.Governed]
    contested: Sequence[profilestatus.Contest]
    moving: profilestatus.Moving
    overdue: fleet.Overdue


class ProfileReporter:
    """Owns the status of all profiles while there is a term, and gives nodes their turns once it stands there."""

    def __init__(
        self,
        known: cluster.Cluster,
        store: profile_store.ProfileStore,
        *,
        term: Callable[[], Term | None],
        apply: Callable[[cluster.Changes], None],
        recorder: events.Recorder,
        fenced: Callable[[Term], Fenced],
        extended_resource: bool = False,
        gather: float = GATHER_SECONDS,
        patience: float = ANSWER_SECONDS,
    ) -> None:
        """`extended_resource`: profiles that ask for it have it. `apply` takes what follows from an admission.

        `fenced` gives the writes of a term.
        """
        self._known = known
        self._store = store
        self._term = term
        self._apply = apply
        self._recorder = recorder
        self._fenced = fenced
        self._extended_resource = extended_resource
        self._gather = gather
        self._patience = patience
        self._changed = asyncio.Event()
        self._queue = workqueue.WorkQueue("profiles")
        self._judged: dict[str, _Judged] = {}
        # Profiles, by uid and generation, whose revisions the API server refused.
        self._cramped: set[tuple[str, int]] = set()
        # The same of those that could not be judged, and until when they are left alone, in the event loop's time.
        self._barred: dict[tuple[str, int], float] = {}

    def nudge(self) -> None:
        """A status may have become another."""
        self._changed.set()

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look())
            for _ in range(WRITERS):
                group.create_task(self._work())

    async def _look(self) -> None:
        waits = backoff.Backoff(*BACKOFF_SECONDS)
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._gather)
            self._changed.clear()
            term = self._term()
            if term is None:
                NODES.hold({})
                self._judged = {}
                continue
            try:
                self._judge(term)
            except Exception:
                supervise.FAULTS.inc(PART)
                self._changed.set()
                delay = waits.next()
                log.exception("cannot look at the profiles; trying again in %.1f s", delay)
                await asyncio.sleep(delay)
                continue
            waits.reset()
            for name in self._judged:
                self._queue.add(name)

    async def _work(self) -> None:
        while True:
            name = await self._queue.get()
            judged = self._judged.get(name)
            if judged is None:
                self._queue.done(name)
                continue
            try:
                await self._bring(name, judged)
                judged.term.reports.pop(name, None)
            except TermOver as error:
                # It may have been renewed meanwhile; else whoever leads next looks at all profiles.
                if judged.term.is_valid():
                    self._retry(name, judged, error)
            except (errors.KubeError, msgspec.MsgspecError) as error:
                delay = self._retry(name, judged, error)
                log.warning("cannot write the status of profile %s: %s; trying again in %.1f s", name, error, delay)
            except Exception as error:
                # One profile that something is the matter with must not keep the others from their statuses.
                supervise.FAULTS.inc(PART)
                delay = self._retry(name, judged, error)
                log.exception("cannot make the status of profile %s; trying again in %.1f s", name, delay)
            finally:
                self._queue.done(name)

    def _retry(self, name: str, judged: _Judged, error: Exception) -> float:
        """Look at the profile again, and not before; in how many seconds."""
        waits = judged.term.reports.setdefault(name, backoff.Backoff(*BACKOFF_SECONDS))
        delay = waits.after(error)
        self._queue.retry(name, delay, at_least=delay)
        return delay

    def _judge(self, term: Term) -> None:
        """Look at all nodes under all profiles."""
        members: dict[str, list[str]] = collections.defaultdict(list)
        contested: dict[str, list[profilestatus.Contest]] = collections.defaultdict(list)
        for node, selection in fleet.selections(self._known.planner):
            winner = selection.profile.name
            members[winner].append(node)
            for rival in selection.conflicts:
                contested[winner].append(profilestatus.Contest(rival, node))
                contested[rival].append(profilestatus.Contest(winner, node))
        now = asyncio.get_running_loop().time()
        entries = self._store.entries
        current = {(entry.profile.uid, entry.profile.generation) for entry in entries.values() if entry.profile}
        overdue = {
            (wait.node, wait.moved)
            for wait, since in term.waits.items()
            if now - since >= self._patience and (wait.uid, wait.generation) in current
        }
        generations = fleet.generations(self._known.planner)
        versions = {(entry.uid, entry.generation) for entry in entries.values()}
        self._cramped &= versions
        self._barred = {version: until for version, until in self._barred.items() if version in versions}
        self._judged = {}
        for name, entry in entries.items():
            if self._barred.get((entry.uid, entry.generation), now) > now:
                continue
            try:
                governed = [fleet.governed(self._known.planner, node) for node in members[name]]
                progress = (
                    fleet.rollout_of(self._known.planner, entry.profile, members[name], overdue)
                    if entry.profile is not None and members[name]
                    else rollout.Progress(updated=0, pending=0)
                )
                moving = _moving(progress, overdue, generations.get(name, {}))
            except Exception:
                # What cannot be judged of one profile must not keep the others from their rollouts.
                supervise.FAULTS.inc(PART)
                delay = term.reports.setdefault(name, backoff.Backoff(*BACKOFF_SECONDS)).next()
                self._barred[entry.uid, entry.generation] = now + delay
                asyncio.get_running_loop().call_later(delay, self.nudge)
                log.exception("cannot judge profile %s; trying again in %.1f s", name, delay)
                continue
            self._barred.pop((entry.uid, entry.generation), None)
            self._judged[name] = _Judged(
                term, entry.uid, entry.generation, entry.profile, governed, contested[name], moving, overdue
            )
        NODES.hold(profilestatus.counted(node for judged in self._judged.values() for node in judged.governed))
        self._wait(term, now)

    def _wait(self, term: Term, now: float) -> None:
        """Note for whom rollouts wait; those that they wait for no more are forgotten."""
        before = dict(term.waits)
        term.waits.clear()
        barred = {uid for uid, _ in self._barred}
        term.waits.update({wait: since for wait, since in before.items() if wait.uid in barred})
        for judged in self._judged.values():
            profile, progress = judged.profile, judged.moving.progress
            if profile is not None:
                waited = [(node, True) for node in progress.waiting] + [(node, False) for node in progress.unheard]
                for node, moved in waited:
                    wait = Wait(node, profile.uid, profile.generation, moved)
                    term.waits[wait] = before.get(wait, now)
        if term.waits.keys() - before.keys():
            asyncio.get_running_loop().call_later(self._patience, self.nudge)

    async def _bring(self, name: str, judged: _Judged) -> None:
        """Have the profile's status say what was judged last, and then let nodes have their turn."""
        entry = self._store.entries.get(name)
        if entry is None or (entry.uid, entry.generation) != (judged.uid, judged.generation):
            return  # it is gone, or about to be looked at again
        now = times.rfc3339(time.time())
        status = profilestatus.build(
            entry,
            judged.governed,
            judged.contested,
            judged.moving,
            now,
            extended_resource=self._extended_resource,
            cramped=(entry.uid, entry.generation) in self._cramped,
        )
        # After the status: it says what the next wave takes before it is taken.
        if await self._write(entry, status, judged.term) and judged.profile is not None:
            self._apply(self._known.admit(judged.profile, judged.moving.progress.next, judged.overdue))

    async def _write(self, entry: profile_store.Entry, status: dict[str, Any], term: Term) -> bool:
        """Have the profile's status say this; whether it does, and the term lasts."""
        patch = merge.merge_patch(entry.status, status)
        if not patch:
            return term.is_valid()
        writes = self._fenced(term)
        await writes.ready()
        try:
            request = profile_status.write(writes, entry, patch)
            answer = await unless_superseded(request)
        except errors.ApiError as error:
            if "revisions" in patch and profile_status.is_too_large(error):
                # What is refused with them may be taken without; if it is not, nothing is lost.
                self._cramped.add((entry.uid, entry.generation))
            raise
        if answer is None:
            return False
        self._tell(entry, status)
        self._store.offer(decoding.decode(answer, dict[str, Any]))
        return term.is_valid()

    def _tell(self, entry: profile_store.Entry, status: dict[str, Any]) -> None:
        """By events, once the status says it: what it said before was told before, whoever led then."""
        for notice in notices.notices(regarding.profile(entry.name, entry.uid), entry.status, status):
            self._recorder.post(notice)


def _moving(progress: rollout.Progress, overdue: fleet.Overdue, named: Mapping[int, int]) -> profilestatus.Moving:
    stalled = bool(progress.waiting) and all((node, True) in overdue for node in progress.waiting)
    return profilestatus.Moving(progress, stalled, named)
