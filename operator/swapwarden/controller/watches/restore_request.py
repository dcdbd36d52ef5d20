"""The order to restore all nodes before an uninstallation: a ConfigMap with a flag.

The installation creates it with false. `swapwarden uninstall`, which the chart's hook runs, sets true: from then on the
leader plans mode Restore for every node, and creates no states or labels any more. Another value, as an upgrade writes
it, cancels the order. Deleting the ConfigMap does not: uninstalling removes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from swapwarden.api import decoding, state
from swapwarden.api.notices import Notice, Regarding
from swapwarden.kube import backoff, errors, transport
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

RESTORING = metrics.gauge(
    "swapwarden_controller_restoring", "1 while all nodes must restore the values from before Swapwarden."
)
FAILURES = metrics.counter(
    "swapwarden_controller_restoring_failures_total", "Failed reads of the order to restore, which are retried."
)

CONFIG_MAP: Final = "swapwarden-uninstall"
KEY: Final = "restore"
YES: Final = "true"
INTERVAL_SECONDS: Final = 2.0
BACKOFF_SECONDS: Final = (0.5, 30.0)
TIMEOUT: Final = 10.0


REASON: Final = "Restoring"
MESSAGE: Final = (
    "every node restores the values from before Swapwarden, and no policy is enforced any more; set restore to false"
    " to take this back"
)


class _ConfigMap(msgspec.Struct):
    metadata: state.ObjectMeta = state.ObjectMeta()
    data: dict[str, str] = {}


def is_order(body: bytes) -> bool:
    """Return whether a ConfigMap orders to restore. Raise msgspec.DecodeError if it is none."""
    return decoding.decode(body, _ConfigMap).data.get(KEY) == YES


class RestoreRequest:
    """Follows the administrator's order to restore all nodes."""

    def __init__(self, api: transport.Reader, namespace: str, changed: Callable[[], None]) -> None:
        """`changed` is called when the order was given or cancelled."""
        self._api = api
        self._namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{CONFIG_MAP}"
        self._changed = changed
        self.active = False
        self._given_by = state.ObjectMeta()
        self.synced = asyncio.Event()
        """Set after the first read: a controller that starts during a restore must not enforce first."""

    def notice(self) -> Notice:
        """Return the notice about the order: one for each order, the same from all leaders."""
        order = self._given_by
        regarding = Regarding("v1", "ConfigMap", self._namespace, CONFIG_MAP, order.uid)
        return Notice(regarding, "Warning", REASON, MESSAGE, f"{order.uid}/{order.resource_version}", urgent=True)

    async def run(self) -> None:
        """Run until cancelled."""
        waits = backoff.Backoff(*BACKOFF_SECONDS)
        while True:
            try:
                await self.read()
            except (errors.KubeError, msgspec.DecodeError) as error:
                FAILURES.inc()
                if isinstance(error, errors.KubeError) and error.status == 403:
                    # The rights are an older version's, which has no such order.
                    self.synced.set()
                log.warning("cannot see whether to restore (ConfigMap %s): %s", CONFIG_MAP, error)
                await asyncio.sleep(waits.next())
            else:
                waits.reset()
                await asyncio.sleep(INTERVAL_SECONDS)

    async def read(self) -> None:
        """Read the order once. Raise errors.KubeError on failure."""
        try:
            body = await self._api.get(self._path, timeout=TIMEOUT)
        except errors.ApiError as error:
            if error.status == 404:
                self.synced.set()
                return
            raise
        config_map = decoding.decode(body, _ConfigMap)
        given = config_map.data.get(KEY) == YES
        RESTORING.set(given)
        self.synced.set()
        if given != self.active:
            log.warning(MESSAGE if given else "the order to restore was taken back")
            self.active, self._given_by = given, config_map.metadata
            self._changed()
