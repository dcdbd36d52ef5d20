"""Writes the status of the node's NodeSwapState: on a real difference only, and not too often."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from swapwarden.agent import source, status
from swapwarden.api import merge
from swapwarden.kube import client, config
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

PATCHES = metrics.counter("swapwarden_agent_status_patches_total", "Status writes, by result.", labels=("result",))

PATCH_SECONDS: Final = 1.0
"""Least time between two writes; what changes meanwhile goes into one."""
COUNTERS_SECONDS: Final = 30.0
"""Least time between two writes where only counters differ."""
BACKOFF_SECONDS: Final = (1.0, 60.0)
FIELD_MANAGER: Final = "swapwarden-agent"


class Reporter:
    """Owns the status. `build` gives it as it should be, from the conditions of the one before."""

    def __init__(
        self, api: client.Client, node: str, build: Callable[[list[Mapping[str, Any]]], dict[str, Any]]
    ) -> None:
        self._api = api
        self._path = f"{source.COLLECTION}/{node}/status"
        self._build = build
        self._written: dict[str, Any] | None = None
        self._changed = asyncio.Event()
        self._last = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def nudge(self) -> None:
        """The status may have become another."""
        self._changed.set()

    def found(self, written: dict[str, Any] | None) -> None:
        """What the API server has now; None where there is no object."""
        self._written = written
        self._changed.set()

    async def run(self) -> None:
        """Never returns."""
        failures = 0
        while True:
            await self._changed.wait()
            # Before the pause: what happens during it goes into the same write.
            await asyncio.sleep(max(0.0, self._last + PATCH_SECONDS - time.monotonic()))
            self._changed.clear()
            wanted = self._next()
            if wanted is None:
                continue
            try:
                await self._write(wanted)
                failures = 0
            except (client.ApiError, client.Unreachable, config.ConfigError) as error:
                failures += 1
                await self._failed(error, failures)

    def _next(self) -> dict[str, Any] | None:
        """The status to write now; None where there is nothing to write, or not yet."""
        if self._written is None:
            return None
        wanted = self._build(self._written.get("conditions", []))
        if wanted == self._written:
            return None
        due = self._last + COUNTERS_SECONDS
        if status.essence(wanted) == status.essence(self._written) and time.monotonic() < due:
            if self._timer is None or self._timer.when() <= asyncio.get_running_loop().time():
                self._timer = asyncio.get_running_loop().call_later(due - time.monotonic(), self.nudge)
            return None
        return wanted

    async def _write(self, wanted: dict[str, Any]) -> None:
        patch = merge.merge_patch(self._written or {}, wanted)
        self._last = time.monotonic()
        await self._api.merge_patch(
            self._path,
            msgspec.json.encode({"status": patch}),
            params={"fieldManager": FIELD_MANAGER},
        )
        self._written = wanted
        PATCHES.inc("ok")

    async def _failed(self, error: Exception, failures: int) -> None:
        source.ERRORS.inc("status")
        PATCHES.inc("failed")
        if isinstance(error, client.ApiError) and error.status == 404:
            self._written = None
            return
        log.warning("cannot write the status of this node's state; trying again: %s", error)
        bound = min(BACKOFF_SECONDS[1], BACKOFF_SECONDS[0] * 2.0 ** min(failures, 8))
        await asyncio.sleep(random.uniform(0, bound))  # noqa: S311 jitter is no secret
        self._changed.set()
