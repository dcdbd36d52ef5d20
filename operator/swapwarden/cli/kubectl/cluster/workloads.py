"""Pods as commands read them, and the workload that creates a pod, as far as the pod itself shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.api.conditions import ConditionType
from swapwarden.cli import wire
from swapwarden.policy.observed import pod_conditions, pods
from swapwarden.webhook import review

POD_TEMPLATE_HASH: Final = "pod-template-hash"
"""A Deployment's ReplicaSets have it as label, and as the end of their names (k/k: pkg/controller/deployment)."""


class Volume(msgspec.Struct, frozen=True):
    """A volume of a pod: the fields that show whether it may hold secrets."""

    name: str
    secret: dict[str, object] | None = None
    projected: dict[str, object] | None = None


class DetailedPodSpec(pods.WirePodSpec, frozen=True, rename="camel"):
    """Spec of a pod, with its volumes and what decides on its place."""

    volumes: list[Volume] = []  # noqa: RUF012 msgspec copies it, which ruff sees in direct subclasses only
    node_selector: dict[str, str] | None = None
    affinity: review.Affinity | None = None
    tolerations: list[review.Toleration] | None = None


class DetailedPod(pods.WirePod, frozen=True):
    """A pod as the API server sends it."""

    spec: DetailedPodSpec

    @property
    def enforced(self) -> pod_conditions.WirePodCondition | None:
        """Return the controller's condition on whether the policy is enforced; None if it wrote none."""
        return next((each for each in self.status.conditions if each.type == ConditionType.SWAP_POLICY_ENFORCED), None)

    @property
    def is_mirror(self) -> bool:
        """Whether its kubelet has it from a file, and the API server only shows it."""
        return names.CONFIG_MIRROR_ANNOTATION in self.metadata.annotations

    @property
    def is_static(self) -> bool:
        """Whether its kubelet has it from elsewhere than the API server, which makes it critical at any priority."""
        return self.is_mirror or self.metadata.annotations.get(names.CONFIG_SOURCE_ANNOTATION, "api") != "api"


class Workload(msgspec.Struct, frozen=True):
    """An object whose pod template makes pods."""

    kind: wire.WorkloadKind
    name: str

    def __str__(self) -> str:
        """Return the object as kubectl takes it: deployment/web."""
        return f"{self.kind.word}/{self.name}"


def controller(owners: Sequence[pods.WireOwner]) -> pods.WireOwner | None:
    """Return the owner that manages an object; None if nobody does."""
    return next((owner for owner in owners if owner.controller), None)


def workload(pod: DetailedPod) -> Workload | None:
    """Return the workload to change, by the pod alone; None if nobody manages the pod.

    For a ReplicaSet with a Deployment's label, this is the Deployment. A pod does not show the CronJob of its Job.
    The template of a kind that Kubernetes itself does not have is taken to be at the usual place.
    """
    owner = controller(pod.metadata.owner_references)
    # Such words would be flags of the commands that are printed. They name no object: names have no leading dash.
    if owner is None or "-" in {owner.kind[:1], owner.name[:1]}:
        return None
    made = wire.WorkloadKind(owner.kind, owner.api_version)
    kind = next(
        (kind for kind in wire.WORKLOAD_KINDS if (kind.name, kind.api_version) == (made.name, made.api_version)), made
    )
    end = f"-{pod.metadata.labels.get(POD_TEMPLATE_HASH, '')}"
    if kind.name == "ReplicaSet" and len(end) > 1 and owner.name.endswith(end):
        return Workload(wire.WORKLOAD_KINDS[0], owner.name.removesuffix(end))
    return Workload(kind, owner.name)


def place(pod: DetailedPod) -> str:
    """Return the place where annotations of a pod are written."""
    if pod.is_mirror:
        return f"the pod's file on {pod.spec.node_name}"
    made_by = workload(pod)
    if made_by is None:
        return "the pod, recreated"
    return f"the pod template of {made_by}" + (", recreated" if made_by.kind.immutable else "")
