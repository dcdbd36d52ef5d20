"""Rolls profiles out: judges how their nodes do, has their statuses say so, and then gives nodes their turns."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from swapwarden.controller import supervise, workqueue
from swapwarden.controller.profiles.revision_history import RevisionHistory
from swapwarden.controller.profiles.status_publisher import StatusPublisher
from swapwarden.controller.term import TermOver
from swapwarden.kube import backoff, errors
from swapwarden.policy.fleet import cluster, profile_status, rollout
from swapwarden.policy.fleet import progress as fleet
from swapwarden.policy.fleet.profile_status import Judged
from swapwarden.policy.profile.store import Entry, ProfileStore
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
"""The part's name in the metrics of supervise."""
GATHER_SECONDS: Final = 1.0
"""How long reports of nodes gather before profiles are looked at."""
ANSWER_SECONDS: Final = 120.0
"""How long a rollout waits for an agent before it counts with those that do not answer."""
BACKOFF_SECONDS: Final = (1.0, 60.0)
WRITERS: Final = 4
"""Statuses that may be on their way at once: one that hangs keeps no other back."""


class Wait(NamedTuple):
    """A rollout's wait for the agent of one node."""

    node: str
    uid: str
    """The UID of the profile."""
    generation: int
    moved: bool
    """Whether the node's turn has come."""


class Waits:
    """The agents that rollouts wait for, and since when."""

    def __init__(self, patience: float) -> None:
        """A wait is overdue after `patience` seconds."""
        self._patience = patience
        self.since: dict[Wait, float] = {}
        """Begins of waits, in the event loop's time."""

    def overdue(self, now: float, current: Container[tuple[str, int]]) -> set[tuple[str, bool]]:
        """Return the nodes whose wait is too long, for generations that are `current` (uid and generation)."""
        return {
            (wait.node, wait.moved)
            for wait, since in self.since.items()
            if since + self._patience <= now and (wait.uid, wait.generation) in current
        }

    def note(self, now: float, judged: Iterable[Judged], barred: Container[str]) -> None:
        """Note for whom rollouts wait. Those are forgotten that none waits for, but of profiles that are `barred`."""
        before = self.since
        self.since = {wait: since for wait, since in before.items() if wait.uid in barred}
        for each in judged:
            profile, progress = each.profile, each.progress
            if profile is not None:
                waited = [(node, True) for node in progress.waiting] + [(node, False) for node in progress.unheard]
                for node, moved in waited:
                    wait = Wait(node, profile.uid, profile.generation, moved)
                    self.since[wait] = before.get(wait, now)

    def ends(self) -> list[float]:
        """Return when the next wait has lasted too long."""
        return [since + self._patience for since in self.since.values()]


