"""Reconciles one node: its NodeSwapState, labels, taints and extended resource, with as few writes as possible."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from swapwarden.api import decoding, names, state
from swapwarden.controller import notices
from swapwarden.controller.nodes import label_publisher
from swapwarden.controller.term import Outcome, outcome
from swapwarden.controller.writers import nodes as node_writer
from swapwarden.controller.writers import states as state_writer
from swapwarden.controller.writers.fenced import TIMEOUT, Fenced, unless_superseded
from swapwarden.kube import errors, events, transport
from swapwarden.policy.fleet import cluster
from swapwarden.policy.fleet.view import NodeView, desired_state
from swapwarden.policy.node import labels, taints
from swapwarden.policy.node.observations import observe
from swapwarden.policy.observed import nodes, states
from swapwarden.policy.verdict import pod_events
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

PLANS = metrics.histogram("swapwarden_controller_plan_seconds", "Time to compute the plan of one node.")


KEPT_SECONDS: Final = 300.0
"""How long the taint remains after the pressure, as the kubelet's MemoryPressure does."""


class PressureMemory:
    """When the pressure of nodes with the taint ended, in this term: a new leader waits for the whole time."""

    def __init__(self, again: Callable[[str, float], None], now: Callable[[], float]) -> None:
        """`again(node, delay)` has a node reconciled once more; `now` is a monotonic clock in seconds."""
        self._again = again
        self._now = now
        self._ended: dict[str, float] = {}

    def desired(self, view: NodeView) -> names.TaintEffect | None:
        """Return the effect of the taint that the node should carry now; None for no taint.

        The last report of an agent that is away does not count: nobody would take it back.
        """
        name = view.node.name
        pressed = view.report is not None and view.report.pressure is not None and view.has_agent
        lately = False
        if pressed or view.node.place(names.PRESSURE_TAINT) is None:
            self.forget(name)
        else:
            left = self._ended.setdefault(name, self._now()) + KEPT_SECONDS - self._now()
            lately = left > 0
        effect = taints.desired_under_pressure(
            view.profile.node, view.profile.pressure, view.node, pressed=pressed, lately=lately
        )
        if lately and effect is not None:
            self._again(name, left)
        return effect

    def forget(self, node: str) -> None:
        """Forget a node, which is under pressure, has no taint, or is gone."""
        self._ended.pop(node, None)


