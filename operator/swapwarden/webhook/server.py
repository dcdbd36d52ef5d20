"""The admission server: HTTPS in, one decision per request, with bounds on all that a client may use up.

Built on aiohttp: one core answered 8,320 reviews of 9.6 KB a second to one client with it, uvloop and msgspec, and 755
with kopf.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import aiohttp
from aiohttp import web

from swapwarden.api import names
from swapwarden.policy.admission import pod_annotations
from swapwarden.telemetry import listener, metrics, turns
from swapwarden.webhook import bodies, certificates, connections, review

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 13 * 1024 * 1024
"""Any pod that can be stored, with a MiB to spare for the rest of the review.

An API server sends etcd no more than 2 MiB (etcd: client/v3/options.go, defaultClientMaxCallSendMsgSize), of which etcd
accepts 1.5 MiB by default. In JSON, as Go's encoder writes it, one stored byte becomes six at most: `<` is `\u003c`.
"""

LARGE_SHARE: Final = 0.25
"""Share of the time that reviews above `bodies.SMALL_BODY_BYTES` may take in total, one at a time.

Peers take turns, and the namespaces of each; smaller ones are answered at once.
"""

MAX_LARGE_WAITING: Final = 16
MAX_LARGE_WAITING_OF_NAMESPACE: Final = 3

SHUTDOWN_TIMEOUT: Final = 10.0
"""Seconds that requests in progress have to finish."""

REQUESTS = metrics.counter(
    "swapwarden_webhook_requests_total",
    "Answered admission requests, by path (own: pods with Swapwarden's keys; default: pods that get their"
    " namespace's), operation, and verdict (allowed, patched, refused).",
    labels=("path", "operation", "verdict"),
    known=itertools.product(("own", "default"), ("CREATE", "UPDATE"), ("allowed", "patched", "refused")),
)
SECONDS = metrics.histogram(
    "swapwarden_webhook_request_seconds",
    "Time from an admission request's head to its answer, by path.",
    labels=("path",),
    known=[("own",), ("default",)],
    buckets=(0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0),
)
_OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})

ROUTES: Final[dict[str, tuple[str, Callable[..., review.Response]]]] = {
    "/pods": ("own", review.answer),
    # In lower case: the API server takes no other for the path of a Service.
    **{
        f"/pods/{policy.value.lower()}": ("default", functools.partial(review.answer, default=policy))
        for policy in names.Policy
    },
}
"""Paths of the registration: pods with annotations of their own, and pods that get a default."""


class _BadRequest(Exception):  # noqa: N818 it names what it is about
    def __init__(self, code: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.code = code
        self.headers = headers


def _too_busy(what: str) -> _BadRequest:
    # With this header, an API server retries by itself, until its own timeout (k/k: client-go, rest/with_retry.go).
    return _BadRequest(503, f"too many {what} at a time: retry", **{"Retry-After": "1"})


class _Handler:
    """Answer requests; know their number, and their bytes in memory."""

    def __init__(self, *, require_plugin: bool) -> None:
        self._require_plugin = require_plugin
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._active = 0
        self._bodies = bodies.Bodies()
        self._large = turns.Turns(
            LARGE_SHARE, waiting=MAX_LARGE_WAITING, waiting_per_key=MAX_LARGE_WAITING_OF_NAMESPACE
        )

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        if isinstance(connection, connections.Connection):
            connection.head_arrived()
        self._active += 1
        self.idle.clear()
        try:
            answer = await self._answer(request)
        except _BadRequest as error:
            connections.BAD_REQUESTS.inc(str(error.code))
            log.warning("bad request", extra={"code": error.code, "peer": _peer(request), "reason": str(error)})
            # The rest of the body is not worth reading.
            answer = web.Response(status=error.code, text=f"{error}\n", headers=error.headers)
            answer.force_close()
        except Exception:
            connections.BAD_REQUESTS.inc("500")
            log.exception("request failed", extra={"path": request.path})
            answer = web.Response(status=500, text="internal error of the webhook: see its log\n")
        finally:
            self._active -= 1
            if not self._active:
                self.idle.set()
            if isinstance(connection, connections.Connection):
                connection.request_ended()
        if self.draining:
            answer.force_close()
        return answer

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        begun = time.perf_counter()
        route = ROUTES.get(request.path)
        if route is None:
            raise _BadRequest(404, f"no such path: this webhook serves {', '.join(ROUTES)}")
        if request.method != "POST":
            raise _BadRequest(405, "only POST")
        if request.content_type != "application/json":
            actual = pod_annotations.shown(request.content_type)
            raise _BadRequest(415, f"the content type must be application/json, not {actual}")
        path, decide = route
        if self._require_plugin:
            decide = functools.partial(decide, require_plugin=True)
        try:
            async with self._bodies.receive(_peer(request), connections.READ_TIMEOUT) as body:
                await _read(request, body)
                answer = await self._in_turn(body, lambda: _decided(path, decide, body.data))
        except TimeoutError as error:
            text = f"the body did not arrive within {connections.READ_TIMEOUT:.0f} seconds"
            raise _BadRequest(408, text) from error
        except (bodies.GaveWay, turns.Busy) as error:
            raise _too_busy("large requests") from error
        SECONDS.observe(time.perf_counter() - begun, path)
        return web.Response(body=answer, content_type="application/json")

    async def _in_turn(self, body: bodies.Body, decide: Callable[[], bytes]) -> bytes:
        if not body.is_large:
            return decide()
        async with self._large.take(body.peer, body.namespace):
            body.check()  # It may have given way at the moment of its turn.
            return decide()


async def _read(request: web.BaseRequest, body: bodies.Body) -> None:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise _BadRequest(413, f"the body is too large: {request.content_length} bytes, at most {MAX_BODY_BYTES}")
    try:
        async for chunk in request.content.iter_any():
            body.add(chunk)
            if len(body.data) > MAX_BODY_BYTES:
                raise _BadRequest(413, f"the body is too large: at most {MAX_BODY_BYTES} bytes")
    except (web.RequestPayloadError, aiohttp.ClientError, ConnectionError) as error:
        raise _BadRequest(400, f"the body did not arrive whole: {error}") from error
    body.arrived()
    if isinstance(request.protocol, connections.Connection):
        request.protocol.request_arrived()


def _peer(request: web.BaseRequest) -> str:
    protocol = request.protocol
    return protocol.peer if isinstance(protocol, connections.Connection) else ""


def _decided(path: str, decide: Callable[..., review.Response], body: bytearray) -> bytes:
    try:
        asked = review.decode(body)
    except review.ReviewError as error:
        raise _BadRequest(400, str(error)) from error
    response = decide(asked)
    _account(path, asked, response)
    return review.encode(response)


def _account(path: str, asked: review.Request, response: review.Response) -> None:
    operation = asked.operation if asked.operation in _OPERATIONS else "other"
    verdict = ("allowed" if response.patch is None else "patched") if response.allowed else "refused"
    REQUESTS.inc(path, operation, verdict)
    if response.status is not None:
        fields = {
            "namespace": pod_annotations.shown(asked.namespace, pod_annotations.MAX_NAME),
            "pod": response.status.details.name,
            "operation": operation,
            "dry_run": bool(asked.dry_run),
            "reason": response.status.message,
        }
        log.info("pod refused", extra=fields)


class Serving:
    """A running server."""

    def __init__(self, port: int, handler: _Handler, established: connections.Established) -> None:
        self.port = port
        self._handler = handler
        self._established = established

    def drain(self) -> None:
        """Answer as before, but end each connection with its next answer: the client connects elsewhere."""
        self._handler.draining = True

    async def left(self, seconds: float) -> None:
        """Wait until no connection is open, at most so long: a client may be about to use one that is closed here."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._established.none_left.wait()


