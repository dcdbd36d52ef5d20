"""Follows Namespaces, but only while overrides of a profile select by their labels."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from swapwarden.kube import informer, transport
from swapwarden.policy.observed import namespaces

log = logging.getLogger(__name__)

NAMESPACES = "/api/v1/namespaces"


_Informer = informer.Informer[namespaces.WireNamespace, dict[str, str]]


class NamespaceWatch:
    """Follows Namespaces while they are needed."""

    def __init__(
        self,
        api: transport.Reader,
        *,
        known: Callable[[namespaces.Labels | None], None],
        on_change: Callable[[str, dict[str, str] | None, dict[str, str] | None], None],
    ) -> None:
        """`known` gets all of them, and None once they are unknown again; `on_change` gets each change."""
        self._api = api
        self._known = known
        self._on_change = on_change
        self._needed, self._needless = asyncio.Event(), asyncio.Event()
        self.since = time.monotonic()
        self._follower: _Informer | None = None
        self.name: Final = "namespaces"
        self.synced = asyncio.Event()
        """Set while all Namespaces are known, and while nobody needs them."""
        self.synced.set()

    @property
    def heard(self) -> float:
        """Return when they last had news, on the clock of time.monotonic(); now, while nobody needs them."""
        if not self._needed.is_set():
            return time.monotonic()
        return self._follower.heard if self._follower is not None else self.since

    def update(self, *, needed: bool) -> None:
        """Begin or end to follow Namespaces (`needed`)."""
        if needed and not self._needed.is_set():
            self.since = time.monotonic()
            self.synced.clear()
            self._needless.clear()
            self._needed.set()
        elif not needed:
            self._needed.clear()
            self._needless.set()
            self.synced.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._needed.wait()
            log.info("following namespaces: overrides of a profile select by their labels")
            follower = self._follower = informer.Informer(
                self._api,
                NAMESPACES,
                wire=namespaces.WireNamespace,
                project=namespaces.project,
                name=self.name,
                on_change=self._on_change,
            )
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(follower.run()), group.create_task(self._report(follower))]
                    await self._needless.wait()
                    for task in tasks:
                        task.cancel()
            finally:
                self._follower = None
                self._known(None)
                if self._needed.is_set():
                    self.since = time.monotonic()
                    self.synced.clear()
            log.info("no profile asks for labels of namespaces any more")

    async def _report(self, follower: _Informer) -> None:
        await follower.synced.wait()
        self._known(follower.rows)
        self.synced.set()
