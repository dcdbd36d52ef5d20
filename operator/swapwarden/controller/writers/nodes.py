"""Writes Nodes: their labels, their taints, and how much of the extended resource they offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from swapwarden.api import names
from swapwarden.controller.writers.fenced import Writes
from swapwarden.policy.node import taints

NODES: Final = "/api/v1/nodes"


async def change_labels(writes: Writes, name: str, uid: str, labels: Mapping[str, str | None]) -> bytes:
    """Set labels of a Node, or take them away (None); status 409 where the Node has another uid."""
    return await writes.merge_patch("labels", f"{NODES}/{name}", {"metadata": {"uid": uid, "labels": labels}})


async def change_taints(writes: Writes, name: str, patch: taints.Patch) -> bytes:
    """Patch a Node's taints; status 422 where one of the patch's tests does not hold."""
    return await writes.json_patch("taint", f"{NODES}/{name}", patch)


async def offer(writes: Writes, name: str, uid: str, amount: int | None) -> bytes:
    """Have a Node offer `amount` bytes of the extended resource, or none of it; status 409 if it has another uid."""
    capacity = {names.SWAP_RESOURCE: None if amount is None else str(amount)}
    body = {"metadata": {"uid": uid}, "status": {"capacity": capacity}}
    return await writes.merge_patch("resource", f"{NODES}/{name}/status", body)
