"""A small HTTP server for /healthz, /readyz and /metrics, the same in each process.

It answers GET and HEAD with short texts to a kubelet and to Prometheus, within fixed bounds on time, size and
connections. It is not for anything else, which is why it needs no web framework (the agent could not afford one).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

Check = Callable[[], str | None]
"""Tells what is wrong; None where nothing is."""

REQUEST_TIMEOUT = 5.0
MAX_REQUEST_BYTES = 8192
MAX_CONNECTIONS = 32

TEXT = "text/plain; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

_STATUS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def parse_address(address: str) -> tuple[str, int]:
    """Split `host:port`, `:port` (all interfaces) or `[v6]:port`; ValueError with an example where it is neither."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not an address: write host:port, for example 0.0.0.0:8080 or [::]:8080")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)  # noqa: S104 a pod's kubelet must reach it


async def _nothing() -> None:
    """What is published is up to date already."""


async def _answer(
    target: str, alive: Check, ready: Check, refresh: Callable[[], Awaitable[None]], render: Callable[[], str]
) -> tuple[int, str, str]:
    path = target.partition("?")[0]
    if path == "/metrics":
        await refresh()
        return 200, PROMETHEUS, render()
    check = {"/healthz": alive, "/livez": alive, "/readyz": ready}.get(path)
    if check is None:
        return 404, TEXT, "not found: try /healthz, /readyz or /metrics\n"
    problem = check()
    return (200, TEXT, "ok\n") if problem is None else (503, TEXT, f"{problem}\n")


async def _handle(reader: asyncio.StreamReader, answer: Callable[[str], Awaitable[tuple[int, str, str]]]) -> bytes:
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
    except (TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return _response(400, TEXT, "bad request\n", body=True)
    if method not in {"GET", "HEAD"}:
        return _response(405, TEXT, "only GET and HEAD\n", body=True)
    try:
        status, kind, text = await answer(target)
    except Exception:  # a broken check must show in the probe, not take the server down
        log.exception("health or metrics request failed", extra={"path": target})
        status, kind, text = 500, TEXT, "internal error: see the log\n"
    return _response(status, kind, text, body=method == "GET")


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
    """Serve in the running event loop while the context lasts; gives the bound port (`port` 0 picks a free one).

    `/healthz` answers 503 with the reason where `alive` gives one, `/readyz` the same with `ready`; `/metrics` is what
    `render` gives, after `refresh` has read what is read only when somebody asks.
    OSError where the address cannot be bound.
    """
    connections = 0

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            if connections <= MAX_CONNECTIONS:
                writer.write(await _handle(reader, lambda target: _answer(target, alive, ready, refresh, render)))
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    await writer.drain()
        except (OSError, TimeoutError):
            log.debug("health or metrics client went away")
        finally:
            connections -= 1
            writer.close()

    listener = await asyncio.start_server(connected, host, port, limit=MAX_REQUEST_BYTES)
    try:
        bound: int = listener.sockets[0].getsockname()[1]
        log.info("serving health and metrics", extra={"host": host, "port": bound})
        yield bound
    finally:
        listener.close()
