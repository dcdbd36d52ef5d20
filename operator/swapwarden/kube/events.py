"""Report to users what happened to their objects, by core/v1 Events.

Events are a courtesy: no code waits for one. If there are too many, or the API server accepts none, some are lost and
counted. A repetition raises the count of the existing Event, as in client-go's tools/record. One tenant's warnings
crowd out no other's: namespaces take turns, each cluster-scoped object counts as one, and no object has more than a few
events in a short time. Urgent events have their own queue and three of four turns.

By hand: no Python client has a recorder that counts repetitions and is fair to namespaces.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import hashlib
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from swapwarden.api import formats
from swapwarden.api.notices import EventType, Notice, Regarding
from swapwarden.kube import backoff, client, errors, ratelimit
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

EVENTS = metrics.counter(
    "swapwarden_events_total",
    "Events: created, repeated (count raised), failed (refused by the API server), dropped (too many at once).",
    labels=("result",),
    known=[("created",), ("repeated",), ("failed",), ("dropped",)],
)
WAITING = metrics.gauge(
    "swapwarden_events_waiting",
    "Events waiting to be sent to the API server. Of more than 1,000 urgent ones, and of more than 1,000 others,"
    " those of the namespace with most of them are dropped.",
)

K = TypeVar("K")
V = TypeVar("V")

MAX_MESSAGE_BYTES: Final = 1024
MAX_NAME: Final = 253
MAX_WAITING: Final = 1000
MAX_REMEMBERED: Final = 1000
REPEAT_SECONDS: Final = 600.0
"""A repetition after more seconds than this is a new Event."""
BURST: Final = 100
PER_SECOND: Final = 5.0
OBJECT_BURST: Final = 25
OBJECT_PER_SECOND: Final = 1 / 300
"""Limits for each object, except for urgent events; as client-go (tools/record/events_cache.go)."""
MAX_OBJECTS: Final = 4096
OF_OTHERS: Final = 4
"""One of this many turns is for events that are not urgent."""
TRIES: Final = 5
BACKOFF_SECONDS: Final = (1.0, 30.0)
PASSING: Final = {401, 408, 429}
"""Refusals, beside 500 and above, after which a retry may succeed."""


class _Happening(NamedTuple):
    """The identity of an event: equal ones are counted together."""

    regarding: Regarding
    type: EventType
    reason: str
    message: str
    """Empty for an urgent event, of which only the last message is sent."""


@dataclasses.dataclass
class _WaitingEvent:
    """An event in a queue, with its number of repetitions so far."""

    name: str
    message: str
    first: str
    last: str
    count: int = 1
    once: bool = False


@dataclasses.dataclass(frozen=True)
class _Sent:
    """An Event that exists at the API server."""

    name: str
    count: int
    at: float


def bounded(message: str) -> str:
    """Return the message in at most MAX_MESSAGE_BYTES of UTF-8, with an ellipsis if it was cut."""
    encoded = message.encode("utf-8", "replace")
    if len(encoded) > MAX_MESSAGE_BYTES:
        encoded = encoded[: MAX_MESSAGE_BYTES - 3].decode("utf-8", "ignore").encode() + b"..."
    return encoded.decode()


def event_name(regarding: str, key: str = "") -> str:
    """Return a name for an Event about the object of this name: `<object>.<16 hexadecimal digits>`.

    Without `key`, each call returns a new name.
    """
    suffix = f".{hashlib.sha256(key.encode()).hexdigest()[:16] if key else secrets.token_hex(8)}"
    # A part between dots neither begins nor ends with a dash.
    return re.sub(r"[^a-z0-9]+$", "", regarding[: MAX_NAME - len(suffix)]) + suffix


class FairQueue(Generic[K, V]):
    """At most `size` entries by key, each of one owner. An owner's entries leave in the order in which they came."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._count = 0
        # The next owner to be served is first.
        self._owners: collections.OrderedDict[str, dict[K, V]] = collections.OrderedDict()

    def __len__(self) -> int:
        return self._count

    def get(self, owner: str, key: K) -> V | None:
        """Return the waiting entry; None if there is none."""
        return self._owners.get(owner, {}).get(key)

    def put(self, owner: str, key: K, value: V) -> bool:
        """Add an entry whose key does not wait yet; return whether no entry was lost for it, itself included.

        In a full queue, the newest entry of the owner with most of them makes room. An entry is refused if its owner
        has its fair share or more, or if it could only replace another owner's only entry.
        """
        room = self._count < self._size
        if not room:
            own = len(self._owners.get(owner, ()))
            if own * len(self._owners) >= self._count:
                return False
            longest = max(self._owners, key=lambda each: len(self._owners[each]))
            if len(self._owners[longest]) <= own + 1:
                return False
            self._owners[longest].popitem()
            self._count -= 1
        self._owners.setdefault(owner, {})[key] = value
        self._count += 1
        return room

    def pop(self) -> tuple[K, V]:
        """Remove and return the oldest entry of the owner whose turn it is. KeyError if the queue is empty."""
        owner, entries = self._owners.popitem(last=False)
        key = next(iter(entries))
        value = entries.pop(key)
        self._count -= 1
        if entries:
            self._owners[owner] = entries
        return key, value


