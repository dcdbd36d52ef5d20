"""Decides on each report of memory pressure, and says what would follow. Nothing is evicted (mode Observe)."""

from __future__ import annotations

import asyncio
import collections
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from swapwarden.api import state
from swapwarden.controller import cluster
from swapwarden.controller.inventory import states
from swapwarden.controller.notices import pressure_notices
from swapwarden.controller.pressure.budgets import EvictionAnswer
from swapwarden.controller.term import Term
from swapwarden.controller.workqueue import WorkQueue
from swapwarden.kube import decoding, errors, events, paging, transport
from swapwarden.policy.observed import nodes, pods
from swapwarden.policy.pressure import candidates, choice, ranking
from swapwarden.policy.pressure.choice import Choice, HoldReason, NoVictim
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

Ask = Callable[[candidates.Candidate], Awaitable[EvictionAnswer]]

PART: Final = "pressure"
WORKERS: Final = 4
BACKOFF_SECONDS: Final = (1.0, 30.0)
READ_SECONDS: Final = 15.0
BLOCKED_SECONDS: Final = 60.0
"""How long a pod that the API server would not evict is not asked about again."""
COUNTED_SECONDS: Final = 1.0
MAX_ASKED: Final = 5
"""Pods of one node about which one report asks."""

HOLDS = metrics.counter(
    "swapwarden_controller_pressure_holds_total",
    "Reports of memory pressure of a node after which nothing was evicted, by reason.",
    labels=("reason",),
    known=[(each,) for each in (choice.OBSERVE, *HoldReason)],
)
SECONDS = metrics.histogram(
    "swapwarden_controller_pressure_decision_seconds",
    "Time from when this process received a report of memory pressure to the decision on it.",
)


class _Known(msgspec.Struct):
    """The last report of a node."""

    seq: int
    fresh: bool
    """Whether it was made in this term."""
    arrived: float
    blocked: dict[str, float] = {}
    """By UID, until when a pod is not asked about."""


