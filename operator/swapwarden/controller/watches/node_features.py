"""Finds out whether Node Feature Discovery publishes node labels, and follows its NodeFeatures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.controller.inventory import node_features as inventory
from swapwarden.kube import backoff, decoding, errors, informer, reads
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

IN_USE = metrics.gauge(
    "swapwarden_controller_node_features", "1 while Node Feature Discovery is asked to set labels, by NodeFeatures."
)
FAILURES = metrics.counter(
    "swapwarden_controller_node_feature_failures_total",
    "Failed reads of the CustomResourceDefinition of NodeFeatures, which are retried.",
)

INTERVAL_SECONDS: Final = 10.0
"""Seconds between two checks for the CustomResourceDefinition."""
BACKOFF_SECONDS: Final = (0.5, 30.0)
TIMEOUT: Final = 10.0


class _Resource(msgspec.Struct, frozen=True):
    name: str


class _Resources(msgspec.Struct, frozen=True):
    resources: list[_Resource] = []


class Features:
    """The known NodeFeatures, and whether labels go there."""

    def __init__(
        self,
        api: reads.Reader,
        namespace: str,
        publisher: names.Publisher,
        *,
        changed: Callable[[str | None], None],
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        """`changed` gets the node whose NodeFeature has changed; None if it may be all of them."""
        self._api = api
        self.path: Final = inventory.collection(namespace)
        self._publisher = publisher
        self._changed = changed
        self._interval = interval
        self._rows: dict[str, inventory.FeatureRow] = {}
        self._missed = False
        self.in_use: bool | None = False if publisher is names.Publisher.DIRECT else None
        """Whether labels go to NodeFeatures; None while that is unknown or impossible."""

    def serves(self, node: str) -> bool | None:
        """Return whether the node's labels go to a NodeFeature; None while no label can be published."""
        return False if len(node) > inventory.LONGEST_NODE else self.in_use

    def of(self, node: str) -> inventory.FeatureRow | None:
        """Return the newest known NodeFeature of a node."""
        return self._rows.get(inventory.object_name(node))

    def wrote(self, row: inventory.FeatureRow) -> None:
        """Take in the API server's answer to a write, unless the watch has reported a newer version."""
        self._keep(row)

    async def run(self) -> None:
        """Run until cancelled. If the controller sets all labels, it only waits."""
        while self._publisher is not names.Publisher.DIRECT:
            if await self._installed():
                await self._follow()
            else:
                self._settle(in_use=None if self._publisher is names.Publisher.NODE_FEATURE else False)
                await asyncio.sleep(self._interval)

    async def _follow(self) -> None:
        """Follow NodeFeatures as long as the API server knows the kind."""
        self._rows.clear()
        following = informer.Informer(
            self._api,
            self.path,
            wire=inventory.WireFeature,
            project=inventory.project,
            name=inventory.PLURAL,
            on_change=self._feature_changed,
            params=inventory.SELECTOR,
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(following.run())
            there = True
            while there:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval):
                        await following.synced.wait()
                        self._settle(in_use=True)
                        await asyncio.sleep(self._interval)
                there = await self._installed()
            task.cancel()

    def _feature_changed(self, _: str, old: inventory.FeatureRow | None, new: inventory.FeatureRow | None) -> None:
        row = new or old
        if row is None:
            return
        if new is None:
            self.lost(row)
        else:
            self._keep(new)
        self._changed(row.name.removeprefix(inventory.object_name("")))

    def lost(self, row: inventory.FeatureRow) -> None:
        """Forget a NodeFeature that was deleted."""
        known = self._rows.get(row.name)
        if known is not None and known.uid == row.uid:
            del self._rows[row.name]

    def _keep(self, row: inventory.FeatureRow) -> None:
        known = self._rows.get(row.name)
        if known is None or known.uid != row.uid or known.version < row.version:
            self._rows[row.name] = row

    def _settle(self, *, in_use: bool | None) -> None:
        if in_use is None and not self._missed:
            log.error(
                "no labels are published: the CustomResourceDefinition of NodeFeatures is not there; install Node"
                " Feature Discovery, or let --label-publisher be Auto"
            )
        self._missed = in_use is None
        if in_use == self.in_use:
            return
        if in_use is not None:
            log.info("node labels go to NodeFeatures" if in_use else "node labels go to the nodes themselves")
        self.in_use = in_use
        IN_USE.set(in_use or 0)
        self._changed(None)

    async def _installed(self) -> bool:
        """Return whether the API server knows NodeFeatures, by discovery."""
        waits = backoff.Backoff(*BACKOFF_SECONDS)
        while True:
            try:
                found = decoding.decode(await self._api.get(inventory.API, timeout=TIMEOUT), _Resources)
                return any(each.name == inventory.PLURAL for each in found.resources)
            except (errors.KubeError, msgspec.DecodeError) as error:
                if isinstance(error, errors.ApiError) and error.status == 404:
                    return False
                FAILURES.inc()
                wait = waits.after(error)
                log.warning("cannot see whether there are NodeFeatures; trying again in %.1f s: %s", wait, error)
                await asyncio.sleep(wait)
