"""Lenient subsets of objects: the fields that commands read, and no more.

An object of another version stays readable by them, and pydantic, which takes long to import, is not needed. The whole
types of the API are in swapwarden.api.
"""

from __future__ import annotations

from typing import Annotated, Any

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
