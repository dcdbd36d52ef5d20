"""REST over one pooled set of keep-alive connections to one API server.

Built on asyncio streams and httptools (the parser of Node.js), because the agent can afford neither the memory of a
general HTTP client nor that of the official one.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import logging
import socket
import ssl
import time
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import httptools

from swapwarden.kube import config
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 30.0
IDLE_SECONDS = 60.0
"""How long an unused connection is kept: less than the 90 s after which servers begin to drop them."""

MAX_CONNECTIONS = 16
MAX_HEADER_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
READ_BYTES = 64 * 1024

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

REQUESTS = metrics.counter(
    "swapwarden_api_requests_total", "Requests to the API server by method and answer.", labels=("method", "code")
)


class ApiError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{message} ({status} {reason})" if reason else f"{message} ({status})")
        self.status = status
        """HTTP status code."""
        self.reason = reason
        """Machine-readable reason of the Status object, such as NotFound or Expired; empty where there is none."""
        self.message = message
        self.retry_after = retry_after
        """Seconds that the server asks to wait."""


class Unreachable(Exception):  # noqa: N818 the name says what is the matter
    """The API server could not be reached, or did not answer in time."""


class _Stale(Exception):  # noqa: N818 never leaves this module
    """A kept connection turned out to be closed before any byte of the answer came."""


def api_error(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
    """Make an error from an answer's status code and body, which is a metav1.Status or plain text."""
    reason, message = "", ""
    with contextlib.suppress(ValueError):
        parsed = json.loads(body)
        if isinstance(parsed, dict):
            reason, message = str(parsed.get("reason") or ""), str(parsed.get("message") or "")
    message = message or body[:512].decode("utf-8", "replace").strip() or "no message"
    return ApiError(status, reason, message, _retry_after((headers or {}).get("retry-after")))


def _retry_after(value: str | None) -> float | None:
    """RFC 9110, section 10.2.3: seconds, or a date."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    with contextlib.suppress(ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None


class _Answer:
    """Takes what the parser finds."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.header_bytes = 0
        self.head_done = False
        self.done = False
        self.chunks: list[bytes] = []
        self.size = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.header_bytes += len(name) + len(value)
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


