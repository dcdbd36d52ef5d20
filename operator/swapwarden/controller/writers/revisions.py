"""Writes ControllerRevisions of profiles. They are immutable: each is created, and deleted."""

from __future__ import annotations

from typing import Final

from swapwarden.controller.inventory import revisions
from swapwarden.controller.inventory.profile_store import Revision
from swapwarden.controller.writers.fenced import Fenced, unless_superseded

KIND: Final = "revision"


async def create(writes: Fenced, namespace: str, name: str, uid: str, revision: Revision) -> bool:
    """Store a generation of the profile with this name and UID; return False if the revision's name is taken."""
    body = revisions.to_object(name, uid, revision.generation, revision.spec)
    await writes.ready()
    return await unless_superseded(writes.create(KIND, revisions.collection(namespace), body)) is not None


async def delete(writes: Fenced, namespace: str, found: revisions.Stored) -> None:
    """Delete this object, but no other one of its name."""
    await writes.ready()
    path = f"{revisions.collection(namespace)}/{found.name}"
    await unless_superseded(writes.delete(KIND, path, found.uid))
