"""Writes the status of NodeSwapProfiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swapwarden.controller.inventory import profile_store
from swapwarden.controller.writers.fenced import Writes


async def write(writes: Writes, entry: profile_store.Entry, patch: Mapping[str, Any]) -> bytes:
    """Patch a profile's status as it was read. Raise ApiError: 404 if it was deleted, 409 if it has another version."""
    metadata = {"uid": entry.uid, "resourceVersion": str(entry.version)}
    return await writes.merge_patch(
        "profile", f"{profile_store.PROFILES}/{entry.name}/status", {"metadata": metadata, "status": patch}
    )
