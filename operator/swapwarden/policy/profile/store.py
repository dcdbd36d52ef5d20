"""The known NodeSwapProfiles: the newest version of each, and the newest valid one."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import pydantic

from swapwarden.api import names, state
from swapwarden.api import profile as api
from swapwarden.policy.observed import revisions
from swapwarden.policy.profile import compiled

MAX_TOMBSTONES: Final = 1024
MAX_REMEMBERED: Final = 10
"""Generations of a profile that are kept in memory only: an instance that does not lead needs few."""


class Revision(msgspec.Struct, frozen=True):
    """A profile as it was in one generation."""

    generation: int
    spec: Mapping[str, Any]
    profile: compiled.Profile
    stored: bool = False
    """Whether a ControllerRevision keeps it."""


class Entry(msgspec.Struct, frozen=True):
    """One NodeSwapProfile."""

    name: str
    uid: str
    version: int
    """resourceVersion: a larger one is newer."""
    generation: int
    profile: compiled.Profile | None
    """The newest valid version; None if none is known."""
    error: str
    """The fault of the newest version; empty if it is valid."""
    status: Mapping[str, Any]
    revisions: tuple[Revision, ...] = ()
    """All valid generations of the profile, the present one included; the newest first."""
    created: str = ""
    """metadata.creationTimestamp."""
    ending: bool = False
    """Whether it is being deleted: no further node follows it, and those that do leave it in waves."""

    def needed(self, named: Container[int]) -> tuple[Revision, ...]:
        """Return the generations to keep: the one in force, those that states name (`named`), and the one before.

        The one before is for a controller that does not understand the one in force.
        """
        in_force = self.profile.generation if self.profile else 0
        before = max((each.generation for each in self.revisions if each.generation < in_force), default=0)
        return tuple(
            each for each in self.revisions if each.generation in {in_force, before} or each.generation in named
        )


class Replaced(NamedTuple):
    """The result of a list."""

    changed: bool
    """Whether anything was newer than the known version, or gone."""
    failed: dict[str, Exception]
    """Why profiles cannot be read, by name: their last known versions stay."""
    newer: int = 0
    """How many have a spec that was unknown."""
    gone: int = 0


class ProfileStore:
    """Takes objects from kopf, lists and writes, in any order, and keeps the newest of each name."""

    def __init__(self, on_change: Callable[[Entry | None, Entry | None], None] = lambda _before, _after: None) -> None:
        """`on_change` is called with an object's former and present entry after each change; None: there is none."""
        self._on_change = on_change
        self.entries: dict[str, Entry] = {}
        # A late event of a deleted object must not restore it.
        self._gone: collections.deque[str] = collections.deque(maxlen=MAX_TOMBSTONES)

    def valid(self) -> dict[str, compiled.Profile]:
        """Return the profiles to plan with, by name."""
        return self._profiles(ending=False)

    def ending(self) -> dict[str, compiled.Profile]:
        """Return the profiles that are being deleted, by name."""
        return self._profiles(ending=True)

    def _profiles(self, *, ending: bool) -> dict[str, compiled.Profile]:
        known = ((name, entry.profile) for name, entry in self.entries.items() if entry.ending == ending)
        return {name: profile for name, profile in known if profile is not None}

    def history(self) -> dict[state.ProfileRef, compiled.Profile]:
        """Return the generations of profiles that nodes may still follow."""
        return {
            state.ProfileRef(entry.name, revision.generation): revision.profile
            for entry in self.entries.values()
            for revision in entry.revisions
        }

    def offer(self, body: Mapping[str, Any]) -> bool:
        """Take in an object that someone saw; return whether it is newer than the known version."""
        meta = api.ProfileMeta.model_validate(body["metadata"])
        known = self.entries.get(meta.name)
        if meta.uid in self._gone or (known is not None and int(meta.resource_version) <= known.version):
            return False
        compiled, error = _compile(body)
        same = known if known is not None and known.uid == meta.uid else None
        ending = meta.deletion_timestamp is not None
        # The API server raises the generation when it begins a deletion (k/k: staging/src/k8s.io/apiserver/pkg/
        # registry/rest/delete.go, BeforeDelete): no node is to follow that one.
        past = _revisions(meta.generation, body["spec"], None if ending else compiled, same)
        if compiled is None and past:
            compiled = past[0].profile
        entry = self.entries[meta.name] = Entry(
            name=meta.name,
            uid=meta.uid,
            version=int(meta.resource_version),
            generation=meta.generation,
            profile=compiled,
            error=error,
            status=body.get("status") or {},
            revisions=past,
            created=meta.creation_timestamp,
            ending=ending,
        )
        self._on_change(known, entry)
        return True

    def set_stored(self, listed: Iterable[revisions.Stored]) -> bool:
        """Take in a list of all ControllerRevisions; return whether it adds a generation."""
        stored: dict[str, dict[int, revisions.Stored]] = collections.defaultdict(dict)
        for each in listed:
            stored[each.profile_uid][each.generation] = each
        changed = False
        for entry in list(self.entries.values()):
            past = stored.get(entry.uid, {})
            known = {
                each.generation: msgspec.structs.replace(each, stored=_keeps(past.get(each.generation), each))
                for each in entry.revisions
            }
            # Generations of an object that was restored from a copy begin at 1 again.
            missed = [each for each in past.values() if each.generation < entry.generation]
            for each in missed:
                if each.generation not in known and (old := _recompiled(entry, each)) is not None:
                    known[each.generation] = old
                    changed = True
            self._remember(entry, known.values())
        return changed

    def set_kept(self, name: str, uid: str, generation: int) -> None:
        """Note that a ControllerRevision keeps this generation."""
        entry = self.entries.get(name)
        if entry is not None and entry.uid == uid:
            kept = {each.generation: each for each in entry.revisions}
            if generation in kept:
                kept[generation] = msgspec.structs.replace(kept[generation], stored=True)
            self._remember(entry, kept.values())

    def forget(self, name: str, needed: Collection[Revision]) -> None:
        """Forget the generations of a profile that are not `needed`."""
        entry = self.entries[name]
        if len(needed) < len(entry.revisions):
            self._remember(entry, needed)

    def _remember(self, entry: Entry, generations: Iterable[Revision]) -> None:
        past = tuple(sorted(generations, key=lambda each: -each.generation))
        # One that cannot be used leaves the last one in force that can.
        in_force = past[0].profile if entry.error and past else entry.profile
        self.entries[entry.name] = msgspec.structs.replace(entry, revisions=past, profile=in_force)

    def remove(self, name: str, uid: str) -> bool:
        """Take in that this object was deleted; return whether it was known."""
        self._gone.append(uid)
        known = self.entries.get(name)
        if known is None or known.uid != uid:
            return False
        del self.entries[name]
        self._on_change(known, None)
        return True

    def replace(
        self, bodies: Iterable[Mapping[str, Any]], version: int, left_out: Container[str] = frozenset()
    ) -> Replaced:
        """Take in a list of all profiles; `version` is the list's resourceVersion.

        Profiles of the names `left_out` exist, but could not be decoded: their known versions stay.
        """
        changed, failed, newer, gone = False, dict[str, Exception](), 0, 0
        known = {(entry.uid, entry.generation) for entry in self.entries.values()}
        by_uid = {body["metadata"]["uid"]: body for body in bodies}
        for entry in list(self.entries.values()):
            if entry.uid not in by_uid and entry.name not in left_out and entry.version < version:
                gone += self.remove(entry.name, entry.uid)
        for body in by_uid.values():
            try:
                if self.offer(body):
                    changed = True
                    newer += (body["metadata"]["uid"], body["metadata"]["generation"]) not in known
            except Exception as error:  # noqa: BLE001 one invalid profile must not hide all others
                failed[str(body["metadata"].get("name"))] = error
        return Replaced(changed or gone > 0, failed, newer, gone)


