"""Pods before they are created: the fields that are read of any pod, and those that admission reads."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from swapwarden.api import names
from swapwarden.policy.observed.resources import Kind, ResourceList, Resources


class WirePort(msgspec.Struct, frozen=True, rename="camel"):
    """A port of a container: the fields that are read."""

    name: str = ""
    container_port: int = 0


class WireContainer(msgspec.Struct, frozen=True, rename="camel"):
    """A container of a pod's spec: the fields that are read."""

    name: str
    resources: Resources = Resources()
    restart_policy: str = ""
    ports: list[WirePort] = []


class WireToleration(msgspec.Struct, frozen=True):
    """A taint that the pod tolerates."""

    key: str = ""
    operator: str = ""
    effect: str = ""


class WireExpression(msgspec.Struct, frozen=True):
    """core/v1 NodeSelectorRequirement."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class WireNodeTerm(msgspec.Struct, frozen=True, rename="camel"):
    """core/v1 NodeSelectorTerm."""

    match_expressions: list[WireExpression] | None = None
    match_fields: list[WireExpression] | None = None


class WirePreferredTerm(msgspec.Struct, frozen=True):
    """core/v1 PreferredSchedulingTerm."""

    weight: int = 0
    preference: WireNodeTerm | None = None


class WireNodeSelector(msgspec.Struct, frozen=True, rename="camel"):
    """core/v1 NodeSelector: alternatives."""

    node_selector_terms: list[WireNodeTerm] | None = None


class WireNodeAffinity(msgspec.Struct, frozen=True, rename="camel"):
    """spec.affinity.nodeAffinity of a pod."""

    preferred_during_scheduling_ignored_during_execution: list[WirePreferredTerm] | None = None
    required_during_scheduling_ignored_during_execution: WireNodeSelector | None = None


class WireAffinity(msgspec.Struct, frozen=True, rename="camel"):
    """spec.affinity of a pod: the field that is read."""

    node_affinity: WireNodeAffinity | None = None


class NewPodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Spec of a pod: the fields that admission reads."""

    # Without any, the API server writes null: it leaves out all other lists and maps of a pod that are empty.
    containers: list[WireContainer] | None = None
    init_containers: list[WireContainer] = []
    node_name: str = ""
    resources: Resources | None = None
    overhead: ResourceList = ResourceList()
    host_network: bool | None = None
    node_selector: dict[str, str] | None = None
    affinity: WireAffinity | None = None
    tolerations: list[WireToleration] | None = None

    def created(self) -> Iterator[tuple[Kind, WireContainer]]:
        """Yield the containers that a pod is created with, init containers first, each with its kind."""
        for one in self.init_containers:
            yield (Kind.SIDECAR if one.restart_policy == "Always" else Kind.INIT), one
        for one in self.containers or ():
            yield Kind.APP, one


class WireOwner(msgspec.Struct, frozen=True, rename="camel"):
    """A reference to the owner of a pod: the fields that are read."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class WirePodMeta(msgspec.Struct, frozen=True, rename="camel"):
    """Metadata of a pod: the fields that are read."""

    name: str = ""
    """The pod's name; empty for a new pod that gets one from `generate_name`."""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str | None = None
    deletion_timestamp: str = ""
    resource_version: str = ""
    generate_name: str = ""
    owner_references: list[WireOwner] = []


class NewPod(msgspec.Struct, frozen=True):
    """A pod before it is created: it has no status, and whatever its author wrote there is not read."""

    metadata: WirePodMeta
    spec: NewPodSpec

    @property
    def annotations(self) -> dict[str, str]:
        """Return metadata.annotations."""
        return self.metadata.annotations

    @property
    def is_mirror(self) -> bool:
        """Return whether it only mirrors a pod that its kubelet has from a file, and that runs whatever the answer."""
        return names.CONFIG_MIRROR_ANNOTATION in self.metadata.annotations

    @property
    def is_static(self) -> bool:
        """Return whether its kubelet has it from elsewhere than the API server, so that it is critical."""
        return self.is_mirror or self.metadata.annotations.get(names.CONFIG_SOURCE_ANNOTATION, "api") != "api"

    @property
    def is_of_daemon_set(self) -> bool:
        """Return whether a DaemonSet made it, for one node."""
        return any(owner.kind == "DaemonSet" and owner.controller for owner in self.metadata.owner_references)

    @property
    def required_terms(self) -> list[WireNodeTerm]:
        """Return the terms of its required node affinity, one of which a node must match."""
        affinity = self.spec.affinity and self.spec.affinity.node_affinity
        required = affinity and affinity.required_during_scheduling_ignored_during_execution
        return (required and required.node_selector_terms) or []
