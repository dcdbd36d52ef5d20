"""Connections to the webhook's port: counted from TCP on, with bounds for each state of a connection.

aiohttp alone bounds idle clients only. The API server speaks at once: its TLS handshake, its request, the request's
body. Other clients may also connect. Their unfinished business must neither fill the memory nor keep the API server
out. If there are too many connections, the longest waiting ones of the address with most of them give way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from aiohttp import web

from swapwarden.telemetry import listener, metrics

log = logging.getLogger(__name__)

MAX_SILENT: Final = 512
"""TCP connections that have not sent the beginning of a handshake, and as many whose handshake waits for others."""

MAX_HANDSHAKES: Final = 256
"""TLS handshakes at a time: each takes some 50 kB."""

MAX_CONNECTIONS: Final = 512
"""Connections after the handshake."""

MAX_FILES: Final = 4096
"""Files that the process should be able to open: all of the above, and some."""

READ_TIMEOUT: Final = 10.0
"""Seconds for a connection's first byte, for a TLS handshake, for a request's head, and for its body."""

MAX_HANDSHAKES_OF_PEER: Final = 128
"""Handshakes of one address."""

STALLED_AFTER: Final = 1.0
"""Seconds after which a handshake gives way to one that waits for its place. A busy node is slow, not stalled."""

IDLE_TIMEOUT: Final = 120.0
"""Seconds. Longer than the 90 after which the API server closes idle connections: it should close first."""

DROPPED = metrics.counter(
    "swapwarden_webhook_dropped_connections_total",
    "Connections that were dropped to make room for others, by state: silent (no beginning of a handshake), handshake"
    " (not finished), request (not sent whole), idle (all requests answered), refused (a new one: all others were being"
    " answered).",
    labels=("state",),
    known=[("silent",), ("handshake",), ("request",), ("idle",), ("refused",)],
)
BAD_REQUESTS = metrics.counter(
    "swapwarden_webhook_bad_requests_total",
    "Requests that got no decision, by HTTP status: they were no admission request for a pod, did not arrive in time"
    " (408), or were some of too many large ones (503); 500 is a bug.",
    labels=("code",),
    known=[(code,) for code in ("400", "404", "405", "408", "413", "415", "500", "503")],
)

_RECORD_HEADER_BYTES: Final = 5
_HANDSHAKE_RECORD: Final = 0x16
_MAX_RECORD_BYTES: Final = 2**14
"""The start of TLS: a byte for the type, two for a version, two for the length of the rest (RFC 8446, section 5.1)."""


class Established:
    """Connections after their handshake."""

    def __init__(self) -> None:
        self.unfinished: listener.Crowd[Connection] = listener.Crowd(MAX_CONNECTIONS)
        """Connections whose next request has not arrived whole, or has not begun if it is the first."""
        self.idle: listener.Crowd[Connection] = listener.Crowd(MAX_CONNECTIONS)
        """Connections that were answered and have no request at the moment."""
        self.working = 0
        """The number of connections whose request is being answered."""
        self._open: dict[Connection, asyncio.Transport] = {}
        self.none_left = asyncio.Event()
        """Set while no connection is open."""
        self.none_left.set()

    def opened(self, connection: Connection, transport: asyncio.Transport) -> None:
        """Remember a connection for the shutdown."""
        self._open[connection] = transport
        self.none_left.clear()

    def lost(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._open.pop(connection, None)
        if not self._open:
            self.none_left.set()

    async def close(self) -> None:
        """Close all connections, also those that wait for their client to say goodbye."""
        for transport in list(self._open.values()):
            transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self.none_left.wait()

    def make_room(self) -> bool:
        """Return whether there is room for one more, if necessary by dropping another."""
        if len(self.unfinished) + len(self.idle) + self.working < MAX_CONNECTIONS:
            return True
        for state, crowd in (("request", self.unfinished), ("idle", self.idle)):
            if crowd.drop_one():
                DROPPED.inc(state)
                return True
        DROPPED.inc("refused")
        return False


class Connection(web.RequestHandler):
    """aiohttp's connection, with a time limit for the head of each request (aiohttp has one for idle clients only)."""

    __slots__ = ("_crowd", "_established", "_head_timer", "_working", "peer")

    def __init__(self, server: web.Server, established: Established, peer: str) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=IDLE_TIMEOUT,
            access_log=None,  # type: ignore[arg-type]  # None turns it off, says aiohttp's reference
            auto_decompress=False,
            lingering_time=1.0,
        )
        self.peer = peer
        self._established = established
        self._crowd: listener.Crowd[Connection] | None = None
        self._working = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._established.opened(self, cast("asyncio.Transport", transport))
        if self._established.make_room():
            self._expect_head()
        else:
            self.drop()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._enter(None)
        self._stop_timer()
        self._established.lost(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._crowd is self._established.idle:
            self._expect_head()
        super().data_received(data)

    def drop(self) -> None:
        """Close the connection at once."""
        self._enter(None)
        self._stop_timer()
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()

    def head_arrived(self) -> None:
        """Wait for the body, which has its own time limit."""
        self._stop_timer()

    def request_arrived(self) -> None:
        """Note that the body is complete: the rest depends on this process."""
        if self._crowd is not None:
            self._enter(None)
            self._working = True
            self._established.working += 1

    def request_ended(self) -> None:
        """Note that the next byte begins another request."""
        if self._working or self._crowd is not None:
            self._enter(self._established.idle)

    def _expect_head(self) -> None:
        self._enter(self._established.unfinished)
        self._stop_timer()
        self._head_timer = asyncio.get_running_loop().call_later(READ_TIMEOUT, self._cut)

    def _enter(self, crowd: listener.Crowd[Connection] | None) -> None:
        if self._crowd is not None:
            self._crowd.discard(self)
        if self._working:
            self._working = False
            self._established.working -= 1
        self._crowd = crowd
        if crowd is not None:
            crowd.add(self)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _cut(self) -> None:
        BAD_REQUESTS.inc("408")
        self.drop()


class _Handshake:
    """A TLS handshake in progress."""

    def __init__(self, door: Door, connection: socket.socket, peer: str) -> None:
        self.begun = asyncio.get_running_loop().time()
        self.peer = peer
        self._door, self._socket = door, connection
        self._passed_on = False
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        self._passed_on = True
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._door.connect(self.peer),
                self._socket,
                ssl=self._door.context,
                ssl_handshake_timeout=READ_TIMEOUT,
                ssl_shutdown_timeout=1.0,
            )
        except (OSError, TimeoutError) as error:
            log.debug("no TLS connection", extra={"peer": self.peer, "error": error})

    def drop(self) -> None:
        self.task.cancel()
        if not self._passed_on:  # It never will.
            self._socket.close()


