"""Follows Namespaces while some profile's overrides ask for their labels, and only then."""

from __future__ import annotations

import asyncio
import logging

from swapwarden.controller import cluster
from swapwarden.kube import client, informer
from swapwarden.policy import namespaces

log = logging.getLogger(__name__)

NAMESPACES = "/api/v1/namespaces"


class NamespaceWatch:
    """Tells what is known of the cluster about Namespaces, once all of them are known."""

    def __init__(self, api: client.Client, known: cluster.Cluster) -> None:
        self._api = api
        self._known = known
        self._needed, self._needless = asyncio.Event(), asyncio.Event()

    def update(self) -> None:
        """The profiles may be others now."""
        if self._known.needs_namespaces():
            self._needless.clear()
            self._needed.set()
        else:
            self._needed.clear()
            self._needless.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._needed.wait()
            log.info("following namespaces: overrides of a profile select by their labels")
            follower = informer.Informer(
                self._api,
                NAMESPACES,
                wire=namespaces.WireNamespace,
                project=namespaces.project,
                name="namespaces",
                on_change=self._known.namespace_changed,
            )
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(follower.run()), group.create_task(self._tell(follower))]
                    await self._needless.wait()
                    for task in tasks:
                        task.cancel()
            finally:
                self._known.namespaces_known(None)
            log.info("no profile asks for labels of namespaces any more")

    async def _tell(self, follower: informer.Informer[namespaces.WireNamespace, dict[str, str]]) -> None:
        await follower.synced.wait()
        self._known.namespaces_known(follower.rows)
