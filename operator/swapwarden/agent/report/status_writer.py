"""Writes the status of the node's NodeSwapState: on a real difference only, and not too often."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

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
    "Times that another writer changed the state's status, upon which the agent wrote it again.",
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


class _Answer(msgspec.Struct):
    """What the API server has after a write."""

    status: dict[str, Any] = {}


_decode = msgspec.json.Decoder(_Answer).decode
_FIELDS: Final = tuple(field.encode_name for field in msgspec.structs.fields(state.StateStatus))


class StatusWriter:
    """Owns the status. `build` gives it as it should be, from the conditions of the one before."""

    def __init__(
        self,
        api: client.Client,
        node: str,
        reports: board.Board,
        build: Callable[[list[Mapping[str, Any]]], dict[str, Any]],
        stands: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> None:
        """`reports` says when the status may have become another; `stands` gets what was built once it is stored."""
        self._api = api
        self._path = f"{state_watch.COLLECTION}/{node}/status"
        self._build = build
        self._stands = stands
        self._written: dict[str, Any] | None = None
        self._certain = True
        """Whether the API server has what was written last: not after a failure, which may be that of the answer."""
        self._findings = 0
        self._board = reports
        self._revision = -1
        """The board's, of the last look at what to write."""
        self._looked = self._wrote = float("-inf")
        self._passed: float | None = None
        """When the generation became another than what is written, and nothing else that matters did."""
        self._timer: asyncio.TimerHandle | None = None
        self._stored: dict[str, Any] | None = None
        """As what was written last came back: a server that does not know a field leaves it out."""
        self._foreign: dict[str, Any] | None = None
        """What a watch showed last, where that is another."""
        self._foreign_timer: asyncio.TimerHandle | None = None
        self._backoff = backoff.Backoff(*BACKOFF_SECONDS)

    def found(self, written: dict[str, Any] | None) -> None:
        """What the API server has now; None where there is no object."""
        self._written = self._stored = written
        self._certain = True
        self._foreign = None
        self._findings += 1
        self._board.touch()

    def seen(self, shown: dict[str, Any]) -> None:
        """A watch shows this status: the agent's own, of now or of before, or what another writer made of it."""
        if self._written is None:
            self.found(shown)
        elif self._certain and shown == self._stored:
            self._foreign = None
        else:
            # While a write is on its way, what was there before it may be what another writer went back to.
            self._foreign = shown
            if self._foreign_timer is None:
                self._foreign_timer = asyncio.get_running_loop().call_later(FOREIGN_SECONDS, self._settle_foreign)

    def _settle_foreign(self) -> None:
        self._foreign_timer = None
        if self._foreign is None or self._foreign == self._stored:
            return
        if not self._certain or time.monotonic() - self._wrote < FOREIGN_SECONDS:
            self._foreign_timer = asyncio.get_running_loop().call_later(FOREIGN_SECONDS, self._settle_foreign)
            return
        self._overwritten(self._foreign)

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._board.after(self._revision)
            # Before the pause: what happens during it goes into the same write.
            await asyncio.sleep(max(0.0, self._looked + PATCH_SECONDS - time.monotonic()))
            revision, self._looked = self._board.revision, time.monotonic()
            wanted = self._next()
            self._revision = revision  # not where that failed: who runs this again looks again
            if wanted is None:
                continue
            findings = self._findings
            try:
                await self._write(wanted)
            except errors.KubeError as error:
                await self._failed(error, overtaken=findings != self._findings)
            else:
                self._wrote_all(wanted, overtaken=findings != self._findings)

    def _next(self) -> dict[str, Any] | None:
        """The status to write now; None where there is nothing to write, or not yet."""
        if self._written is None:
            return None
        wanted = self._build(self._written.get("conditions", []))
        if not self._certain:
            return wanted
        if wanted == self._written:
            self._passed = None
            self._stands(wanted)
            return None
        wait = self._due(wanted) - time.monotonic()
        if wait <= 0:
            return wanted
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(wait, self._board.touch)
        return None

    def _due(self, wanted: Mapping[str, Any]) -> float:
        """When to write a status that is another than the one written."""
        before = self._written or {}
        if status.essence(wanted) != status.essence(before):
            return -math.inf
        if wanted.get("observedGeneration", 0) == before.get("observedGeneration", 0):
            return self._wrote + COUNTERS_SECONDS
        if self._passed is None:
            self._passed = time.monotonic()
        return self._passed + GENERATION_SECONDS

    async def _write(self, wanted: dict[str, Any]) -> None:
        before = self._written if self._certain else dict.fromkeys(_FIELDS)
        kept = self._stored if self._certain else None
        patch = merge.merge_patch(before or {}, wanted)
        self._wrote = time.monotonic()
        self._passed = None
        self._certain = False
        answer = await self._api.merge_patch(
            self._path,
            msgspec.json.encode({"status": patch}),
            params={"fieldManager": FIELD_MANAGER},
        )
        try:
            self._stored = _decode(answer).status
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # It was written all the same. What a watch shows of it may then cost one write more.
            self._stored = wanted
        if any(self._stored.get(field) != value for field, value in (kept or {}).items() if field not in patch):
            self._overwritten(self._stored)

    def _overwritten(self, found: dict[str, Any]) -> None:
        """Another writer left this."""
        OVERWRITTEN.inc()
        log.warning("another writer changed the status of this node's state; it is written again")
        self.found(found)

    def _wrote_all(self, wanted: dict[str, Any], *, overtaken: bool) -> None:
        """`overtaken`: the object was read anew during the write, and may be another than the one written to."""
        self._backoff.reset()
        PATCHES.inc("ok")
        # The watch may be faster than the answer to the write that it tells of.
        if overtaken and self._written != wanted:
            self._certain = False
            self._board.touch()
        else:
            self._written, self._certain = wanted, True
            self._stands(wanted)

    async def _failed(self, error: Exception, *, overtaken: bool) -> None:
        state_watch.ERRORS.inc("status")
        PATCHES.inc("failed")
        if isinstance(error, errors.ApiError) and error.status == 404 and not overtaken:
            self._written = None
            return
        wait = self._backoff.after(error)
        log.warning("cannot write the status of this node's state; trying again in %.1f s: %s", wait, error)
        await asyncio.sleep(wait)
        self._board.touch()
