"""Keeps a row of every object of one collection, and tells of each change.

A row is what the caller projects an object to while it is decoded: 150,000 pods as the API sends them would take more
than a gigabyte. The collection is listed in pages and then watched; where the watch cannot be resumed it is listed
again, and what changed in between, deletions included, is found by comparison. Half a list is never shown.
"""

from __future__ import annotations

import asyncio
import logging
import time
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from swapwarden.kube import backoff, client, config, watch
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

OBJECTS = metrics.gauge("swapwarden_informer_objects", "Objects known.", labels=("resource",))
SYNCED = metrics.gauge("swapwarden_informer_synced", "1 once the whole collection was listed.", labels=("resource",))
LISTS = metrics.counter(
    "swapwarden_informer_lists_total", "Whole lists of the collection, by what for.", labels=("resource", "reason")
)
EVENTS = metrics.counter("swapwarden_informer_events_total", "Watch events by type.", labels=("resource", "type"))
ERRORS = metrics.counter(
    "swapwarden_informer_errors_total",
    "What went wrong: request (list or watch), object (not understood), handler (failed on a change).",
    labels=("resource", "kind"),
)
LAST_EVENT = metrics.gauge(
    "swapwarden_informer_last_event_timestamp_seconds",
    "When the watch last said something, bookmarks included; seconds since 1970.",
    labels=("resource",),
)

PAGE_SIZE: Final = 500
BACKOFF_SECONDS: Final = (0.5, 30.0)
QUICK_SECONDS: Final = 1.0
"""A watch without any event that ends sooner than this counts as failed."""
PAGED_TRIES: Final = 3
"""After so many lists whose continue token expired midway, the next one asks for all objects at once."""
RESUMES: Final = 2
"""After so many errors in a row that the server gave instead of events, the collection is listed anew."""


