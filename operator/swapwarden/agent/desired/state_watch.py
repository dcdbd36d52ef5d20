"""Follows the node's NodeSwapState: one list, then a watch, again whenever that breaks.

Losing the state is no order to let go: on deletion, 404, 403 or an API server that cannot be reached, what was last
accepted stays in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from swapwarden.agent.desired import spec
from swapwarden.api import names
from swapwarden.kube import backoff, decoding, errors, reads, watch
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

ERRORS = metrics.counter(
    "swapwarden_agent_api_errors_total",
    "Requests to the API server that failed, by what for: state or status.",
    labels=("request",),
    known=[("state",), ("status",)],
)
FOLLOWING = metrics.gauge(
    "swapwarden_agent_state_followed",
    "1 while the agent watches its node's NodeSwapState; 0 while it goes by the last that it knows.",
)
GENERATION = metrics.gauge("swapwarden_agent_state_generation", "metadata.generation of the NodeSwapState in force.")
ACCEPTED = metrics.gauge(
    "swapwarden_agent_state_accepted_timestamp_seconds", "When a state was last put in force, seconds since 1970."
)

COLLECTION: Final = f"/apis/{names.API_VERSION}/{names.STATE_PLURAL}"
BACKOFF_SECONDS: Final = (0.5, 30.0)
"""First and longest bound of the wait after a failure."""
LIST_SECONDS: Final = 10.0
QUICK_SECONDS: Final = 1.0
"""A watch that ends sooner has failed, whatever it says: a server or proxy may end each at once."""

_decode = decoding.Decoder(spec.WireState).decode


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[spec.WireState]


_decode_list = decoding.Decoder(_List).decode


class _Reported(msgspec.Struct):
    """What a state holds besides its spec."""

    metadata: spec.WireMeta
    status: dict[str, Any] = {}


class _Reports(msgspec.Struct):
    items: list[_Reported]


_decode_reports = decoding.Decoder(_Reports).decode


class StateWatch:
    """Calls `accept` with each state that is to be in force, `fetched` with each list's answer (None: no object).

    `seen` gets what else a watch tells of the object, whatever its generation: of a status, too. `heard` is called when
    the API server has said anything, at the end of each watch, too.
    """

    def __init__(
        self,
        api: reads.Reader,
        node: str,
        *,
        accept: Callable[[spec.WireState], None],
        fetched: Callable[[spec.WireState | None], None],
        refused: Callable[[str], None],
        seen: Callable[[spec.WireState], None] = lambda _: None,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        """`refused` is told why a state could not be understood, and the empty string once one could."""
        self._api = api
        self._node = node
        self._accept = accept
        self._fetched = fetched
        self._refused = refused
        self._seen = seen
        self._heard = heard
        self._uid = ""
        self._generation = -1
        self._backoff = backoff.Backoff(*BACKOFF_SECONDS)

    async def run(self) -> None:
        """Never returns."""
        while True:
            wait = 0.0
            try:
                await self._follow()
            except errors.KubeError as error:
                ERRORS.inc("state")
                wait = self._backoff.after(error)
                log.warning(
                    "cannot follow this node's state; what was last accepted stays in force, next try in %.1f s: %s",
                    wait,
                    error,
                )
            except watch.Expired:
                wait = self._backoff.next()
                log.info("the watch of this node's state is too old; reading the state again")
            except msgspec.MsgspecError as error:
                ERRORS.inc("state")
                wait = self._backoff.next()
                self._refused(f"this node's NodeSwapState cannot be understood: {error}")
                log.error("this node's state cannot be understood; the last one stays in force: %s", error)  # noqa: TRY400 the message has it all
            FOLLOWING.set(0)
            await asyncio.sleep(wait)

    async def _follow(self) -> None:
        """Read the state, then watch it, one watch after the other, until one fails."""
        params = {"fieldSelector": f"metadata.name={self._node}"}
        version = await self._fetch(params)
        FOLLOWING.set(1)
        while True:
            begun = time.monotonic()
            stream = watch.watch(self._api, COLLECTION, resource_version=version, params=params, decode=_decode)
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    version = event.resource_version
                    self._backoff.reset()
                    self._heard()
                    if event.type == "DELETED":
                        self._missing()
                    elif event.object is not None:
                        self._take(event.object, fresh=event.object.metadata.uid != self._uid)
            self._heard()
            if time.monotonic() - begun < QUICK_SECONDS:
                await asyncio.sleep(self._backoff.next())
            else:
                self._backoff.reset()

    async def _fetch(self, params: Mapping[str, str]) -> str:
        """List the state; gives the version to watch from.

        The object's own version would not do: where nothing changed it for a while, it is too old to watch from.
        """
        try:
            answer = await self._api.get(COLLECTION, params=params, timeout=LIST_SECONDS)
        except errors.ApiError as error:
            if error.status == 404:
                self._missing()
            raise
        try:
            found = _decode_list(answer)
        except msgspec.MsgspecError:
            self._report(answer)
            raise
        if found.items:
            self._take(found.items[0], fresh=True)
        else:
            self._missing()
        return found.metadata.resource_version

    def _report(self, answer: bytes) -> None:
        """Of a state that cannot be understood, tell all the same that it is there: its status is to say so."""
        with contextlib.suppress(msgspec.MsgspecError):
            for each in _decode_reports(answer).items[:1]:
                self._fetched(spec.WireState(each.metadata, status=each.status))

    def _missing(self) -> None:
        if self._uid:
            log.warning("this node's state was deleted; what it said stays in force")
        else:
            log.info("this node has no state yet", extra={"node": self._node})
        self._uid = ""
        self._fetched(None)

    def _take(self, state: spec.WireState, *, fresh: bool) -> None:
        """A fresh one is trusted whatever its generation: objects are made anew, and etcd is restored from backups."""
        if fresh:
            self._fetched(state)
        else:
            self._seen(state)
            if state.metadata.generation <= self._generation:
                return
        self._uid, self._generation = state.metadata.uid, state.metadata.generation
        self._refused("")
        self._accept(state)
