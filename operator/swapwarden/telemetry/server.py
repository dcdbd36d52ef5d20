"""A small HTTP server for /healthz, /readyz and /metrics, the same in each process.

It answers GET and HEAD with short texts to a kubelet and to Prometheus, within fixed bounds on time, size and
connections: a probe gets its answer whatever other clients hold open. It serves nothing else, and so needs no web
framework: importing aiohttp takes 34 MB, and the agent's budget is 30.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from swapwarden.telemetry import listener, metrics

log = logging.getLogger(__name__)

Check = Callable[[], str | None]
"""Returns the fault, or None."""

HEAD_TIMEOUT: Final = 5.0
"""Seconds for a request's head. A kubelet that waits for a busy CPU may need as long as its probe allows (the chart's
timeoutSeconds): an earlier refusal would restart a container that is well."""

ANSWER_TIMEOUT: Final = 5.0
"""Seconds for a client to read an answer."""

MAX_HEAD_BYTES: Final = 8192
MAX_UNREAD_BYTES: Final = 64 * 1024
MAX_WAITING: Final = 256
"""Connections whose head has not arrived. For one more, another one is dropped (see `listener`)."""

MAX_METRICS: Final = 64
"""Readers of metrics at a time, who share one text. Probes do not count: they are answered at once."""

METRICS_SHARE: Final = 0.25
"""Share of the time spent on rendering metrics, however often clients ask."""

LONGEST_PAUSE: Final = 1.0
"""Seconds between two renderings of the metrics while clients wait."""

TEXT = "text/plain; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

_END_OF_HEAD = b"\r\n\r\n"
_BROKEN = "internal error: see the log\n"
_STATUS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def parse_address(address: str) -> tuple[str, int]:
    """Split `host:port`, `:port` (all addresses: the host is empty) or `[v6]:port`. Raise ArgumentTypeError."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(
            f"{address!r} is not an address: write host:port, for example [::1]:8080, or :8080 for all"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def add_address(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --metrics-address; `default` is written as for parse_address()."""
    parser.add_argument(
        "--metrics-address",
        type=parse_address,
        default=default,
        metavar="HOST:PORT",
        help="where to serve /healthz, /readyz and /metrics (default: %(default)s, all addresses)",
    )


async def _nothing() -> None:
    """Do nothing: the published values are up to date."""


class _Answers:
    """The answers by path."""

    def __init__(
        self, alive: Check, ready: Check, refresh: Callable[[], Awaitable[None]], render: Callable[[], str]
    ) -> None:
        self._checks = {"/healthz": alive, "/livez": alive, "/readyz": ready}
        self._refresh, self._render = refresh, render
        self._coming: asyncio.Task[tuple[bytes, bytes]] | None = None
        """The next rendering of the metrics, before it begins."""
        self._one_at_a_time = asyncio.Lock()
        self._not_before = 0.0

    def of(self, path: str, *, body: bool) -> bytes:
        """Answer requests that need no waiting: probes, and unknown paths."""
        check = self._checks.get(path)
        if check is None:
            return _response(404, TEXT, "not found: try /healthz, /readyz or /metrics\n", body=body)
        try:
            problem = check()
        except Exception:  # A broken check must show in the probe, and not stop the server.
            log.exception("health request failed", extra={"path": path})
            return _response(500, TEXT, _BROKEN, body=body)
        status, text = (200, "ok\n") if problem is None else (503, f"{problem}\n")
        return _response(status, TEXT, text, body=body)

    async def metrics(self, *, body: bool) -> bytes:
        """Render the metrics after this call, once for all waiting clients, who share the same bytes."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._put_together())
        try:
            head, whole = await asyncio.shield(self._coming)
        except Exception:  # As above.
            log.exception("metrics request failed")
            return _response(500, TEXT, _BROKEN, body=body)
        return whole if body else head

    async def _put_together(self) -> tuple[bytes, bytes]:
        async with self._one_at_a_time:
            await asyncio.sleep(max(0.0, self._not_before - time.perf_counter()))
            self._coming = None  # Clients that ask from now on get values that are read from now on.
            begun = time.perf_counter()
            try:
                await self._refresh()
                whole = _response(200, PROMETHEUS, self._render(), body=True)
                head, end, _ = whole.partition(_END_OF_HEAD)
                return head + end, whole
            finally:
                ended = time.perf_counter()
                self._not_before = ended + min((ended - begun) * (1 / METRICS_SHARE - 1), LONGEST_PAUSE)


class _MetricsClient:
    """A client that gets metrics, which takes longer than one turn of the event loop."""

    def __init__(
        self, client: listener.Newcomer, readers: listener.Crowd[_MetricsClient], answer: Awaitable[bytes]
    ) -> None:
        self.peer = client.peer
        self._socket = client.leave()
        self._readers = readers
        self._task = asyncio.ensure_future(answer)
        self._task.add_done_callback(self._answered)
        readers.add(self)

    def drop(self) -> None:
        """Close the connection."""
        self._task.cancel()

    def _answered(self, answer: asyncio.Future[bytes]) -> None:
        if answer.cancelled():
            self._end(answer)
        else:
            self._task = asyncio.ensure_future(self._send(answer.result()))
            self._task.add_done_callback(self._end)

    async def _send(self, content: bytes) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await asyncio.get_running_loop().sock_sendall(self._socket, content)
        except (OSError, TimeoutError):
            log.debug("metrics client went away")
        return content

    def _end(self, _done: asyncio.Future[bytes]) -> None:
        self._readers.discard(self)
        self._socket.close()


class _Server:
    """Read heads, and answer."""

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers
        self._waiting: listener.Crowd[listener.Newcomer] = listener.Crowd(MAX_WAITING)
        self._readers: listener.Crowd[_MetricsClient] = listener.Crowd(MAX_METRICS)

    def accepted(self, connection: socket.socket, peer: str) -> None:
        """Wait for the head of a new connection's request."""
        listener.Newcomer(connection, peer, self._waiting, self._readable, seconds=HEAD_TIMEOUT, expired=self._refuse)

    def make_room(self) -> None:
        """Close one connection."""
        self._waiting.drop_one()

    def close(self) -> None:
        """Close all connections."""
        self._waiting.drop_all()
        self._readers.drop_all()

    def _readable(self, client: listener.Newcomer) -> None:
        try:
            received = client.socket.recv(MAX_HEAD_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            client.drop()
            return
        client.received += received
        head, ended, _ = client.received.partition(_END_OF_HEAD)
        if ended:
            self._answer(client, bytes(head))
        elif not received or len(client.received) >= MAX_HEAD_BYTES:
            self._refuse(client)

    def _refuse(self, client: listener.Newcomer) -> None:
        _say(client, _response(400, TEXT, "bad request\n", body=True))

    def _answer(self, client: listener.Newcomer, head: bytes) -> None:
        try:
            method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        except ValueError:
            self._refuse(client)
            return
        if method not in {"GET", "HEAD"}:
            _say(client, _response(405, TEXT, "only GET and HEAD\n", body=True))
            return
        path, body = target.partition("?")[0], method == "GET"
        if path == "/metrics":
            _MetricsClient(client, self._readers, self._answers.metrics(body=body))
        else:
            _say(client, self._answers.of(path, body=body))


def _say(client: listener.Newcomer, answer: bytes) -> None:
    """Send a short answer, which fits into the buffer of a connection without sent bytes; then close."""
    connection = client.leave()
    # If unread bytes remain when a connection is closed, the kernel takes back sent ones.
    with connection, contextlib.suppress(OSError):
        connection.send(answer)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(MAX_UNREAD_BYTES)


def _response(status: int, kind: str, text: str, *, body: bool) -> bytes:
    content = text.encode()
    head = (
        f"HTTP/1.1 {status} {_STATUS[status]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + (content if body else b"")


@contextlib.asynccontextmanager
async def serve(
    host: str,
    port: int,
    *,
    ready: Check,
    alive: Check = lambda: None,
    refresh: Callable[[], Awaitable[None]] = _nothing,
    render: Callable[[], str] = metrics.REGISTRY.render,
) -> AsyncIterator[int]:
    """Serve in the running event loop while the context lasts; return the bound port (`port` 0 picks a free one).

    `/healthz` answers 503 with the reason if `alive` returns one, `/readyz` the same with `ready`. `/metrics` is the
    text of `render`, after `refresh` has read the values that are read on demand. OSError if the address cannot be
    bound.
    """
    server = _Server(_Answers(alive, ready, refresh, render))
    listening = listener.Listener(host, port, server.accepted, server.make_room)
    try:
        log.info("serving health and metrics", extra={"host": host or "all", "port": listening.port})
        yield listening.port
    finally:
        listening.close()
        server.close()
