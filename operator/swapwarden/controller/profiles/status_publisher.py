"""Writes the status of NodeSwapProfiles for one term, only if it differs, and posts notices about news in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from swapwarden.api import decoding, formats, names
from swapwarden.controller.writers.fenced import Fenced, Writes, unless_superseded
from swapwarden.kube import errors, events, transport
from swapwarden.policy.fleet import profile_status
from swapwarden.policy.profile.store import Entry, ProfileStore


class StatusPublisher:
    """Publishes the status of profiles from verdicts about their nodes."""

    def __init__(
        self,
        api: transport.Reader,
        store: ProfileStore,
        writes: Fenced,
        recorder: events.Recorder,
        rights: profile_status.Rights,
    ) -> None:
        self._api = api
        self._store = store
        self._writes = writes
        self._recorder = recorder
        self._rights = rights

    async def write(self, name: str, judged: profile_status.Judged) -> bool:
        """Write a verdict into the profile's status; return whether it holds and the term lasts.

        Raise errors.KubeError if it should be retried, and TermOver.
        """
        entry = self._store.entries.get(name)
        if entry is None or (entry.uid, entry.generation) != (judged.uid, judged.generation):
            return False  # it is gone, or about to be looked at again
        now = formats.rfc3339(time.time())
        status = profile_status.build(entry, judged, now, self._rights)
        patch = formats.merge_patch(entry.status, status)
        if not patch:
            return self._writes.term.is_valid()
        await self._writes.ready()
        answer = await unless_superseded(_write_status(self._writes, entry, patch))
        if answer is None:
            await self._read(entry)
            return False
        # After the write: each leader reports the news of the statuses that it wrote.
        self._recorder.post(*profile_status.notices(entry, status))
        self._store.offer(decoding.decode(answer, dict[str, Any]))
        return self._writes.term.is_valid()

    async def _read(self, entry: Entry) -> None:
        """Take in a profile as it is now: kopf says nothing of changes that are none of its spec."""
        try:
            body = await self._api.get(f"{names.PROFILES_PATH}/{entry.name}")
        except errors.ApiError as error:
            if error.status != 404:
                raise
            self._store.remove(entry.name, entry.uid)
        else:
            self._store.offer(decoding.decode(body, dict[str, Any]))


async def _write_status(writes: Writes, entry: Entry, patch: Mapping[str, Any]) -> bytes:
    """Patch a profile's status as it was read. Raise ApiError: 404 if it was deleted, 409 if it has another version."""
    metadata = {"uid": entry.uid, "resourceVersion": str(entry.version)}
    return await writes.merge_patch(
        "profile", f"{names.PROFILES_PATH}/{entry.name}/status", {"metadata": metadata, "status": patch}
    )
