"""Handles nodes under memory pressure: takes the steps of policy/pressure/handling.py, and remembers their answers."""

from __future__ import annotations

import asyncio
import collections
import logging
import math
import time
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from swapwarden.api import decoding, formats, names, state
from swapwarden.controller import notices
from swapwarden.controller.term import Deposed, Outcome, Term, TermOver, outcome
from swapwarden.controller.workqueue import WorkQueue
from swapwarden.controller.writers import victims
from swapwarden.kube import errors, events, paging, transport
from swapwarden.policy import plan
from swapwarden.policy.fleet import cluster
from swapwarden.policy.observed import nodes, pods, states
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.pressure import candidates, handling, limits, ranking
from swapwarden.policy.pressure.handling import EvictionAnswer, NodePressure, PodLife
from swapwarden.policy.pressure.limits import HoldReason
from swapwarden.policy.profile import compiled
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

Ask = Callable[[candidates.Candidate], Awaitable[EvictionAnswer]]
Evict = Callable[[candidates.Candidate, int], Awaitable[EvictionAnswer]]

PART: Final = "pressure"
WORKERS: Final = 4
BACKOFF_SECONDS: Final = (1.0, 30.0)
READ_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 2.0
"""Seconds between two looks at a pod that ends."""
COUNTED_SECONDS: Final = 1.0