def _revisions(
    newest: int, spec: Mapping[str, Any], compiled: compiled.Profile | None, known: Entry | None
) -> tuple[Revision, ...]:
    """Return this generation and the known ones: all that are stored, and the newest of those that are not."""
    by_generation = {each.generation: each for each in (known.revisions if known else ())}
    if compiled is not None and newest not in by_generation:
        by_generation[newest] = Revision(newest, spec, compiled)
    ranked = sorted(by_generation.values(), key=lambda each: -each.generation)
    seen = [each for each in ranked if not each.stored][:MAX_REMEMBERED]
    return tuple(each for each in ranked if each.stored or each in seen)


def _keeps(stored: revisions.Stored | None, known: Revision) -> bool:
    try:
        return stored is not None and stored.spec == known.spec
    except RecursionError:  # nested deeper than any valid profile
        return False


def _recompiled(entry: Entry, stored: revisions.Stored) -> Revision | None:
    """Return a profile in an earlier generation; None if another version of Swapwarden wrote it."""
    if stored.spec is None:
        return None
    identity = {"name": entry.name, "uid": entry.uid, "creationTimestamp": entry.created}
    metadata = {**identity, "generation": stored.generation}
    body = {"apiVersion": names.API_VERSION, "kind": names.PROFILE_KIND, "metadata": metadata, "spec": stored.spec}
    old, _ = _compile(body)
    return None if old is None else Revision(stored.generation, stored.spec, old, stored=True)


def _compile(body: Mapping[str, Any]) -> tuple[compiled.Profile | None, str]:
    """Return the profile, or None and its fault."""
    # The status is ours, and another version's may have fields that this one's has not.
    plain = {key: value for key, value in body.items() if key != "status"}
    try:
        return compiled.compile_profile(api.NodeSwapProfile.model_validate(plain)), ""
    except pydantic.ValidationError as error:
        return None, "; ".join(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()[:5])