class PressureObserver:
    """The decisions of one term."""

    def __init__(
        self,
        known: cluster.Cluster,
        api: transport.Reader,
        term: Term,
        recorder: events.Recorder,
        ask: Ask | None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask` returns the API server's answer to a pod's eviction; None: it is not asked."""
        self._known = known
        self._api = api
        self._term = term
        self._recorder = recorder
        self._ask = ask
        self._now = now
        self._reports: dict[str, _Known] = {}
        # When the nodes were counted, and the profiles with pressure on most of theirs.
        self._counted: tuple[float, frozenset[str]] = (-math.inf, frozenset())
        self.queue: Final = WorkQueue(PART, now, waits=BACKOFF_SECONDS)

    async def run(self) -> None:
        """Decide on nodes until cancelled."""
        await self.queue.serve(WORKERS, self.decide, self._failed)

    def state_changed(self, name: str, old: states.StateRow | None, new: states.StateRow | None) -> None:
        """Take in a changed or deleted (None) state. `old` is None at the begin of a term, and for a new state.

        A report that was there before counts only once the next one shows that its agent still measures.
        """
        report = None if new is None else new.pressure
        if report is None:
            self._reports.pop(name, None)
            return
        before = self._reports.get(name)
        if before is not None and before.seq == report.seq:
            return
        fresh = before is not None or (old is not None and old.pressure is None)
        self._reports[name] = _Known(report.seq, fresh, self._now(), before.blocked if before else {})
        self.queue.add(name)

    async def decide(self, name: str) -> None:
        """Decide on a node's last report."""
        row, node = self._known.inventory.report_of(name), self._known.inventory.nodes.get(name)
        last = self._reports.get(name)
        if row is None or row.pressure is None or node is None or last is None or not self._term.is_valid():
            return
        spec = states.spec(row)
        if not isinstance(spec, state.StateSpec) or spec.pressure is None:
            return
        facts = self._known.planner.facts(name)
        situation = choice.Situation(
            fresh=last.fresh and self._known.inventory.has_agent(name), wide=self._is_wide(row.profile.name)
        )
        allowed = False
        if situation.forbids() is None:
            found = await self._read(node, facts, spec)
            ranked = ranking.rank(found, row.pressure, facts.memory_bytes)
            chosen, allowed = await self._choose(ranked, facts, last, situation)
        else:
            chosen = choice.choose((), facts.memory_bytes, (), situation)
        if chosen.hold is not None:
            HOLDS.inc(chosen.hold)
        SECONDS.observe(self._now() - last.arrived)
        if self._term.is_valid():
            for notice in pressure_notices.notices(node, row, spec.pressure, chosen, allowed=allowed):
                self._recorder.post(notice)

    async def _choose(
        self, ranked: Sequence[ranking.Ranked], facts: nodes.NodeFacts, last: _Known, situation: choice.Situation
    ) -> tuple[Choice, bool]:
        """Return the decision, and whether the API server would evict the pod."""
        last.blocked = {uid: until for uid, until in last.blocked.items() if until > self._now()}
        for _ in range(MAX_ASKED):
            chosen = choice.choose(ranked, facts.memory_bytes, last.blocked, situation)
            if chosen.victim is None or self._ask is None:
                return chosen, False
            if await self._ask(chosen.victim.pod) is EvictionAnswer.ALLOWED:
                return chosen, True
            last.blocked[chosen.victim.pod.uid] = self._now() + BLOCKED_SECONDS
        return NoVictim(HoldReason.BLOCKED), False

    def _is_wide(self, profile: str) -> bool:
        """Return whether most nodes of a profile are under pressure; all nodes are counted once a second at most."""
        at, wide = self._counted
        if self._now() - at >= COUNTED_SECONDS:
            inventory = self._known.inventory
            rows = [row for name in inventory.nodes if (row := inventory.report_of(name)) is not None]
            governed = collections.Counter(row.profile.name for row in rows)
            pressed = collections.Counter(row.profile.name for row in rows if row.pressure is not None)
            wide = frozenset(name for name in pressed if choice.is_widespread(pressed[name], governed[name]))
            self._counted = self._now(), wide
        return profile in wide

    async def _read(
        self, node: nodes.NodeRow, facts: nodes.NodeFacts, spec: state.StateSpec
    ) -> list[candidates.Candidate]:
        """Return the running pods of a node, with fields that the rows of all pods do not have."""
        found: list[candidates.Candidate] = []

        def take(body: bytes) -> decoding.ListMetadata:
            page = decoding.page(body)
            for item in page.items or ():
                try:
                    one = candidates.read(decoding.decode(item, pods.WirePod), facts, node.uid, spec.pods)
                except ValueError as error:  # of one pod: the others are decided on without it
                    log.warning("a pod of node %s is not understood, and is never chosen: %s", node.name, error)
                    continue
                if one is not None and len(found) < state.MAX_PODS:
                    found.append(one)
            return page.metadata

        # Only a kubelet calls pods running: their number is bounded.
        selector = f"spec.nodeName={node.name},status.phase=Running"
        try:
            async with asyncio.timeout(READ_SECONDS):
                await paging.read(self._api.get, "/api/v1/pods", take, {"fieldSelector": selector})
        except TimeoutError:
            raise errors.Unreachable(f"the pods of node {node.name} could not be read in {READ_SECONDS:g} s") from None
        return found

    def _failed(self, name: str, error: Exception, wait: float) -> None:
        if isinstance(error, errors.KubeError):
            remedy = "; turn on evictionDryRun in the chart" if error.status == 403 else ""
            log.warning(
                "no decision on the memory pressure of node %s: %s%s; again in %.1f s", name, error, remedy, wait
            )
        else:
            log.error("cannot decide on the memory pressure of node %s", name, exc_info=error)
