"""The parts of the controller's process: watches feed the inventory, and what is due then is reconciled."""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import secrets
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

from swapwarden.controller import (
    cluster,
    leadership,
    plan_latency,
    podconditions,
    profilereporter,
    reconciler,
    stale_agents,
    supervise,
    workqueue,
)
from swapwarden.controller.certificates import manager
from swapwarden.controller.inventory import profiles as profile_store
from swapwarden.controller.inventory import states
from swapwarden.controller.notices import exposures, node_conditions, pod_violations
from swapwarden.controller.term import Deposed, Term, TermOver
from swapwarden.controller.watches import namespaces as namespace_watch
from swapwarden.controller.watches import node_features, restore_request
from swapwarden.controller.watches import profiles as profile_watch
from swapwarden.controller.writers import nodes as node_writer
from swapwarden.controller.writers import states as state_writer
from swapwarden.controller.writers.fenced import Fenced
from swapwarden.kube import backoff, client, config, errors, events, informer, ratelimit
from swapwarden.kube.election import elector
from swapwarden.policy.observed import namespaces, nodes, pods
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

FAILURES = metrics.counter(
    "swapwarden_controller_failures_total",
    "Looks at a node that failed and are tried again, by kind: request (to the API server) or internal.",
    labels=("kind",),
    known=[("request",), ("internal",)],
)

LEASE: Final = "swapwarden-controller"
WORKERS: Final = 8
BACKOFF_SECONDS: Final = (0.2, 60.0)


