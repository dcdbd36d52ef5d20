"""An HTTP server on loopback that gives scripted answers, one for each request in the order in which they come.

An answer is a list of parts, sent one after the other: bytes; an `asyncio.Event` to wait for; CUT closes the
connection, RESET breaks it, HANG waits until the client closes it. A request without an answer also hangs.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import enum
import json
import socket
import struct
import urllib.parse
from collections.abc import Callable
from typing import Any, Self


class Do(enum.Enum):
    CUT = "cut"
    RESET = "reset"
    HANG = "hang"


CUT, RESET, HANG = Do.CUT, Do.RESET, Do.HANG
Part = bytes | asyncio.Event | Do
Json = dict[str, Any]


async def until(condition: Callable[[], object], timeout: float = 5.0) -> None:  # noqa: ASYNC109 it is one
    """Wait until a condition holds."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 what is waited for knows of no event
            await asyncio.sleep(0.001)


@dataclasses.dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    connection: int
    """Which of the server's connections, counted from 1."""


class Scripted:
    """Use it as an async context manager."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.open = 0
        self.sent = 0
        """Bytes that were sent, or wait in a buffer of the kernel's or of one connection."""
        self._script: collections.deque[tuple[Part, ...]] = collections.deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def unused(self) -> int:
        """Answers that no request has taken yet."""
        return len(self._script)

    def answer(self, *parts: Part) -> None:
        """Put an answer at the end of the script."""
        self._script.append(parts)

    async def seen(self, count: int) -> None:
        """Wait until so many requests have come."""
        await until(lambda: len(self.requests) >= count)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer, self.connections))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.open += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    self.requests.append(await _read(reader, number))
                    for part in self._script.popleft() if self._script else (HANG,):
                        if not await _write(reader, writer, part):
                            return
                        self.sent += len(part) if isinstance(part, bytes) else 0
        finally:
            self.open -= 1
            writer.close()


async def _read(reader: asyncio.StreamReader, number: int) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    url = urllib.parse.urlsplit(target)
    return Request(method, url.path, dict(urllib.parse.parse_qsl(url.query)), headers, body, number)


async def _write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, part: Part) -> bool:
    """Send a part of an answer; whether the connection stays."""
    if isinstance(part, bytes):
        writer.write(part)
        await writer.drain()
        # So that each part is read by itself.
        await asyncio.sleep(0)
    elif isinstance(part, asyncio.Event):
        await part.wait()
    elif part is HANG:
        await reader.read()
    elif part is RESET:
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return not isinstance(part, Do)


def head(status: int = 200, **headers: str) -> bytes:
    """Status line and headers; underscores in names are dashes."""
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name.replace('_', '-')}: {text}" for name, text in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def plain(body: bytes, status: int = 200, **headers: str) -> bytes:
    """A whole answer with a Content-Length."""
    return head(status, Content_Length=str(len(body)), **headers) + body


def reply(body: Json, status: int = 200, **headers: str) -> bytes:
    """A whole answer in JSON."""
    return plain(json.dumps(body).encode(), status, Content_Type="application/json", **headers)


def failure(status: int, reason: str, message: str, **headers: str) -> bytes:
    """A whole answer with a metav1.Status."""
    return reply({"kind": "Status", "code": status, "reason": reason, "message": message}, status, **headers)


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked answer; the empty one is the last."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


STREAM = head(Transfer_Encoding="chunked")
END = chunk(b"")


def line(kind: str, obj: Json) -> bytes:
    """One event of a watch."""
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def event(kind: str, obj: Json) -> bytes:
    """One event of a watch, in a chunk of its own."""
    return chunk(line(kind, obj))


def configmap(name: str, version: int | str, value: str = "", *, uid: str = "", namespace: str = "n") -> Json:
    """An object as small as they come."""
    metadata = {"namespace": namespace, "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "data": {"value": value}}


def bookmark(version: int | str) -> bytes:
    """A bookmark, in a chunk of its own."""
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version), "creationTimestamp": None}})


def error(code: int, reason: str, message: str = "no") -> bytes:
    """An ERROR event, in a chunk of its own."""
    return event("ERROR", {"kind": "Status", "code": code, "reason": reason, "message": message})


def page(items: list[Json], version: int | str, following: str = "") -> bytes:
    """One page of a list."""
    return reply({"metadata": {"resourceVersion": str(version), "continue": following}, "items": items})
