"""Follows the node's NodeSwapState: one list, then a watch, again whenever that breaks.

The loss of the state is no order to stop: on deletion, 404, 403 or an unreachable API server, the state accepted last
stays in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from swapwarden.agent.desired import spec
from swapwarden.api import decoding, names
from swapwarden.kube import backoff, errors, transport, watch
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

ERRORS = metrics.counter(
    "swapwarden_agent_api_errors_total",
    "Failed requests to the API server, by purpose: state or status.",
    labels=("request",),
    known=[("state",), ("status",)],
)
FOLLOWING = metrics.gauge(
    "swapwarden_agent_state_followed",
    "1 while the agent watches its node's NodeSwapState; 0 while it uses the last known one.",
)
GENERATION = metrics.gauge("swapwarden_agent_state_generation", "metadata.generation of the NodeSwapState in force.")
ACCEPTED = metrics.gauge(
    "swapwarden_agent_state_accepted_timestamp_seconds", "When the agent last accepted a state, in seconds since 1970."
)

BACKOFF_SECONDS: Final = (0.5, 30.0)
"""First and longest bound of the wait after a failure."""
LIST_SECONDS: Final = 10.0
QUICK_SECONDS: Final = 1.0
"""A watch that ends sooner has failed, even without an error: a server or proxy may end each one immediately."""

_decode = decoding.Decoder(spec.ReceivedState).decode


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[spec.ReceivedState]


_decode_list = decoding.Decoder(_List).decode


class Fetched(msgspec.Struct, frozen=True):
    """The object from a list, or a new one of its name from a watch."""

    status: dict[str, Any] | None
    """Status of the object; None: the object does not exist."""
    state: spec.ReceivedState | None = None
    """State to apply whatever its generation: an object may be recreated, and etcd restored from a backup."""


class Changed(msgspec.Struct, frozen=True):
    """The object from a watch, also after a change of its status only."""

    status: dict[str, Any]
    state: spec.ReceivedState | None = None
    """State to apply; None if its generation is no newer."""


class Refused(msgspec.Struct, frozen=True):
    """The object is invalid."""

    why: str


class Contact(msgspec.Struct, frozen=True):
    """The API server sent an event, or ended a watch."""


Event = Fetched | Changed | Refused | Contact


class StateWatch:
    """Follows the state of one node, for one reader at a time."""

    def __init__(self, api: transport.Reader, node: str) -> None:
        self._api = api
        self._node = node
        self._uid = ""
        self._generation = -1
        self._backoff = backoff.Backoff(*BACKOFF_SECONDS)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield events without end. After an error in its reader, it can be called again."""
        while True:
            wait = 0.0
            try:
                async with contextlib.aclosing(self._follow()) as events:
                    async for event in events:
                        yield event
            except errors.KubeError as error:
                ERRORS.inc("state")
                wait = self._backoff.after(error)
                log.warning(
                    "cannot follow this node's state; the last accepted one stays in force, next try in %.1f s: %s",
                    wait,
                    error,
                )
            except watch.Expired:
                wait = self._backoff.next()
                log.info("the watch of this node's state is too old; reading the state again")
            except msgspec.MsgspecError as error:
                ERRORS.inc("state")
                wait = self._backoff.next()
                yield Refused(f"this node's NodeSwapState cannot be understood: {error}")
                log.error("this node's state cannot be understood; the last one stays in force: %s", error)  # noqa: TRY400 the message has it all
            finally:
                FOLLOWING.set(0)
            await asyncio.sleep(wait)

    async def _follow(self) -> AsyncGenerator[Event, None]:
        """Read the state, then watch it, one watch after the other, until one fails."""
        params = {"fieldSelector": f"metadata.name={self._node}"}
        try:
            answer = await self._api.get(names.STATES_PATH, params=params, timeout=LIST_SECONDS)
        except errors.ApiError as error:
            if error.status == 404:
                yield self._missing()
            raise
        listed = _decode_list(answer)
        yield self._fetched(listed.items[0]) if listed.items else self._missing()
        # The object's own version would not do: if nothing changed it for a while, it is too old to watch from.
        version = listed.metadata.resource_version
        FOLLOWING.set(1)
        while True:
            begun = time.monotonic()
            stream = watch.watch(self._api, names.STATES_PATH, resource_version=version, params=params, decode=_decode)
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    version = event.resource_version
                    self._backoff.reset()
                    yield Contact()
                    if event.type == "DELETED":
                        yield self._missing()
                    elif event.object is not None:
                        yield self._shown(event.object)
            yield Contact()
            if time.monotonic() - begun < QUICK_SECONDS:
                await asyncio.sleep(self._backoff.next())
            else:
                self._backoff.reset()

    def _missing(self) -> Fetched:
        if self._uid:
            log.warning("this node's state was deleted; its last version stays in force")
        else:
            log.info("this node has no state yet", extra={"node": self._node})
        self._uid = ""
        return Fetched(None)

    def _fetched(self, state: spec.ReceivedState) -> Fetched:
        self._uid, self._generation = state.metadata.uid, state.metadata.generation
        return Fetched(state.status, state)

    def _shown(self, state: spec.ReceivedState) -> Event:
        if state.metadata.uid != self._uid:
            return self._fetched(state)
        if state.metadata.generation <= self._generation:
            return Changed(state.status)
        self._generation = state.metadata.generation
        return Changed(state.status, state)
