"""One watch of a collection: events, as the API server sends them, until it ends the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Generic, Literal, TypeVar, cast

import msgspec

from swapwarden.kube import backoff, client

T = TypeVar("T")

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]

WATCH_SECONDS = (270, 330)
"""How long one watch lasts, drawn at random so that many watchers do not come back at once."""

SILENCE_SECONDS = 30.0
"""How much longer than it should last a watch may stay silent before it counts as dead."""

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Larger than any object that etcd takes (1.5 MiB by default)."""


class Expired(Exception):  # noqa: N818 the name says what is the matter
    """The resource version is too old to watch from (410 Gone): list again."""


class Event(msgspec.Struct, Generic[T], frozen=True):
    """One change."""

    type: EventType
    object: T | None
    """None for a BOOKMARK, which carries a version and nothing else."""
    resource_version: str


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str


class _Versioned(msgspec.Struct):
    metadata: _Metadata


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 500
    reason: str = ""
    message: str = ""


_LINES = msgspec.json.Decoder(_Line)
_VERSIONS = msgspec.json.Decoder(_Versioned)
_STATUSES = msgspec.json.Decoder(_Status)


async def watch(
    api: client.Client,
    path: str,
    *,
    resource_version: str,
    params: Mapping[str, str] | None = None,
    decode: Callable[[bytes], T],
    silence: float = SILENCE_SECONDS,
) -> AsyncGenerator[Event[T], None]:
    """Yield the events after `resource_version`, which is that of a list or of an event.

    Ends when the server ends the watch, or the connection breaks. Raises Expired (410), client.ApiError (other ERROR
    events and refusals), client.Unreachable (no connection, silent for too long, or not a watch's answer), and what
    `decode` raises.
    """
    seconds = round(backoff.between(*WATCH_SECONDS))
    query = {
        **(params or {}),
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": resource_version,
        "timeoutSeconds": str(seconds),
    }
    try:
        async with api.stream(path, params=query) as pieces:
            lines = _Lines()
            while True:
                try:
                    async with asyncio.timeout(seconds + silence):
                        piece = await anext(pieces)
                except (StopAsyncIteration, EOFError):
                    # What there is of an unfinished line comes again after the version that was last seen.
                    return
                except TimeoutError as error:
                    raise client.Unreachable(f"the watch was silent for {seconds + silence:g} s") from error
                for line in lines.cut(piece):
                    yield _event(line, decode)
    except client.ApiError as error:
        if error.status == 410:
            raise Expired(error.message) from error
        raise


def _event(line: bytes, decode: Callable[[bytes], T]) -> Event[T]:
    try:
        parsed = _LINES.decode(line)
        if parsed.type == "ERROR":
            status = _STATUSES.decode(parsed.object)
            raise client.ApiError(status.code, status.reason, status.message or "the watch failed")
        if parsed.type not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
            raise client.Unreachable(f"the watch sent an event of unknown type {parsed.type!r}")
        version = _VERSIONS.decode(parsed.object).metadata.resource_version
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise client.Unreachable(f"the watch sent a line that is not an event: {error}") from error
    decoded = None if parsed.type == "BOOKMARK" else decode(bytes(parsed.object))
    return Event(cast("EventType", parsed.type), decoded, version)


class _Lines:
    """Cuts pieces into lines."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def cut(self, piece: bytes) -> list[bytes]:
        """Give the lines that end in this piece, less empty ones; keep what follows."""
        *ends, rest = piece.split(b"\n")
        lines = []
        for end in ends:
            line = b"".join([*self._parts, end])
            self._parts, self._size = [], 0
            if line.strip():
                lines.append(line)
        self._parts.append(rest)
        self._size += len(rest)
        if self._size > MAX_LINE_BYTES:
            raise client.Unreachable(f"the watch sent a line of more than {MAX_LINE_BYTES >> 20} MiB")
        return lines
