"""A cluster as the process has it, and leaderships, for tests of the controller."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from swapwarden.api import state
from swapwarden.controller.term import Term
from swapwarden.policy import plan
from swapwarden.policy.fleet import cluster, progress, rollout
from swapwarden.policy.fleet.view import desired_state
from swapwarden.policy.observed import namespaces, nodes, pods, states
from swapwarden.policy.profile import compiled


class Led:
    """In place of an elector.Tenure: lasts for as long as a test says."""

    def __init__(self, seconds: float = math.inf, transitions: int = 0) -> None:
        self.seconds = seconds
        self.transitions = transitions

    def left(self) -> float:
        return self.seconds


def term(epoch: int = 1, led: Led | None = None) -> Term:
    """A leadership, for ever where nothing else is said."""
    return Term(epoch, led or Led())


def rollouts(known: Known, overdue: progress.Overdue = frozenset()) -> dict[str, rollout.RolloutProgress]:
    """Where the rollouts of all profiles stand that govern a node."""
    members: dict[str, tuple[compiled.Profile, list[str]]] = {}
    for name, selection in progress.selections(known.planner):
        members.setdefault(selection.profile.name, (selection.profile, []))[1].append(name)
    return {name: progress.rollout_of(known.planner, found, named, overdue) for name, (found, named) in members.items()}


class Known:
    """A cluster as the process has it; due nodes are kept in place of a queue."""

    def __init__(self, agent_pods: str | None = None) -> None:
        self.cluster = cluster.Cluster(agent_pods=agent_pods)
        self.inventory, self.planner = self.cluster.inventory, self.cluster.planner
        self.due: list[cluster.Due] = []
        self.reports = 0

    def apply(self, changes: cluster.Changes) -> None:
        self.due += changes.due
        self.reports += changes.profiles

    def node_changed(self, name: str, _: nodes.NodeRow | None, new: nodes.NodeRow | None) -> None:
        self.apply(self.cluster.node_changed(name, new))

    def pod_changed(self, key: str, old: pods.PodRow | None, new: pods.PodRow | None) -> None:
        self.apply(self.cluster.pod_changed(key, old, new))

    def state_changed(self, name: str, old: states.StateRow | None, new: states.StateRow | None) -> None:
        self.apply(self.cluster.state_changed(name, old, new))

    def profiles_changed(
        self,
        found: Mapping[str, compiled.Profile],
        history: Mapping[state.ProfileRef, compiled.Profile] | None = None,
        ending: Mapping[str, compiled.Profile] | None = None,
    ) -> None:
        self.apply(self.cluster.profiles_changed(found, history, ending))

    def namespaces_known(self, known: namespaces.Labels | None) -> None:
        self.apply(self.cluster.namespaces_known(known))

    def namespace_changed(self, name: str, old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> None:
        self.apply(self.cluster.namespace_changed(name, old, new))

    def wrote(self, row: states.StateRow) -> bool:
        changes = self.cluster.wrote(row)
        if changes is not None:
            self.apply(changes)
        return changes is not None

    def admit(self, judged: compiled.Profile, found: Collection[str], overdue: progress.Overdue = frozenset()) -> None:
        self.apply(self.cluster.admit(judged, found, overdue))

    @property
    def nodes(self) -> dict[str, nodes.NodeRow]:
        return self.inventory.nodes

    def lacks_namespaces(self, name: str) -> bool:
        """Whether the node waits for the labels of namespaces."""
        view = self.planner.view(name)
        assert view is not None
        return view.lacks_namespaces

    def plan_all(self, name: str) -> plan.NodePlan:
        """The desired state of the node, and the pods for which it has no room."""
        view = self.planner.view(name)
        assert view is not None
        return desired_state(view)

    def plan(self, name: str) -> state.StateSpec:
        return self.plan_all(name).spec
