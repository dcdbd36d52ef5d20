"""Writes Nodes: their labels, their taints, and how much of the extended resource they offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from swapwarden.api import names
from swapwarden.controller.writers.fenced import Writes
from swapwarden.policy.node import taints

NODES: Final = "/api/v1/nodes"


async def change_labels(writes: Writes, name: str, uid: str, labels: Mapping[str, str | None]) -> bytes:
    """Set or remove (None) labels of a Node. Raise ApiError (409) if the Node has another uid."""
    return await writes.merge_patch("labels", f"{NODES}/{name}", {"metadata": {"uid": uid, "labels": labels}})


async def change_taints(writes: Writes, name: str, patch: taints.Patch) -> bytes:
    """Patch a Node's taints. Raise ApiError (422) if one of the patch's tests fails."""
    return await writes.json_patch("taint", f"{NODES}/{name}", patch)


async def offer(writes: Writes, name: str, uid: str, amount: int | None) -> bytes:
    """Set or remove (None) a Node's extended resource, in bytes. Raise ApiError (409) if it has another uid."""
    capacity = {names.SWAP_RESOURCE: None if amount is None else str(amount)}
    body = {"metadata": {"uid": uid}, "status": {"capacity": capacity}}
    return await writes.merge_patch("resource", f"{NODES}/{name}/status", body)