class _Connection:
    """One TCP or TLS connection; one exchange at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.idle_since = time.monotonic()
        self.fresh = True
        self._answer = _Answer()
        self._parser = httptools.HttpResponseParser(self._answer)

    def usable(self) -> bool:
        return not (
            self._reader.at_eof() or self._writer.is_closing() or time.monotonic() - self.idle_since > IDLE_SECONDS
        )

    def close(self) -> None:
        self._writer.close()

    async def send(self, request: bytes) -> tuple[int, dict[str, str]]:
        """Send a request and read the answer's head; gives status code and headers."""
        self._answer = _Answer()
        self._parser = httptools.HttpResponseParser(self._answer)
        any_byte = False
        try:
            self._writer.write(request)
            await self._writer.drain()
            while not self._answer.head_done:
                any_byte = await self._feed() or any_byte
                if self._answer.header_bytes > MAX_HEADER_BYTES:
                    raise Unreachable("the answer's header is larger than 64 KiB")
        except (OSError, EOFError) as error:
            if not any_byte and not self.fresh:
                raise _Stale from error
            raise Unreachable(f"the connection broke: {error or type(error).__name__}") from error
        return self._parser.get_status_code(), self._answer.headers

    async def _feed(self) -> bool:
        data = await self._reader.read(READ_BYTES)
        if not data:
            raise EOFError("closed by the server")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise Unreachable(f"the answer is not HTTP: {error}") from error
        return True

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes; EOFError where it ends before its time."""
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
        """Read the whole body, at most 64 MiB."""
        while not self._answer.done:
            if self._answer.size > MAX_BODY_BYTES:
                raise Unreachable(f"the answer is larger than {MAX_BODY_BYTES >> 20} MiB")
            try:
                await self._feed()
            except (OSError, EOFError) as error:
                raise Unreachable(f"the answer was cut off: {error or type(error).__name__}") from error
        return self._answer.take()

    @property
    def reusable(self) -> bool:
        return self._answer.done and self._parser.should_keep_alive()


class Client:
    """An API server as seen by one identity. Use it as an async context manager, within one event loop."""

    def __init__(self, cfg: config.Config, *, user_agent: str, max_connections: int = MAX_CONNECTIONS) -> None:
        self._config = cfg
        self._user_agent = user_agent
        url = urllib.parse.urlsplit(cfg.server)
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._prefix = url.path.rstrip("/")
        self._netloc = url.netloc
        self._context: ssl.SSLContext | None = cfg.ssl_context()
        self._idle: list[_Connection] = []
        # Watches hold a connection for minutes, so they do not count.
        self._slots = asyncio.Semaphore(max_connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)

    async def get(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        timeout: float = REQUEST_SECONDS,  # noqa: ASYNC109 bounds the whole request, connection included
    ) -> bytes:
        """GET; gives the body."""
        return await self.request("GET", path, params=params, timeout=timeout)

    async def post(
        self,
        path: str,
        body: bytes,
        *,
        params: Mapping[str, str] | None = None,
        timeout: float = REQUEST_SECONDS,  # noqa: ASYNC109 bounds the whole request, connection included
    ) -> bytes:
        """POST a JSON body; gives the body of the answer."""
        return await self.request("POST", path, params=params, body=body, timeout=timeout)

    async def put(
        self,
        path: str,
        body: bytes,
        *,
        params: Mapping[str, str] | None = None,
        timeout: float = REQUEST_SECONDS,  # noqa: ASYNC109 bounds the whole request, connection included
    ) -> bytes:
        """PUT a JSON body; gives the body of the answer."""
        return await self.request("PUT", path, params=params, body=body, timeout=timeout)

    async def delete(self, path: str, *, params: Mapping[str, str] | None = None, body: bytes | None = None) -> bytes:
        """DELETE; gives the body of the answer."""
        return await self.request("DELETE", path, params=params, body=body)

    async def merge_patch(
        self,
        path: str,
        body: bytes,
        *,
        params: Mapping[str, str] | None = None,
        timeout: float = REQUEST_SECONDS,  # noqa: ASYNC109 bounds the whole request, connection included
    ) -> bytes:
        """PATCH with a JSON merge patch (RFC 7386); gives the body of the answer."""
        return await self.request("PATCH", path, params=params, body=body, content_type=MERGE_PATCH, timeout=timeout)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float = REQUEST_SECONDS,  # noqa: ASYNC109 bounds the whole request, connection included
    ) -> bytes:
        """Send one request and read the whole answer within `timeout` seconds.

        ApiError where the server answers with 400 or more; Unreachable where no whole answer comes.
        """
        try:
            async with (
                self._slots,
                asyncio.timeout(timeout),
                self._exchange(method, path, params, body, content_type) as (status, headers, connection),
            ):
                answer = await connection.whole_body()
        except TimeoutError as error:
            REQUESTS.inc(method, "timeout")
            raise Unreachable(f"no answer from {self._netloc} within {timeout:g} s to {method} {path}") from error
        except Unreachable:
            REQUESTS.inc(method, "unreachable")
            raise
        REQUESTS.inc(method, str(status))
        if status >= 400:
            raise api_error(status, answer, headers)
        return answer

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        timeout: float = REQUEST_SECONDS,  # noqa: ASYNC109 bounds the wait for the answer's head
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """GET an answer that comes in pieces; gives an iterator over them, which raises EOFError where it is cut off.

        The answer's head must come within `timeout` seconds; how long to wait for pieces is up to the caller.
        """
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(timeout):
                    status, headers, connection = await stack.enter_async_context(
                        self._exchange("GET", path, params, None, JSON)
                    )
                    answer = await connection.whole_body() if status >= 400 else b""
            except TimeoutError as error:
                raise Unreachable(f"no answer from {self._netloc} within {timeout:g} s to GET {path}") from error
            REQUESTS.inc("WATCH", str(status))
            if status >= 400:
                raise api_error(status, answer, headers)
            yield connection.body()

    @contextlib.asynccontextmanager
    async def _exchange(
        self, method: str, path: str, params: Mapping[str, str] | None, body: bytes | None, content_type: str
    ) -> AsyncIterator[tuple[int, dict[str, str], _Connection]]:
        """Send one request; gives status code, headers, and the connection that the body is to be read from."""
        connection: _Connection | None = None
        try:
            status, headers, connection = await self._send(method, path, params, body, content_type)
            if status == 401 and self._config.token_file:
                # The token may have been replaced since the last look at its file.
                await connection.whole_body()
                connection.close()
                self._config.token_file.forget()
                status, headers, connection = await self._send(method, path, params, body, content_type)
            yield status, headers, connection
        finally:
            if connection is not None:
                if connection.reusable:
                    connection.idle_since, connection.fresh = time.monotonic(), False
                    self._idle.append(connection)
                else:
                    connection.close()

    async def _send(
        self, method: str, path: str, params: Mapping[str, str] | None, body: bytes | None, content_type: str
    ) -> tuple[int, dict[str, str], _Connection]:
        request = self._encode(method, path, params, body, content_type)
        while True:
            connection = await self._connection()
            try:
                status, headers = await connection.send(request)
            except _Stale:
                # The server closed an idle connection as we began to use it: nothing was done with the request. Each
                # round drops one kept connection, and a fresh one never is stale, so this ends.
                connection.close()
            except BaseException:
                connection.close()
                raise
            else:
                return status, headers, connection

    def _encode(
        self, method: str, path: str, params: Mapping[str, str] | None, body: bytes | None, content_type: str
    ) -> bytes:
        query = f"?{urllib.parse.urlencode(params)}" if params else ""
        lines = [
            f"{method} {self._prefix}{path}{query} HTTP/1.1",
            f"Host: {self._netloc}",
            f"User-Agent: {self._user_agent}",
            f"Accept: {JSON}",
        ]
        token = self._config.token()
        if token:
            lines.append(f"Authorization: Bearer {token}")
        if body is not None:
            lines += [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")

    async def _connection(self) -> _Connection:
        while self._idle:
            kept = self._idle.pop()
            if kept.usable():
                return kept
            kept.close()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self._host,
                    self._port,
                    ssl=self._context,
                    server_hostname=(self._config.tls_server_name or self._host) if self._context else None,
                )
        except TimeoutError as error:
            raise Unreachable(f"cannot connect to {self._netloc} within {CONNECT_SECONDS:g} s") from error
        except OSError as error:
            raise Unreachable(f"cannot connect to {self._netloc}: {error}") from error
        raw: Any = writer.get_extra_info("socket")
        # A peer that vanished without a word must not be waited for until the kernel gives up, many minutes later.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        return _Connection(reader, writer)
