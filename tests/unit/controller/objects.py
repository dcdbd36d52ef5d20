"""Objects and rows for tests of the controller: what a test does not mention has the simplest value."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from swapwarden.api import names, state
from swapwarden.controller.term import Term
from swapwarden.policy import plan
from swapwarden.policy.fleet import cluster, decisions, progress, rollout
from swapwarden.policy.observed import namespaces, nodes, pods, states
from swapwarden.policy.profile import compiled

from tests.unit.policy import rows


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


def node(name: str = "node-1", **fields: Any) -> nodes.NodeRow:
    """A node with 1 GiB of swap and 8 GiB of memory."""
    defaults = {"uid": f"uid-of-{name}", "labels": {}, "swap_bytes": 2**30, "memory_bytes": 2**33}
    return nodes.NodeRow(**{"name": name, **defaults, **fields})


def state_row(
    name: str = "node-1", version: int = 1, spec: state.StateSpec | None = None, **fields: Any
) -> states.StateRow:
    """A state owned by the node of the same name, with a spec as the built-in profile makes it of no pods.

    Where its agent is behind, the last plan that it saw was one of another profile, if nothing else is said.
    """
    spec = spec or state.StateSpec(
        profile_ref=state.ProfileRef(name=names.BUILT_IN_PROFILE), default_reason=names.Reason.KUBELET_DECIDES
    )
    observed = fields.get("observed", 0)
    acted = spec.profile_ref if observed >= fields.get("generation", 1) else state.ProfileRef("earlier")
    defaults: dict[str, Any] = {
        "uid": f"uid-of-state-{name}",
        "owner": f"uid-of-{name}",
        "generation": 1,
        "epoch": spec.epoch,
        "profile": spec.profile_ref,
        "spec": msgspec.json.encode(spec),
        "before": tuple(spec.degraded_before),
        "observed": observed,
        "acted": acted if observed else None,
        "facts": None,
        "applied": False,
        "settled": fields.get("applied", False),
        "degraded": "",
    }
    return states.StateRow(**{"name": name, "version": version, **defaults, **fields})


def profile(name: str = "p", **fields: Any) -> compiled.Profile:
    """A profile that selects all nodes."""
    return rows.profile(**{"name": name, "generation": 1, "uid": f"uid-of-{name}", **fields})


def profile_object(
    name: str = "p", version: int = 1, generation: int = 1, uid: str = "", **spec: Any
) -> dict[str, Any]:
    """A NodeSwapProfile as the API server gives it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.PROFILE_KIND,
        "metadata": {
            "name": name,
            "uid": uid or f"uid-of-{name}",
            "generation": generation,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {"nodeSelector": {}, **spec},
    }


def state_object(row: states.StateRow) -> dict[str, Any]:
    """The NodeSwapState that a row was made of, as the API server gives it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": row.name, "uid": row.owner}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.STATE_KIND,
        "metadata": {
            "name": row.name,
            "uid": row.uid,
            "generation": row.generation,
            "resourceVersion": str(row.version),
            "ownerReferences": [owner] if row.owner else [],
        },
        "spec": msgspec.json.decode(row.spec),
    }


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

    def plan_all(self, name: str) -> plan.NodePlan:
        """The desired state of the node, and the pods for which it has no room."""
        view = self.planner.view(name)
        assert view is not None
        return decisions.desired_state(view)

    def plan(self, name: str) -> state.StateSpec:
        return self.plan_all(name).spec
