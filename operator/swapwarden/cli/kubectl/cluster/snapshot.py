"""A cluster as it was read once, in the forms of the controller, and what the controller would make of it. Pure.

Only this module of kubectl swap imports the controller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from swapwarden.api import decoding, names, state
from swapwarden.cli.kubectl.cluster import agents
from swapwarden.policy.admission import pod_annotations
from swapwarden.policy.fleet import cluster
from swapwarden.policy.fleet import view as planner
from swapwarden.policy.observed import namespaces, nodes, pods, revisions, states
from swapwarden.policy.observed.new_pods import NewPod
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.profile import compiled
from swapwarden.policy.profile.store import Entry, ProfileStore

WireState = states.WireState
WireRevision = revisions.WireRevision
PAST: Final = "/apis/apps/v1/controllerrevisions"
PAST_SELECTOR: Final = revisions.OWNER_LABEL
ProfileEntry = Entry

# Below, names of fields stand before those of modules.
_Node = nodes.WireNode
_Namespace = namespaces.WireNamespace
_Namespaces = namespaces.Labels
_Profile = compiled.Profile

AGENT = names.AGENT_LABELS["app.kubernetes.io/component"]
_NAME_LABEL = "app.kubernetes.io/name"
_COMPONENT_LABEL = "app.kubernetes.io/component"


class ComponentPod(msgspec.Struct, frozen=True):
    """A pod of Swapwarden's own."""

    component: str
    """agent, controller, nri or webhook."""
    namespace: str
    name: str
    node: str
    ready: bool


class KnownProfiles(msgspec.Struct, frozen=True):
    """NodeSwapProfiles as the controller understands them."""

    valid: Mapping[str, compiled.Profile]
    """Profiles by name, each in its newest valid version."""
    history: Mapping[state.ProfileRef, compiled.Profile]
    """Profiles in generations that nodes may still follow."""
    entries: Mapping[str, ProfileEntry]
    """All of them by name, those that are not valid included."""


class ProfileChange(msgspec.Struct, frozen=True):
    """A change of profiles."""

    put: tuple[compiled.Profile, ...] = ()
    """New, or in place of those of the same names."""
    delete: tuple[str, ...] = ()


class PlannedNode(planner.NodeView, frozen=True):
    """A node with all that the controller plans it by, and what follows from that."""

    conflicts: tuple[str, ...]
    """Other profiles of the same priority that also select it."""
    degraded: tuple[str, ...]
    """Problems there, as rollouts compare them; empty if none."""


