"""The parts of the controller's process: watches feed the inventory, and changes make nodes due for reconciling."""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import secrets
import socket
from typing import Final

from swapwarden.api import names
from swapwarden.controller import leader, leadership, notices, supervise
from swapwarden.controller.watches import namespaces as namespace_watch
from swapwarden.controller.watches import node_features, profile_list, restore_request
from swapwarden.controller.writers import nodes as node_writer
from swapwarden.kube import client, config, events, informer, ratelimit
from swapwarden.kube.election import elector
from swapwarden.policy.fleet import cluster
from swapwarden.policy.observed import namespaces, nodes, pods, states
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.profile.store import ProfileStore

log = logging.getLogger(__name__)

LEASE: Final = "swapwarden-controller"
SILENT_SECONDS: Final = 15.0
"""Seconds between two checks for silent agents. Each reads all pods, and alerts wait for minutes."""


class App:
    """The parts of the process that run on each instance, leading or not."""

    def __init__(self, cfg: config.Config, api: client.Client, arguments: argparse.Namespace) -> None:
        identity = arguments.identity or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self.known = cluster.Cluster(agent_pods=arguments.namespace if arguments.agent_pods else None)
        self.store = ProfileStore(profile_list.report)
        self.namespaces = namespace_watch.NamespaceWatch(
            api, known=self._namespaces_known, on_change=self._namespace_changed
        )
        self.profiles = profile_list.ProfileList(
            api, self.store, on_change=self.profiles_changed, mends=lambda: self.leadership.leader is not None
        )
        self.recorder = events.Recorder(api, "swapwarden-controller", identity)
        self._features = node_features.Features(
            api, arguments.namespace, arguments.label_publisher, changed=self._feature_changed
        )
        self.informers = (
            informer.Informer(
                api, "/api/v1/pods", wire=WirePod, project=pods.project, name="pods", on_change=self.pod_changed
            ),
            informer.Informer(
                api,
                node_writer.NODES,
                wire=nodes.WireNode,
                project=nodes.project,
                name="nodes",
                on_change=self.node_changed,
            ),
            informer.Informer(
                api,
                names.STATES_PATH,
                wire=states.WireState,
                project=states.project,
                name="nodeswapstates",
                on_change=self.state_changed,
            ),
        )
        self.order = restore_request.RestoreRequest(api, arguments.namespace, self._ordered)
        self.shared = leader.Shared(
            cfg,
            api,
            ratelimit.Throttle(arguments.writes_per_second, asyncio.get_running_loop().time),
            self.known,
            self.store,
            self.profiles,
            self.profiles_changed,
            self._features,
            self.order,
            self.recorder,
            arguments,
        )
        self.readiness: Final = leadership.Readiness(
            {
                **{one.name: one.synced for one in self.informers},
                "profiles": self.profiles.synced,
                self.namespaces.name: self.namespaces.synced,
                "the order to restore": self.order.synced,
            },
            (*self.informers, self.profiles, self.namespaces),
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
            largest_epoch=self.known.inventory.largest_epoch,
            leads=functools.partial(leader.Leader, self.shared),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set; then give the lease back."""
        # Watch the Lease from now on: an instance that is in sync later has then already waited for its holder.
        self.leadership.elector.start(candidate=False)
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(supervise.run(self.parts()))
                await stop.wait()
                log.info("stopping; what the states say stays in force")
                await self.leadership.drain()
                running.cancel()
        finally:
            await self.leadership.stop()

    def parts(self) -> dict[str, supervise.Job]:
        """Return the jobs that run on each instance, by name."""
        return {
            **{one.name: one.run for one in self.informers},
            "profiles": self.profiles.run,
            "events": self.recorder.run,
            "restoring": self.order.run,
            "namespaces": self.namespaces.run,
            "node_features": self._features.run,
            "sync": lambda: self.leadership.compete(self.follow_namespaces),
            "silent_agents": self._watch_agents,
        }

    async def _watch_agents(self) -> None:
        """Publish the nodes whose agent is silent, while all inputs are known."""
        while True:
            if self.readiness.unready() is None:
                notices.measure_silent(self.known.inventory)
            await asyncio.sleep(SILENT_SECONDS)

    def stuck(self) -> str | None:
        """Return why the process must be restarted; None if it need not."""
        if not self.leadership.elector.alive():
            return "the thread that holds the Lease has ended"
        return self.leadership.leader.stuck() if self.leadership.leader is not None else None

    def follow_namespaces(self) -> None:
        """Follow Namespaces while a profile in use needs them."""
        # States may name profiles that need namespaces, also after the profiles arrived.
        self.namespaces.update(needed=self.known.planner.needs_namespaces())

    # Changes

    def pod_changed(self, key: str, old: pods.PodRow | None, new: pods.PodRow | None) -> None:
        """Take in a Pod that was created, changed or deleted (None)."""
        self._apply(self.known.pod_changed(key, old, new))
        if self.leadership.leader is not None:
            self.leadership.leader.pod_changed(old, new)

    def node_changed(self, name: str, old: nodes.NodeRow | None, new: nodes.NodeRow | None) -> None:
        """Take in a Node that was created, changed or deleted (None)."""
        self._apply(self.known.node_changed(name, new))
        if self.leadership.leader is not None:
            self.leadership.leader.node_changed(old, new)

    def state_changed(self, name: str, old: states.StateRow | None, new: states.StateRow | None) -> None:
        """Take in a NodeSwapState that was created, changed or deleted (None)."""
        self._apply(self.known.state_changed(name, old, new))
        notices.measure_swap(name, new)
        if self.leadership.leader is not None:
            self.leadership.leader.state_changed(name, old, new)

    def _ordered(self) -> None:
        changes = self.known.restore(active=self.order.active)
        if self.leadership.leader is not None:
            self.leadership.leader.restore_requested()
        self._apply(changes)

    def _feature_changed(self, node: str | None) -> None:
        due = self.known.inventory.nodes if node is None else [node]
        self._apply(cluster.Changes(tuple(map(cluster.Due, due))))

    def profiles_changed(self) -> None:
        """Take in the profiles of the store."""
        self._apply(self.known.profiles_changed(self.store.valid(), self.store.history(), self.store.ending()))
        self._apply(cluster.Changes(profiles=True))
        self.follow_namespaces()

    def _namespaces_known(self, known: namespaces.Labels | None) -> None:
        self._apply(self.known.namespaces_known(known))

    def _namespace_changed(self, name: str, old: dict[str, str] | None, new: dict[str, str] | None) -> None:
        self._apply(self.known.namespace_changed(name, old, new))

    def _apply(self, changes: cluster.Changes) -> None:
        """Queue the nodes that are due, if this instance leads."""
        if self.leadership.leader is not None:
            self.leadership.leader.apply(changes)