class _WaitingConnection:
    """A connection whose handshake has to wait."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.socket, self.peer = connection, peer

    def drop(self) -> None:
        self.socket.close()


def _wake_after(connection: socket.socket, count: int) -> None:
    """Make the event loop report a connection once it has so many bytes, or has ended (socket(7), SO_RCVLOWAT)."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


class Door:
    """Take connections from TCP through their handshake."""

    def __init__(self, context: ssl.SSLContext, connect: Callable[[str], Connection]) -> None:
        """`connect` makes the protocol of a connection whose handshake begins, from its peer's address."""
        self.context, self.connect = context, connect
        self._silent: listener.Crowd[listener.Newcomer] = listener.Crowd(MAX_SILENT)
        self._waiting: listener.Crowd[_WaitingConnection] = listener.Crowd(MAX_SILENT)
        self._handshakes: listener.Crowd[_Handshake] = listener.Crowd(MAX_HANDSHAKES)
        self._tasks: set[asyncio.Task[None]] = set()

    def accepted(self, connection: socket.socket, peer: str) -> None:
        """Wait for the first byte of a new connection."""
        before = len(self._silent)
        _wake_after(connection, _RECORD_HEADER_BYTES)
        listener.Newcomer(connection, peer, self._silent, self._readable, seconds=READ_TIMEOUT)
        if len(self._silent) == before:
            DROPPED.inc("silent")

    def make_room(self) -> None:
        """Drop a connection that has not completed its handshake."""
        if self._silent.drop_one():
            DROPPED.inc("silent")

    async def close(self) -> None:
        """Drop all connections that have not completed their handshake."""
        self._silent.drop_all()
        self._waiting.drop_all()
        self._handshakes.drop_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _readable(self, client: listener.Newcomer) -> None:
        """Begin the handshake once the client's first record is complete; until then, waiting costs nothing."""
        try:
            header = client.socket.recv(_RECORD_HEADER_BYTES, socket.MSG_PEEK)
            length = int.from_bytes(header[3:], "big")
            if len(header) < _RECORD_HEADER_BYTES or header[0] != _HANDSHAKE_RECORD or length > _MAX_RECORD_BYTES:
                client.drop()
                return
            size = _RECORD_HEADER_BYTES + length
            if len(client.socket.recv(size, socket.MSG_PEEK)) < size:
                if client.received:  # It was waited for already: the client has closed.
                    client.drop()
                client.received += header
                _wake_after(client.socket, size)
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            client.drop()
            return
        _wake_after(client.socket, 1)
        if self._waiting.add(_WaitingConnection(client.leave(), client.peer)):
            DROPPED.inc("handshake")
        self._go_on()

    def _go_on(self) -> None:
        """Begin as many of the waiting handshakes as there is room for, of all addresses in turn."""
        now = asyncio.get_running_loop().time()
        while self._begin_one(now):
            pass

    def _begin_one(self, now: float) -> bool:
        for peer in self._waiting.peers():
            gives_way = None
            if self._handshakes.count_of(peer) >= MAX_HANDSHAKES_OF_PEER:
                gives_way = self._handshakes.oldest_of(peer)
            elif len(self._handshakes) >= MAX_HANDSHAKES:
                gives_way = self._handshakes.first_to_go()
            if gives_way is not None:
                if now - gives_way.begun < STALLED_AFTER:
                    continue
                DROPPED.inc("handshake")
                self._handshakes.discard(gives_way)
                gives_way.drop()
            if (waiting := self._waiting.take(peer)) is not None:
                self._begin(waiting.socket, peer)
            return True
        return False

    def _begin(self, connection: socket.socket, peer: str) -> None:
        handshake = _Handshake(self, connection, peer)
        self._handshakes.add(handshake)
        loop = asyncio.get_running_loop()
        stalled = loop.call_later(STALLED_AFTER, self._go_on)

        self._tasks.add(handshake.task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            stalled.cancel()
            self._handshakes.discard(handshake)
            self._go_on()

        handshake.task.add_done_callback(ended)
