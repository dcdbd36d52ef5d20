"""Decides on each report of memory pressure: what would follow (mode Observe), or what does (Enforce)."""

from __future__ import annotations

import asyncio
import collections
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from swapwarden.api import decoding, names, state
from swapwarden.controller.notices import pressure_notices
from swapwarden.controller.pressure import evictor
from swapwarden.controller.pressure.budgets import EvictionAnswer
from swapwarden.controller.term import Deposed, Term, TermOver
from swapwarden.controller.workqueue import WorkQueue
from swapwarden.kube import errors, events, paging, transport
from swapwarden.policy import plan
from swapwarden.policy.fleet import cluster
from swapwarden.policy.observed import nodes, pods, states
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.pressure import candidates, choice, ranking
from swapwarden.policy.pressure.choice import Choice, Evict, HoldReason, NoVictim
from swapwarden.policy.profile import compiled
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

Ask = Callable[[candidates.Candidate], Awaitable[EvictionAnswer]]

PART: Final = "pressure"
WORKERS: Final = 4
BACKOFF_SECONDS: Final = (1.0, 30.0)
READ_SECONDS: Final = 15.0
BLOCKED_SECONDS: Final = 60.0
"""How long a pod that the API server would not evict is not asked about again."""
TAINT_SECONDS: Final = 2.0
"""How long an eviction waits for the node's taint."""
BLOCKING: Final = frozenset({EvictionAnswer.BUDGET, EvictionAnswer.SEVERAL_BUDGETS})
COUNTED_SECONDS: Final = 1.0
MAX_ASKED: Final = 6
"""Pods of one node about which one report asks: enough to ask about all pods of a report within BLOCKED_SECONDS. Those
that can never be evicted must not hide one that can."""

HOLDS = metrics.counter(
    "swapwarden_controller_pressure_holds_total",
    "Reports of memory pressure of a node after which nothing was evicted, by reason.",
    labels=("reason",),
    known=[(each,) for each in (choice.OBSERVE, *HoldReason)],
)
HELD = metrics.gauge(
    "swapwarden_controller_node_evictions_held",
    "1 for each node under memory pressure whose profile has pods evicted (mode Enforce), if none was by the last"
    " report, by reason: those of swapwarden_controller_pressure_holds_total, or Error (the API server did not answer,"
    " or refused a request). Only the leader has it.",
    labels=("node", "reason"),
)
ERROR: Final = "Error"
SECONDS = metrics.histogram(
    "swapwarden_controller_pressure_decision_seconds",
    "Time from when this process received a report of memory pressure to the decision on it.",
)


_REMEDIES: Final = {
    400: "; apply crds/ of this version",
    403: "; see eviction in the chart",
}


class _Known(msgspec.Struct):
    """The last report of a node."""

    seq: int
    fresh: bool
    """Whether it was made in this term."""
    arrived: float
    blocked: dict[str, float] = {}
    """By UID, until when a pod is not asked about."""
    waits: float | None = None
    """Since when there has always been a pod that is about to end; None: there is none."""
    decided: bool = False


class _ObservedNode(NamedTuple):
    """The inputs of a decision about a node, beside its state."""

    node: nodes.NodeRow
    spec: state.StateSpec
    thresholds: state.PressureSettings
    facts: nodes.NodeFacts
    profile: compiled.Profile


