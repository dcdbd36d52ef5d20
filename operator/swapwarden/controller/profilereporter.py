"""Writes the status of NodeSwapProfiles: on a real difference only, and not too often."""

from __future__ import annotations

import asyncio
import collections
import datetime
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from swapwarden.api import merge, names
from swapwarden.controller import cluster, profilestatus, profilestore, reconciler
from swapwarden.kube import backoff, client, config

log = logging.getLogger(__name__)

PROFILES: Final = f"/apis/{names.API_VERSION}/{names.PROFILE_PLURAL}"
GATHER_SECONDS: Final = 1.0
"""How long reports of nodes gather before profiles are looked at."""
BACKOFF_SECONDS: Final = (1.0, 60.0)


class ProfileReporter:
    """Owns the status of all profiles while `leads()` says so."""

    def __init__(
        self,
        api: client.Client,
        known: cluster.Cluster,
        store: profilestore.ProfileStore,
        *,
        leads: Callable[[], bool],
        gather: float = GATHER_SECONDS,
    ) -> None:
        self._api = api
        self._known = known
        self._store = store
        self._leads = leads
        self._gather = gather
        self._changed = asyncio.Event()
        self._backoff = backoff.Backoff(*BACKOFF_SECONDS)

    def nudge(self) -> None:
        """A status may have become another."""
        self._changed.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._gather)
            self._changed.clear()
            failed = await self._report() if self._leads() else {}
            if not failed:
                self._backoff.reset()
                continue
            wait = max(self._backoff.next(), *(getattr(error, "retry_after", None) or 0.0 for error in failed.values()))
            name, error = next(iter(failed.items()))
            more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            log.warning("cannot write the status of profile %s%s: %s; trying again in %.1f s", name, more, error, wait)
            await asyncio.sleep(wait)
            self._changed.set()

    async def _report(self) -> dict[str, Exception]:
        """Write what differs; give what failed, by profile. What is refused of one does not keep others from theirs."""
        governed: dict[str, list[cluster.Governed]] = collections.defaultdict(list)
        contested: dict[str, list[profilestatus.Contest]] = collections.defaultdict(list)
        for selection, node in self._known.governed():
            winner = selection.profile.name
            governed[winner].append(node)
            for rival in selection.conflicts:
                contested[winner].append(profilestatus.Contest(rival, node.node))
                contested[rival].append(profilestatus.Contest(winner, node.node))
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        failed: dict[str, Exception] = {}
        for entry in list(self._store.entries.values()):
            status = profilestatus.build(entry, governed[entry.name], contested[entry.name], now)
            try:
                await self._write(entry, status)
            except (client.ApiError, msgspec.MsgspecError) as error:
                failed[entry.name] = error
            except (client.Unreachable, config.ConfigError) as error:
                failed[entry.name] = error
                break
        return failed

    async def _write(self, entry: profilestore.Entry, status: dict[str, Any]) -> None:
        patch = merge.merge_patch(entry.status, status)
        if not patch or not self._leads():
            return
        body = msgspec.json.encode({"metadata": {"uid": entry.uid}, "status": patch})
        request = self._api.merge_patch(
            f"{PROFILES}/{entry.name}/status",
            body,
            params=reconciler.FIELD_MANAGER,
            timeout=reconciler.WRITE_TIMEOUT,
        )
        try:
            answer = await reconciler.counted("profile", request)
        except client.ApiError as error:
            if error.status not in {404, 409}:  # the watch will say what became of it
                raise
        else:
            self._store.offer(msgspec.json.decode(answer))
