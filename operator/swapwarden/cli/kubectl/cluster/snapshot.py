"""A cluster as it was read once, in the forms of the controller, with its decisions. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from swapwarden.api import names, state
from swapwarden.cli.kubectl.cluster import planning
from swapwarden.kube import decoding
from swapwarden.policy import pod_annotations
from swapwarden.policy.observed import namespaces, nodes, pods
from swapwarden.policy.profile import compiled
from swapwarden.webhook import review

Json = dict[str, Any]

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
    """agent, controller or webhook."""
    namespace: str
    name: str
    node: str
    ready: bool


class AgentReport(msgspec.Struct, frozen=True, rename="camel"):
    """Status of a NodeSwapState: the fields that are shown."""

    conditions: list[state.Condition] = []
    violations: list[state.Violation] = []
    violations_omitted: int = 0
    exposures: list[state.ExposedPod] = []


_PODS = decoding.Decoder(pods.WirePod)
_ASKED = decoding.Decoder(review.ReviewedPod)
_REPORTS = decoding.Decoder(AgentReport)


@dataclasses.dataclass
class ClusterSnapshot:
    """Objects by name, pods by namespace and name. Resources in `unread` could not be read."""

    nodes: dict[str, nodes.NodeRow] = dataclasses.field(default_factory=dict)
    pods: dict[tuple[str, str], pods.PodRow] = dataclasses.field(default_factory=dict)
    admitted_pods: dict[tuple[str, str], review.ReviewedPod] = dataclasses.field(default_factory=dict)
    """Of the pods those with a label or an annotation of Swapwarden's, as admission reads them."""
    parts: list[ComponentPod] = dataclasses.field(default_factory=list)
    namespaces: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    """Their labels."""
    profiles: list[Json] = dataclasses.field(default_factory=list)
    past: list[planning.WireRevision] = dataclasses.field(default_factory=list)
    """Earlier specs of profiles."""
    states: dict[str, planning.StateRow] = dataclasses.field(default_factory=dict)
    reports: dict[str, AgentReport] = dataclasses.field(default_factory=dict)
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

    def add_state(self, wire: planning.WireState) -> None:
        """Take in a NodeSwapState. An invalid report, of an agent of another version, is left out."""
        row = planning.project_state(wire)
        self.states[row.name] = row
        try:
            self.reports[row.name] = _REPORTS.decode(wire.status)
        except msgspec.DecodeError:
            self.reports.pop(row.name, None)  # the row says that it is not understood

    def add_pod(self, item: msgspec.Raw) -> None:
        """Take in a Pod as JSON. Raise msgspec.MsgspecError if it is none."""
        wire = _PODS.decode(item)
        row, meta = pods.project(wire), wire.metadata
        place = meta.namespace, meta.name
        self.pods[place] = row
        if any(map(pod_annotations.is_of_domain, (*meta.annotations, *meta.labels))):
            self.admitted_pods[place] = _ASKED.decode(item)
        if meta.labels.get(_NAME_LABEL) == names.AGENT_LABELS[_NAME_LABEL]:
            component = meta.labels.get(_COMPONENT_LABEL, "")
            ready = any(one.type == "Ready" and one.status == "True" for one in wire.status.conditions)
            self.parts.append(ComponentPod(component, meta.namespace, meta.name, row.node, ready))

    def agent_namespace(self) -> str | None:
        """Return the namespace with most agents' pods, since anyone can label pods; None if there are none."""
        found = [part.namespace for part in self.parts if part.component == AGENT]
        return max(sorted(set(found)), key=found.count) if found else None

    def known_namespaces(self) -> _Namespaces | None:
        """Return labels of all Namespaces; None if they could not be read."""
        return None if "namespaces" in self.unread else self.namespaces

    def known_profiles(self) -> planning.KnownProfiles:
        """Return the profiles as the controller understands them."""
        return planning.known_profiles(self.profiles, self.past)

    def planned(self, found: Mapping[str, _Profile], history: planning.History) -> dict[str, planning.PlannedNode]:
        """Return each node as the controller would see it if these were its profiles."""
        return planning.view(
            nodes=self.nodes,
            pods=self.pods.values(),
            states=self.states,
            labels=self.known_namespaces(),
            agent_namespace=self.agent_namespace(),
            profiles=found,
            history=history,
        )
