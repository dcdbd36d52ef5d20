"""`swapwarden controller`: watches in, plans, writes out. One instance leads; the others stand by, in sync."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import swapwarden
from swapwarden.api import names
from swapwarden.api.conditions import ConditionType
from swapwarden.controller import (
    cluster,
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
from swapwarden.kube.election import election, elector
from swapwarden.policy.node import labels
from swapwarden.policy.observed import namespaces, nodes, pods
from swapwarden.telemetry import build, exposition, logs, metrics, server

log = logging.getLogger(__name__)

LEADER = metrics.gauge(
    "swapwarden_leader", "1 while this instance of the controller leads: one at a time plans and writes."
)
EPOCH = metrics.gauge(
    "swapwarden_controller_epoch", "Leadership term in this process's writes; 0 while it does not lead."
)
FAILURES = metrics.counter(
    "swapwarden_controller_failures_total",
    "Looks at a node that failed and are tried again, by kind: request (to the API server) or internal.",
    labels=("kind",),
    known=[("request",), ("internal",)],
)

LEASE: Final = "swapwarden-controller"
NAMESPACE: Final = "swapwarden-system"
WORKERS: Final = 8
BACKOFF_SECONDS: Final = (0.2, 60.0)
SYNC_SECONDS: Final = 5.0
"""Between two looks at whether all is in sync."""
LAG_SECONDS: Final = 420.0
"""Of what nothing was heard for so long that plans are not to be trusted: a watch that works ends within 90 seconds,
and a list may take five minutes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `swapwarden controller`."""
    parser.add_argument("--kubeconfig", default=None, help="default: in-cluster, $KUBECONFIG, ~/.kube/config")
    parser.add_argument(
        "--namespace",
        type=_namespace,
        default=os.environ.get("POD_NAMESPACE", NAMESPACE),
        help=f"of the Lease (default: $POD_NAMESPACE, else {NAMESPACE})",
    )
    parser.add_argument(
        "--identity",
        default=os.environ.get("POD_NAME", ""),
        help="this instance's name in the Lease; must be unique (default: $POD_NAME, else made up)",
    )
    parser.add_argument(
        "--metrics-address",
        type=_address,
        default=":8083",
        metavar="HOST:PORT",
        help="for /healthz, /readyz and /metrics (default: %(default)s, all addresses)",
    )
    parser.add_argument(
        "--lease-duration",
        type=_seconds,
        default=15.0,
        metavar="SECONDS",
        help="how long another instance waits for a leader that is silent (default: %(default)s)",
    )
    parser.add_argument(
        "--label-removal-delay",
        type=_seconds,
        default=600.0,
        metavar="SECONDS",
        help="how long swap must be off before a node loses its swap labels (default: %(default)s)",
    )
    parser.add_argument(
        "--label-publisher",
        type=names.Publisher,
        choices=list(names.Publisher),
        default=names.Publisher.DIRECT,
        help="who sets labels of nodes: this controller, Node Feature Discovery by NodeFeature objects, or the latter"
        " where it is installed (default: %(default)s)",
    )
    parser.add_argument(
        "--vouched-nodes",
        type=_vouched,
        default={},
        metavar="KEY=VALUE[,...]",
        help=f"labels of nodes for which you vouch that their swap is encrypted: they get {names.VOUCHED_LABEL}"
        " (default: none)",
    )
    parser.add_argument(
        "--writes-per-second",
        type=_rate,
        default=300.0,
        metavar="NUMBER",
        help="most writes in the cluster: of states, of labels, taints and statuses of nodes, of statuses of profiles,"
        " and of pods' conditions together; bursts of as many pass (default: %(default)s)",
    )
    parser.add_argument(
        "--remove-startup-taint",
        action="store_true",
        help=f"take {names.STARTUP_TAINT} off nodes whose agent has applied a first state",
    )
    parser.add_argument(
        "--agent-pods",
        action="store_true",
        help="agents are pods in --namespace: a node is without one where none is Ready (default: where none ever"
        " observed the node's state)",
    )
    parser.add_argument(
        "--extended-resource",
        action="store_true",
        help=f"offer {names.SWAP_RESOURCE} in the status of nodes whose profile says so; needs the right to patch that",
    )
    parser.add_argument(
        "--pod-conditions",
        action="store_true",
        help=f"give pods with a policy the condition {ConditionType.SWAP_POLICY_ENFORCED}; needs the right to patch"
        " their status",
    )
    parser.add_argument(
        "--webhook-service",
        default="",
        metavar="NAME",
        help="keep the certificate of this Service in --namespace, in the Secret NAME-tls (default: someone else does)",
    )
    parser.add_argument(
        "--webhook-registration",
        default="swapwarden",
        metavar="NAME",
        help="of the two webhook configurations that shall trust the certificate (default: %(default)s)",
    )
    logs.add_arguments(parser)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds between 1 and 86400")
    return value


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 <= value <= 10000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of writes a second between 1 and 10000")
    return value


def _address(text: str) -> tuple[str, int]:
    try:
        return server.parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _vouched(text: str) -> dict[str, str]:
    wanted = dict[str, str]()
    for each in filter(None, text.split(",")):
        key, given, value = each.partition("=")
        if not given or not labels.is_restricted(key):
            raise argparse.ArgumentTypeError(
                f"{each!r} is not KEY=VALUE with a key that kubelets cannot write, such as"
                " node-restriction.kubernetes.io/swap=encrypted"
            )
        wanted[key] = value
    return wanted


def _namespace(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a namespace, such as {NAMESPACE}")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT. Gives the exit status."""
    logs.configure(arguments.log_level, arguments.log_format)
    # What goes wrong with kopf is told by profilewatch, in one line.
    logging.getLogger("kopf").setLevel(logging.CRITICAL)
    build.publish("controller")
    exposition.register()
    try:
        asyncio.run(_main(arguments))
    except errors.ConfigError as error:
        log.error("the controller cannot start: %s", error)  # noqa: TRY400 the text says all
        return 2
    except OSError as error:
        log.error("the controller cannot start: %s (--metrics-address)", error)  # noqa: TRY400 the text says all
        return 2
    return 0


