"""Pods as commands read them, and the workload that creates a pod, as far as the pod itself shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from swapwarden.policy.observed.new_pods import WireOwner
from swapwarden.policy.observed.pods import WirePod

POD_TEMPLATE_HASH: Final = "pod-template-hash"
"""A Deployment's ReplicaSets have it as label, and as the end of their names (k/k: pkg/controller/deployment)."""


class WorkloadKind(msgspec.Struct, frozen=True):
    """A kind of object with a pod template."""

    name: str
    api_version: str
    template: tuple[str, ...] = ("spec", "template")
    """Path of the pod template in the object."""
    immutable: bool = False
    """Whether the template cannot be changed once the object exists."""

    @property
    def group(self) -> str:
        """Return the API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def word(self) -> str:
        """Return the kind as kubectl takes it: deployment, rollout.v1alpha1.argoproj.io."""
        word, version = self.name.lower(), self.api_version.rpartition("/")[2]
        return word if self in WORKLOAD_KINDS or not self.group else f"{word}.{version}.{self.group}"


WORKLOAD_KINDS: Final = (
    WorkloadKind("Deployment", "apps/v1"),
    WorkloadKind("StatefulSet", "apps/v1"),
    WorkloadKind("DaemonSet", "apps/v1"),
    WorkloadKind("ReplicaSet", "apps/v1"),
    WorkloadKind("ReplicationController", "v1"),
    WorkloadKind("Job", "batch/v1", immutable=True),
    WorkloadKind("CronJob", "batch/v1", template=("spec", "jobTemplate", "spec", "template")),
)
"""The kinds that Kubernetes itself has."""


class Workload(msgspec.Struct, frozen=True):
    """An object whose pod template makes pods."""

    kind: WorkloadKind
    name: str

    def __str__(self) -> str:
        """Return the object as kubectl takes it: deployment/web."""
        return f"{self.kind.word}/{self.name}"


def controller(owners: Sequence[WireOwner]) -> WireOwner | None:
    """Return the owner that manages an object; None if nobody does."""
    return next((owner for owner in owners if owner.controller), None)


def workload(pod: WirePod) -> Workload | None:
    """Return the workload to change, by the pod alone; None if nobody manages the pod.

    For a ReplicaSet with a Deployment's label, this is the Deployment. A pod does not show the CronJob of its Job.
    The template of a kind that Kubernetes itself does not have is taken to be at the usual place.
    """
    owner = controller(pod.metadata.owner_references)
    # Such words would be flags of the commands that are printed. They name no object: names have no leading dash.
    if owner is None or "-" in {owner.kind[:1], owner.name[:1]}:
        return None
    made = WorkloadKind(owner.kind, owner.api_version)
    kind = next(
        (kind for kind in WORKLOAD_KINDS if (kind.name, kind.api_version) == (made.name, made.api_version)), made
    )
    end = f"-{pod.metadata.labels.get(POD_TEMPLATE_HASH, '')}"
    if kind.name == "ReplicaSet" and len(end) > 1 and owner.name.endswith(end):
        return Workload(WORKLOAD_KINDS[0], owner.name.removesuffix(end))
    return Workload(kind, owner.name)


def place(pod: WirePod) -> str:
    """Return the place where annotations of a pod are written."""
    if pod.is_mirror:
        return f"the pod's file on {pod.spec.node_name}"
    made_by = workload(pod)
    if made_by is None:
        return "the pod, recreated"
    return f"the pod template of {made_by}" + (", recreated" if made_by.kind.immutable else "")
