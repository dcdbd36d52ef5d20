"""Keep a row of every object of one collection, and report each change.

The caller projects an object to a row while it is decoded: 150,000 pods as the API sends them would take more than a
gigabyte. The collection is listed in pages and then watched. If the watch cannot be resumed, the collection is listed
again, and comparison finds all changes in between, deletions included. Half a list is never shown.

By hand: it lists 12,306 pods a second in 60 MiB, where json.loads and http.client list 1,391 in 134 MiB
(docs/design/measurements.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import types
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from swapwarden.api import decoding
from swapwarden.kube import backoff, errors, paging, transport, watch
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

OBJECTS = metrics.gauge("swapwarden_informer_objects", "Known objects of a resource.", labels=("resource",))
SYNCED = metrics.gauge(
    "swapwarden_informer_synced", "1 once all objects of a resource have been listed.", labels=("resource",)
)
LISTS = metrics.counter(
    "swapwarden_informer_lists_total",
    "Lists of a resource, by reason: start, expired (the watch was too far behind), error, unwatched"
    " (there are objects that the API server cannot watch).",
    labels=("resource", "reason"),
)
EVENTS = metrics.counter(
    "swapwarden_informer_events_total", "Watch events of a resource by type.", labels=("resource", "type")
)
ERRORS = metrics.counter(
    "swapwarden_informer_errors_total",
    "Errors of a resource: request (list or watch), object (invalid), handler (failed on a change),"
    " internal (a fault of this program).",
    labels=("resource", "kind"),
)
LEFT_OUT = metrics.gauge(
    "swapwarden_informer_objects_left_out",
    "Objects of a resource whose current version is invalid: their last valid version stays in effect.",
    labels=("resource",),
)
LAST_EVENT = metrics.gauge(
    "swapwarden_informer_last_event_timestamp_seconds",
    "Time of the last event of a resource's watch, or of its regular end, in seconds since 1970. Without changes a"
    " watch ends about once a minute and begins again: up to a minute and a half is no lag. Profiles are listed once a"
    " minute.",
    labels=("resource",),
)

BACKOFF_SECONDS: Final = (0.5, 30.0)
QUICK_SECONDS: Final = 1.0
"""A watch that ends sooner counts as failed."""
RESUMES: Final = 2
"""After this many errors in a row without an event, list the collection again: the version may be the cause."""
LATER: Final = {401, 403, 429, 503}
"""Statuses that do not depend on the version. A list would only add to the load of a busy server."""


class WireMetadata(Protocol):
    """The fields that a wire type's `metadata` must have; `namespace` is optional."""

    @property
    def name(self) -> str: ...


class Wire(Protocol):
    """The fields that a wire type, a msgspec struct, must have."""

    @property
    def metadata(self) -> WireMetadata: ...


W = TypeVar("W", bound=Wire)
R = TypeVar("R")
T = TypeVar("T")


class _Page(msgspec.Struct, Generic[W]):
    metadata: decoding.ListMetadata
    items: list[W]


class _Collection:
    """One collection at the API server."""

    def __init__(self, api: transport.Reader, path: str, params: Mapping[str, str], page_size: int) -> None:
        self._api = api
        self._path = path
        self._params = dict(params)
        self._page_size = page_size
        self.alone: frozenset[str] = frozenset()
        """Names of objects that the API server can neither list nor watch."""

    async def list(self, take: Callable[[bytes], decoding.ListMetadata]) -> paging.Listed:
        """Read all pages.

        The request names no resourceVersion, so the answer is the newest. With "0", the server's cache may answer with
        the past (a deleted pod would be planned), and ignores the limit.
        """
        return await paging.read(self._api.get, self._path, take, self._params, self._page_size)

    def watch(self, version: str, decode: Callable[[bytes], T]) -> AsyncGenerator[watch.WatchEvent[T], None]:
        """Yield the events after a version, without those of objects that end a watch."""
        params = paging.without(self._params, self.alone)
        return watch.watch(self._api, self._path, resource_version=version, params=params, decode=decode)