async def _main(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = arguments.metrics_address
    cfg = config.load(arguments.kubeconfig)
    agent = f"swapwarden-controller/{swapwarden.__version__}"
    async with client.Client(cfg, user_agent=agent) as api:
        controller = Controller(cfg, api, arguments)
        async with server.serve(host, port, ready=controller.unready, alive=controller.stuck, render=exposition.render):
            await controller.run(stop)


class Controller:
    """What the parts of the process share."""

    def __init__(self, cfg: config.Config, api: client.Client, arguments: argparse.Namespace) -> None:
        identity = arguments.identity or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._writes = ratelimit.Throttle(arguments.writes_per_second, asyncio.get_running_loop().time)
        self._queue = workqueue.WorkQueue("nodes", hold=self._writes.delay)
        self._label_grace = arguments.label_removal_delay
        self._leadership: elector.Leadership | None = None
        self._led: Term | None = None
        self._ended: Term | None = None
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
        self._enforcement = plan_latency.PlanLatency()
        self._reconciler = reconciler.Reconciler(
            api,
            self._known,
            term=self._term,
            again=self._requeue,
            apply=self._apply,
            recorder=self._recorder,
            published=self._features,
            fenced=fenced,
            waits=self._enforcement,
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
        loop = asyncio.get_running_loop()
        duration = arguments.lease_duration
        self._elector = elector.Elector(
            cfg,
            namespace=arguments.namespace,
            name=LEASE,
            identity=identity,
            on_started=lambda leadership: _tell(loop, self._elected, leadership),
            on_stopped=lambda leadership, reason: _tell(loop, self._deposed, leadership, reason),
            lease_duration=duration,
            renew_deadline=duration * 2 / 3,
            retry_period=duration * 2 / 15,
        )
        self._order = restore_request.RestoreRequest(api, arguments.namespace, self._ordered)
        self._keeper = manager.CertificateManager(
            api,
            namespace=arguments.namespace,
            service=arguments.webhook_service,
            registration=arguments.webhook_registration,
            term=self._term,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then the lease is given back."""
        # It looks at the Lease from now on, so that one that is in sync later has waited for its holder already.
        self._elector.start(candidate=False)
        try:
            async with asyncio.TaskGroup() as group:
                parts = self._parts()
                supervise.begin(parts)
                tasks = [group.create_task(supervise.unending(part, job)) for part, job in parts.items()]
                tasks += [group.create_task(self._work()) for _ in range(WORKERS)]
                await stop.wait()
                log.info("stopping; what the states say stays in force")
                if self._led is not None:
                    await self._led.drain()
                for task in tasks:
                    task.cancel()
        finally:
            # What had no answer may still be done: then others wait until the Lease expires.
            unsure = any(term is not None and term.is_unsure() for term in (self._led, self._ended))
            self._end_term()
            await asyncio.to_thread(self._elector.stop, release=not unsure)

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
            "sync": self._sync,
            "silent_agents": lambda: stale_agents.watch(self._known.inventory, lambda: self.unready() is None),
        }
        if self._keeper.service:
            parts["certificates"] = self._keeper.run
        if self._conditions is not None:
            parts[podconditions.QUEUE] = self._conditions.run
        return parts

    def unready(self) -> str | None:
        """What is not known yet, or not any more; None where all is. An instance that stands by is ready."""
        waiting = [name for name, synced in self._collections().items() if not synced.is_set()]
        return f"waiting for {', '.join(waiting)}" if waiting else self._lagging()

    def _lagging(self) -> str | None:
        """Of what nothing was heard for so long that plans may be about a cluster that is no more; None as a rule."""
        late = time.monotonic() - LAG_SECONDS
        lagging = [one.name for one in (*self._informers, self._profiles, self._namespaces) if one.heard < late]
        return f"nothing was heard of {', '.join(lagging)} for {LAG_SECONDS:g} s" if lagging else None

    def stuck(self) -> str | None:
        """Why the process should be started anew."""
        return None if self._elector.alive() else "the thread that holds the Lease has ended"

    def _collections(self) -> dict[str, asyncio.Event]:
        informers = {one.name: one.synced for one in self._informers}
        return {
            **informers,
            "profiles": self._profiles.synced,
            self._namespaces.name: self._namespaces.synced,
            "the order to restore": self._order.synced,
        }

    # Leadership

    async def _sync(self) -> None:
        """Compete for the Lease while all is known that a plan is made from, and only then."""
        while True:
            # What nodes follow may have come after the profiles.
            self._namespaces.update(needed=self._known.planner.needs_namespaces())
            unready, lagging = self.unready(), self._lagging()
            self._elector.stand(candidate=unready is None)
            if unready is None:
                self._assume()
            elif lagging is not None and self._leadership is not None:
                self._elector.step_down(lagging, self._leadership)
            await self._until_known(SYNC_SECONDS)

    async def _until_known(self, seconds: float) -> None:
        """Wait for the next collection that is not known yet, or for so long."""
        waiting = [synced for synced in self._collections().values() if not synced.is_set()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await (waiting[0] if waiting else asyncio.Event()).wait()

    def _elected(self, leadership: elector.Leadership) -> None:
        self._leadership = leadership
        self._assume()

    def _deposed(self, leadership: elector.Leadership, reason: str) -> None:
        if self._leadership is not leadership:
            return
        self._leadership = None
        self._end_term()
        log.warning("this instance does not lead any more", extra={"reason": reason})

    def _end_term(self) -> None:
        if self._led is not None:
            self._led.end()
            self._led.left_out.clear()
            self._ended = self._led
        self._led = None
        self._known.begin_term({})
        LEADER.set(0)
        EPOCH.set(0)
        self._enforcement.clear()
        self._reporter.nudge()

    def _assume(self) -> None:
        """Begin to lead: elected, and with all known that a plan is made from."""
        leadership = self._leadership
        if leadership is None or leadership.left() <= 0 or self.unready() is not None:
            return
        if self._led is not None and self._led.leadership is leadership:
            return
        transitions, largest = leadership.transitions, self._known.inventory.largest_epoch()
        if transitions < largest <= election.MAX_TRANSITIONS:
            # A Lease that was deleted counts from 0 again. What the term is must stand in it before anything is written
            # in that term: the next leader may see nothing else of it, and would take the same.
            self._elector.count_from(largest)
            return
        term = self._led = Term(1 + max(transitions, largest), leadership, label_grace=self._label_grace)
        LEADER.set(1)
        EPOCH.set(term.epoch)
        self._known.begin_term(term.admitted)
        self._enforcement.clear()
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

    def _term(self) -> Term | None:
        """The one in which something may be written now."""
        return self._led if self._led is not None and self._led.is_valid() else None

    # Changes

    def _pod_changed(self, key: str, old: pods.PodRow | None, new: pods.PodRow | None) -> None:
        self._apply(self._known.pod_changed(key, old, new))
        if self._term() is not None:
            self._enforcement.pod_changed(old, new)
        if self._conditions is not None and new is not None and new.policy is not None:
            self._conditions.nudge(new.node)

    def _node_changed(self, name: str, _: nodes.NodeRow | None, new: nodes.NodeRow | None) -> None:
        self._apply(self._known.node_changed(name, new))
        if new is None:
            self._enforcement.node_went(name)

    def _state_changed(self, name: str, old: states.StateRow | None, new: states.StateRow | None) -> None:
        self._apply(self._known.state_changed(name, old, new))
        exposures.measure(name, new)
        self._enforcement.observed(name, new)
        if self._conditions is not None:
            self._conditions.nudge(name)
        term = self._led
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
            self._step_down(term, reason)

    def _step_down(self, term: Term, reason: str) -> None:
        if term is self._led:
            self._elector.step_down(reason, self._leadership)

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
        if self._led is not None:
            for node, delay, urgent, owner in changes.due:
                self._queue.add(node, delay, urgent=urgent, owner=owner)
        if changes.profiles:
            self._reporter.nudge()

    def _requeue(self, name: str, delay: float) -> None:
        self._apply(cluster.Changes((cluster.Due(name, delay),)))

    async def _work(self) -> None:
        while True:
            name = await self._queue.get()
            term = self._led
            try:
                await self._reconciler.reconcile(name)
            except Deposed as error:
                self._step_down(error.term, str(error))
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
        if term is not None and term is self._led:
            waits = term.backoffs.setdefault(name, backoff.Backoff(*BACKOFF_SECONDS))
            self._queue.retry(name, waits.next(), at_least=retry_after)


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: object) -> None:
    """Call back in the loop, from another thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed when the process ends
        loop.call_soon_threadsafe(callback, *arguments)
