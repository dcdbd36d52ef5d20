"""The parts of the leading instance, made for one term: they reconcile nodes and report about them."""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from swapwarden.api import names
from swapwarden.controller import notices, supervise, workqueue
from swapwarden.controller.certificates import manager
from swapwarden.controller.nodes import label_publisher, reconciler
from swapwarden.controller.pods import condition_publisher, verdicts
from swapwarden.controller.pressure import budgets, handler
from swapwarden.controller.profiles import kopf_operator, revision_history, rollouts, status_publisher
from swapwarden.controller.term import Deposed, Term, TermOver
from swapwarden.controller.watches import node_features, profile_list, restore_request
from swapwarden.controller.writers import finalizers, victims
from swapwarden.controller.writers.fenced import Fenced
from swapwarden.kube import backoff, client, config, errors, events, ratelimit
from swapwarden.policy.fleet import cluster, profile_status, progress
from swapwarden.policy.fleet.view import Admissions
from swapwarden.policy.observed import nodes, pods, states
from swapwarden.policy.profile.store import ProfileStore
from swapwarden.policy.verdict import pod_events
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

FAILURES = metrics.counter(
    "swapwarden_controller_failures_total",
    "Failed reconciliations of a node, which are retried, by kind: request (to the API server) or internal.",
    labels=("kind",),
    known=[("request",), ("internal",)],
)

PART: Final = "reconciler"
WORKERS: Final = 8
BACKOFF_SECONDS: Final = (0.2, 60.0)
PAST_SECONDS: Final = 30.0
"""How long a leader tries to read the past generations of profiles; then another instance may lead."""

StepDown = Callable[[Term, str], None]


class Shared(NamedTuple):
    """The parts that outlive a term, and that a leader uses."""

    cfg: config.Config
    api: client.Client
    throttle: ratelimit.Throttle
    known: cluster.Cluster
    profiles: ProfileStore
    profile_list: profile_list.ProfileList
    profiles_changed: Callable[[], None]
    """To be called after a change of the store."""
    features: node_features.Features
    order: restore_request.RestoreRequest
    recorder: events.Recorder
    arguments: argparse.Namespace