class App:
    """What the parts of the process share."""

    def __init__(self, cfg: config.Config, api: client.Client, arguments: argparse.Namespace) -> None:
        identity = arguments.identity or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._writes = ratelimit.Throttle(arguments.writes_per_second, asyncio.get_running_loop().time)
        self._queue = workqueue.WorkQueue("nodes", hold=self._writes.delay)
        self._known = cluster.Cluster(agent_pods=arguments.namespace if arguments.agent_pods else None)
        self._store = profile_store.ProfileStore(self._profiles_changed)
        self._namespaces = namespace_watch.NamespaceWatch(
            api, known=self._namespaces_known, on_change=self._namespace_changed
        )
        self._profiles = profile_watch.ProfileWatch(cfg, api, self._store)
        self._recorder = events.Recorder(api, "swapwarden-controller", identity)

        def fenced(term: Term) -> Fenced:
            return Fenced(api, term, self._writes)

        self._reporter = profilereporter.ProfileReporter(
            self._known,
            self._store,
            term=self._term,
            apply=self._apply,
            extended_resource=arguments.extended_resource,
            recorder=self._recorder,
            fenced=fenced,
        )
        self._features = node_features.Features(
            api, arguments.namespace, arguments.label_publisher, changed=self._feature_changed
        )
        self._latency = plan_latency.PlanLatency()
        self._reconciler = reconciler.Reconciler(
            api,
            self._known,
            term=self._term,
            again=self._requeue,
            apply=self._apply,
            recorder=self._recorder,
            published=self._features,
            fenced=fenced,
            waits=self._latency,
            vouched=arguments.vouched_nodes,
            untaint=arguments.remove_startup_taint,
            extended_resource=arguments.extended_resource,
        )
        self._conditions = None
        if arguments.pod_conditions:
            self._conditions = podconditions.PodConditions(
                self._known.inventory, term=self._term, writes=self._writes, fenced=fenced
            )
        self._informers = (
            informer.Informer(
                api,
                "/api/v1/pods",
                wire=pods.WirePod,
                project=pods.project,
                name="pods",
                on_change=self._pod_changed,
            ),
            informer.Informer(
                api,
                node_writer.NODES,
                wire=nodes.WireNode,
                project=nodes.project,
                name="nodes",
                on_change=self._node_changed,
            ),
            informer.Informer(
                api,
                state_writer.STATES,
                wire=states.WireState,
                project=states.project,
                name="nodeswapstates",
                on_change=self._state_changed,
            ),
        )
        self._order = restore_request.RestoreRequest(api, arguments.namespace, self._ordered)
        self._keeper = manager.CertificateManager(
            api,
            namespace=arguments.namespace,
            service=arguments.webhook_service,
            registration=arguments.webhook_registration,
            term=self._term,
        )
        self.readiness: Final = leadership.Readiness(
            {
                **{one.name: one.synced for one in self._informers},
                "profiles": self._profiles.synced,
                self._namespaces.name: self._namespaces.synced,
                "the order to restore": self._order.synced,
            },
            (*self._informers, self._profiles, self._namespaces),
        )
        duration = arguments.lease_duration
        self.leadership: Final = leadership.Leadership(
            self.readiness,
            functools.partial(
                elector.Elector,
                cfg,
                namespace=arguments.namespace,
                name=LEASE,
                identity=identity,
                lease_duration=duration,
                renew_deadline=duration * 2 / 3,
                retry_period=duration * 2 / 15,
            ),
            largest_epoch=self._known.inventory.largest_epoch,
            label_grace=arguments.label_removal_delay,
            begun=self._begun,
            ended=self._ended,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then the lease is given back."""
        # It looks at the Lease from now on, so that one that is in sync later has waited for its holder already.
        self.leadership.elector.start(candidate=False)
        try:
            async with asyncio.TaskGroup() as group:
                parts = self._parts()
                supervise.begin(parts)
                tasks = [group.create_task(supervise.unending(part, job)) for part, job in parts.items()]
                tasks += [group.create_task(self._work()) for _ in range(WORKERS)]
                await stop.wait()
                log.info("stopping; what the states say stays in force")
                if self.leadership.led is not None:
                    await self.leadership.led.drain()
                for task in tasks:
                    task.cancel()
        finally:
            # What had no answer may still be done: then others wait until the Lease expires.
            unsure = self.leadership.is_unsure()
            self.leadership.end()
            await asyncio.to_thread(self.leadership.elector.stop, release=not unsure)

    def _parts(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """What runs beside the workers, by name."""
        parts: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            **{one.name: one.run for one in self._informers},
            "profiles": self._profiles.run,
            profilereporter.PART: self._reporter.run,
            "events": self._recorder.run,
            "restoring": self._order.run,
            "namespaces": self._namespaces.run,
            "node_features": self._features.run,
            "sync": lambda: self.leadership.compete(self._look),
            "silent_agents": lambda: stale_agents.watch(
                self._known.inventory, lambda: self.readiness.unready() is None
            ),
        }
        if self._keeper.service:
            parts["certificates"] = self._keeper.run
        if self._conditions is not None:
            parts[podconditions.QUEUE] = self._conditions.run
        return parts

    def stuck(self) -> str | None:
        """Why the process should be started anew."""
        return None if self.leadership.elector.alive() else "the thread that holds the Lease has ended"

    # Leadership

    def _look(self) -> None:
        # What nodes follow may have come after the profiles.
        self._namespaces.update(needed=self._known.planner.needs_namespaces())

    def _begun(self, term: Term) -> None:
        self._known.begin_term(term.admitted)
        self._latency.clear()
        log.info("this instance leads", extra={"epoch": term.epoch, "nodes": len(self._known.inventory.nodes)})
        self._apply(self._known.all_due())
        for name in self._known.inventory.nodes:
            row = self._known.inventory.state_of(name)
            if row is not None:
                self._tell_exposures(term, row)
                self._tell_troubles(None, row)
        self._tell_order()
        if self._conditions is not None:
            self._conditions.nudge(*self._known.inventory.nodes)

    def _ended(self, term: Term | None) -> None:
        if term is not None:
            term.left_out.clear()
        self._known.begin_term({})
        self._latency.clear()
        self._reporter.nudge()

    def _term(self) -> Term | None:
        return self.leadership.term()

    # Changes

    def _pod_changed(self, key: str, old: pods.PodRow | None, new: pods.PodRow | None) -> None:
        self._apply(self._known.pod_changed(key, old, new))
        if self._term() is not None:
            self._latency.pod_changed(old, new)
        if self._conditions is not None and new is not None and new.policy is not None:
            self._conditions.nudge(new.node)

    def _node_changed(self, name: str, _: nodes.NodeRow | None, new: nodes.NodeRow | None) -> None:
        self._apply(self._known.node_changed(name, new))
        if new is None:
            self._latency.node_went(name)

    def _state_changed(self, name: str, old: states.StateRow | None, new: states.StateRow | None) -> None:
        self._apply(self._known.state_changed(name, old, new))
        exposures.measure(name, new)
        self._latency.observed(name, new)
        if self._conditions is not None:
            self._conditions.nudge(name)
        term = self.leadership.led
        if term is None:
            return
        if new is None:
            term.exposures.forget(name)
            return
        if term.is_valid():
            self._tell_exposures(term, new)
            self._tell_troubles(old, new)
        if new.epoch > term.epoch:
            reason = f"the state of node {name} was written in term {new.epoch}, this one's is {term.epoch}"
            self.leadership.step_down(term, reason)

    def _tell_exposures(self, term: Term, row: states.StateRow) -> None:
        for notice in term.exposures.notices(row, self._known.inventory.pods_on(row.name)):
            self._recorder.post(notice)

    def _tell_troubles(self, old: states.StateRow | None, new: states.StateRow) -> None:
        node = self._known.inventory.nodes.get(new.name)
        if node is None or self._known.inventory.report_of(new.name) is None:
            return
        for notice in node_conditions.notices(old, new, node):
            self._recorder.post(notice)
        if old is not None:
            for notice in pod_violations.notices(old, new, self._known.inventory.pods_on(new.name)):
                self._recorder.post(notice)

    def _ordered(self) -> None:
        changes = self._known.restore(active=self._order.active)
        self._tell_order()
        self._apply(changes)

    def _tell_order(self) -> None:
        if self._order.active and self._term() is not None:
            self._recorder.post(self._order.notice())

    def _feature_changed(self, node: str | None) -> None:
        for name in self._known.inventory.nodes if node is None else [node]:
            self._requeue(name, cluster.COALESCE_SECONDS)

    def _profiles_changed(self) -> None:
        self._apply(self._known.profiles_changed(self._store.valid(), self._store.history()))
        self._namespaces.update(needed=self._known.planner.needs_namespaces())
        self._reporter.nudge()

    def _namespaces_known(self, known: namespaces.Labels | None) -> None:
        self._apply(self._known.namespaces_known(known))

    def _namespace_changed(self, name: str, old: dict[str, str] | None, new: dict[str, str] | None) -> None:
        self._apply(self._known.namespace_changed(name, old, new))

    def _apply(self, changes: cluster.Changes) -> None:
        """Have reconciled what is due."""
        if self.leadership.led is not None:
            for node, delay, urgent, owner in changes.due:
                self._queue.add(node, delay, urgent=urgent, owner=owner)
        if changes.profiles:
            self._reporter.nudge()

    def _requeue(self, name: str, delay: float) -> None:
        self._apply(cluster.Changes((cluster.Due(name, delay),)))

    async def _work(self) -> None:
        while True:
            name = await self._queue.get()
            term = self.leadership.led
            try:
                await self._reconciler.reconcile(name)
            except Deposed as error:
                self.leadership.step_down(error.term, str(error))
            except TermOver as error:
                # The Lease may have been renewed since the write began: then nobody else brings the node to its plan.
                self._failed(term, name, "request")
                log.info("node %s is left to whoever leads then: %s", name, error)
            except errors.KubeError as error:
                self._failed(term, name, "request", error.retry_after)
                log.warning("cannot bring node %s to its plan: %s", name, error)
            except Exception:
                # One node that cannot be planned must not keep the others from it.
                self._failed(term, name, "internal")
                log.exception("cannot plan node %s", name)
            else:
                if term is not None:
                    term.backoffs.pop(name, None)
            finally:
                self._queue.done(name)

    def _failed(self, term: Term | None, name: str, kind: str, retry_after: float = 0.0) -> None:
        FAILURES.inc(kind)
        if term is not None and term is self.leadership.led:
            waits = term.backoffs.setdefault(name, backoff.Backoff(*BACKOFF_SECONDS))
            self._queue.retry(name, waits.next(), at_least=retry_after)
