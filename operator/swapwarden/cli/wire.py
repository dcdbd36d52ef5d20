"""Lenient subsets of objects: the fields that commands read, and no more.

An object of another version stays readable by them, and pydantic, which takes long to import, is not needed. The whole
types of the API are in swapwarden.api.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from swapwarden.api import names
from swapwarden.policy.observed.new_pods import WireOwner


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """Metadata of any object."""

    name: str
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    deletion_timestamp: str | None = None
    generation: int = 0
    owner_references: list[WireOwner] = []


class Named(msgspec.Struct, frozen=True):
    """An object of any kind."""

    metadata: Meta


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


class StoredMeta(msgspec.Struct, frozen=True, rename="camel"):
    """Metadata that an API server gives to each object."""

    name: str
    uid: str
    generation: int
    resource_version: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+$")]


class StoredProfile(msgspec.Struct, frozen=True):
    """A NodeSwapProfile that can be compiled. Its spec is checked later, as the controller checks it."""

    metadata: StoredMeta
    status: dict[str, Any] | None = None


class SwapSettings(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a profile's spec.swap that `kubectl swap nodes` reads."""

    behavior: str = names.Behavior.KUBELET
    requirements: list[str] | None = None
    allowed_backing: list[str] | None = None


class MinFree(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a profile's spec.kernel that `kubectl swap nodes` reads."""

    min_free_kbytes: int | None = None


class NodeSettings(msgspec.Struct, frozen=True):
    """The part of a profile's spec that `kubectl swap nodes` reads."""

    swap: SwapSettings = SwapSettings()
    kernel: MinFree = MinFree()


class WireProfile(Named, frozen=True):
    """A NodeSwapProfile, as `kubectl swap nodes` reads it."""

    spec: NodeSettings = NodeSettings()