class _Projector(Generic[W, R]):
    """Project objects to rows. An invalid object keeps the row of its last valid version."""

    def __init__(self, name: str, wire: type[W], project: Callable[[W], R], known: Mapping[str, R]) -> None:
        self._name = name
        self._project = project
        self._known = known
        self._objects = decoding.Decoder(wire)
        page: Any = _Page
        self._pages: decoding.Decoder[_Page[W]] = decoding.Decoder(page[wire])
        self.left_out = set[str]()
        """Keys of objects whose current version is invalid."""

    def page(self, body: bytes, rows: dict[str, R], left_out: set[str]) -> decoding.ListMetadata:
        """Add the rows of one page, and the keys of its invalid objects. msgspec.DecodeError if it is no list."""
        objects: Iterable[tuple[str, W | None]]
        try:
            page = self._pages.decode(body)
        except msgspec.DecodeError:
            # One invalid object must not hide all others.
            raw = decoding.page(body)
            metadata, objects = raw.metadata, (self.decode(item) for item in raw.items or ())
        else:
            metadata, objects = page.metadata, ((_key(wire.metadata), wire) for wire in page.items)
        if not metadata.resource_version:
            raise msgspec.DecodeError(f"the list of {self._name} has no resourceVersion")
        for key, wire in objects:
            understood, row = self.row(key, wire)
            if not understood:
                left_out.add(key)
            if row is not None:
                rows[key] = row
        return metadata

    def decode(self, body: bytes | msgspec.Raw) -> tuple[str, W | None]:
        """Return the key and the object; None for an invalid one."""
        try:
            wire = self._objects.decode(body)
        except msgspec.DecodeError as error:
            key = _key(decoding.identity(body))
            if not key:
                raise
            ERRORS.inc(self._name, "object")
            if key not in self.left_out:
                log.error(  # noqa: TRY400 the text says all
                    "%s of %s is invalid; its last valid version stays in effect: %s",
                    decoding.shown(key),
                    self._name,
                    error,
                )
            return key, None
        return _key(wire.metadata), wire

    def row(self, key: str, wire: W | None) -> tuple[bool, R | None]:
        """Return whether an object is valid, and its row; for an invalid object, the row of its last valid version."""
        if wire is None:
            return False, self._known.get(key)
        try:
            return True, self._project(wire)
        except Exception:
            ERRORS.inc(self._name, "object")
            if key not in self.left_out:
                log.exception(
                    "%s of %s is invalid; its last valid version stays in effect", decoding.shown(key), self._name
                )
            return False, self._known.get(key)

    def leave_out(self, keys: set[str]) -> None:
        """Set the keys of all invalid objects."""
        self.left_out = keys
        LEFT_OUT.set(len(keys), self._name)