class _Queues:
    """Waiting events: urgent ones, which have three of four turns, and others."""

    def __init__(self) -> None:
        self.urgent = FairQueue[_Happening, _WaitingEvent](MAX_WAITING)
        self.others = FairQueue[_Happening, _WaitingEvent](MAX_WAITING)
        self._turn = 0

    def __len__(self) -> int:
        return len(self.urgent) + len(self.others)

    def pop(self) -> tuple[_Happening, _WaitingEvent]:
        """Remove and return the next one; the queue must not be empty."""
        self._turn = (self._turn + 1) % OF_OTHERS
        first, second = (self.urgent, self.others) if self._turn else (self.others, self.urgent)
        return (first or second).pop()


class Recorder:
    """Accept events from code in one event loop, and send them from there."""

    def __init__(
        self,
        api: client.Client,
        component: str,
        instance: str,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`component` and `instance` name the reporter; `now` and `sleep` count in seconds."""
        self._api = api
        self._source = {
            "source": {"component": component},
            "reportingComponent": component,
            "reportingInstance": instance,
        }
        self._now = now
        self._sleep = sleep
        self._bucket = ratelimit.Bucket(BURST, PER_SECOND, now())
        self._backoff = backoff.Backoff(*BACKOFF_SECONDS)
        self.queues = _Queues()
        self._objects = ratelimit.Buckets[Regarding](OBJECT_BURST, OBJECT_PER_SECOND, MAX_OBJECTS)
        self.busy = asyncio.Event()
        """Set while Events wait or are sent."""
        self._dropping = False
        # The oldest first.
        self._sent: collections.OrderedDict[_Happening, _Sent] = collections.OrderedDict()
        self._said: int | None = None

    def post(self, *notices: Notice) -> None:
        """Queue Events, or count those as dropped that are too many. Never blocks, never raises."""
        for notice in notices:
            self._post(notice)

    def _post(self, notice: Notice) -> None:
        regarding, kind, reason, message, key, urgent = notice
        text, owner = bounded(message), regarding.namespace or f"{regarding.kind}/{regarding.name}"
        happening = _Happening(regarding, kind, reason, "" if urgent else text)
        queue, stamp = self.queues.urgent if urgent else self.queues.others, formats.rfc3339(time.time())
        waiting = queue.get(owner, happening)
        if waiting is not None:
            waiting.count += not key
            waiting.last = stamp
            if urgent:
                waiting.message, waiting.name = text, event_name(regarding.name, key)
            return
        made = _WaitingEvent(event_name(regarding.name, key), text, stamp, stamp, once=key != "")
        allowed = urgent or self._objects.try_acquire(regarding, self._now())
        if not (allowed and queue.put(owner, happening, made)):
            EVENTS.inc("dropped")
            if not self._dropping:
                log.warning("too many events, about one object or in total: some are dropped")
            self._dropping = True
        if queue:
            WAITING.set(len(self.queues))
            self.busy.set()

    async def run(self) -> None:
        """Send what post() was given. Never returns."""
        while True:
            if not self.queues:
                self.busy.clear()
                self._dropping = False
            await self.busy.wait()
            await self._sleep(self._bucket.acquire(self._now()))
            # Take the event after the wait, so that repetitions during the wait are included.
            happening, waiting = self.queues.pop()
            WAITING.set(len(self.queues))
            await self._send(happening._replace(message=waiting.message), waiting)

    async def _send(self, happening: _Happening, waiting: _WaitingEvent) -> None:
        for tries in range(1, TRIES + 1):
            try:
                await self._write(happening, waiting)
            except errors.KubeError as error:
                if tries == TRIES or not _passes(error):
                    self._failed(happening, error)
                    return
                await self._sleep(self._backoff.after(error))
            else:
                self._backoff.reset()
                self._said = None
                return

    async def _write(self, happening: _Happening, waiting: _WaitingEvent) -> None:
        sent = None if waiting.once else self._sent.get(happening)
        if sent is not None and self._now() - sent.at <= REPEAT_SECONDS:
            try:
                await self._repeat(happening, sent, waiting)
            except errors.ApiError as error:
                if error.status != 404:
                    raise
                # The API server forgets Events after an hour, and administrators delete them.
                self._sent.pop(happening)
            else:
                return
        await self._create(happening, waiting)

    async def _repeat(self, happening: _Happening, sent: _Sent, waiting: _WaitingEvent) -> None:
        count = sent.count + waiting.count
        body = msgspec.json.encode({"count": count, "lastTimestamp": waiting.last})
        await self._api.merge_patch(f"{_collection(happening.regarding)}/{sent.name}", body)
        self._remember(happening, sent.name, count)
        EVENTS.inc("repeated")

    async def _create(self, happening: _Happening, waiting: _WaitingEvent) -> None:
        try:
            await self._api.post(_collection(happening.regarding), msgspec.json.encode(self._body(happening, waiting)))
        except errors.ApiError as error:
            # An earlier attempt succeeded without an answer; otherwise, only an event with the same key has this name.
            if error.reason != "AlreadyExists":
                raise
        self._remember(happening, waiting.name, waiting.count)
        EVENTS.inc("created")

    def _remember(self, happening: _Happening, name: str, count: int) -> None:
        self._sent[happening] = _Sent(name, count, self._now())
        self._sent.move_to_end(happening)
        if len(self._sent) > MAX_REMEMBERED:
            self._sent.popitem(last=False)

    def _body(self, happening: _Happening, waiting: _WaitingEvent) -> dict[str, object]:
        regarding = happening.regarding
        involved = {
            "apiVersion": regarding.api_version,
            "kind": regarding.kind,
            "namespace": regarding.namespace,
            "name": regarding.name,
            "uid": regarding.uid,
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": _namespace(regarding), "name": waiting.name},
            "involvedObject": {key: value for key, value in involved.items() if value},
            "type": happening.type,
            "reason": happening.reason,
            "message": happening.message,
            "count": waiting.count,
            "firstTimestamp": waiting.first,
            "lastTimestamp": waiting.last,
            **self._source,
        }

    def _failed(self, happening: _Happening, error: errors.KubeError) -> None:
        EVENTS.inc("failed")
        remedy = "; grant create and patch on events to this instance's service account" if error.status == 403 else ""
        # The same failure of all events is logged once.
        log.log(
            logging.DEBUG if error.status == self._said else logging.WARNING,
            "the event %s about %s %s is lost: %s%s",
            happening.reason,
            happening.regarding.kind,
            happening.regarding.name,
            error,
            remedy,
        )
        self._said = error.status


def _passes(error: errors.KubeError) -> bool:
    """Return whether a retry may succeed."""
    return error.status == 0 or error.status >= 500 or error.status in PASSING


def _namespace(regarding: Regarding) -> str:
    """Return an Event's namespace. For a cluster-scoped object it must be this one (k/k: apis/core/validation)."""
    return regarding.namespace or "default"


def _collection(regarding: Regarding) -> str:
    return f"/api/v1/namespaces/{_namespace(regarding)}/events"
