"""Writes the status of NodeSwapProfiles: on a real difference only, and not too often."""

from __future__ import annotations

import asyncio
import collections
import datetime
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from swapwarden.api import merge, names
from swapwarden.controller import cluster, profilestatus, profilestore, reconciler, throttle
from swapwarden.controller.term import Term, TermOver
from swapwarden.kube import backoff, client, config, events
from swapwarden.policy import rollout
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

NODES = metrics.reading(
    "gauge",
    "swapwarden_nodes",
    "Nodes that a profile governs, by state: each is applied, pending, incompatible or without_agent, and may be"
    " degraded or requirements_unmet besides; the statuses of profiles name them. Only the leader has it.",
    labels=("state",),
)

PROFILES: Final = f"/apis/{names.API_VERSION}/{names.PROFILE_PLURAL}"
GATHER_SECONDS: Final = 1.0
"""How long reports of nodes gather before profiles are looked at."""
ANSWER_SECONDS: Final = 120.0
"""How long a wave waits for its agents before the status says that they do not answer."""
BACKOFF_SECONDS: Final = (1.0, 60.0)


class ProfileReporter:
    """Owns the status of all profiles while there is a `term`."""

    def __init__(
        self,
        api: client.Client,
        known: cluster.Cluster,
        store: profilestore.ProfileStore,
        *,
        term: Callable[[], Term | None],
        recorder: events.Recorder,
        writes: throttle.Throttle,
        extended_resource: bool = False,
        gather: float = GATHER_SECONDS,
        patience: float = ANSWER_SECONDS,
    ) -> None:
        """`extended_resource`: profiles that ask for it have it."""
        self._api = api
        self._known = known
        self._store = store
        self._term = term
        self._recorder = recorder
        self._writes = writes
        self._extended_resource = extended_resource
        self._gather = gather
        self._patience = patience
        # The nodes that the rollout of a profile waits for, and since when.
        self._waited: dict[str, tuple[tuple[str, ...], float]] = {}
        self._changed = asyncio.Event()
        self._backoff = backoff.Backoff(*BACKOFF_SECONDS)

    def nudge(self) -> None:
        """A status may have become another."""
        self._changed.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._gather)
            self._changed.clear()
            failed, term = {}, self._term()
            if term is None:
                NODES.hold({})
                continue
            try:
                failed = await self._report(term)
            except TermOver:
                continue  # whoever leads next looks at all profiles
            if not failed:
                self._backoff.reset()
                continue
            wait = max(self._backoff.next(), *(getattr(error, "retry_after", None) or 0.0 for error in failed.values()))
            name, error = next(iter(failed.items()))
            more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            log.warning("cannot write the status of profile %s%s: %s; trying again in %.1f s", name, more, error, wait)
            await asyncio.sleep(wait)
            self._changed.set()

    async def _report(self, term: Term) -> dict[str, Exception]:
        """Write what differs; give what failed, by profile. What is refused of one does not keep others from theirs."""
        governed: dict[str, list[cluster.Governed]] = collections.defaultdict(list)
        contested: dict[str, list[profilestatus.Contest]] = collections.defaultdict(list)
        for selection, node in self._known.governed():
            winner = selection.profile.name
            governed[winner].append(node)
            for rival in selection.conflicts:
                contested[winner].append(profilestatus.Contest(rival, node.node))
                contested[rival].append(profilestatus.Contest(winner, node.node))
        NODES.hold(profilestatus.counted(node for nodes in governed.values() for node in nodes))
        rollouts, generations = self._known.rollouts(), self._known.generations()
        overdue = {name for name, progress in rollouts.items() if self._is_overdue(name, progress)}
        if overdue:
            rollouts = self._known.rollouts(overdue)
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        failed: dict[str, Exception] = {}
        for entry in list(self._store.entries.values()):
            progress = rollouts.get(entry.name, rollout.Progress(updated=0, pending=0))
            moving = profilestatus.Moving(progress, entry.name in overdue, generations.get(entry.name, ()))
            status = profilestatus.build(
                entry,
                governed[entry.name],
                contested[entry.name],
                moving,
                now,
                extended_resource=self._extended_resource,
            )
            try:
                stands = await self._write(entry, status, term)
            except (client.ApiError, msgspec.MsgspecError) as error:
                failed[entry.name] = error
            except (client.Unreachable, config.ConfigError) as error:
                failed[entry.name] = error
                break
            else:
                # After the status: it says what the next wave takes before it is taken.
                if stands:
                    self._known.advance(entry.name, progress.next)
        return failed

    def _is_overdue(self, name: str, progress: rollout.Progress) -> bool:
        """Whether the nodes that a rollout waits for have been the same ones for long."""
        silent = (*progress.waiting, *progress.asking)
        if not silent:
            self._waited.pop(name, None)
            return False
        loop = asyncio.get_running_loop()
        waiting, since = self._waited.get(name, ((), 0.0))
        if waiting != silent:
            since = loop.time()
            self._waited[name] = silent, since
            loop.call_later(self._patience, self.nudge)
        return loop.time() - since >= self._patience

    async def _write(self, entry: profilestore.Entry, status: dict[str, Any], term: Term) -> bool:
        """Have the profile's status say this; whether it does."""
        patch = merge.merge_patch(entry.status, status)
        if not patch:
            return term.is_valid()
        await asyncio.sleep(self._writes.wait())
        # As it was read: of two who lead one after the other, the late one must not drop revisions that nodes follow.
        metadata = {"uid": entry.uid, "resourceVersion": str(entry.version)}
        body = msgspec.json.encode({"metadata": metadata, "status": patch})
        request = self._api.merge_patch(
            f"{PROFILES}/{entry.name}/status",
            body,
            params=reconciler.FIELD_MANAGER,
            timeout=reconciler.WRITE_TIMEOUT,
        )
        try:
            answer = await reconciler.throttled(self._writes, term, "profile", request)
        except client.ApiError as error:
            if error.status not in {404, 409}:  # the watch will say what became of it
                raise
            return False
        self._tell(entry, status)
        self._store.offer(msgspec.json.decode(answer))
        return True

    def _tell(self, entry: profilestore.Entry, status: dict[str, Any]) -> None:
        """By events, once the status says it: what it said before was told before, whoever led then."""
        regarding = events.Regarding(names.API_VERSION, names.PROFILE_KIND, "", entry.name, entry.uid)
        for news in profilestatus.news(entry.status, status):
            self._recorder.event(regarding, news.type, news.reason, news.message)