class UnknownProfileError(Exception):
    """There is no profile of this name that could be deleted."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        there = ", ".join(sorted(known)) or "none"
        super().__init__(f"there is no NodeSwapProfile {name!r}; there are: {there}")


_PODS = decoding.Decoder(WirePod)


@dataclasses.dataclass
class ClusterSnapshot:
    """Objects by name, pods by namespace and name. Resources in `unread` could not be read."""

    nodes: dict[str, nodes.NodeRow] = dataclasses.field(default_factory=dict)
    pods: dict[tuple[str, str], pods.PodRow] = dataclasses.field(default_factory=dict)
    admitted_pods: dict[tuple[str, str], NewPod] = dataclasses.field(default_factory=dict)
    """Pods with a label or an annotation of Swapwarden's, as admission reads them."""
    parts: list[ComponentPod] = dataclasses.field(default_factory=list)
    namespaces: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    """Labels of namespaces."""
    profiles: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    past: list[WireRevision] = dataclasses.field(default_factory=list)
    """Earlier specs of profiles."""
    states: dict[str, states.StateRow] = dataclasses.field(default_factory=dict)
    reports: dict[str, state.StateStatus] = dataclasses.field(default_factory=dict)
    """Reports of agents by node."""
    unread: dict[str, str] = dataclasses.field(default_factory=dict)
    """Why a resource, by its plural, could not be read."""
    installed: bool = True
    """Whether the API server knows Swapwarden's kinds."""
    pods_of: str = ""
    """The namespace whose pods were read; empty for all namespaces."""

    def add_node(self, wire: _Node) -> None:
        """Take in a Node."""
        self.nodes[wire.metadata.name] = nodes.project(wire)

    def add_namespace(self, wire: _Namespace) -> None:
        """Take in a Namespace."""
        self.namespaces[wire.metadata.name] = namespaces.project(wire)

    def add_state(self, wire: WireState) -> None:
        """Take in a NodeSwapState."""
        row = states.project(wire)
        self.states[row.name] = row
        self.reports[row.name] = states.read(wire).status

    def add_pod(self, item: msgspec.Raw) -> None:
        """Take in a Pod as JSON. Raise msgspec.MsgspecError if it is none."""
        wire = _PODS.decode(item)
        row, meta = pods.project(wire), wire.metadata
        place = meta.namespace, meta.name
        self.pods[place] = row
        if any(map(pod_annotations.is_of_domain, (*meta.annotations, *meta.labels))):
            self.admitted_pods[place] = wire
        if meta.labels.get(_NAME_LABEL) == names.AGENT_LABELS[_NAME_LABEL]:
            component = meta.labels.get(_COMPONENT_LABEL, "")
            self.parts.append(ComponentPod(component, meta.namespace, meta.name, row.node, wire.status.is_ready))

    def agent_namespace(self) -> str | None:
        """Return the namespace of the agents; None if there are none."""
        return agents.namespace_of([part.namespace for part in self.parts if part.component == AGENT])

    def known_namespaces(self) -> _Namespaces | None:
        """Return labels of all Namespaces; None if they could not be read."""
        return None if "namespaces" in self.unread else self.namespaces

    def known_profiles(self) -> KnownProfiles:
        """Return the profiles as the controller understands them."""
        return known_profiles(self.profiles, self.past)

    def planned(
        self, profiles: Mapping[str, _Profile], history: Mapping[state.ProfileRef, _Profile]
    ) -> dict[str, PlannedNode]:
        """Return each node as the controller would see it if these were its profiles."""
        known = cluster.Cluster(agent_pods=self.agent_namespace())
        known.profiles_changed(profiles, history)
        for name, node in self.nodes.items():
            known.node_changed(name, node)
        for name, row in self.states.items():
            known.state_changed(name, None, row)
        for pod in self.pods.values():
            known.pod_changed(f"{pod.namespace}/{pod.name}", None, pod)
        known.namespaces_known(self.known_namespaces())
        return {name: _node(known, seen) for name in self.nodes if (seen := known.planner.view(name)) is not None}


def known_profiles(bodies: Iterable[Mapping[str, Any]], past: Iterable[WireRevision] = ()) -> KnownProfiles:
    """Compile profiles as they were read; `past` are ControllerRevisions."""
    store = ProfileStore()
    for body in bodies:
        store.offer(body)
    store.set_stored(filter(None, map(revisions.project, past)))
    return KnownProfiles(store.valid(), store.history(), store.entries)


def apply(known: KnownProfiles, change: ProfileChange) -> dict[str, compiled.Profile]:
    """Return the profiles after a change, with the API server's defaults.

    Raise UnknownProfileError if there is none that could be deleted.
    """
    for name in change.delete:
        if name not in known.entries:
            raise UnknownProfileError(name, known.entries)
    coming = {name: one for name, one in known.valid.items() if name not in change.delete}
    for one in change.put:
        old = coming.get(one.name)
        if old is None:
            coming[one.name] = msgspec.structs.replace(one, generation=1, uid="", created="")
            continue
        same = msgspec.structs.replace(one, generation=old.generation, uid=old.uid, created=old.created)
        coming[one.name] = old if same == old else msgspec.structs.replace(same, generation=old.generation + 1)
    return coming


def _node(known: cluster.Cluster, seen: planner.NodeView) -> PlannedNode:
    name = seen.node.name
    return PlannedNode(
        **{field: getattr(seen, field) for field in seen.__struct_fields__},
        conflicts=known.planner.selection(name).conflicts,
        degraded=planner.degraded(seen.report, refused=seen.refused) if seen.report is not None else (),
    )
