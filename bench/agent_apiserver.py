"""An imitated API server for one agent: a state, and watches like a real one's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import sys
import time
from pathlib import Path
from typing import Final
from urllib import parse

from bench.cgroups import MIB, uids

NODE: Final = "bench"
SERVER: Final = "apiserver"
ADDRESS: Final = "127.0.0.1"
LIMIT: Final = 64 * MIB
LOW: Final = 64 * MIB
BOOKMARK_SECONDS: Final = 60


class ApiServer:
    """One state, written by others; it accepts every write to it. Watches are like those of a real API server.

    Each ends at its timeoutSeconds. Bookmarks are sent a minute after its begin and two seconds before its end, if
    states of other nodes have changed since it began (k/k: apiserver's storage/cacher/cache_watcher.go): here they
    always have.
    """

    def __init__(self, count: int, *, memory_qos: bool) -> None:
        self._pods = uids(count)
        low = {"memoryLow": str(count * LOW)}
        self._above = {"kubepods": low, "burstable": low} if memory_qos else {}
        self._memory = {"memoryLow": str(LOW), "memoryHigh": str(2 * LOW)} if memory_qos else {}
        self._version = self._written = 1
        self._generation = 0
        self._watching: set[asyncio.StreamWriter] = set()
        self.put(LIMIT)

    def put(self, limit: int, guarantee: str = "Standard") -> None:
        """Give all pods another limit, under a guarantee, and send it to all watchers."""
        self._generation += 1
        self._version += 1
        self._written = self._version
        pods = {uid: {"swapMax": str(limit), "reason": "LimitedSwap", **self._memory} for uid in self._pods}
        metadata = {"name": NODE, "uid": "u", "resourceVersion": str(self._version), "generation": self._generation}
        spec = {"profileRef": {"name": "p"}, "guarantee": guarantee, "pods": pods, **self._above}
        item = {"metadata": metadata, "spec": spec}
        # Ready before anything is measured: the real one is not on the node.
        self._item = json.dumps(item).encode()
        self._event = b'{"type": "MODIFIED", "object": ' + self._item + b"}\n"
        for writer in self._watching:
            _chunk(writer, self._event)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: *([0-9]+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                if b"watch=true" in head:
                    await self._watch(
                        writer, int(_parameter(head, "timeoutSeconds")), _parameter(head, "resourceVersion")
                    )
                else:
                    listed = b'{"metadata": {"resourceVersion": "%d"}, "items": [%b]}' % (self._version, self._item)
                    body = listed if head.startswith(b"GET") else self._item
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()

    async def _watch(self, writer: asyncio.StreamWriter, seconds: int, version: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        if int(version) < self._written:
            _chunk(writer, self._event)
        self._watching.add(writer)
        begun = time.monotonic()
        try:
            for at in (BOOKMARK_SECONDS, seconds - 2):
                if at <= seconds - 2:
                    await asyncio.sleep(begun + at - time.monotonic())
                    self._version += 1
                    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self._version)}}}
                    _chunk(writer, json.dumps(bookmark).encode() + b"\n")
            await asyncio.sleep(begun + seconds - time.monotonic())
        finally:
            self._watching.remove(writer)
        writer.write(b"0\r\n\r\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n" % len(data) + data + b"\r\n")


def _parameter(head: bytes, name: str) -> str:
    """Return a parameter of the query in a request's head."""
    return parse.parse_qs(parse.urlsplit(head.split(None, 2)[1].decode()).query)[name][0]


async def serve(count: int, folder: Path, *, memory_qos: bool) -> None:
    """Imitate the API server, with memory in its states or without.

    Each line on standard input has limit and guarantee of the next state.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / f"{SERVER}.crt", folder / f"{SERVER}.key")
    played = ApiServer(count, memory_qos=memory_qos)
    server = await asyncio.start_server(played.answer, ADDRESS, 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        limit, guarantee = line.split()
        played.put(int(limit), guarantee)