class Informer(Generic[W, R]):
    """Rows of one collection; key `namespace/name`, or `name` without a namespace.

    `on_change(key, old, new)` is called in the event loop, once for each object at first, then for each changed row.
    `old` is None for a new object, `new` for a deleted one. The call must be quick: nothing else is read while it runs.
    """

    def __init__(
        self,
        api: transport.Reader,
        path: str,
        *,
        wire: type[W],
        project: Callable[[W], R],
        name: str,
        on_change: Callable[[str, R | None, R | None], None],
        page_size: int = paging.PAGE_SIZE,
        params: Mapping[str, str] | None = None,
    ) -> None:
        """`path` of the collection; `name` of it for logs and metrics; `params` such as selectors."""
        self.name = name
        LISTS.begin((name, reason) for reason in ("start", "expired", "error", "unwatched"))
        ERRORS.begin((name, kind) for kind in ("request", "object", "handler", "internal"))
        self._on_change = on_change
        self._collection = _Collection(api, path, params or {}, page_size)
        self._rows: dict[str, R] = {}
        self._projector = _Projector(name, wire, project, self._rows)
        self._version = ""
        self._errors = 0
        self.backoff: Final = backoff.Backoff(*BACKOFF_SECONDS)
        """Waits after failures of the list and the watch."""
        self.rows: Mapping[str, R] = types.MappingProxyType(self._rows)
        self.synced = asyncio.Event()
        """Set once the whole collection has been listed; remains set."""
        self.heard = time.monotonic()
        """When the API server last reported on the collection, on the clock of time.monotonic()."""
        SYNCED.set(0, name)
        LEFT_OUT.set(0, name)

    async def run(self) -> None:
        """Run until cancelled, whatever fails. Cancelling removes the gauges."""
        try:
            await self._follow()
        finally:
            for gauge in (OBJECTS, SYNCED, LAST_EVENT, LEFT_OUT):
                gauge.remove(self.name)

    async def _follow(self) -> None:
        reason = "start"
        while True:
            wait = 0.0
            try:
                if not self._version:
                    await self._list(reason)
                await self._watch()
                if self._collection.alone:
                    reason, self._version = "unwatched", ""
            except watch.Expired as error:
                reason, self._version, wait = "expired", "", self.backoff.next()
                log.info(
                    "the known version of %s is too old to continue from (%s); listing them again", self.name, error
                )
            except (errors.KubeError, msgspec.DecodeError) as error:
                wait = self._failed("request", error)
                log.warning("cannot follow %s: %s; trying again in %.1f s", self.name, _with_remedy(error), wait)
            except Exception as error:
                wait = self._failed("internal", error)
                log.exception("cannot follow %s; trying again in %.1f s", self.name, wait)
            if self._errors > RESUMES:
                reason, self._version = "error", ""
            await asyncio.sleep(wait)

    def _failed(self, kind: str, error: Exception) -> float:
        """Count an error; return the seconds to wait."""
        ERRORS.inc(self.name, kind)
        self._errors += _may_be_the_version(error)
        return self.backoff.after(error)

    async def _list(self, reason: str) -> None:
        """Read the whole collection, then compare it with the rows."""
        LISTS.inc(self.name, reason)
        rows: dict[str, R] = {}
        left_out = set[str]()
        listed = await self._collection.list(lambda body: self._projector.page(body, rows, left_out))
        self._replace(rows)
        self._projector.leave_out(left_out)
        self._version, self._errors = listed.resource_version, 0
        if listed.alone - self._collection.alone:
            log.warning(
                "the API server can neither list nor watch %s of %s: they are nested too deeply; they are read one by"
                " one, about once a minute",
                ", ".join(map(decoding.shown, sorted(listed.alone)[:5])),
                self.name,
                extra={"count": len(listed.alone)},
            )
        self._collection.alone = listed.alone
        if not self.synced.is_set():
            log.info("all %s are known", self.name, extra={"count": len(self._rows)})
        self.heard = time.monotonic()
        self.synced.set()
        SYNCED.set(1, self.name)

    def _replace(self, rows: dict[str, R]) -> None:
        before = dict(self._rows)
        self._rows.clear()
        self._rows.update(rows)
        OBJECTS.set(len(rows), self.name)
        for key, old in before.items():
            if key not in rows:
                self._notify(key, old, None)
        for key, new in rows.items():
            self._notify(key, before.get(key), new)

    async def _watch(self) -> None:
        """Follow the collection from the last version on, until the server ends the answer."""
        begun = time.monotonic()
        async with contextlib.aclosing(self._collection.watch(self._version, self._projector.decode)) as events:
            async for event in events:
                self._take(event)
        seconds = time.monotonic() - begun
        if seconds < QUICK_SECONDS:
            raise watch.Broken(f"the watch ended after {seconds:.1f} s")
        self.heard = time.monotonic()
        LAST_EVENT.set(time.time(), self.name)  # The server has reported all changes until then.
        self.backoff.reset()

    def _take(self, event: watch.WatchEvent[tuple[str, W | None]]) -> None:
        EVENTS.inc(self.name, event.type)
        self.heard = time.monotonic()
        LAST_EVENT.set(time.time(), self.name)
        self._version, self._errors = event.resource_version, 0
        self.backoff.reset()
        if event.object is None:
            return
        key, wire = event.object
        old = self._rows.get(key)
        understood, new = (True, None) if event.type == "DELETED" else self._projector.row(key, wire)
        left_out = self._projector.left_out
        if understood == (key in left_out):
            self._projector.leave_out(left_out - {key} if understood else left_out | {key})
        if new is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = new
        OBJECTS.set(len(self._rows), self.name)
        self._notify(key, old, new)

    def _notify(self, key: str, old: R | None, new: R | None) -> None:
        if old == new:
            return
        try:
            self._on_change(key, old, new)
        except Exception:
            ERRORS.inc(self.name, "handler")
            log.exception("a change of %s %s could not be handled", self.name, key)


def _key(metadata: WireMetadata) -> str:
    namespace = getattr(metadata, "namespace", "")
    return f"{namespace}/{metadata.name}" if namespace else metadata.name


def _may_be_the_version(error: Exception) -> bool:
    """Return whether a new list may help, rather than another watch from the same version."""
    if isinstance(error, errors.ApiError):
        return error.status not in LATER
    return not isinstance(error, errors.Unreachable | errors.ConfigError) or isinstance(error, watch.Broken)


def _with_remedy(error: Exception) -> str:
    match error:
        case errors.ApiError(status=401):
            return f"{error}: the token is not accepted; is the service account still there?"
        case errors.ApiError(status=403):
            return f"{error}: grant list and watch, as the chart does"
        case errors.ApiError(status=404):
            return f"{error}: is the CustomResourceDefinition installed?"
        case _:
            return str(error)
