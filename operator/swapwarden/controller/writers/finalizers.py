"""Removes the finalizer of NodeSwapProfiles if kopf does not. It holds profiles that nodes follow."""

from __future__ import annotations

import msgspec

from swapwarden.api import decoding, names
from swapwarden.controller.writers.fenced import Writes, unless_superseded
from swapwarden.kube import transport


class ProfileMetadata(msgspec.Struct, frozen=True):
    """The fields of a profile's metadata that are read."""

    name: str
    uid: str
    finalizers: tuple[str, ...] = ()


class Finalized(msgspec.Struct, frozen=True):
    """The fields of a NodeSwapProfile that are read."""

    metadata: ProfileMetadata


async def release(writes: Writes, profile: ProfileMetadata) -> bool:
    """Remove the finalizer of a profile, unless the profile changed since it was read; return whether it had one."""
    if names.PROFILE_FINALIZER not in profile.finalizers:
        return False
    path = f"/metadata/finalizers/{profile.finalizers.index(names.PROFILE_FINALIZER)}"
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": profile.uid},
        {"op": "test", "path": path, "value": names.PROFILE_FINALIZER},
        {"op": "remove", "path": path},
    ]
    write = writes.json_patch("finalizer", f"{names.PROFILES_PATH}/{profile.name}", patch)
    return await unless_superseded(write, tested=True) is not None


async def read(api: transport.Reader, name: str) -> ProfileMetadata:
    """Read a profile's metadata. Raise errors.KubeError and msgspec.DecodeError."""
    return decoding.decode(await api.get(f"{names.PROFILES_PATH}/{name}"), Finalized).metadata