class PressureObserver:
    """The decisions of one term."""

    def __init__(
        self,
        known: cluster.Cluster,
        api: transport.Reader,
        term: Term,
        recorder: events.Recorder,
        *,
        ask: Ask | None,
        evicts: evictor.Evictor,
        may_evict: bool = False,
        deposed: Callable[[Deposed], None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask` returns the API server's answer to a pod's eviction; None: it is not asked.

        `may_evict`: pods are evicted where their profile says so. Then there must be `ask`.
        """
        self._known = known
        self._api = api
        self._term = term
        self._recorder = recorder
        self._ask = ask
        self._evictor = evicts
        self._may_evict = may_evict
        self._deposed = deposed
        self._now = now
        self._reports: dict[str, _Known] = {}
        # When the nodes were counted, and the profiles with pressure on most of theirs.
        self._counted: tuple[float, frozenset[str]] = (-math.inf, frozenset())
        self.queue: Final = WorkQueue(PART, now, waits=BACKOFF_SECONDS)

    async def run(self) -> None:
        """Decide on nodes until cancelled."""
        try:
            await self.queue.serve(WORKERS, self.decide, self._failed)
        finally:
            for name in self._reports:
                _show(name, None)

    def state_changed(self, name: str, old: states.StateRow | None, new: states.StateRow | None) -> None:
        """Take in a changed or deleted (None) state. `old` is None at the begin of a term, and for a new state.

        A report that was there before counts only once the next one shows that its agent still measures.
        """
        report = None if new is None else new.pressure
        if new is not None and new.victim is not None and (old is None or old.victim != new.victim):
            self.queue.add(name)
        if new is not None and (old is None or old.evicted_at != new.evicted_at):
            self._evictor.recall(new)
        if report is None:
            self._reports.pop(name, None)
            _show(name, None)
            return
        before = self._reports.get(name)
        if before is not None and before.seq == report.seq:
            return
        fresh = before is not None or (old is not None and old.pressure is None)
        known = self._reports[name] = _Known(report.seq, fresh, self._now())
        if before is not None:
            known.blocked, known.waits = before.blocked, before.waits
        self.queue.add(name)

    def node_changed(self, old: nodes.NodeRow, new: nodes.NodeRow) -> None:
        """Take in a changed Node."""
        if new.memory_pressure and not old.memory_pressure:
            self._evictor.kubelet_acts(new.name)

    def pod_changed(self, old: pods.PodRow, new: pods.PodRow) -> None:
        """Take in a changed Pod."""
        if new.evicted and not old.evicted:
            self._evictor.kubelet_acts(new.node)

    async def decide(self, name: str) -> None:
        """Decide on a node's last report, and go on with an eviction that is under way."""
        row, node = self._known.inventory.report_of(name), self._known.inventory.nodes.get(name)
        spec = states.spec(row) if row is not None else None
        if node is None or row is None or not isinstance(spec, state.StateSpec) or spec.pressure is None:
            self._evictor.forget(name)
            _show(name, None)
            return
        if not self._term.is_valid():
            return
        profile = self._known.planner.in_force(name)
        seen = _ObservedNode(node, spec, spec.pressure, self._known.planner.facts(name), profile)
        if row.victim is None:
            self._evictor.forget(name)  # someone removed the record
        else:
            await self._proceed(row, seen)
        await self._decide(name, seen)
        if self._evictor.is_under_way(name):
            self.queue.add(name, evictor.LOOK_SECONDS)

    async def _proceed(self, row: states.StateRow, seen: _ObservedNode) -> None:
        """Go on with the eviction in the record."""
        last, stands = self._reports.get(row.name), None
        if last is None or not self._enforces(seen.profile):
            stands = False
        elif self._counts(row, last, seen):
            kubelet = self._evictor.is_kubelet_evicting(row.name, seen.profile.eviction)
            stands = not kubelet and not self._is_wide(row.profile.name)
        answer = await self._evictor.proceed(
            row, seen.profile.eviction, lambda: self._rank(row, seen), self._notices(row, seen), stands=stands
        )
        if row.victim is not None and last is not None and answer in BLOCKING:
            last.blocked[row.victim.uid] = self._now() + BLOCKED_SECONDS

    async def _decide(self, name: str, seen: _ObservedNode) -> None:
        row, last = self._known.inventory.report_of(name), self._reports.get(name)
        if row is None or row.pressure is None or last is None or not self._term.is_valid():
            return
        enforce = self._enforces(seen.profile)
        if enforce and last.decided:
            return
        if enforce and self._awaits_taint(seen, last):
            self.queue.add(name, TAINT_SECONDS / 4)
            return
        situation = choice.Situation(
            fresh=self._counts(row, last, seen),
            wide=self._is_wide(row.profile.name),
            enforce=enforce,
            settling=row.victim is not None or self._evictor.is_settling(name, seen.profile.eviction),
            kubelet=self._evictor.is_kubelet_evicting(name, seen.profile.eviction),
            limited=self._evictor.limited(name, row.profile.name, seen.profile.eviction),
        )
        chosen: Choice
        allowed = False
        if situation.forbids() is None:
            chosen, allowed = await self._choose(row, seen, last, situation)
        else:
            chosen = choice.choose((), seen.facts.memory_bytes, (), situation)
        last.decided = True
        if chosen.hold is not None:
            HOLDS.inc(chosen.hold)
        if name in self._reports:  # else the pressure ended meanwhile
            _show(name, chosen.hold if enforce else None)
        SECONDS.observe(self._now() - last.arrived)
        if self._term.is_valid():
            for notice in pressure_notices.notices(seen.node, row, seen.thresholds, chosen, allowed=allowed):
                self._recorder.post(notice)

    def _awaits_taint(self, seen: _ObservedNode, last: _Known) -> bool:
        """Return whether the taint of the profile is about to come: without it the next pod may land here again."""
        wanted = seen.profile.pressure is not None and seen.profile.pressure.taint is not None
        late = self._now() - last.arrived >= TAINT_SECONDS
        return wanted and not late and seen.node.place(names.PRESSURE_TAINT) is None

    def _enforces(self, profile: compiled.Profile) -> bool:
        """Return whether pods of the profile's nodes are evicted."""
        return self._may_evict and profile.pressure is not None and profile.pressure.enforce

    def _counts(self, row: states.StateRow, last: _Known, seen: _ObservedNode) -> bool:
        """Return whether a report may be acted on.

        To evict, it must also be recent, and by the thresholds of the profile in force.
        """
        if not last.fresh or not self._known.inventory.has_agent(row.name):
            return False
        if not self._enforces(seen.profile):
            return True
        recent = self._now() - last.arrived <= evictor.STALE_SECONDS
        return recent and row.acted == row.profile == plan.reference(seen.profile)

    async def _choose(
        self, row: states.StateRow, seen: _ObservedNode, last: _Known, situation: choice.Situation
    ) -> tuple[Choice, bool]:
        """Return the decision, carried out, and whether the API server would evict the pod."""
        ranked = await self._rank(row, seen)
        now, bounds = self._now(), seen.profile.eviction
        last.blocked = {uid: until for uid, until in last.blocked.items() if until > now}
        memory = seen.facts.memory_bytes
        if not choice.is_one_ending(ranked, memory):
            last.waits = None
        elif last.waits is None:
            last.waits = now
        # As long as one that is evicted may take.
        patient = last.waits is None or now - last.waits <= bounds.grace + bounds.settle
        for _ in range(MAX_ASKED):
            chosen = choice.choose(ranked, memory, last.blocked, situation, patient=patient)
            if chosen.victim is None or self._ask is None:
                return chosen, False
            if await self._ask(chosen.victim.pod) is EvictionAnswer.ALLOWED:
                if not isinstance(chosen, Evict):
                    return chosen, True
                answer = await self._evictor.begin(row, chosen.victim, bounds, self._notices(row, seen), last.arrived)
                if isinstance(answer, NoVictim):
                    return answer, False
                after = self._known.inventory.report_of(row.name)
                if answer not in BLOCKING or after is None or after.pressure != row.pressure:
                    return chosen, True
                row = after
            last.blocked[chosen.victim.pod.uid] = self._now() + BLOCKED_SECONDS
        return NoVictim(HoldReason.BLOCKED), False

    def _notices(self, row: states.StateRow, seen: _ObservedNode) -> evictor.MakeNotices:
        return lambda victim: pressure_notices.evicted(seen.node, row, seen.thresholds, victim)

    async def _rank(self, row: states.StateRow, seen: _ObservedNode) -> Sequence[ranking.Ranked]:
        found = await self._read(seen.node, seen.facts, seen.spec)
        report = row.pressure or state.PressureReport(1)
        return ranking.rank(found, report, seen.facts.memory_bytes, seen.profile.eviction)

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
                    one = candidates.read(decoding.decode(item, WirePod), facts, node.uid, spec.pods)
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
        if name in self._reports and name in self._known.inventory.nodes:
            _show(name, ERROR if self._enforces(self._known.planner.in_force(name)) else None)
        if isinstance(error, Deposed):
            self._deposed(error)
        elif isinstance(error, errors.KubeError | TermOver):
            remedy = _REMEDIES.get(error.status, "") if isinstance(error, errors.KubeError) else ""
            log.warning(
                "no decision on the memory pressure of node %s: %s%s; again in %.1f s", name, error, remedy, wait
            )
        else:
            log.error("cannot decide on the memory pressure of node %s", name, exc_info=error)


def _show(node: str, held: str | None) -> None:
    """Show why no pod of a node is evicted; None: one is, or none needs to be."""
    for reason in (*HoldReason, ERROR):
        if reason != held:
            HELD.remove(node, reason)
    if held is not None:
        HELD.set(1, node, held)
