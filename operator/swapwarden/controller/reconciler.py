"""Brings one node's NodeSwapState and labels to what they should be, by as few writes as there are differences."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from swapwarden.api import names, state
from swapwarden.controller import cluster, plan_latency
from swapwarden.controller.inventory import states
from swapwarden.controller.notices import pod_plan
from swapwarden.controller.planning import decisions
from swapwarden.controller.planning.view import NodeView
from swapwarden.controller.term import Term
from swapwarden.controller.watches import node_features
from swapwarden.controller.writers import node_features as feature_writer
from swapwarden.controller.writers import nodes as node_writer
from swapwarden.controller.writers import states as state_writer
from swapwarden.controller.writers.fenced import TIMEOUT, Fenced, unless_superseded
from swapwarden.kube import decoding, errors, events, reads
from swapwarden.policy.node import labels, taints
from swapwarden.policy.observed import nodes
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

PLANS = metrics.histogram("swapwarden_controller_plan_seconds", "Time to compute the plan of one node.")


class Reconciler:
    """Writes for one leadership term at a time."""

    def __init__(
        self,
        api: reads.Reader,
        known: cluster.Cluster,
        *,
        term: Callable[[], Term | None],
        again: Callable[[str, float], None],
        apply: Callable[[cluster.Changes], None],
        recorder: events.Recorder,
        published: node_features.Features,
        fenced: Callable[[Term], Fenced],
        waits: plan_latency.PlanLatency,
        vouched: Mapping[str, str] | None = None,
        untaint: bool = False,
        extended_resource: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`term` gives the one in which this process leads; `again(node, delay)` has a node reconciled once more.

        `apply` takes what follows from an answer of the API server.
        `fenced` gives the writes of a term; the caller waits until there may be one. `waits` learns which pods a state
        has.
        `extended_resource`: there is the right to write the status of nodes.
        `vouched` are the labels of nodes for which an administrator vouches; `now` is a monotonic clock in seconds.
        """
        self._api = api
        self._known, self._inventory = known, known.inventory
        self._term = term
        self._again = again
        self._apply = apply
        self._recorder = recorder
        self._fenced = fenced
        self._waits = waits
        self._steps: list[Callable[[NodeView, Fenced], Coroutine[Any, Any, bool]]] = [
            self._write_labels,
            self._write_taint,
            *([self._write_resource] if extended_resource else []),
            *([self._remove_startup_taint] if untaint else []),
        ]
        self._published = published
        self._vouched = dict(vouched or {})
        self._now = now
        self._states = state_writer.StateWriter(now)

    async def reconcile(self, name: str) -> None:
        """Look at one node. errors.ApiError and errors.Unreachable where it is to be tried again; Deposed, TermOver."""
        term, view = self._term(), self._known.planner.view(name)
        if term is None:
            return
        if view is None:
            self._forget(name, term)
            return
        if self._known.planner.lacks_namespaces(name):
            return
        writes = self._fenced(term)
        begun, came = time.perf_counter(), self._waits.now()
        planned, left_out = decisions.state(view)
        spec, again = self._states.accepted(name, planned)
        self._look_again(name, again)
        PLANS.observe(time.perf_counter() - begun)
        row = self._inventory.state_of(name)
        if view.restoring:
            # A state that is gone has done its service, and so have labels.
            if row is not None:
                row = await self._write_state(writes, view.node, row, spec)
            self._waits.planned(name, row, spec.pods, came)
            return
        written = await self._write_state(writes, view.node, row, spec)
        if written is not None:
            self._waits.planned(name, written, spec.pods, came)
            # The watch may have told of the agent's answer before the API server answered the write.
            self._waits.observed(name, self._inventory.state_of(name))
            if written is not row:
                self._warn(name, row, spec)
        for notice in term.left_out.notices(name, spec.profile.name, left_out):
            self._recorder.post(notice)
        fresh = written is row
        for step in self._steps:
            # What the watches report while a write is on its way counts for the next one.
            current = view if fresh else self._known.planner.view(name)
            if current is None:
                return
            view = current
            fresh = not await step(view, writes)

    def _forget(self, name: str, term: Term) -> None:
        """The Node is gone."""
        term.labels.forget(name)
        term.asked.forget(name)
        term.left_out.forget(name)
        self._states.forget(name)

    def _look_again(self, name: str, delay: float | None) -> None:
        if delay is not None:
            self._again(name, delay)

    async def _write_state(
        self, writes: Fenced, node: nodes.NodeRow, row: states.StateRow | None, spec: state.StateSpec
    ) -> states.StateRow | None:
        """Make the node's state say `spec`, where `row` is what it was; what it is now, None where that failed."""
        try:
            written, again = await self._states.write(writes, node, row, spec)
        except errors.ApiError as error:
            if error.status == 404 and row is not None:
                log.warning("the state of node %s is gone; making it anew", node.name)
                self._inventory.lose_state(node.name, row.uid)
            # Another object of that name, or a write at the same moment.
            elif error.status != 409 or not await self._look(node.name):
                raise
            self._again(node.name, 0.0)
            return None
        self._look_again(node.name, again)
        if written is not None and written is not row:
            self._wrote(written)
        return written

    async def _look(self, name: str) -> bool:
        """Read a node's state past the watch; whether it is another one than was known."""
        read = states.decode(await self._api.get(f"{state_writer.STATES}/{name}", timeout=TIMEOUT))
        return self._wrote(read)

    def _wrote(self, row: states.StateRow) -> bool:
        """The API server answered with this state; whether that is news."""
        changes = self._known.wrote(row)
        if changes is None:
            return False
        self._apply(changes)
        return True

    # The steps after the state: each returns whether it made a request.

    async def _write_labels(self, view: NodeView, writes: Fenced) -> bool:
        """Have the node carry its labels, or its NodeFeature ask for them."""
        node, by_feature = view.node, self._published.serves(view.node.name)
        if by_feature is None:
            return False
        vouched = labels.is_vouched(self._vouched, node)
        wanted = labels.desired(view.profile, view.facts, vouched=vouched)
        asked = by_feature and await self._write_feature(node, labels.by_feature(wanted), writes)
        carried = await self._write_node_labels(node, labels.by_hand(wanted, node, features=by_feature), writes)
        return asked or carried

    async def _write_node_labels(self, node: nodes.NodeRow, wanted: labels.Labels, writes: Fenced) -> bool:
        change = writes.term.labels.decide(node.name, wanted, node.labels, self._now())
        self._look_again(node.name, change.again)
        if not change.labels:
            return False
        request = node_writer.change_labels(writes, node.name, node.uid, change.labels)
        if await unless_superseded(request) is not None:
            self._inventory.labelled(node, change.labels)
            log.info("labels changed", extra={"node": node.name, "labels": change.labels})
        return True

    async def _write_feature(self, node: nodes.NodeRow, wanted: labels.Labels, writes: Fenced) -> bool:
        """Have the node's NodeFeature ask for its labels; errors.ApiError where it became another one meanwhile."""
        row = self._published.of(node.name)
        change = writes.term.asked.decide(node.name, wanted, row.labels if row else {}, self._now())
        self._look_again(node.name, change.again)
        if not (change.labels or (row and row.owner != node.uid)):
            return False
        try:
            written = await feature_writer.write(writes, self._published.path, node, row, change.labels)
        except errors.ApiError as error:
            if error.status == 404 and row is not None:
                self._published.lost(row)  # the watch may have told of that before the answer to an earlier write came
            raise
        self._published.wrote(written)
        log.info("labels asked for", extra={"node": node.name, "labels": change.labels})
        return True

    async def _write_taint(self, view: NodeView, writes: Fenced) -> bool:
        """Have the node carry the taint that its profile gives to nodes with swap, or not."""
        effect = decisions.taint(view)
        patch = taints.change(view.node, effect)
        return patch is not None and await self._patch_taints(view.node, patch, writes, f"taint is {effect}")

    async def _write_resource(self, view: NodeView, writes: Fenced) -> bool:
        """Have the node offer the extended resource, as its profile says, or not."""
        node, amount = view.node, decisions.resource(view)
        if amount == node.swap_resource:
            return False
        if await unless_superseded(node_writer.offer(writes, node.name, node.uid, amount)) is not None:
            self._inventory.offered(node, amount)
            log.info("extended resource changed", extra={"node": node.name, "bytes": amount})
        return True

    async def _remove_startup_taint(self, view: NodeView, writes: Fenced) -> bool:
        """Let pods onto the node when its agent has applied a first state, or can do nothing there."""
        patch = taints.remove(view.node, names.STARTUP_TAINT)
        if patch is None or view.report is None or not view.report.settled:
            return False
        return await self._patch_taints(view.node, patch, writes, "startup taint removed")

    async def _patch_taints(self, node: nodes.NodeRow, patch: taints.Patch, writes: Fenced, done: str) -> bool:
        # With status 422, others are there now.
        answer = await unless_superseded(node_writer.change_taints(writes, node.name, patch), 422)
        if answer is not None:
            self._inventory.tainted(node, tuple(decoding.decode(answer, nodes.WireNode).spec.taints))
            log.info("taints changed: %s", done, extra={"node": node.name})
        return True

    def _warn(self, name: str, row: states.StateRow | None, spec: state.StateSpec) -> None:
        """Tell the owners of pods, once for each pod and reason: what stood in the state before was told with it."""
        before = states.spec_view(row) if row is not None else states.SpecView()
        for notice in pod_plan.notices(before, self._inventory.pods_on(name), spec):
            self._recorder.post(notice)
