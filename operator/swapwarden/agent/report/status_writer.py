"""Writes the status of the node's NodeSwapState: on a real difference only, and not too often."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from swapwarden.agent.desired import state_watch
from swapwarden.agent.inventory import board
from swapwarden.agent.report import status
from swapwarden.api import merge, state
from swapwarden.kube import backoff, client, errors
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

PATCHES = metrics.counter(
    "swapwarden_agent_status_patches_total",
    "Writes of the state's status: ok or failed.",
    labels=("result",),
    known=[("ok",), ("failed",)],
)
OVERWRITTEN = metrics.counter(
    "swapwarden_agent_status_overwritten_total",
    "External changes of the state's status, which the agent repaired.",
)

PATCH_SECONDS: Final = 1.0
"""Least time between two looks at what to write; what changes meanwhile goes into one."""
COUNTERS_SECONDS: Final = 30.0
"""Least time between two writes where only counters differ."""
GENERATION_SECONDS: Final = 5.0
"""How long it may be untold that pods' limits of a newer generation hold, where nothing else is new: on a busy node one
write then serves many pods that came, and etcd stores the whole object with each."""
FOREIGN_SECONDS: Final = 3.0
"""How long a watch may show another status than the one written before that counts as another writer's: it is behind
the answers to writes, and may show several at once."""
BACKOFF_SECONDS: Final = (1.0, 60.0)
FIELD_MANAGER: Final = "swapwarden-agent"


class _WrittenState(msgspec.Struct):
    """What the API server has after a write."""

    status: dict[str, Any] = {}


_decode = msgspec.json.Decoder(_WrittenState).decode
_FIELDS: Final = tuple(field.encode_name for field in msgspec.structs.fields(state.StateStatus))


class Source(Protocol):
    """Makes the status (report.Report)."""

    def build(self, previous: list[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the status as it should be; `previous` are the conditions of the one before."""

    def acknowledge(self, written: Mapping[str, Any]) -> None:
        """The API server has this status."""


class _Object:
    """The object at the API server. A list, or an object made anew, begins another one."""

    __slots__ = ("certain", "shown", "stored", "written")

    def __init__(self, status: dict[str, Any] | None) -> None:
        self.written = status
        """As it was found, or written last; None: there is no object."""
        self.stored = status
        """As that came back: a server that does not know a field leaves it out."""
        self.certain = True
        """Whether it has what was written last: not after a failure, which may be that of the answer."""
        self.shown: dict[str, Any] | None = None
        """What a watch showed last, where that is another."""


