"""Writes the status of the node's NodeSwapState: only on a real difference, and not too often."""

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
from swapwarden.api import formats, names, state
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
"""Least time between two checks for a difference; one write has all changes of that time."""
COUNTERS_SECONDS: Final = 30.0
"""Least time between two writes if only counters differ."""
GENERATION_SECONDS: Final = 5.0
"""How long the report of a newer generation may wait if nothing else is new: on a busy node one write then serves many
new pods, and etcd stores the whole object with each write."""
FOREIGN_SECONDS: Final = 3.0
"""How long a watch may show another status than the written one before that counts as another writer's: it is behind
the answers to writes, and may show several at once."""
BACKOFF_SECONDS: Final = (1.0, 60.0)
FIELD_MANAGER: Final = "swapwarden-agent"


class _WrittenState(msgspec.Struct):
    """The object in the answer to a write."""

    status: dict[str, Any] = {}


_decode = msgspec.json.Decoder(_WrittenState).decode
_FIELDS: Final = tuple(field.encode_name for field in msgspec.structs.fields(state.StateStatus))


class Source(Protocol):
    """Makes the status (report.Report)."""

    def build(self, previous: list[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the status as it should be; `previous` are the conditions of the one before."""

    def acknowledge(self, written: Mapping[str, Any]) -> None:
        """Take note that the API server has this status."""


class _Object(msgspec.Struct, eq=False):
    """The object at the API server. A list, or a recreated object, starts another one."""

    written: dict[str, Any] | None
    """The status as fetched, or as written last; None: the object does not exist."""
    stored: dict[str, Any] | None
    """The status as the server stores it, which drops unknown fields."""
    certain: bool = True
    """Whether the server has the last write: unknown after a failure, perhaps only the answer was lost."""
    shown: dict[str, Any] | None = None
    """The status that a watch showed last, if it is another one."""


class StatusWriter:
    """Owns the status."""

    def __init__(self, api: client.Client, node: str, reports: board.Board, source: Source) -> None:
        """`reports` has a new revision when the status may have changed."""
        self._api = api
        self._path = f"{names.STATES_PATH}/{node}/status"
        self._board = reports
        self._source = source
        self._revision = -1
        """The board's at the last check."""
        self._object = _Object(None, None)
        self._looked = self._wrote = float("-inf")
        self._passed: float | None = None
        """When the generation alone became newer than the written one."""
        self._due: asyncio.TimerHandle | None = None
        self._checks: asyncio.TimerHandle | None = None
        """When to check whether a watch showed another writer's status."""
        self._backoff = backoff.Backoff(*BACKOFF_SECONDS)

    def fetched(self, status: dict[str, Any] | None) -> None:
        """Take the status that the API server has; None: the object does not exist."""
        self._object = _Object(status, status)
        self._board.touch()

    def seen(self, shown: dict[str, Any]) -> None:
        """Take a status from a watch: the agent's own, current or earlier, or another writer's."""
        known = self._object
        if known.written is None:
            self.fetched(shown)
        elif known.certain and shown == known.stored:
            known.shown = None
        else:
            # During a write, even the status before it may be another writer's, who restored it.
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
        """Write the status whenever that is due; never returns."""
        while True:
            await self._board.after(self._revision)
            # Wait before the pause: one write then has the changes during it.
            await asyncio.sleep(max(0.0, self._looked + PATCH_SECONDS - time.monotonic()))
            await self._board.applied(PATCH_SECONDS)
            revision, self._looked = self._board.revision, time.monotonic()
            desired = self._next()
            self._revision = revision  # not after a failure: the next run must check again
            if desired is None:
                continue
            before = self._object
            try:
                await self._write(desired)
            except errors.KubeError as error:
                await self._failed(error, overtaken=before is not self._object)
            else:
                self._wrote_all(desired, overtaken=before is not self._object)

    def _next(self) -> dict[str, Any] | None:
        """Return the status to write now, or None."""
        known = self._object
        if known.written is None:
            return None
        desired = self._source.build(known.written.get("conditions", []))
        if not known.certain:
            return desired
        if desired == known.written:
            self._passed = None
            self._source.acknowledge(desired)
            return None
        wait = self._due_at(desired, known.written) - time.monotonic()
        if wait <= 0:
            return desired
        if self._due is not None:
            self._due.cancel()
        self._due = asyncio.get_running_loop().call_later(wait, self._board.touch)
        return None

    def _due_at(self, desired: Mapping[str, Any], before: Mapping[str, Any]) -> float:
        """Return when to write a status that differs from the written one, in monotonic seconds."""
        if status.essence(desired) != status.essence(before):
            return -math.inf
        if desired.get("observedGeneration", 0) == before.get("observedGeneration", 0):
            return self._wrote + COUNTERS_SECONDS
        if self._passed is None:
            self._passed = time.monotonic()
        return self._passed + GENERATION_SECONDS

    async def _write(self, desired: dict[str, Any]) -> None:
        known = self._object
        certain, kept = known.certain, known.stored or {}
        before = known.written or {} if certain else dict.fromkeys(_FIELDS)
        patch = formats.merge_patch(before, desired)
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
            # It was written all the same. If a watch shows it otherwise, that costs one more write.
            stored = desired
        self._object.stored = stored
        if certain and any(stored.get(field) != value for field, value in kept.items() if field not in patch):
            self._overwritten(stored)

    def _overwritten(self, theirs: dict[str, Any]) -> None:
        """Handle a status that another writer left."""
        OVERWRITTEN.inc()
        log.warning("another writer changed the status of this node's state; writing it again")
        self.fetched(theirs)

    def _wrote_all(self, desired: dict[str, Any], *, overtaken: bool) -> None:
        """`overtaken`: the object was read again during the write, and may be another than the one written to."""
        self._backoff.reset()
        PATCHES.inc("ok")
        known = self._object
        # The watch may be faster than the answer to the write that it shows.
        if overtaken and known.written != desired:
            known.certain = False
            self._board.touch()
        else:
            known.written, known.certain = desired, True
            self._source.acknowledge(desired)

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
