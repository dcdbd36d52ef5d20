"""Keeps the generations of profiles that nodes follow, over restarts of the controller, for one term."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from swapwarden.api import decoding
from swapwarden.controller.term import TermOver
from swapwarden.controller.writers.fenced import Fenced, unless_superseded
from swapwarden.kube import errors, paging, transport
from swapwarden.policy.observed import revisions
from swapwarden.policy.profile.store import ProfileStore, Revision

log = logging.getLogger(__name__)

PART: Final = "revisions"
LOOK_SECONDS: Final = 60.0
DELETED_AT_ONCE: Final = 10

_DECODER: Final = decoding.Decoder(revisions.WireRevision)


class NotKept(errors.KubeError):
    """A generation is not kept yet."""


class RevisionHistory:
    """The ControllerRevisions of all profiles."""

    def __init__(
        self,
        api: transport.Reader,
        namespace: str,
        store: ProfileStore,
        writes: Fenced,
        *,
        named: Callable[[], Mapping[str, Collection[int]]],
        on_change: Callable[[], None],
    ) -> None:
        """`named` returns the generations that states of nodes name, by profile.

        `on_change` is called when the store knows more than before.
        """
        self._api = api
        self._path = revisions.collection(namespace)
        self._store = store
        self._writes = writes
        self._named = named
        self._on_change = on_change

    async def ensure(self, name: str) -> None:
        """Keep all generations of a profile that are needed. Raise errors.KubeError on failure, and TermOver."""
        entry = self._store.entries[name]
        for each in entry.needed(self._named().get(name, ())):
            if each.stored:
                continue
            if not await self._create(name, entry.uid, each):
                await self._replace(name, entry.uid, each)
            self._store.set_kept(name, entry.uid, each.generation)

    async def _replace(self, name: str, uid: str, desired: Revision) -> None:
        """Replace the revision that has the name, unless it is the same one, which no list has shown yet."""
        taken = revisions.object_name(uid, desired.generation)
        for each in await self._list():
            if each.name == taken and each.spec != desired.spec:
                log.error("ControllerRevision %s does not say what profile %s said; it is written again", taken, name)
                await self._delete(each)
                break
        else:
            return
        if not await self._create(name, uid, desired):
            raise NotKept(f"ControllerRevision {taken} is somebody else's")

    async def read(self) -> list[revisions.Stored]:
        """Take in all that is kept. errors.KubeError, msgspec.DecodeError."""
        stored = await self._list()
        if self._store.set_stored(stored):
            self._on_change()
        return stored

    async def run(self) -> None:
        """Look again and again, and delete revisions that nobody needs any more. Never returns."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._collect(await self.read())
            except (errors.KubeError, msgspec.DecodeError, TermOver) as error:
                log.warning("cannot look at the revisions of profiles: %s", error)

    async def _collect(self, stored: Sequence[revisions.Stored]) -> None:
        named, kept = self._named(), {}
        for name, entry in list(self._store.entries.items()):
            needed = entry.needed(named.get(name, ()))
            self._store.forget(name, needed)
            # One that this version does not understand may be needed by another one's.
            kept[entry.uid] = {entry.generation, *(each.generation for each in needed), *named.get(name, ())}
        unneeded = [each for each in stored if each.generation not in kept.get(each.profile_uid, {each.generation})]
        for each in unneeded[:DELETED_AT_ONCE]:
            await self._delete(each)

    async def _create(self, name: str, uid: str, revision: Revision) -> bool:
        """Store a generation of the profile with this name and UID; return False if the revision's name is taken."""
        body = revisions.to_object(name, uid, revision.generation, revision.spec)
        await self._writes.ready()
        return await unless_superseded(self._writes.create("revision", self._path, body)) is not None

    async def _delete(self, revision: revisions.Stored) -> None:
        """Delete this object, but no other one of its name."""
        await self._writes.ready()
        await unless_superseded(self._writes.delete("revision", f"{self._path}/{revision.name}", revision.uid))

    async def _list(self) -> list[revisions.Stored]:
        stored: list[revisions.Stored] = []

        def take(item: msgspec.Raw) -> None:
            try:
                one = revisions.project(_DECODER.decode(item))
            except msgspec.DecodeError as error:
                log.warning("ControllerRevision %s is left out: %s", decoding.identity(item).name, error)
            else:
                stored.extend([one] if one is not None else [])

        await paging.read_items(self._api.get, self._path, take, revisions.SELECTOR)
        return stored