class Metadata(Protocol):
    """What a wire type's `metadata` must have."""

    @property
    def name(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


class Wire(Protocol):
    """What a wire type, a msgspec struct, must have. `metadata.namespace` and `metadata.uid` are optional."""

    @property
    def metadata(self) -> Metadata: ...


W = TypeVar("W", bound=Wire)
R = TypeVar("R")


class _ListMetadata(msgspec.Struct, rename={"resource_version": "resourceVersion", "next": "continue"}):
    resource_version: str = ""
    next: str = ""


class _Page(msgspec.Struct, Generic[W]):
    metadata: _ListMetadata
    items: list[W]


class _RawPage(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw]


class Informer(Generic[W, R]):
    """Rows of one collection; key `namespace/name`, or `name` where there is no namespace.

    `on_change(key, old, new)` is called in the event loop, once for each object at first, then whenever a row becomes
    another one; `old` or `new` is None where the object was not there before, or is gone. It must be quick: while it
    runs, nothing else is read.
    """

    def __init__(
        self,
        api: client.Client,
        path: str,
        *,
        wire: type[W],
        project: Callable[[W], R],
        name: str,
        on_change: Callable[[str, R | None, R | None], None],
        page_size: int = PAGE_SIZE,
        params: Mapping[str, str] | None = None,
    ) -> None:
        """`path` of the collection; `name` of it for logs and metrics; `params` such as selectors."""
        self._api = api
        self._path = path
        self._project = project
        self._name = name
        self._on_change = on_change
        self._page_size = page_size
        self._params = dict(params or {})
        self._objects: msgspec.json.Decoder[W] = msgspec.json.Decoder(wire)
        page: Any = _Page
        self._pages: msgspec.json.Decoder[_Page[W]] = msgspec.json.Decoder(page[wire])
        self._rows: dict[str, R] = {}
        self._versions: dict[str, str] = {}
        self._version = ""
        self._backoff = backoff.Backoff(*BACKOFF_SECONDS)
        self.rows: Mapping[str, R] = types.MappingProxyType(self._rows)
        self.synced = asyncio.Event()
        """Set once the whole collection was listed; stays set."""
        SYNCED.set(0, name)

    async def run(self) -> None:
        """Never returns."""
        reason = "start"
        while True:
            try:
                if not self._version:
                    await self._list(reason)
                await self._watch()
            except watch.Expired:
                reason, self._version = "expired", ""
                log.info("the watch of %s is too old; listing them again", self._name)
                await asyncio.sleep(self._backoff.next())
            except (client.ApiError, client.Unreachable, config.ConfigError, msgspec.MsgspecError) as error:
                ERRORS.inc(self._name, "request")
                wait = self._backoff.next()
                log.warning("cannot follow %s: %s; trying again in %.1f s", self._name, _with_remedy(error), wait)
                if self._version and isinstance(error, client.ApiError) and self._backoff.failures > RESUMES:
                    reason, self._version = "error", ""
                await asyncio.sleep(wait)

    async def _list(self, reason: str) -> None:
        """Read the whole collection, then compare it with what is known."""
        for attempt in range(PAGED_TRIES + 1):
            LISTS.inc(self._name, reason)
            try:
                found, version = await self._read(paged=attempt < PAGED_TRIES)
            except client.ApiError as error:
                if error.status != 410 or attempt == PAGED_TRIES:
                    raise
                # The list took longer than the server keeps old versions (5 minutes by default).
                reason = "continue-expired"
                log.warning("listing %s took too long, its continue token expired; starting over", self._name)
            else:
                self._replace(found)
                self._version = version
                self._backoff.reset()
                if not self.synced.is_set():
                    log.info("all %s are known", self._name, extra={"count": len(self._rows)})
                self.synced.set()
                SYNCED.set(1, self._name)
                return

    async def _read(self, *, paged: bool) -> tuple[dict[str, tuple[str, R]], str]:
        """List all; gives version and row by key, and the version of the list.

        No resourceVersion is asked for, so the answer is the newest there is: with "0" the server's cache may answer
        with the past (a deleted pod would be planned), and ignores the limit.
        """
        found: dict[str, tuple[str, R]] = {}
        params = dict(self._params)
        if paged:
            params["limit"] = str(self._page_size)
        while True:
            page = self._decode_page(await self._api.get(self._path, params=params))
            for wire in page.items:
                self._collect(wire, found)
            if not page.metadata.next:
                return found, page.metadata.resource_version
            params["continue"] = page.metadata.next

    def _decode_page(self, body: bytes) -> _Page[W]:
        try:
            return self._pages.decode(body)
        except msgspec.ValidationError:
            # One object that cannot be understood must not hide all others.
            raw = msgspec.json.decode(body, type=_RawPage)
            decoded = (self._decode(bytes(item)) for item in raw.items)
            return _Page(raw.metadata, [wire for wire in decoded if wire is not None])

    def _decode(self, body: bytes) -> W | None:
        try:
            return self._objects.decode(body)
        except msgspec.MsgspecError as error:
            ERRORS.inc(self._name, "object")
            log.error("one of %s cannot be understood and is left out: %s", self._name, error)  # noqa: TRY400 the text says all
            return None

    def _collect(self, wire: W, found: dict[str, tuple[str, R]]) -> None:
        key, version = _key(wire.metadata), wire.metadata.resource_version
        row = self._rows[key] if self._versions.get(key) == version else self._row(key, wire)
        if row is not None:
            found[key] = (version, row)

    def _row(self, key: str, wire: W) -> R | None:
        """Project an object; where that fails, what was known of it goes on to count."""
        try:
            return self._project(wire)
        except Exception:
            ERRORS.inc(self._name, "object")
            log.exception("%s of %s cannot be understood; what was known of it stays", key, self._name)
            return self._rows.get(key)

    def _replace(self, found: dict[str, tuple[str, R]]) -> None:
        gone = [key for key in self._rows if key not in found]
        changes: list[tuple[str, R | None, R | None]] = [(key, self._drop(key), None) for key in gone]
        changes += [(key, self._rows.get(key), self._put(key, version, row)) for key, (version, row) in found.items()]
        OBJECTS.set(len(self._rows), self._name)
        for key, old, new in changes:
            self._tell(key, old, new)

    async def _watch(self) -> None:
        """Follow the collection from the last version on, until the server ends the answer."""
        begun, heard = time.monotonic(), False
        events = watch.watch(
            self._api, self._path, resource_version=self._version, params=self._params, decode=self._decode
        )
        async for event in events:
            self._take(event)
            if not heard:
                heard = True
                self._backoff.reset()
        if not heard and time.monotonic() - begun < QUICK_SECONDS:
            await asyncio.sleep(self._backoff.next())

    def _take(self, event: watch.Event[W | None]) -> None:
        EVENTS.inc(self._name, event.type)
        LAST_EVENT.set(time.time(), self._name)
        self._version = event.resource_version or self._version
        if event.object is None:
            return
        key = _key(event.object.metadata)
        if event.type == "DELETED":
            self._tell(key, self._drop(key), None)
        else:
            row = self._row(key, event.object)
            if row is not None:
                self._tell(key, self._rows.get(key), self._put(key, event.resource_version, row))
        OBJECTS.set(len(self._rows), self._name)

    def _put(self, key: str, version: str, row: R) -> R:
        self._rows[key] = row
        self._versions[key] = version
        return row

    def _drop(self, key: str) -> R | None:
        self._versions.pop(key, None)
        return self._rows.pop(key, None)

    def _tell(self, key: str, old: R | None, new: R | None) -> None:
        if old == new:
            return
        try:
            self._on_change(key, old, new)
        except Exception:
            ERRORS.inc(self._name, "handler")
            log.exception("a change of %s %s could not be handled", self._name, key)


def _key(metadata: Metadata) -> str:
    namespace = getattr(metadata, "namespace", "")
    return f"{namespace}/{metadata.name}" if namespace else metadata.name


def _with_remedy(error: Exception) -> str:
    match error:
        case client.ApiError(status=401):
            return f"{error}: the token is not accepted; is the service account still there?"
        case client.ApiError(status=403):
            return f"{error}: grant list and watch, as in deploy/manifests"
        case client.ApiError(status=404):
            return f"{error}: is the CustomResourceDefinition installed?"
        case _:
            return str(error)
