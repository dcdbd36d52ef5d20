"""A new pod as it is reviewed: only the fields that a decision needs."""

from __future__ import annotations

import msgspec

from swapwarden.api import names


class Owner(msgspec.Struct, frozen=True):
    """An owner reference: the creator of the pod."""

    kind: str = ""
    controller: bool | None = None


class ReviewedMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """metadata of a pod."""

    name: str = ""
    generate_name: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    owner_references: list[Owner] | None = None


class Amounts(msgspec.Struct, frozen=True):
    """Requests or limits of a container or pod: the amount of memory. Files may have a number."""

    memory: str | int | float | None = None


class ReviewedResources(msgspec.Struct, frozen=True):
    """Resources of a container or pod."""

    requests: Amounts | None = None
    limits: Amounts | None = None


class ReviewedContainer(msgspec.Struct, frozen=True, rename="camel"):
    """A container of a pod."""

    name: str = ""
    restart_policy: str | None = None
    resources: ReviewedResources | None = None


class Toleration(msgspec.Struct, frozen=True):
    """A taint that the pod tolerates."""

    key: str = ""
    operator: str = ""
    effect: str = ""


class Expression(msgspec.Struct, frozen=True):
    """core/v1 NodeSelectorRequirement."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class Preference(msgspec.Struct, frozen=True, rename="camel"):
    """core/v1 NodeSelectorTerm."""

    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class PreferredTerm(msgspec.Struct, frozen=True):
    """core/v1 PreferredSchedulingTerm."""

    weight: int = 0
    preference: Preference | None = None


class NodeAffinity(msgspec.Struct, frozen=True, rename="camel"):
    """spec.affinity.nodeAffinity: the preferred terms."""

    preferred_during_scheduling_ignored_during_execution: list[PreferredTerm] | None = None


class Affinity(msgspec.Struct, frozen=True, rename="camel"):
    """spec.affinity."""

    node_affinity: NodeAffinity | None = None


class ReviewedPodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """spec of a pod. A Go client writes an empty list as null."""

    init_containers: list[ReviewedContainer] | None = None
    containers: list[ReviewedContainer] | None = None
    node_name: str = ""
    host_network: bool | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    resources: ReviewedResources | None = None
    overhead: Amounts | None = None


class ReviewedPod(msgspec.Struct, frozen=True):
    """A pod, before or after the change."""

    metadata: ReviewedMetadata = ReviewedMetadata()
    spec: ReviewedPodSpec = ReviewedPodSpec()

    @property
    def annotations(self) -> dict[str, str]:
        """Return metadata.annotations, empty if there are none."""
        return self.metadata.annotations or {}

    @property
    def is_mirror(self) -> bool:
        """Return whether it only mirrors a pod that its kubelet has from a file, and that runs whatever the answer."""
        return names.CONFIG_MIRROR_ANNOTATION in self.annotations

    @property
    def is_of_daemon_set(self) -> bool:
        """Return whether a DaemonSet made it, for one node."""
        return any(owner.kind == "DaemonSet" and owner.controller for owner in self.metadata.owner_references or ())

    @property
    def containers(self) -> list[str]:
        """Return the names of the init containers, then of the others."""
        return [container.name for container in (*(self.spec.init_containers or ()), *(self.spec.containers or ()))]
