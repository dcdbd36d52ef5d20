"""Writes the status of NodeSwapProfiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swapwarden.controller.inventory import profiles as profile_store
from swapwarden.controller.writers.fenced import Writes
from swapwarden.kube import errors


async def write(writes: Writes, entry: profile_store.Entry, patch: Mapping[str, Any]) -> bytes:
    """Patch a profile's status as it was read; status 404 where it is gone, 409 where it is another version.

    Of two who lead one after the other, the late one must not drop revisions that nodes follow.
    """
    metadata = {"uid": entry.uid, "resourceVersion": str(entry.version)}
    return await writes.merge_patch(
        "profile", f"{profile_store.PROFILES}/{entry.name}/status", {"metadata": metadata, "status": patch}
    )


def is_too_large(error: errors.ApiError) -> bool:
    """Whether the API server, its definition of the kind, or etcd takes no object of that size."""
    return error.status in {413, 422} or (error.status == 500 and "larg" in error.message)
