"""Lists NodeSwapProfiles periodically, on each instance. The leader also has kopf, which misses some changes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from swapwarden.api import decoding, names
from swapwarden.kube import backoff, errors, informer, paging, transport
from swapwarden.policy.profile.store import Entry, ProfileStore
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

FAILURES = metrics.counter("swapwarden_profile_list_failures_total", "Lists of profiles that failed.")

VALID = metrics.gauge(
    "swapwarden_profile_valid",
    "1 if the newest version of a profile is in use, 0 if an older one is, or none.",
    ("profile",),
)

MENDED = metrics.counter(
    "swapwarden_profile_mended_total",
    "Changes of profiles that a list showed before kopf, by kind: changed, gone, or released (its finalizer remained)."
    " Only the leader has kopf.",
    labels=("what",),
    known=[("changed",), ("gone",), ("released",)],
)

LIST_SECONDS: Final = 60.0
"""Seconds between two lists, within which a change that kopf missed is noticed."""
BACKOFF_SECONDS: Final = (0.5, 30.0)


def report(before: Entry | None, after: Entry | None) -> None:
    """Count and log whether the newest version of a profile can be used."""
    if after is None:
        if before is not None:
            VALID.remove(before.name)
        return
    VALID.set(0 if after.error else 1, after.name)
    if after.error and (before is None or before.generation != after.generation):
        used, which = after.profile, f"generation {after.generation} of profile {after.name}"
        instead = f"generation {used.generation} stays in force" if used else "none is known that can"
        log.error("%s cannot be used: %s; %s", which, after.error, instead)


class ProfileList:
    """Feeds a store, in whose event loop it runs, from lists and from kopf."""

    def __init__(
        self,
        api: transport.Reader,
        store: ProfileStore,
        *,
        on_change: Callable[[], None],
        mends: Callable[[], bool] = lambda: False,
        list_interval: float = LIST_SECONDS,
    ) -> None:
        """`on_change` is called after each change of the store; `mends` returns whether kopf also runs."""
        self._api = api
        self._store = store
        self._on_change = on_change
        self._mends = mends
        self._list_interval = list_interval
        self.name: Final = "profiles"
        self.heard = time.monotonic()
        """When all profiles were listed last, on the clock of time.monotonic()."""
        self.synced = asyncio.Event()
        """Set once all profiles were listed; stays set."""

    def offer(self, body: Mapping[str, Any]) -> None:
        """Take in an object that kopf reports."""
        if self._store.offer(body):
            self._on_change()

    def remove(self, body: Mapping[str, Any]) -> None:
        """Take in that kopf reports an object as deleted."""
        if self._store.remove(body["metadata"]["name"], body["metadata"]["uid"]):
            self._on_change()

    def ending(self) -> dict[str, str]:
        """Return the names of profiles that are being deleted, by their UIDs."""
        return {each.uid: each.name for each in self._store.entries.values() if each.ending}

    async def run(self) -> None:
        """Run until cancelled."""
        await self.read()
        while True:
            await asyncio.sleep(self._list_interval)
            await self.read(mends=self._mends())

    async def read(self, *, mends: bool = False) -> None:
        """List all profiles, until that succeeds. `mends`: count the changes that kopf should have reported before."""
        wait = backoff.Backoff(*BACKOFF_SECONDS)
        while True:
            try:
                await self._list(mends=mends)
            except (errors.KubeError, msgspec.DecodeError) as error:
                delay = wait.after(error)
                log.warning("cannot list profiles: %s; trying again in %.1f s", error, delay)
            except Exception:
                delay = wait.next()
                log.exception("cannot take in the list of profiles; trying again in %.1f s", delay)
            else:
                self.synced.set()
                return
            FAILURES.inc()
            await asyncio.sleep(delay)

    async def _list(self, *, mends: bool) -> None:
        """Read all profiles. A page that expired midway fails the whole list."""
        profiles: list[dict[str, Any]] = []
        left_out = set[str]()

        def take(item: msgspec.Raw) -> None:
            try:
                profiles.append(decoding.decode(item, dict[str, Any]))
            except msgspec.DecodeError as error:
                name = decoding.identity(item).name
                left_out.add(name)
                log.error("profile %s cannot be decoded; its last known version stays: %s", name, error)  # noqa: TRY400 the text says all

        listed = await paging.read_items(self._api.get, names.PROFILES_PATH, take, {})
        replaced = self._store.replace(profiles, int(listed.resource_version), left_out)
        for name, error in replaced.failed.items():
            shown = decoding.shown(name)
            log.error("profile %s cannot be read; its last known version stays", shown, exc_info=error)
            left_out.add(name)
        if mends:
            MENDED.inc("changed", by=replaced.newer)
            MENDED.inc("gone", by=replaced.gone)
        if replaced.changed:
            self._on_change()
        informer.LEFT_OUT.set(len(left_out), names.PROFILE_PLURAL)
        informer.LAST_EVENT.set(time.time(), names.PROFILE_PLURAL)
        self.heard = time.monotonic()