HOLDS = metrics.counter(
    "swapwarden_controller_pressure_holds_total",
    "Reports of memory pressure of a node after which nothing was evicted, by reason.",
    labels=("reason",),
    known=[(each,) for each in (handling.OBSERVE, *HoldReason)],
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

_REMEDIES: Final = {
    400: "; apply crds/ of this version",
    403: "; see eviction in the chart",
}


class _Inputs(NamedTuple):
    """The inputs of one turn, beside what changes between its steps."""

    node: nodes.NodeRow
    spec: state.StateSpec
    thresholds: state.PressureSettings
    facts: nodes.NodeFacts
    profile: compiled.Profile
    enforce: bool


class _Bounds:
    """Past evictions and widespread pressure, which forbid evictions."""

    def __init__(self, known: cluster.Cluster, now: Callable[[], float], today: Callable[[], float]) -> None:
        self._inventory = known.inventory
        self._now = now
        self._today = today
        self.evictions: Final = limits.Evictions(now())
        # When the nodes were counted, and the profiles with pressure on most of theirs.
        self._counted: tuple[float, frozenset[str]] = (-math.inf, frozenset())

    def recall(self, row: states.StateRow) -> None:
        """Count the evictions that a state has from earlier terms."""
        today = self._today()
        read = {stamp: formats.timestamp(stamp) for stamp in row.evicted_at}
        past = {stamp: 0.0 if at is None else today - at for stamp, at in read.items()}
        self.evictions.recall(row.name, row.profile.name, past, self._now())

    def begin(self, row: states.StateRow) -> None:
        """Count an eviction, before the API server is asked for it."""
        stamp = formats.rfc3339(math.ceil(self._today()))  # never earlier: an hour must not be shorter
        self.evictions.begin(row.name, row.profile.name, self._now(), stamp)

    def is_wide(self, profile: str) -> bool:
        """Return whether most nodes of a profile are under pressure; all nodes are counted once a second at most."""
        at, wide = self._counted
        if self._now() - at >= COUNTED_SECONDS:
            rows = [row for name in self._inventory.nodes if (row := self._inventory.report_of(name)) is not None]
            governed = collections.Counter(row.profile.name for row in rows)
            pressed = collections.Counter(row.profile.name for row in rows if row.pressure is not None)
            wide = frozenset(name for name in pressed if limits.is_widespread(pressed[name], governed[name]))
            self._counted = self._now(), wide
        return profile in wide


class PressureHandler:
    """Handles the nodes under memory pressure in one term."""

    def __init__(
        self,
        known: cluster.Cluster,
        api: transport.Reader,
        term: Term,
        recorder: events.Recorder,
        records: victims.VictimWriter,
        *,
        ask: Ask | None,
        evict: Evict | None,
        deposed: Callable[[Deposed], None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
        today: Callable[[], float] = time.time,
    ) -> None:
        """`ask` returns the API server's answer to a dry run of a pod's eviction; None: it is not asked.

        `evict(pod, seconds)` evicts a pod within the term, which then has so many seconds to end; None: pods are only
        named. With it, there must be `ask`. `today` is the wall clock, in seconds since 1970.
        """
        self._known = known
        self._api = api
        self._term = term
        self._recorder = recorder
        self._records = records
        self._ask = ask
        self._evict = evict
        self._deposed = deposed
        self._now = now
        self._nodes: dict[str, NodePressure] = {}
        self._bounds = _Bounds(known, now, today)
        self.queue: Final = WorkQueue(PART, now, waits=BACKOFF_SECONDS)

    async def run(self) -> None:
        """Handle nodes until cancelled."""
        try:
            await self.queue.serve(WORKERS, self.handle, self._failed)
        finally:
            for name in self._nodes:
                _show(name, None)

    # Changes

    def state_changed(self, name: str, old: states.StateRow | None, new: states.StateRow | None) -> None:
        """Take in a changed or deleted (None) state. `old` is None at the begin of a term, and for a new state.

        A report that was there before counts only once the next one shows that its agent still measures.
        """
        report = None if new is None else new.pressure
        if new is not None and new.victim is not None and (old is None or old.victim != new.victim):
            self.queue.add(name)
        if new is not None and (old is None or old.evicted_at != new.evicted_at):
            self._bounds.recall(new)
        node = self._nodes.get(name) if new is not None else self._nodes.pop(name, None)
        if new is None and node is not None and node.attempt is not None:
            # A state that is created again has no record of it, so that nobody else would end it.
            self._bounds.evictions.end(name, self._now())
        if report is None:
            if node is not None:
                node.relieved()
            _show(name, None)
        elif node is None or report.seq != node.seq:
            node = self._nodes.setdefault(name, NodePressure())
            fresh = node.seq > 0 or (old is not None and old.pressure is None)
            node.reported(report.seq, self._now(), fresh=fresh)
            self.queue.add(name)

    def node_changed(self, old: nodes.NodeRow, new: nodes.NodeRow) -> None:
        """Take in a changed Node."""
        if new.memory_pressure and not old.memory_pressure:
            self._bounds.evictions.kubelet_acts(new.name, self._now())

    def pod_changed(self, old: pods.PodRow, new: pods.PodRow) -> None:
        """Take in a changed Pod."""
        if new.evicted and not old.evicted:
            self._bounds.evictions.kubelet_acts(new.node, self._now())

    # Turns

    async def handle(self, name: str) -> None:
        """Decide on a node's last report, and go on with an eviction that is under way.

        Raise the first error of a step, once the record of a refused eviction is removed.
        """
        failed: Exception | None = None
        inputs = self._inputs(name)
        if inputs is None:
            self._forget(name)
            return
        node = self._nodes.setdefault(name, NodePressure())
        node.turn = handling.Answers()
        while (row := self._known.inventory.report_of(name)) is not None:
            step = handling.next_step(node, self._situation(row, inputs))
            if failed is not None and not isinstance(step, handling.Clear):
                break
            # An eviction is announced even if the term has ended since the request.
            if not self._term.is_valid() and not isinstance(step, handling.Announce):
                break
            try:
                node.answered(step, await self._take(step, node, row, inputs), self._now())
            except Exception as error:
                if failed is not None:
                    raise
                failed, what = error, outcome(error)
                unsure, later = what is Outcome.UNKNOWN, what is Outcome.OVERLOADED
                node.failed(step, self._now(), unsure=unsure, refused=not (unsure or later))
            if isinstance(step, handling.Rest) and step.seconds is not None:
                self.queue.add(name, step.seconds)
            if isinstance(step, handling.Rest | handling.Conclude):
                break
        if failed is not None:
            raise failed
        if node.attempt is not None:
            self.queue.add(name, LOOK_SECONDS)

    def _forget(self, name: str) -> None:
        """Take in that the node is gone, or that its state has no thresholds."""
        if name in self._nodes:
            self._nodes[name].attempt = None
        self._bounds.evictions.end(name, self._now())
        _show(name, None)

    def _inputs(self, name: str) -> _Inputs | None:
        """Return the inputs of a turn; None if the node is gone, or if its state has no thresholds."""
        row, node = self._known.inventory.report_of(name), self._known.inventory.nodes.get(name)
        spec = states.spec(row) if row is not None else None
        if node is None or not isinstance(spec, state.StateSpec) or spec.pressure is None:
            return None
        planner = self._known.planner
        profile = planner.in_force(name)
        return _Inputs(node, spec, spec.pressure, planner.facts(name), profile, self._enforces(profile))

    def _situation(self, row: states.StateRow, inputs: _Inputs) -> handling.Situation:
        now, profile, pressure, bounds = self._now(), row.profile.name, inputs.profile.pressure, inputs.profile.eviction
        tainted = inputs.node.place(names.PRESSURE_TAINT) is not None
        return handling.Situation(
            now=now,
            report=row.pressure,
            victim=row.victim,
            enforce=inputs.enforce,
            asks=self._ask is not None,
            current=self._known.inventory.has_agent(row.name)
            and (not inputs.enforce or row.acted == row.profile == plan.reference(inputs.profile)),
            untainted=pressure is not None and pressure.taint is not None and not tainted,
            wide=self._bounds.is_wide(profile),
            settling=self._bounds.evictions.is_settling(row.name, bounds.settle, now),
            kubelet=self._bounds.evictions.is_kubelet_evicting(row.name, bounds.settle, now),
            limited=self._bounds.evictions.limited(row.name, profile, bounds.per_hour, now),
            bounds=bounds,
        )

    async def _take(
        self, step: handling.Step, node: NodePressure, row: states.StateRow, inputs: _Inputs
    ) -> handling.Answer:
        """Take a step; `row` is the state by which it was decided."""
        match step:
            case handling.LookAtPod(victim):
                return await self._look(victim)
            case handling.Read():
                return await self._rank(row.name, inputs)
            case handling.Ask(victim) if self._ask is not None:
                answer = await self._ask(victim.pod)
                if inputs.enforce and answer is EvictionAnswer.ALLOWED:
                    await self._records.ready()  # what forbids the eviction meanwhile must be seen before the record
                return answer
            case handling.Evict(victim) if self._evict is not None:
                waited = self._now() - node.arrived if node.turn.recorded else None
                return await _counted(self._evict(victim.pod, inputs.profile.eviction.grace), waited)
            case handling.Record(victim):
                await self._record(row, victim)
            case handling.Clear():
                await self._clear(row, step)
            case handling.Adopt():
                self._bounds.evictions.end(row.name, self._now())
                if row.victim is not None:
                    self._bounds.begin(row)
            case handling.Announce(request):
                EVICTIONS.inc("Evicted")
                self._recorder.post(*notices.eviction_notices(inputs.node, row, inputs.thresholds, request))
            case handling.Conclude():
                self._conclude(step, node, row, inputs)
        return None

    async def _record(self, row: states.StateRow, victim: state.EvictedPod) -> None:
        self._bounds.begin(row)  # before the answer, for the rates of other nodes
        try:
            await self._records.record(row, victim)
        except errors.ApiError as error:
            if outcome(error) is not Outcome.UNKNOWN:
                self._bounds.evictions.end(row.name, self._now(), counts=False)
            raise
        log.info("a pod is evicted", extra={"node": row.name, "namespace": victim.namespace, "pod": victim.name})

    async def _clear(self, row: states.StateRow, step: handling.Clear) -> None:
        past = self._bounds.evictions.past(row.name, self._now(), ended=not step.counts)
        await self._records.clear(row, past[-state.MAX_EVICTED :])
        self._bounds.evictions.end(row.name, self._now(), counts=step.counts)
        if step.result is not None:
            EVICTIONS.inc(step.result)
        if step.result == "Cancelled":
            log.info("the eviction is cancelled", extra={"node": row.name})

    def _conclude(self, step: handling.Conclude, node: NodePressure, row: states.StateRow, inputs: _Inputs) -> None:
        if step.hold is not None:
            HOLDS.inc(step.hold)
        _show(row.name, step.hold if inputs.enforce else None)
        SECONDS.observe(self._now() - node.arrived)
        self._recorder.post(*notices.pressure_notices(inputs.node, row, inputs.thresholds, step))

    def _enforces(self, profile: compiled.Profile) -> bool:
        """Return whether pods of the profile's nodes are evicted."""
        return self._evict is not None and profile.pressure is not None and profile.pressure.enforce

    # The API server's pods

    async def _look(self, victim: state.EvictedPod) -> PodLife:
        # A list, from the API server's storage as a GET is: the controller has no right to get pods.
        path = f"/api/v1/namespaces/{urllib.parse.quote(victim.namespace, safe='')}/pods"
        body = await self._api.get(path, params={"fieldSelector": f"metadata.name={victim.name}"})
        for item in decoding.page(body).items or ():
            pod = decoding.decode(item, WirePod)
            if pod.metadata.uid == victim.uid and pod.status.phase not in {"Succeeded", "Failed"}:
                return PodLife.ENDING if pod.metadata.deletion_timestamp else PodLife.ALIVE
        return PodLife.GONE

    async def _rank(self, name: str, inputs: _Inputs) -> tuple[ranking.Ranked, ...]:
        listed = await self._read(inputs)
        row = self._known.inventory.report_of(name)
        report = row.pressure if row is not None and row.pressure is not None else state.PressureReport(1)
        return ranking.rank(listed, report, inputs.facts.memory_bytes, inputs.profile.eviction)

    async def _read(self, inputs: _Inputs) -> list[candidates.Candidate]:
        """Return the running pods of a node, with fields that the rows of all pods do not have."""
        node, running = inputs.node, list[candidates.Candidate]()

        def take(item: msgspec.Raw) -> None:
            try:
                wire = decoding.decode(item, WirePod)
                one = candidates.read(wire, inputs.facts, node.uid, inputs.spec.pods)
            except ValueError as error:  # of one pod: the others are decided on without it
                log.warning("a pod of node %s is not understood, and is never chosen: %s", node.name, error)
                return
            if one is not None and len(running) < state.MAX_PODS:
                running.append(one)

        # Only a kubelet calls pods running: their number is bounded.
        selector = f"spec.nodeName={node.name},status.phase=Running"
        try:
            async with asyncio.timeout(READ_SECONDS):
                await paging.read_items(self._api.get, "/api/v1/pods", take, {"fieldSelector": selector})
        except TimeoutError:
            raise errors.Unreachable(f"the pods of node {node.name} could not be read in {READ_SECONDS:g} s") from None
        return running

    def _failed(self, name: str, error: Exception, wait: float) -> None:
        node = self._nodes.get(name)
        if node is not None and node.seq and name in self._known.inventory.nodes:
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


async def _counted(request: Awaitable[EvictionAnswer], waited: float | None) -> EvictionAnswer:
    """Await a request to evict a pod; count it unless its pod was evicted or is gone, which is counted later.

    `waited` is the seconds since the report came by which the pod was chosen.
    """
    if waited is not None:
        POST_SECONDS.observe(waited)
    try:
        answer = await request
    except (errors.KubeError, TermOver):
        EVICTIONS.inc(ERROR)
        raise
    if answer in {EvictionAnswer.BUDGET, EvictionAnswer.SEVERAL_BUDGETS}:
        EVICTIONS.inc(answer)
    return answer


def _show(node: str, held: str | None) -> None:
    """Show why no pod of a node is evicted; None: one is, or none needs to be."""
    for reason in (*HoldReason, ERROR):
        if reason != held:
            HELD.remove(node, reason)
    if held is not None:
        HELD.set(1, node, held)
