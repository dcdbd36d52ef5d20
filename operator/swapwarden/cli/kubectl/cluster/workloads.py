"""The workload that creates a pod, as far as the pod itself shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from swapwarden.cli.inputs.kinds import KINDS, WorkloadKind
from swapwarden.policy.observed.new_pods import WireOwner
from swapwarden.policy.observed.pods import WirePod

POD_TEMPLATE_HASH: Final = "pod-template-hash"
"""A Deployment's ReplicaSets have it as label, and as the end of their names (k/k: pkg/controller/deployment)."""


Owner = WireOwner
"""An owner reference: who made an object."""


def kind_of_owner(owner: Owner) -> WorkloadKind | None:
    """Return the kind of an owner, if it is one of those that Kubernetes itself has."""
    return next((kind for kind in KINDS if (kind.name, kind.version) == (owner.kind, owner.api_version)), None)


def controller(owners: Sequence[Owner]) -> Owner | None:
    """Return the owner that manages an object; None if nobody does."""
    return next((owner for owner in owners if owner.controller), None)


def guess(pod: WirePod) -> str | None:
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
