"""The workload that creates a pod, as far as the pod itself shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.api.conditions import ConditionType
from swapwarden.cli.inputs.kinds import KINDS, WorkloadKind
from swapwarden.policy.admission import reviewed
from swapwarden.policy.observed import pod_conditions, pods

POD_TEMPLATE_HASH: Final = "pod-template-hash"
"""A Deployment's ReplicaSets have it as label, and as the end of their names (k/k: pkg/controller/deployment)."""


Owner = pods.WireOwner
"""An owner reference: who made an object."""


def kind_of_owner(owner: Owner) -> WorkloadKind | None:
    """Return the kind of an owner, if it is one of those that Kubernetes itself has."""
    return next((kind for kind in KINDS if (kind.name, kind.version) == (owner.kind, owner.api_version)), None)


class Volume(msgspec.Struct, frozen=True):
    """A volume of a pod: the fields that show whether it may hold secrets."""

    name: str
    secret: dict[str, object] | None = None
    projected: dict[str, object] | None = None


class DetailedPodSpec(pods.WirePodSpec, frozen=True, rename="camel"):
    """Spec of a pod, with its volumes and what decides on its place."""

    volumes: list[Volume] = []  # noqa: RUF012 msgspec copies it, which ruff sees in direct subclasses only
    node_selector: dict[str, str] | None = None
    affinity: reviewed.Affinity | None = None
    tolerations: list[reviewed.Toleration] | None = None


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


def controller(owners: Sequence[Owner]) -> Owner | None:
    """Return the owner that manages an object; None if nobody does."""
    return next((owner for owner in owners if owner.controller), None)


def guess(pod: DetailedPod) -> str | None:
    """Return the workload to change, as kubectl takes it, by the pod alone; None if it has none of a known kind.

    Of a ReplicaSet with a Deployment's label, the Deployment. A Job's CronJob is not seen in the pod.
    """
    owner = controller(pod.metadata.owner_references)
    kind = kind_of_owner(owner) if owner is not None else None
    if owner is None or kind is None:
        return None
    end = f"-{pod.metadata.labels.get(POD_TEMPLATE_HASH, '')}"
    if kind.name == "ReplicaSet" and len(end) > 1 and owner.name.endswith(end):
        return f"deployment/{owner.name.removesuffix(end)}"
    return f"{kind.word}/{owner.name}"
