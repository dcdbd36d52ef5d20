"""Writes the status of NodeSwapProfiles: on a real difference only, and not too often."""

from __future__ import annotations

import asyncio
import collections
import contextlib
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
from swapwarden.controller.term import TermOver
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


class Wait(NamedTuple):
    """That a rollout waits for the agent of a node."""

    node: str
    uid: str
    """Of the profile."""
    generation: int
    moved: bool
    """Whether the node's turn has come."""


class _Judged(NamedTuple):
    """What was known of a profile when it was looked at last."""

    uid: str
    generation: int
    profile: compiled.Profile | None
    governed: Sequence[fleet.Governed]
    contested: Sequence[profilestatus.Contest]
    moving: profilestatus.Moving
    overdue: fleet.Overdue


class ProfileReporter:
    """Owns the status of all profiles for one term, and gives nodes their turns once it stands there."""

    def __init__(
        self,
        known: cluster.Cluster,
        store: profile_store.ProfileStore,
        writes: Fenced,
        *,
        apply: Callable[[cluster.Changes], None],
        recorder: events.Recorder,
        extended_resource: bool = False,
        gather: float = GATHER_SECONDS,
        patience: float = ANSWER_SECONDS,
    ) -> None:
        """`extended_resource`: profiles that ask for it have it. `apply` takes what follows from an admission."""
        self._known = known
        self._store = store
        self._writes = writes
        self._apply = apply
        self._recorder = recorder
        self._extended_resource = extended_resource
        self._gather = gather
        self._patience = patience
        self._changed = asyncio.Event()
        self._queue = workqueue.WorkQueue("profiles")
        self._judged: dict[str, _Judged] = {}
        # Since when, in the event loop's time, rollouts wait for agents.
        self._waits: dict[Wait, float] = {}
        # When to look again although nothing changes, in the same time; None: never.
        self._next_look: float | None = None
        # Of profiles whose status could not be written, by name.
        self._backoffs: dict[str, backoff.Backoff] = {}
        # Profiles, by uid and generation, whose revisions the API server refused.
        self._cramped: set[tuple[str, int]] = set()
        # The same of those that could not be judged, and until when they are left alone, in the event loop's time.
        self._barred: dict[tuple[str, int], float] = {}

    def nudge(self) -> None:
        """A status may have become another."""
        self._changed.set()

    async def run(self) -> None:
        """Never returns."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._look())
                for _ in range(WRITERS):
                    group.create_task(self._work())
        finally:
            NODES.hold({})
            self._queue.close()

    async def _look(self) -> None:
        waits = backoff.Backoff(*BACKOFF_SECONDS)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._next_look):
                    await self._changed.wait()
            await asyncio.sleep(self._gather)
            self._changed.clear()
            try:
                self._judge()
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
                self._backoffs.pop(name, None)
            except TermOver as error:
                # It may have been renewed meanwhile; else whoever leads next looks at all profiles.
                if self._writes.term.is_valid():
                    self._retry(name, error)
            except (errors.KubeError, msgspec.MsgspecError) as error:
                delay = self._retry(name, error)
                log.warning("cannot write the status of profile %s: %s; trying again in %.1f s", name, error, delay)
            except Exception as error:
                # One profile that something is the matter with must not keep the others from their statuses.
                supervise.FAULTS.inc(PART)
                delay = self._retry(name, error)
                log.exception("cannot make the status of profile %s; trying again in %.1f s", name, delay)
            finally:
                self._queue.done(name)

    def _retry(self, name: str, error: Exception) -> float:
        """Look at the profile again, and not before; in how many seconds."""
        delay = self._waits_of(name).after(error)
        self._queue.retry(name, delay, at_least=delay)
        return delay

    def _waits_of(self, name: str) -> backoff.Backoff:
        return self._backoffs.setdefault(name, backoff.Backoff(*BACKOFF_SECONDS))

    def _judge(self) -> None:
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
            for wait, since in self._waits.items()
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
                delay = self._waits_of(name).next()
                self._barred[entry.uid, entry.generation] = now + delay
                log.exception("cannot judge profile %s; trying again in %.1f s", name, delay)
                continue
            self._barred.pop((entry.uid, entry.generation), None)
            self._judged[name] = _Judged(
                entry.uid, entry.generation, entry.profile, governed, contested[name], moving, overdue
            )
        NODES.hold(profilestatus.counted(node for judged in self._judged.values() for node in judged.governed))
        self._wait(now)

    def _wait(self, now: float) -> None:
        """Note for whom rollouts wait; those that they wait for no more are forgotten."""
        before, barred = self._waits, {uid for uid, _ in self._barred}
        self._waits = {wait: since for wait, since in before.items() if wait.uid in barred}
        for judged in self._judged.values():
            profile, progress = judged.profile, judged.moving.progress
            if profile is not None:
                waited = [(node, True) for node in progress.waiting] + [(node, False) for node in progress.unheard]
                for node, moved in waited:
                    wait = Wait(node, profile.uid, profile.generation, moved)
                    self._waits[wait] = before.get(wait, now)
        ends = [*self._barred.values(), *(since + self._patience for since in self._waits.values())]
        self._next_look = min((end for end in ends if end > now), default=None)

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
        if await self._write(entry, status) and judged.profile is not None:
            self._apply(self._known.admit(judged.profile, judged.moving.progress.next, judged.overdue))

    async def _write(self, entry: profile_store.Entry, status: dict[str, Any]) -> bool:
        """Have the profile's status say this; whether it does, and the term lasts."""
        patch = merge.merge_patch(entry.status, status)
        if not patch:
            return self._writes.term.is_valid()
        await self._writes.ready()
        try:
            answer = await unless_superseded(profile_status.write(self._writes, entry, patch))
        except errors.ApiError as error:
            if "revisions" in patch and profile_status.is_too_large(error):
                # What is refused with them may be taken without; if it is not, nothing is lost.
                self._cramped.add((entry.uid, entry.generation))
            raise
        if answer is None:
            return False
        self._tell(entry, status)
        self._store.offer(decoding.decode(answer, dict[str, Any]))
        return self._writes.term.is_valid()

    def _tell(self, entry: profile_store.Entry, status: dict[str, Any]) -> None:
        """By events, once the status says it: what it said before was told before, whoever led then."""
        for notice in notices.notices(regarding.profile(entry.name, entry.uid), entry.status, status):
            self._recorder.post(notice)


def _moving(progress: rollout.Progress, overdue: fleet.Overdue, named: Mapping[int, int]) -> profilestatus.Moving:
    stalled = bool(progress.waiting) and all((node, True) in overdue for node in progress.waiting)
    return profilestatus.Moving(progress, stalled, named)