class StatusWriter:
    """Owns the status."""

    def __init__(self, api: client.Client, node: str, reports: board.Board, source: Source) -> None:
        """`reports` says when the status may have become another."""
        self._api = api
        self._path = f"{state_watch.COLLECTION}/{node}/status"
        self._board = reports
        self._source = source
        self._revision = -1
        """The board's, of the last look at what to write."""
        self._object = _Object(None)
        self._looked = self._wrote = float("-inf")
        self._passed: float | None = None
        """When the generation became another than what is written, and nothing else that matters did."""
        self._due: asyncio.TimerHandle | None = None
        self._checks: asyncio.TimerHandle | None = None
        """When it is looked at whether what a watch showed is another writer's."""
        self._backoff = backoff.Backoff(*BACKOFF_SECONDS)

    def found(self, status: dict[str, Any] | None) -> None:
        """What the API server has now; None where there is no object."""
        self._object = _Object(status)
        self._board.touch()

    def seen(self, shown: dict[str, Any]) -> None:
        """A watch shows this status: the agent's own, of now or of before, or what another writer made of it."""
        known = self._object
        if known.written is None:
            self.found(shown)
        elif known.certain and shown == known.stored:
            known.shown = None
        else:
            # While a write is on its way, what was there before it may be what another writer went back to.
            known.shown = shown
            if self._checks is None:
                self._check_later()

    def _check_later(self) -> None:
        self._checks = asyncio.get_running_loop().call_later(FOREIGN_SECONDS, self._check)

    def _check(self) -> None:
        self._checks, known = None, self._object
        if known.shown is None or known.shown == known.stored:
            return
        if not known.certain or time.monotonic() - self._wrote < FOREIGN_SECONDS:
            self._check_later()
        else:
            self._overwritten(known.shown)

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._board.after(self._revision)
            # Before the pause: what happens during it goes into the same write.
            await asyncio.sleep(max(0.0, self._looked + PATCH_SECONDS - time.monotonic()))
            await self._board.applied(PATCH_SECONDS)
            revision, self._looked = self._board.revision, time.monotonic()
            wanted = self._next()
            self._revision = revision  # not where that failed: who runs this again looks again
            if wanted is None:
                continue
            before = self._object
            try:
                await self._write(wanted)
            except errors.KubeError as error:
                await self._failed(error, overtaken=before is not self._object)
            else:
                self._wrote_all(wanted, overtaken=before is not self._object)

    def _next(self) -> dict[str, Any] | None:
        """The status to write now; None where there is nothing to write, or not yet."""
        known = self._object
        if known.written is None:
            return None
        wanted = self._source.build(known.written.get("conditions", []))
        if not known.certain:
            return wanted
        if wanted == known.written:
            self._passed = None
            self._source.acknowledge(wanted)
            return None
        wait = self._due_at(wanted, known.written) - time.monotonic()
        if wait <= 0:
            return wanted
        if self._due is not None:
            self._due.cancel()
        self._due = asyncio.get_running_loop().call_later(wait, self._board.touch)
        return None

    def _due_at(self, wanted: Mapping[str, Any], before: Mapping[str, Any]) -> float:
        """When to write a status that is another than the one written."""
        if status.essence(wanted) != status.essence(before):
            return -math.inf
        if wanted.get("observedGeneration", 0) == before.get("observedGeneration", 0):
            return self._wrote + COUNTERS_SECONDS
        if self._passed is None:
            self._passed = time.monotonic()
        return self._passed + GENERATION_SECONDS

    async def _write(self, wanted: dict[str, Any]) -> None:
        known = self._object
        certain, kept = known.certain, known.stored or {}
        before = known.written or {} if certain else dict.fromkeys(_FIELDS)
        patch = merge.merge_patch(before, wanted)
        self._wrote = time.monotonic()
        self._passed = None
        known.certain = False
        answer = await self._api.merge_patch(
            self._path,
            msgspec.json.encode({"status": patch}),
            params={"fieldManager": FIELD_MANAGER},
        )
        try:
            stored = _decode(answer).status
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # It was written all the same. What a watch shows of it may then cost one write more.
            stored = wanted
        self._object.stored = stored
        if certain and any(stored.get(field) != value for field, value in kept.items() if field not in patch):
            self._overwritten(stored)

    def _overwritten(self, found: dict[str, Any]) -> None:
        """Another writer left this."""
        OVERWRITTEN.inc()
        log.warning("another writer changed the status of this node's state; it is written again")
        self.found(found)

    def _wrote_all(self, wanted: dict[str, Any], *, overtaken: bool) -> None:
        """`overtaken`: the object was read anew during the write, and may be another than the one written to."""
        self._backoff.reset()
        PATCHES.inc("ok")
        known = self._object
        # The watch may be faster than the answer to the write that it shows.
        if overtaken and known.written != wanted:
            known.certain = False
            self._board.touch()
        else:
            known.written, known.certain = wanted, True
            self._source.acknowledge(wanted)

    async def _failed(self, error: Exception, *, overtaken: bool) -> None:
        state_watch.ERRORS.inc("status")
        PATCHES.inc("failed")
        if isinstance(error, errors.ApiError) and error.status == 404 and not overtaken:
            self._object.written = None
            return
        wait = self._backoff.after(error)
        log.warning("cannot write the status of this node's state; trying again in %.1f s: %s", wait, error)
        await asyncio.sleep(wait)
        self._board.touch()
