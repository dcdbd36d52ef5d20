"""The NodeSwapProfiles as they are known: the newest version of each, and the newest that was valid."""

from __future__ import annotations

import collections
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
import pydantic

from swapwarden.api import profile as api
from swapwarden.api import state
from swapwarden.policy import profiles
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

VALID = metrics.gauge(
    "swapwarden_profile_valid",
    "1 where the newest version of a profile is in use, 0 where an older one is, or none.",
    ("profile",),
)

MAX_TOMBSTONES: Final = 1024


class Revision(msgspec.Struct, frozen=True):
    """A profile as it was in one generation."""

    generation: int
    spec: str
    """As JSON."""
    profile: profiles.Profile


class Entry(msgspec.Struct, frozen=True):
    """One NodeSwapProfile."""

    name: str
    uid: str
    version: int
    """resourceVersion: a larger one is newer."""
    generation: int
    profile: profiles.Profile | None
    """The newest valid version; None where there was none."""
    error: str
    """What is wrong with the newest version; empty where nothing is."""
    status: Mapping[str, Any]
    revisions: tuple[Revision, ...] = ()
    """What it said in valid generations, this one included; the newest first."""


class ProfileStore:
    """Takes objects from whoever has seen some, in any order, and keeps the newest of each name.

    `changed()` is called after each change.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.entries: dict[str, Entry] = {}
        # A late event of an object that is gone must not bring it back.
        self._gone: collections.deque[str] = collections.deque(maxlen=MAX_TOMBSTONES)

    def valid(self) -> dict[str, profiles.Profile]:
        """The profiles to plan with, by name."""
        return {name: entry.profile for name, entry in self.entries.items() if entry.profile is not None}

    def history(self) -> dict[state.ProfileRef, profiles.Profile]:
        """What profiles said in the generations that nodes may still follow."""
        return {
            state.ProfileRef(entry.name, revision.generation): revision.profile
            for entry in self.entries.values()
            for revision in entry.revisions
        }

    def offer(self, body: Mapping[str, Any]) -> None:
        """Someone saw this object."""
        meta = api.ObjectMeta.model_validate(body["metadata"])
        known = self.entries.get(meta.name)
        if meta.uid in self._gone or (known is not None and int(meta.resource_version) <= known.version):
            return
        compiled, error = _compile(body)
        same = known if known is not None and known.uid == meta.uid else None
        revisions = _revisions(body, compiled, same)
        if compiled is None and same is not None:
            compiled = same.profile
        if error and (known is None or known.generation != meta.generation):
            log.error("profile %s cannot be used: %s", meta.name, error)
        self.entries[meta.name] = Entry(
            name=meta.name,
            uid=meta.uid,
            version=int(meta.resource_version),
            generation=meta.generation,
            profile=compiled,
            error=error,
            status=body.get("status") or {},
            revisions=revisions,
        )
        VALID.set(0 if error else 1, meta.name)
        self._changed()

    def remove(self, name: str, uid: str) -> None:
        """Someone saw that this object is gone."""
        self._gone.append(uid)
        known = self.entries.get(name)
        if known is not None and known.uid == uid:
            del self.entries[name]
            VALID.remove(name)
            self._changed()

    def replace(self, bodies: Iterable[Mapping[str, Any]], version: int) -> None:
        """Someone listed all of them; `version` is the list's resourceVersion."""
        found = {body["metadata"]["uid"]: body for body in bodies}
        for entry in list(self.entries.values()):
            if entry.uid not in found and entry.version < version:
                self.remove(entry.name, entry.uid)
        for body in found.values():
            self.offer(body)


def _revisions(body: Mapping[str, Any], compiled: profiles.Profile | None, known: Entry | None) -> tuple[Revision, ...]:
    """This generation, those that the status keeps, and those that were seen before it could."""
    status = body.get("status") or {}
    seen = {revision.generation: revision for revision in (known.revisions if known else ())}
    told = {kept["generation"] for kept in status.get("revisions", ())}
    up_to_date = status.get("observedGeneration") == body["metadata"]["generation"]
    found = {number: each for number, each in seen.items() if number in told or not up_to_date}
    for kept in status.get("revisions", ()):
        generation = kept["generation"]
        if generation not in found:
            metadata = {**body["metadata"], "generation": generation}
            try:
                old, _ = _compile({**body, "metadata": metadata, "spec": json.loads(kept["spec"])})
            except ValueError:
                old = None
            if old is not None:  # else another version wrote it, which knew other fields
                found[generation] = Revision(generation, kept["spec"], old)
    if compiled is not None:
        spec = json.dumps(body["spec"], sort_keys=True, separators=(",", ":"))
        found[compiled.generation] = Revision(compiled.generation, spec, compiled)
    return tuple(found[number] for number in sorted(found, reverse=True)[: api.MAX_REVISIONS])


def _compile(body: Mapping[str, Any]) -> tuple[profiles.Profile | None, str]:
    """The profile, or what is wrong with it."""
    # The status is ours, and another version's may have fields that this one's has not.
    plain = {key: value for key, value in body.items() if key != "status"}
    try:
        return profiles.compile_profile(api.NodeSwapProfile.model_validate(plain)), ""
    except pydantic.ValidationError as error:
        return None, "; ".join(_problem(detail["loc"], detail["msg"]) for detail in error.errors()[:5])


def _problem(location: tuple[int | str, ...], message: str) -> str:
    return f"{'.'.join(str(part) for part in location)}: {message}"