@contextlib.asynccontextmanager
async def serve(
    host: str, port: int, pair: certificates.Certificates, *, require_plugin: bool = False
) -> AsyncIterator[Serving]:
    """Serve admission requests in the running event loop while the context lasts.

    With `require_plugin`, pods without swap need the runtime's plugin.
    On exit no new connection is accepted, requests in progress get `SHUTDOWN_TIMEOUT` to arrive and be answered, and
    idle connections are closed. OSError if the address cannot be bound.
    """
    handler = _Handler(require_plugin=require_plugin)
    server = web.Server(handler, request_factory=_request)
    established = connections.Established()
    door = connections.Door(pair.context, lambda peer: connections.Connection(server, established, peer))
    listening = listener.Listener(host, port, door.accepted, door.make_room)
    try:
        yield Serving(listening.port, handler, established)
    finally:
        listening.close()
        handler.draining = True
        # aiohttp's own shutdown drops requests that still arrive, so it must begin after all have arrived.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_TIMEOUT):
                await handler.idle.wait()
        await door.close()
        server.pre_shutdown()
        await server.shutdown(SHUTDOWN_TIMEOUT)
        await established.close()


def _request(
    message: aiohttp.http.RawRequestMessage,
    payload: aiohttp.StreamReader,
    protocol: web.RequestHandler,
    writer: aiohttp.abc.AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    return web.BaseRequest(
        message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=MAX_BODY_BYTES
    )