class Reconciler:
    """Reconciles nodes within one term, and remembers what it did for as long."""

    def __init__(
        self,
        api: transport.Reader,
        known: cluster.Cluster,
        writes: Fenced,
        *,
        again: Callable[[str, float], None],
        apply: Callable[[cluster.Changes], None],
        recorder: events.Recorder,
        labels: label_publisher.LabelPublisher,
        untaint: bool = False,
        extended_resource: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`again(node, delay)` has a node reconciled once more; `apply` takes what follows from an API server's answer.

        The caller waits until there may be a write.
        `extended_resource`: there is the right to write the status of nodes.
        `now` is a monotonic clock in seconds.
        """
        self._api = api
        self._known, self._inventory = known, known.inventory
        self._writes = writes
        self._again = again
        self._apply = apply
        self._recorder = recorder
        self._labels = labels
        self._steps: list[Callable[[NodeView], Coroutine[Any, Any, bool]]] = [
            self._labels.write,
            self._write_taint,
            self._write_pressure_taint,
            *([self._write_resource] if extended_resource else []),
            *([self._remove_startup_taint] if untaint else []),
        ]
        self._states = state_writer.StateWriter(now)
        self._pressed = PressureMemory(again, now)
        self._left_out = notices.LeftOut()
        self._problems = notices.NodeProblems()

    async def reconcile(self, name: str) -> None:
        """Reconcile one node. Raise errors.KubeError if it should be retried, and Deposed and TermOver."""
        if not self._writes.term.is_valid():
            return
        view = self._known.planner.view(name)
        if view is None:
            self._forget(name)
            return
        if view.lacks_namespaces:
            return
        begun = time.perf_counter()
        planned, omitted = desired_state(view)
        spec, again = self._states.accepted(name, planned)
        self._requeue_after(name, again)
        PLANS.observe(time.perf_counter() - begun)
        row = view.state
        profile = view.profile
        is_known = view.facts.reported and not view.restoring
        problems = () if not is_known else observe(profile.node, profile.swap, view.facts, spec)
        self._recorder.post(*self._problems.notices(view.node, problems))
        if view.restoring:
            # A deleted state is no longer needed, nor are labels.
            if row is not None:
                await self._write_state(view.node, row, spec)
            return
        written = await self._write_state(view.node, row, spec)
        if written is not None and written is not row:
            self._warn(name, row, spec)
        self._recorder.post(*self._left_out.notices(name, spec.profile_ref.name, omitted))
        fresh = written is row
        for step in self._steps:
            # Reports of the watches during a write count for the next one.
            current = view if fresh else self._known.planner.view(name)
            if current is None:
                return
            view = current
            fresh = not await step(view)

    def _forget(self, name: str) -> None:
        """Forget a deleted Node."""
        for memory in (self._labels, self._left_out, self._problems, self._states, self._pressed):
            memory.forget(name)

    def close(self) -> None:
        """Forget all at the end of a term: the next leader measures."""
        self._states.close()
        self._left_out.clear()
        self._problems.clear()

    def _requeue_after(self, name: str, delay: float | None) -> None:
        if delay is not None:
            self._again(name, delay)

    async def _write_state(
        self, node: nodes.NodeRow, row: states.StateRow | None, spec: state.StateSpec
    ) -> states.StateRow | None:
        """Write `spec` into the node's state, which was `row`; return its row now, None if that failed."""
        try:
            written, again = await self._states.write(self._writes, node, row, spec)
        except errors.ApiError as error:
            what = outcome(error)
            if what is Outcome.GONE and row is not None:
                log.warning("the state of node %s is gone; creating it again", node.name)
                self._inventory.lose_state(node.name, row.uid)
            # Another object of that name, or a concurrent write.
            elif what is not Outcome.CHANGED or not await self._read_state(node.name):
                raise
            self._again(node.name, 0.0)
            return None
        self._requeue_after(node.name, again)
        if written is not None and written is not row:
            self._wrote(written)
        return written

    async def _read_state(self, name: str) -> bool:
        """Read a node's state directly; return whether it is newer than the known one."""
        read = states.decode(await self._api.get(f"{names.STATES_PATH}/{name}", timeout=TIMEOUT))
        return self._wrote(read)

    def _wrote(self, row: states.StateRow) -> bool:
        """Take in the API server's answer; return whether it is newer than the known state."""
        changes = self._known.wrote(row)
        if changes is None:
            return False
        self._apply(changes)
        return True

    # The steps after the state: each returns whether it made a request.

    async def _write_taint(self, view: NodeView) -> bool:
        """Set or remove the taint that the profile gives to nodes with swap."""
        effect = taints.desired(view.profile.node, view.profile.swap, view.facts, view.node, enforced=view.enforced)
        patch = taints.change(view.node, names.SWAP_TAINT, effect)
        return patch is not None and await self._patch_taints(view.node, patch, f"taint is {effect}")

    async def _write_pressure_taint(self, view: NodeView) -> bool:
        """Set or remove the taint that the profile gives to nodes under memory pressure."""
        if view.profile.pressure is None and view.node.place(names.PRESSURE_TAINT) is None:
            self._pressed.forget(view.node.name)
            return False
        effect = self._pressed.desired(view)
        patch = taints.change(view.node, names.PRESSURE_TAINT, effect)
        return patch is not None and await self._patch_taints(view.node, patch, f"memory pressure taint is {effect}")

    async def _write_resource(self, view: NodeView) -> bool:
        """Set or remove the extended resource, as the profile says."""
        node = view.node
        amount = labels.desired_swap_resource(
            view.profile.node, view.profile.swap, view.facts, node, view.pods, enforced=view.enforced
        )
        if amount == node.swap_resource:
            return False
        if await unless_superseded(node_writer.offer(self._writes, node.name, node.uid, amount)) is not None:
            self._inventory.rewrote(node, swap_resource=amount)
            log.info("extended resource changed", extra={"node": node.name, "bytes": amount})
        return True

    async def _remove_startup_taint(self, view: NodeView) -> bool:
        """Remove the startup taint once the agent has applied a first state, or can do nothing on the node."""
        patch = taints.remove(view.node, names.STARTUP_TAINT)
        if patch is None or view.report is None or not view.report.settled:
            return False
        return await self._patch_taints(view.node, patch, "startup taint removed")

    async def _patch_taints(self, node: nodes.NodeRow, patch: taints.Patch, done: str) -> bool:
        request = node_writer.change_taints(self._writes, node.name, patch)
        answer = await unless_superseded(request, tested=True)
        if answer is not None:
            taints_now = tuple(decoding.decode(answer, nodes.WireNode).spec.taints)
            self._inventory.rewrote(node, taints=taints_now)
            log.info("taints changed: %s", done, extra={"node": node.name})
        return True

    def _warn(self, name: str, row: states.StateRow | None, spec: state.StateSpec) -> None:
        """Notify the owners of pods, once for each pod and reason: those in the state before have had a notice."""
        before = states.spec_view(row) if row is not None else states.SpecView()
        self._recorder.post(*pod_events.plan_notices(before, self._inventory.pods_on(name), spec))
