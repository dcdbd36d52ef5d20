"""The NodeSwapProfiles as they are known: the newest version of each, and the newest that was valid."""

from __future__ import annotations

import collections
import logging
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import pydantic

from swapwarden.api import names, state
from swapwarden.api import profile as api
from swapwarden.controller.inventory import revisions
from swapwarden.kube import decoding
from swapwarden.policy.profile import compiled
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

PROFILES: Final = f"/apis/{names.API_VERSION}/{names.PROFILE_PLURAL}"

VALID = metrics.gauge(
    "swapwarden_profile_valid",
    "1 where the newest version of a profile is in use, 0 where an older one is, or none.",
    ("profile",),
)

MAX_TOMBSTONES: Final = 1024
MAX_REMEMBERED: Final = 2 * api.status.MAX_REVISIONS
"""Generations of a profile: those that its status keeps, and some that it may come to keep."""


MAX_STATUS: Final = revisions.MAX_OBJECT


class Revision(msgspec.Struct, frozen=True):
    """A profile as it was in one generation."""

    generation: int
    spec: str
    """As the status keeps it."""
    profile: compiled.Profile


class Entry(msgspec.Struct, frozen=True):
    """One NodeSwapProfile."""

    name: str
    uid: str
    version: int
    """resourceVersion: a larger one is newer."""
    generation: int
    profile: compiled.Profile | None
    """The newest valid version; None where none is known."""
    error: str
    """What is wrong with the newest version; empty where nothing is."""
    status: Mapping[str, Any]
    revisions: tuple[Revision, ...] = ()
    """What it said in valid generations, this one included; the newest first."""
    room: int = MAX_STATUS
    """Bytes that the object leaves for its status."""


class Replaced(NamedTuple):
    """What became of a list."""

    changed: bool
    """Whether anything was newer than what was known, or gone."""
    failed: set[str]
    """Names of those that were not taken in."""


class ProfileStore:
    """Takes objects from whoever has seen some, in any order, and keeps the newest of each name.

    A `quiet` one logs nothing of what cannot be used: its reader tells of it.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self.entries: dict[str, Entry] = {}
        # A late event of an object that is gone must not bring it back.
        self._gone: collections.deque[str] = collections.deque(maxlen=MAX_TOMBSTONES)

    def valid(self) -> dict[str, compiled.Profile]:
        """The profiles to plan with, by name."""
        return {name: entry.profile for name, entry in self.entries.items() if entry.profile is not None}

    def history(self) -> dict[state.ProfileRef, compiled.Profile]:
        """What profiles said in the generations that nodes may still follow."""
        return {
            state.ProfileRef(entry.name, revision.generation): revision.profile
            for entry in self.entries.values()
            for revision in entry.revisions
        }

    def offer(self, body: Mapping[str, Any]) -> bool:
        """Someone saw this object; whether it is newer than what was known."""
        meta = api.ObjectMeta.model_validate(body["metadata"])
        known = self.entries.get(meta.name)
        if meta.uid in self._gone or (known is not None and int(meta.resource_version) <= known.version):
            return False
        compiled, error = _compile(body)
        same = known if known is not None and known.uid == meta.uid else None
        past = _revisions(body, compiled, same)
        if compiled is None and past:
            compiled = past[0].profile
        if error and not self._quiet and (known is None or known.generation != meta.generation):
            instead = f"generation {compiled.generation} stays in force" if compiled else "none is known that can"
            log.error("generation %d of profile %s cannot be used: %s; %s", meta.generation, meta.name, error, instead)
        self.entries[meta.name] = Entry(
            name=meta.name,
            uid=meta.uid,
            version=int(meta.resource_version),
            generation=meta.generation,
            profile=compiled,
            error=error,
            status=body.get("status") or {},
            revisions=past,
            room=_room(body),
        )
        VALID.set(0 if error else 1, meta.name)
        return True

    def remove(self, name: str, uid: str) -> bool:
        """Someone saw that this object is gone; whether it was known."""
        self._gone.append(uid)
        known = self.entries.get(name)
        if known is None or known.uid != uid:
            return False
        del self.entries[name]
        VALID.remove(name)
        return True

    def replace(
        self, bodies: Iterable[Mapping[str, Any]], version: int, left_out: Container[str] = frozenset()
    ) -> Replaced:
        """Someone listed all of them; `version` is the list's resourceVersion.

        Profiles of the names `left_out` were there, and could not be decoded: what is known of them stays.
        """
        changed, failed = False, set[str]()
        found = {body["metadata"]["uid"]: body for body in bodies}
        for entry in list(self.entries.values()):
            if entry.uid not in found and entry.name not in left_out and entry.version < version:
                changed |= self.remove(entry.name, entry.uid)
        for body in found.values():
            try:
                changed |= self.offer(body)
            except Exception:  # what one writer of profiles stores must not hide all others
                name = str(body["metadata"].get("name"))
                failed.add(name)
                log.exception("profile %s cannot be taken in; what was known of it stays", decoding.shown(name))
        return Replaced(changed, failed)


def _room(body: Mapping[str, Any]) -> int:
    """The bytes that a profile leaves for its status."""
    plain = {**body, "status": {}}
    try:
        size = revisions.stored_bytes(plain)
    except RecursionError:
        # They may be nested just as deeply as can be decoded, and no more. A status that is too large is written again
        # with less in it.
        size = revisions.stored_bytes({**plain, "metadata": {**body["metadata"], "managedFields": []}})
    return revisions.MAX_OBJECT - size


def _revisions(body: Mapping[str, Any], compiled: compiled.Profile | None, known: Entry | None) -> tuple[Revision, ...]:
    """This generation, those that the status keeps, and those that were seen before it could."""
    newest, status = body["metadata"]["generation"], body.get("status") or {}
    told = revisions.told(status)
    seen = {revision.generation: revision for revision in (known.revisions if known else ())}
    up_to_date = status.get("observedGeneration") == newest
    found = {number: each for number, each in seen.items() if number in told or not up_to_date}
    for number in told.keys() - found.keys():
        # Of an object that was put back from a copy, generations begin anew.
        if number < newest and (old := _kept(body, number, told[number])) is not None:
            found[number] = old
    if compiled is not None:
        found[newest] = seen.get(newest) or Revision(newest, revisions.packed(body["spec"]), compiled)
    # However many come in a moment: what nodes follow must not go for the sake of what none ever did.
    ranked = sorted(found, key=lambda number: (number not in told and number != newest, -number))
    return tuple(found[number] for number in sorted(ranked[:MAX_REMEMBERED], reverse=True))


def _kept(body: Mapping[str, Any], generation: int, text: object) -> Revision | None:
    """What a status keeps of a generation; None where another version wrote it, or there was no room for it."""
    try:
        spec = revisions.unpacked(text)
    except ValueError:
        return None
    old, _ = _compile({**body, "metadata": {**body["metadata"], "generation": generation}, "spec": spec})
    return None if old is None else Revision(generation, str(text), old)


def _compile(body: Mapping[str, Any]) -> tuple[compiled.Profile | None, str]:
    """The profile, or what is wrong with it."""
    # The status is ours, and another version's may have fields that this one's has not.
    plain = {key: value for key, value in body.items() if key != "status"}
    try:
        return compiled.compile_profile(api.NodeSwapProfile.model_validate(plain)), ""
    except pydantic.ValidationError as error:
        return None, "; ".join(_problem(detail["loc"], detail["msg"]) for detail in error.errors()[:5])


def _problem(location: tuple[int | str, ...], message: str) -> str:
    return f"{'.'.join(str(part) for part in location)}: {message}"