class Rollouts:
    """The rollouts of all profiles for one term."""

    def __init__(
        self,
        known: cluster.Cluster,
        store: ProfileStore,
        statuses: StatusPublisher,
        kept: RevisionHistory,
        *,
        apply: Callable[[cluster.Changes], None],
        on_change: Callable[[], None],
        gather: float = GATHER_SECONDS,
        patience: float = ANSWER_SECONDS,
    ) -> None:
        """`apply` takes what follows from an admission; `on_change` is called when the store knows more than before.

        Times are in seconds.
        """
        self._known = known
        self._store = store
        self._statuses = statuses
        self._kept = kept
        self._apply = apply
        self._on_change = on_change
        self._gather = gather
        self.waits = Waits(patience)
        self._changed = asyncio.Event()
        self.queue = workqueue.WorkQueue("profiles", waits=BACKOFF_SECONDS, patient=True)
        self.judged: dict[str, Judged] = {}
        # By uid and generation of profiles that could not be judged: until when they are left alone, in the same time.
        self._barred: dict[tuple[str, int], float] = {}

    def request_sync(self) -> None:
        """Have all profiles judged again."""
        self._changed.set()

    def has_ended(self, uid: str) -> bool:
        """Return whether a profile that is being deleted holds no node any more. In any thread."""
        return any(each.uid == uid and each.ended for each in self.judged.values())

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_judging())
                group.create_task(self.queue.serve(WRITERS, self._publish, self._failed))
        finally:
            NODES.hold({})

    async def _keep_judging(self) -> None:
        waits, due = backoff.Backoff(*BACKOFF_SECONDS), None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._changed.wait()
            await asyncio.sleep(self._gather)
            self._changed.clear()
            try:
                due = self.judge()
            except Exception:
                supervise.FAULTS.inc(PART)
                self._changed.set()
                delay = waits.next()
                log.exception("cannot look at the profiles; trying again in %.1f s", delay)
                await asyncio.sleep(delay)
                continue
            waits.reset()
            for name in self.judged:
                self.queue.add(name)

    def _failed(self, name: str, error: Exception, wait: float) -> None:
        if isinstance(error, errors.KubeError | msgspec.MsgspecError):
            log.warning("cannot write the status of profile %s: %s; trying again in %.1f s", name, error, wait)
        elif not isinstance(error, TermOver):  # the term may have been renewed meanwhile
            supervise.FAULTS.inc(PART)
            log.error("cannot make the status of profile %s; trying again in %.1f s", name, wait, exc_info=error)

    def judge(self) -> float | None:
        """Judge all nodes under all profiles.

        Return when to do it again although nothing changed, in the event loop's time; None: never.
        """
        members: dict[str, list[str]] = collections.defaultdict(list)
        contested: dict[str, list[profile_status.Contest]] = collections.defaultdict(list)
        for node, selection in fleet.selections(self._known.planner):
            winner = selection.profile.name
            members[winner].append(node)
            for rival in selection.conflicts:
                contested[winner].append(profile_status.Contest(rival, node))
                contested[rival].append(profile_status.Contest(winner, node))
        now = asyncio.get_running_loop().time()
        entries = self._store.entries
        current = {(entry.profile.uid, entry.profile.generation) for entry in entries.values() if entry.profile}
        overdue = self.waits.overdue(now, current)
        versions = {(entry.uid, entry.generation) for entry in entries.values()}
        self._barred = {version: until for version, until in self._barred.items() if version in versions}
        judged, named = dict[str, Judged](), fleet.generations(self._known.planner)
        for name, entry in entries.items():
            if self._barred.get((entry.uid, entry.generation), now) > now:
                continue
            try:
                views = map(self._known.planner.view, members[name])
                governed = [fleet.governed(view) for view in views if view is not None]
                progress = self._progress(entry, members[name], overdue)
            except Exception:
                # A fault of one profile must not keep the others from their rollouts.
                supervise.FAULTS.inc(PART)
                delay = self.queue.backoffs[name].next()
                self._barred[entry.uid, entry.generation] = now + delay
                log.exception("cannot judge profile %s; trying again in %.1f s", name, delay)
                continue
            self._barred.pop((entry.uid, entry.generation), None)
            ended = entry.ending and name not in named and not _waits(progress, overdue)
            judged[name] = Judged(
                entry.uid, entry.generation, entry.profile, governed, contested[name], progress, overdue, ended
            )
        self.judged = judged
        NODES.hold(profile_status.counted(node for each in judged.values() for node in each.governed))
        self.waits.note(now, judged.values(), {uid for uid, _ in self._barred})
        # By the time of this judgement: one that has passed since is due at once.
        return min((end for end in [*self._barred.values(), *self.waits.ends()] if end > now), default=None)

    def _progress(self, entry: Entry, members: Sequence[str], overdue: fleet.Overdue) -> rollout.RolloutProgress:
        planner, profile = self._known.planner, entry.profile
        if profile is not None and entry.ending:
            return fleet.end_of(planner, profile, fleet.leaving(planner, profile), overdue)
        if profile is not None and members:
            return fleet.rollout_of(planner, profile, members, overdue)
        return rollout.RolloutProgress(updated=0, pending=0)

    async def _publish(self, name: str) -> None:
        """Write the last verdict into the profile's status, and then admit nodes."""
        judged, before = self.judged.get(name), self._store.entries.get(name)
        if judged is None:
            return
        stands = await self._statuses.write(name, judged)
        if self._store.entries.get(name) is not before:
            # The API server's answer may say more than the watch has so far.
            self._on_change()
        # The status is written first, so that it shows the cost of the next wave in advance; then the revisions, which
        # the other nodes follow. Only after both are nodes admitted.
        if stands and judged.profile is not None:
            await self._kept.ensure(name)
            self._apply(self._known.admit(judged.profile, judged.progress.next, judged.overdue))


def _waits(progress: rollout.RolloutProgress, overdue: fleet.Overdue) -> bool:
    """Return whether an agent may yet answer whose node's turn has come."""
    return any((node, True) not in overdue for node in progress.waiting)
