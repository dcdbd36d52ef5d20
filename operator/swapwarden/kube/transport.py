"""One pooled set of keep-alive connections to one API server, and requests over them.

Built on asyncio streams and httptools (the parser of Node.js): aiohttp alone takes 34 MB, and an agent may take 30.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import struct
import time
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Self

import httptools
import msgspec

from swapwarden.kube import config, errors
from swapwarden.telemetry import metrics

CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 30.0
IDLE_SECONDS = 60.0
"""How long to keep an unused connection: less than the 90 s after which servers begin to drop them."""

RESET = struct.pack("ii", 1, 0)
"""struct linger with which close() discards unsent data and resets the connection."""

MAX_CONNECTIONS = 16
MAX_HEADER_BYTES = 64 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024
"""More than any one object takes. etcd stores at most 1.5 MiB by default (--max-request-bytes), and its
client, which API servers use as it is, sends at most 2 MiB (etcd: client/v3/options.go). As JSON a byte of text takes
up to 6, since Go writes `<` as \\u003c (encoding/json). Whole objects of small fields take up to 7 times as much as in
protobuf. Of lists fewer objects are asked for where they do not fit (swapwarden.kube.paging)."""

READ_BYTES = 64 * 1024

JSON = "application/json"
BROKE = "the connection broke"
CUT_OFF = "the answer was cut off"
NOT_HTTP = "the answer is not HTTP"

_KEEPALIVE = {
    # The idle time has another name on macOS, a platform of kubectl swap.
    ("TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"): 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}
"""Options by their names in `socket`, which not every system has; seconds, and a number of probes."""

REQUESTS = metrics.counter(
    "swapwarden_api_requests_total",
    "Requests to the API server by method and answer (HTTP status, or why there was none).",
    labels=("method", "code"),
)


class _Stale(Exception):  # noqa: N818 never leaves this module
    """A kept connection was closed before any byte of the answer arrived."""


class _AnswerCollector:
    """Collect the parser's results."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.head_done = False
        self.done = False
        self.chunks: list[bytes] = []
        self.size = 0

    def on_message_begin(self) -> None:
        if self.done:
            raise ValueError("two answers to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_done:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.head_done = True

    def on_body(self, body: bytes) -> None:
        self.chunks.append(body)
        self.size += len(body)

    def on_message_complete(self) -> None:
        self.done = True

    def take(self) -> bytes:
        body = b"".join(self.chunks)
        self.chunks.clear()
        return body


class _CountingReader(asyncio.StreamReader):
    """Count the bytes that were received and not read yet."""

    unread = 0

    def feed_data(self, data: Any) -> None:
        self.unread += len(data)
        super().feed_data(data)

    async def read(self, n: int = -1) -> bytes:
        data = await super().read(n)
        self.unread -= len(data)
        return data


class _Connection:
    """One TCP or TLS connection; one exchange at a time."""

    def __init__(self, reader: _CountingReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._used = False
        self._idle_since = 0.0
        self._answer = _AnswerCollector()
        self._parser = httptools.HttpResponseParser(self._answer)

    @property
    def status(self) -> int:
        return self._parser.get_status_code()

    @property
    def headers(self) -> Mapping[str, str]:
        return self._answer.headers

    def rest(self) -> bool:
        """End an exchange; return whether another one may follow."""
        self._idle_since = time.monotonic()
        # RFC 9112, section 9.3. (The parser knows only until the answer is complete.)
        return (
            self._answer.done
            and self._parser.get_http_version() == "1.1"
            and self.headers.get("connection", "").lower() != "close"
            and self.usable()
        )

    def usable(self) -> bool:
        """Return whether an idle connection is open, not too old, and has no unexpected data."""
        return not (
            self._reader.at_eof()
            or self._reader.unread
            or self._writer.is_closing()
            or time.monotonic() - self._idle_since > IDLE_SECONDS
        )

    def close(self) -> None:
        # Do not wait: a peer that hangs may never accept unsent data. Reset the connection: otherwise the kernel sends
        # an abandoned request once an interrupted network recovers (tcp(7), tcp_orphan_retries).
        raw: Any = self._writer.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._writer.transport.abort()

    async def closed(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def send(self, request: bytes) -> None:
        """Send a request and read the answer's head. Close the connection on failure."""
        try:
            await self._send(request)
        except BaseException:
            self.close()
            raise

    async def _send(self, request: bytes) -> None:
        used, self._used = self._used, True
        self._answer = _AnswerCollector()
        self._parser = httptools.HttpResponseParser(self._answer)
        received = 0
        try:
            self._writer.write(request)
            await self._writer.drain()
            while not self._answer.head_done:
                if received > MAX_HEADER_BYTES:
                    raise errors.Unreachable(f"the answer's header is larger than {MAX_HEADER_BYTES >> 10} KiB")
                received += await self._feed()
        except (OSError, EOFError) as error:
            if used and not received:
                raise _Stale from error
            raise errors.Unreachable(f"{BROKE}: {error or type(error).__name__}") from error
        if self.status < 200:
            raise errors.Unreachable(f"the answer is an interim one ({self.status}), which was not requested")

    async def _feed(self) -> int:
        data = await self._reader.read(READ_BYTES)
        if not data:
            raise EOFError("closed by the server")
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise errors.Unreachable(f"{NOT_HTTP}: {error.__cause__ or error}") from error
        return len(data)

    async def body(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives; EOFError if it is cut off."""
        while True:
            if self._answer.chunks:
                yield self._answer.take()
            if self._answer.done:
                return
            try:
                await self._feed()
            except OSError as error:
                raise EOFError(str(error)) from error

    async def whole_body(self) -> bytes:
        """Read the whole body. TooLarge beyond MAX_BODY_BYTES, Unreachable if the connection breaks."""
        while not self._answer.done:
            try:
                await self._feed()
            except (OSError, EOFError) as error:
                raise errors.Unreachable(f"{CUT_OFF}: {error or type(error).__name__}") from error
            if self._answer.size > MAX_BODY_BYTES:
                raise errors.TooLarge(f"the answer is larger than {MAX_BODY_BYTES >> 20} MiB")
        return self._answer.take()


def _bare(name: str) -> str:
    """Return a server's name as bytes if it is ASCII: for text, ssl loads 0.5 MB of IDNA tables."""
    return name.encode() if name.isascii() else name  # type: ignore[return-value]  # ssl takes bytes, too


class Call(msgspec.Struct, frozen=True):
    """A request."""

    method: str
    path: str
    params: Mapping[str, str] | None
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON


class Reader:
    """An API server as seen by one identity. Use it as an async context manager, within one event loop."""

    def __init__(self, cfg: config.Config, *, user_agent: str, max_connections: int = MAX_CONNECTIONS) -> None:
        self._config = cfg
        self._user_agent = user_agent
        url = urllib.parse.urlsplit(cfg.server)
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._prefix = url.path.rstrip("/")
        self._netloc = url.netloc
        self._context = cfg.ssl_context()
        self._dated = "", 0.0
        self._idle: list[_Connection] = []
        # Watches hold a connection for minutes, so they do not count.
        self._slots = asyncio.Semaphore(max_connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        for connection in idle:
            await connection.closed()

    def server_time(self) -> float | None:
        """Return the seconds since 1970 by the API server's own clock, from the date of its last answer.

        None before the first answer with a date.
        """
        stamp, came = self._dated
        with contextlib.suppress(ValueError):
            return errors.seconds_of(stamp) + time.monotonic() - came
        return None

    async def get(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
        timeout: float = REQUEST_SECONDS,  # noqa: ASYNC109 bounds the whole request, connection included
    ) -> bytes:
        """GET; return the body, in the form that `accept` chooses. Errors are those of answer()."""
        return await self.answer(Call("GET", path, params, accept=accept), timeout)

    async def answer(self, call: Call, timeout: float) -> bytes:  # noqa: ASYNC109 bounds the whole request, connection included
        """Send one request and read the whole answer within `timeout` seconds.

        ApiError if the server answers with 400 or more; Unreachable if no whole answer arrives, TooLarge if it is
        larger than MAX_BODY_BYTES. A failed write may have been executed: a retry can meet AlreadyExists, Conflict or
        NotFound.
        """
        try:
            async with asyncio.timeout(timeout), self._slots, self._exchange(call) as connection:
                answer = await connection.whole_body()
        except TimeoutError as error:
            REQUESTS.inc(call.method, "timeout")
            raise self._late(call, timeout) from error
        except errors.Unreachable:
            REQUESTS.inc(call.method, "unreachable")
            raise
        REQUESTS.inc(call.method, str(connection.status))
        if connection.status >= 400:
            raise errors.api_error(connection.status, answer, connection.headers)
        return answer

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        timeout: float = REQUEST_SECONDS,  # noqa: ASYNC109 bounds the wait for the answer's head
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """GET an answer that arrives in pieces; return an iterator over it, which raises EOFError if it is cut off.

        The answer's head must arrive within `timeout` seconds; the caller bounds the wait for pieces.
        """
        call = Call("GET", path, params)
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(timeout):
                    connection = await stack.enter_async_context(self._exchange(call))
                    answer = await connection.whole_body() if connection.status >= 400 else b""
            except TimeoutError as error:
                REQUESTS.inc("WATCH", "timeout")
                raise self._late(call, timeout) from error
            except errors.Unreachable:
                REQUESTS.inc("WATCH", "unreachable")
                raise
            REQUESTS.inc("WATCH", str(connection.status))
            if connection.status >= 400:
                raise errors.api_error(connection.status, answer, connection.headers)
            yield await stack.enter_async_context(contextlib.aclosing(connection.body()))

    def _late(self, call: Call, timeout: float) -> errors.Unreachable:
        return errors.Unreachable(f"no answer from {self._netloc} within {timeout:g} s to {call.method} {call.path}")

    @contextlib.asynccontextmanager
    async def _exchange(self, call: Call) -> AsyncIterator[_Connection]:
        """Send one request; return the connection, with the answer's head read and its body unread."""
        connection = await self._send(call)
        if connection.status == 401 and self._config.token_file:
            # The token file may have been replaced since it was last read.
            connection.close()
            self._config.token_file.forget()
            connection = await self._send(call)
        self._dated = connection.headers.get("date", ""), time.monotonic()
        try:
            yield connection
        finally:
            if connection.rest():
                self._idle.append(connection)
            else:
                connection.close()

    async def _send(self, call: Call) -> _Connection:
        request = self._encode(call)
        self._drop_unusable()
        if self._idle:
            kept = self._idle.pop()
            # The server may close it as this request begins to use it. In principle it may have executed the request
            # first; see answer().
            with contextlib.suppress(_Stale):
                await kept.send(request)
                return kept
        fresh = await self._connect()
        await fresh.send(request)
        return fresh

    def _drop_unusable(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            if connection.usable():
                self._idle.append(connection)
            else:
                connection.close()

    def _encode(self, call: Call) -> bytes:
        query = f"?{urllib.parse.urlencode(call.params)}" if call.params else ""
        lines = [
            f"{call.method} {self._prefix}{call.path}{query} HTTP/1.1",
            f"Host: {self._netloc}",
            f"User-Agent: {self._user_agent}",
            f"Accept: {call.accept}",
        ]
        token = self._config.token()
        if token:
            lines.append(f"Authorization: Bearer {token}")
        lines += [f"{name}: {value}" for name, value in self._config.impersonation]
        if call.body is not None:
            lines += [f"Content-Type: {call.content_type}", f"Content-Length: {len(call.body)}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (call.body or b"")

    async def _tunnel(self) -> socket.socket:
        # Loaded only for a proxy.
        tunnel = importlib.import_module("swapwarden.kube.tunnel")
        raw: socket.socket = await tunnel.connect(self._config.proxy, self._host, self._port)
        return raw

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        reader = _CountingReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                direct: dict[str, Any] = {"host": self._host, "port": self._port}
                transport, _ = await loop.create_connection(
                    lambda: protocol,
                    **({"sock": await self._tunnel()} if self._config.proxy else direct),
                    ssl=self._context,
                    server_hostname=_bare(self._config.tls_server_name or self._host) if self._context else None,
                )
        except TimeoutError as error:
            raise errors.Unreachable(f"cannot connect to {self._netloc} within {CONNECT_SECONDS:g} s") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a label of the host's name is too long
            raise errors.Unreachable(f"cannot connect to {self._netloc}: {error}") from error
        raw: Any = transport.get_extra_info("socket")
        # Detect a peer that vanished: without keep-alive the kernel waits for many minutes.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                raw.setsockopt(socket.IPPROTO_TCP, option, value)
        return _Connection(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