class Leader:
    """The parts of one term, with their memory: nothing of it counts after the term."""

    def __init__(self, shared: Shared, term: Term, step_down: StepDown) -> None:
        """`step_down` ends the term, and says why."""
        arguments, writes = shared.arguments, Fenced(shared.api, term, shared.throttle)
        self.term: Final = term
        self._step_down = step_down
        self._shared = shared
        self.queue: Final = workqueue.WorkQueue("nodes", hold=writes.delay, waits=BACKOFF_SECONDS)
        self._exposures = pod_events.Exposures()
        self._reconciler = reconciler.Reconciler(
            shared.api,
            shared.known,
            writes,
            again=self.queue.add,
            apply=self.apply,
            recorder=shared.recorder,
            labels=label_publisher.LabelPublisher(
                shared.known.inventory,
                shared.features,
                writes,
                grace=arguments.label_removal_delay,
                attested=arguments.vouched_nodes,
                again=self.queue.add,
                now=time.monotonic,
            ),
            untaint=arguments.remove_startup_taint,
            extended_resource=arguments.extended_resource,
        )
        statuses = status_publisher.StatusPublisher(
            shared.api,
            shared.profiles,
            writes,
            shared.recorder,
            profile_status.Rights(
                extended_resource=arguments.extended_resource,
                eviction=arguments.eviction == names.EvictionUse.ENFORCE,
            ),
        )
        self._revisions = revision_history.RevisionHistory(
            shared.api,
            arguments.namespace,
            shared.profiles,
            writes,
            named=lambda: progress.generations(shared.known.planner),
            on_change=shared.profiles_changed,
        )
        self._rollouts = rollouts.Rollouts(
            shared.known,
            shared.profiles,
            statuses,
            self._revisions,
            apply=self.apply,
            on_change=shared.profiles_changed,
        )
        self._operator = kopf_operator.ProfileOperator(
            shared.cfg,
            term,
            shared.profile_list,
            ended=lambda uid: shared.order.active or self._rollouts.has_ended(uid),
            release=functools.partial(_release, shared.api, writes),
            restoring=lambda: shared.order.active,
        )
        self._pressure = handler.PressureHandler(
            shared.known,
            shared.api,
            term,
            shared.recorder,
            victims.VictimWriter(writes, self._wrote),
            ask=functools.partial(budgets.ask, shared.api) if arguments.eviction != names.EvictionUse.OFF else None,
            evict=functools.partial(budgets.evict, shared.api, term)
            if arguments.eviction == names.EvictionUse.ENFORCE
            else None,
            deposed=lambda error: step_down(error.term, str(error)),
        )
        self._parts: dict[str, supervise.Job] = {
            PART: self._reconcile,
            handler.PART: self._pressure.run,
            rollouts.PART: self._rollouts.run,
            revision_history.PART: self._revisions.run,
            kopf_operator.PART: self._operator.run,
        }
        publish = None
        if arguments.pod_conditions:
            conditions = condition_publisher.ConditionPublisher(shared.known.inventory, writes)
            self._parts[condition_publisher.QUEUE] = conditions.run
            publish = conditions.publish
        self._verdicts = verdicts.PodVerdicts(shared.known.inventory, publish)
        self._parts[verdicts.PART] = self._verdicts.run
        if arguments.webhook_service:
            self._parts["certificates"] = manager.CertificateManager(
                shared.api,
                namespace=arguments.namespace,
                service=arguments.webhook_service,
                registration=arguments.webhook_registration,
                term=term,
            ).run

    async def run(self) -> None:
        """Run until cancelled."""
        if await self._know_the_past():
            self._begin()
            await supervise.run(self._parts)

    async def _know_the_past(self) -> bool:
        """Read profiles and their past generations, since others may have led. Return whether that succeeded in time.

        Without them, nodes that are not admitted yet would follow the newest generation.
        """
        try:
            async with asyncio.timeout(PAST_SECONDS):
                await self._shared.profile_list.read()
                await self._read_revisions()
        except TimeoutError:
            self._step_down(self.term, "what profiles say, and said before, cannot be read")
            return False
        return True

    async def _read_revisions(self) -> None:
        waits = backoff.Backoff(*BACKOFF_SECONDS)
        while True:
            try:
                await self._revisions.read()
            except Exception as error:  # noqa: BLE001 a leader that plans nothing is worse than any error
                log.warning("cannot read the revisions of profiles: %s", error)
                await asyncio.sleep(waits.after(error))
            else:
                return

    def _begin(self) -> None:
        """Queue all nodes, and post their notices."""
        inventory = self._shared.known.inventory
        self._shared.known.begin_term(Admissions())
        log.info("this instance leads", extra={"epoch": self.term.epoch, "nodes": len(inventory.nodes)})
        self.apply(self._shared.known.all_due())
        for name in inventory.nodes:
            row = inventory.state_of(name)
            if row is not None:
                self._post_exposures(row)
                self._post_conditions(None, row)
                self._pressure.state_changed(name, None, row)
        self.restore_requested()
        self._verdicts.request_sync(*inventory.nodes)

    def stuck(self) -> str | None:
        """Return why the process must be restarted; None if it need not."""
        return self._operator.stuck()

    def end(self) -> None:
        """Stop all further writes, and forget all."""
        self.term.end()
        self.queue.close()
        self._shared.known.end_term()

    # Changes

    def apply(self, changes: cluster.Changes) -> None:
        """Queue the nodes that are due."""
        for node, delay, urgent, owner in changes.due:
            self.queue.add(node, delay, urgent=urgent, owner=owner)
        if changes.profiles:
            self._rollouts.request_sync()

    def _wrote(self, row: states.StateRow) -> None:
        """Take in the API server's answer to the write of a state."""
        changes = self._shared.known.wrote(row)
        if changes is not None:
            self.apply(changes)

    def pod_changed(self, old: pods.PodRow | None, new: pods.PodRow | None) -> None:
        """Take in a changed or deleted (None) Pod."""
        if old is not None and new is not None:
            self._pressure.pod_changed(old, new)
        agents = {self._shared.known.inventory.agent_on(row) for row in (old, new)}
        policies = {row.node for row in (old, new) if row is not None and row.policy is not None}
        self._verdicts.request_sync(*policies, *(agents if len(agents) > 1 else ()))

    def node_changed(self, old: nodes.NodeRow | None, new: nodes.NodeRow | None) -> None:
        """Take in a changed or deleted (None) Node."""
        if old is not None and new is not None:
            self._pressure.node_changed(old, new)

    def state_changed(self, name: str, old: states.StateRow | None, new: states.StateRow | None) -> None:
        """Take in a changed or deleted (None) NodeSwapState."""
        self._pressure.state_changed(name, old, new)
        self._verdicts.request_sync(name)
        if new is None:
            self._exposures.forget(name)
            return
        if self.term.is_valid():
            self._post_exposures(new)
            self._post_conditions(old, new)
        if new.epoch > self.term.epoch:
            reason = f"the state of node {name} was written in term {new.epoch}, this one's is {self.term.epoch}"
            self._step_down(self.term, reason)

    def restore_requested(self) -> None:
        """Post a notice if the order to restore is active."""
        if self._shared.order.active and self.term.is_valid():
            self._shared.recorder.post(self._shared.order.notice())

    def _post_exposures(self, row: states.StateRow) -> None:
        self._shared.recorder.post(*self._exposures.notices(row, self._shared.known.inventory.pods_on(row.name)))

    def _post_conditions(self, old: states.StateRow | None, new: states.StateRow) -> None:
        node = self._shared.known.inventory.nodes.get(new.name)
        if node is None or self._shared.known.inventory.report_of(new.name) is None:
            return
        self._shared.recorder.post(*notices.condition_notices(old, new, node))
        if old is not None:
            known = list(self._shared.known.inventory.pods_on(new.name))
            self._shared.recorder.post(*pod_events.violation_notices(old, new, known))
            self._shared.recorder.post(*pod_events.standstill_notices(old, new, known))

    # Nodes

    async def _reconcile(self) -> None:
        """Reconcile nodes, several at a time."""
        try:
            await self.queue.serve(WORKERS, self._bring, self._failed)
        finally:
            self._reconciler.close()

    async def _bring(self, name: str) -> None:
        try:
            await self._reconciler.reconcile(name)
        except Deposed as error:
            self._step_down(error.term, str(error))

    def _failed(self, name: str, error: Exception, _: float) -> None:
        expected = isinstance(error, errors.KubeError | TermOver)
        FAILURES.inc("request" if expected else "internal")
        if isinstance(error, TermOver):
            # The Lease may have been renewed since the write began: then nobody else brings the node to its plan.
            log.info("node %s is left to the leader of that time: %s", name, error)
        elif expected:
            log.warning("cannot bring node %s to its plan: %s", name, error)
        else:
            log.error("cannot plan node %s", name, exc_info=error)


async def _release(api: client.Client, writes: Fenced, name: str) -> bool:
    return await finalizers.release(writes, await finalizers.read(api, name))
