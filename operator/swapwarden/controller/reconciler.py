"""Brings one node's NodeSwapState and labels to what they should be, by as few writes as there are differences."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from swapwarden.api import names, state
from swapwarden.controller import cluster, plan_latency
from swapwarden.controller.inventory import states
from swapwarden.controller.notices import pod_plan
from swapwarden.controller.term import Term
from swapwarden.controller.watches import node_features
from swapwarden.controller.writers import node_features as feature_writer
from swapwarden.controller.writers import nodes as node_writer
from swapwarden.controller.writers import states as state_writer
from swapwarden.controller.writers.fenced import TIMEOUT, Fenced, unless_superseded
from swapwarden.kube import client, decoding, errors, events, ratelimit
from swapwarden.policy.node import extended_resource, labels, taints
from swapwarden.policy.observed import nodes
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

PLANS = metrics.histogram("swapwarden_controller_plan_seconds", "Time to compute the plan of one node.")


class Reconciler:
    """Writes for one leadership term at a time."""

    def __init__(
        self,
        api: client.Client,
        known: cluster.Cluster,
        *,
        term: Callable[[], Term | None],
        again: Callable[[str, float], None],
        recorder: events.Recorder,
        published: node_features.Features,
        writes: ratelimit.Throttle,
        waits: plan_latency.PlanLatency,
        vouched: Mapping[str, str] | None = None,
        untaint: bool = False,
        extended_resource: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`term` gives the one in which this process leads; `again(node, delay)` has a node looked at once more.

        `writes` counts each write; the caller waits until there may be one. `waits` learns which pods a state has.
        `extended_resource`: there is the right to write the status of nodes.
        `vouched` are the labels of nodes for which an administrator vouches; `now` is a monotonic clock in seconds.
        """
        self._api = api
        self._known = known
        self._term = term
        self._again = again
        self._recorder = recorder
        self._writes = writes
        self._waits = waits
        self._untaint = untaint
        self._extended_resource = extended_resource
        self._published = published
        self._vouched = dict(vouched or {})
        self._now = now
        self._states = state_writer.StateWriter(now)

    async def reconcile(self, name: str) -> None:
        """Look at one node. errors.ApiError and errors.Unreachable where it is to be tried again; Deposed, TermOver."""
        term, node = self._term(), self._known.nodes.get(name)
        if term is None:
            return
        if node is None:
            self._forget(name, term)
            return
        if self._known.lacks_namespaces(name):
            return
        writes = Fenced(self._api, term, self._writes)
        begun, came = time.perf_counter(), self._waits.now()
        planned, left_out = self._known.plan_all(name)
        spec, again = self._states.accepted(name, planned)
        self._look_again(name, again)
        PLANS.observe(time.perf_counter() - begun)
        row = self._known.state_of(name)
        if self._known.restoring:
            # A state that is gone has done its service, and so have labels.
            if row is not None:
                row = await self._write_state(writes, node, row, spec)
            self._waits.planned(name, row, spec.pods, came)
            return
        written = await self._write_state(writes, node, row, spec)
        if written is not None:
            self._waits.planned(name, written, spec.pods, came)
            # The watch may have told of the agent's answer before the API server answered the write.
            self._waits.observed(name, self._known.state_of(name))
            if written is not row:
                self._warn(name, row, spec)
        for notice in term.left_out.notices(name, spec.profile.name, left_out):
            self._recorder.post(notice)
        await self._write_labels(name, writes)
        await self._write_taint(name, writes)
        if self._extended_resource:
            await self._write_resource(name, writes)
        if self._untaint:
            await self._remove_startup_taint(name, writes)

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
                self._known.lost(node.name, row.uid)
            # Another object of that name, or a write at the same moment.
            elif error.status != 409 or not await self._look(node.name):
                raise
            self._again(node.name, 0.0)
            return None
        self._look_again(node.name, again)
        if written is not None and written is not row:
            self._known.wrote(written)
        return written

    async def _look(self, name: str) -> bool:
        """Read a node's state past the watch; whether it is another one than was known."""
        return self._known.wrote(states.decode(await self._api.get(f"{state_writer.STATES}/{name}", timeout=TIMEOUT)))

    async def _write_labels(self, name: str, writes: Fenced) -> None:
        """Have the node carry its labels, or its NodeFeature ask for them."""
        node, by_feature = self._known.nodes.get(name), self._published.serves(name)
        if node is None or by_feature is None:  # gone while its state was written
            return
        profile, facts = self._known.in_force(name), self._known.facts(name)
        wanted = labels.desired(profile, facts, vouched=labels.is_vouched(self._vouched, node))
        if by_feature:
            await self._write_feature(node, labels.by_feature(wanted), writes)
        await self._write_node_labels(node, labels.by_hand(wanted, node, features=by_feature), writes)

    async def _write_node_labels(self, node: nodes.NodeRow, wanted: labels.Labels, writes: Fenced) -> None:
        change = writes.term.labels.decide(node.name, wanted, node.labels, self._now())
        self._look_again(node.name, change.again)
        if not change.labels:
            return
        request = node_writer.change_labels(writes, node.name, node.uid, change.labels)
        if await unless_superseded(request) is not None:
            self._known.labelled(node, change.labels)
            log.info("labels changed", extra={"node": node.name, "labels": change.labels})

    async def _write_feature(self, node: nodes.NodeRow, wanted: labels.Labels, writes: Fenced) -> None:
        """Have the node's NodeFeature ask for its labels; errors.ApiError where it became another one meanwhile."""
        row = self._published.of(node.name)
        change = writes.term.asked.decide(node.name, wanted, row.labels if row else {}, self._now())
        self._look_again(node.name, change.again)
        if not (change.labels or (row and row.owner != node.uid)):
            return
        try:
            written = await feature_writer.write(writes, self._published.path, node, row, change.labels)
        except errors.ApiError as error:
            if error.status == 404 and row is not None:
                self._published.lost(row)  # the watch may have told of that before the answer to an earlier write came
            raise
        self._published.wrote(written)
        log.info("labels asked for", extra={"node": node.name, "labels": change.labels})

    async def _remove_startup_taint(self, name: str, writes: Fenced) -> None:
        """Let pods onto the node when its agent has applied a first state, or can do nothing there."""
        node, row = self._known.nodes.get(name), self._known.report_of(name)
        if node is None or row is None or not row.settled:
            return
        if await self._patch_taints(node, taints.remove(node, names.STARTUP_TAINT), writes):
            log.info("startup taint removed", extra={"node": name})

    async def _write_taint(self, name: str, writes: Fenced) -> None:
        """Have the node carry the taint that its profile gives to nodes with swap, or not."""
        node = self._known.nodes.get(name)
        if node is None:
            return
        profile, facts = self._known.in_force(name), self._known.facts(name)
        effect = taints.desired(profile, facts, node, applied=self._known.is_applied(name))
        if await self._patch_taints(node, taints.change(node, effect), writes):
            log.info("taint changed", extra={"node": name, "effect": effect})

    async def _write_resource(self, name: str, writes: Fenced) -> None:
        """Have the node offer the extended resource, as its profile says, or not."""
        node = self._known.nodes.get(name)
        if node is None:
            return
        profile, facts, applied = self._known.in_force(name), self._known.facts(name), self._known.is_applied(name)
        amount = extended_resource.desired(profile, facts, node, self._known.pods_on(name), applied=applied)
        if amount == node.swap_resource:
            return
        if await unless_superseded(node_writer.offer(writes, name, node.uid, amount)) is not None:
            self._known.offered(node, amount)
            log.info("extended resource changed", extra={"node": name, "bytes": amount})

    async def _patch_taints(self, node: nodes.NodeRow, patch: taints.Patch | None, writes: Fenced) -> bool:
        """Whether a patch was needed, and done."""
        if patch is None:
            return False
        # With status 422, others are there now.
        answer = await unless_superseded(node_writer.change_taints(writes, node.name, patch), 422)
        if answer is None:
            return False
        self._known.tainted(node, tuple(decoding.decode(answer, nodes.WireNode).spec.taints))
        return True

    def _warn(self, name: str, row: states.StateRow | None, spec: state.StateSpec) -> None:
        """Tell the owners of pods, once for each pod and reason: what stood in the state before was told with it."""
        before = states.spec_view(row) if row is not None else states.SpecView()
        for notice in pod_plan.notices(before, self._known.pods_on(name), spec):
            self._recorder.post(notice)
