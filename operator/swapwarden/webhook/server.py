"""The admission server: HTTPS in, one decision per request, with bounds on all that a client may use up."""

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
from swapwarden.telemetry import metrics
from swapwarden.webhook import admission, certificates, review

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 5 * 1024 * 1024
"""etcd takes objects of up to 1.5 MiB, and JSON is longer than what etcd stores."""

MAX_BUFFERED_BYTES: Final = 64 * 1024 * 1024
"""All bodies that are being read at one time, as far as they have arrived: who announces much holds up nobody."""

SMALL_BODY_BYTES: Final = 64 * 1024
"""Bodies up to this size are taken in any case: nearly every pod's is smaller."""

MAX_CONNECTIONS: Final = 512

READ_TIMEOUT: Final = 10.0
"""Seconds for a TLS handshake, for a request's head, and for its body. The API server gives up after 5."""

IDLE_TIMEOUT: Final = 120.0
"""Seconds. Longer than the 90 after which the API server closes idle connections: it should be the one that does."""

SHUTDOWN_TIMEOUT: Final = 10.0
"""Seconds that requests in progress get to finish."""

REQUESTS = metrics.counter(
    "swapwarden_webhook_requests_total",
    "Admission requests that were answered, by path (own: pods with keys of Swapwarden's; default: pods that get their"
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
BAD_REQUESTS = metrics.counter(
    "swapwarden_webhook_bad_requests_total",
    "Requests that were no admission request for a pod, by HTTP status; 500 is a bug.",
    labels=("code",),
    known=[(code,) for code in ("400", "404", "405", "408", "413", "415", "500", "503")],
)

_OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})

ROUTES: Final[dict[str, tuple[str, Callable[[review.Request], review.Response]]]] = {
    "/pods": ("own", admission.admit),
    # In lower case: the API server takes no other for the path of a Service.
    **{
        f"/pods/{policy.value.lower()}": ("default", functools.partial(admission.admit, default=policy))
        for policy in names.Policy
    },
}
"""What each path of the registration leads to: pods with annotations of their own, and those that get a default."""


class _Connection(web.RequestHandler):
    """aiohttp's connection, with a time limit for the head of each request (aiohttp has one for idle clients only)."""

    __slots__ = ("_busy", "_head_timer", "_server")

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=IDLE_TIMEOUT,
            access_log=None,  # type: ignore[arg-type]  # None turns it off, says aiohttp's reference
            auto_decompress=False,
            lingering_time=1.0,
        )
        self._server = server
        self._busy = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._server.connections) > MAX_CONNECTIONS:
            BAD_REQUESTS.inc("503")
            self.force_close()
            return
        self._expect_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._busy and self._head_timer is None:
            self._expect_head()
        super().data_received(data)

    def request_started(self) -> None:
        """The head is there: what follows has its own limits."""
        self._busy = True
        self._stop_timer()

    def request_ended(self) -> None:
        """The next byte begins another request."""
        self._busy = False

    def _expect_head(self) -> None:
        self._head_timer = asyncio.get_running_loop().call_later(READ_TIMEOUT, self._cut)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _cut(self) -> None:
        BAD_REQUESTS.inc("408")
        self.force_close()


class _BadRequest(Exception):  # noqa: N818 it names what it is about
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Handler:
    """Answers requests; knows how many, and how much of them is being read at the moment."""

    def __init__(self) -> None:
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._active = 0
        self._buffered = 0

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        if isinstance(connection, _Connection):
            connection.request_started()
        self._active += 1
        self.idle.clear()
        try:
            answer = await self._answer(request)
        except _BadRequest as error:
            BAD_REQUESTS.inc(str(error.code))
            log.warning("bad request", extra={"code": error.code, "peer": request.remote, "reason": str(error)})
            # What is left of the body is not worth reading.
            answer = web.Response(status=error.code, text=f"{error}\n")
            answer.force_close()
        except Exception:
            BAD_REQUESTS.inc("500")
            log.exception("request failed", extra={"path": request.path})
            answer = web.Response(status=500, text="internal error of the webhook: see its log\n")
        finally:
            self._active -= 1
            if not self._active:
                self.idle.set()
            if isinstance(connection, _Connection):
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
            raise _BadRequest(415, f"the content type must be application/json, not {request.content_type}")
        path, decide = route
        try:
            asked = review.decode(await self._body(request))
        except review.ReviewError as error:
            raise _BadRequest(400, str(error)) from error
        response = decide(asked)
        _account(path, asked, response)
        SECONDS.observe(time.perf_counter() - begun, path)
        return web.Response(body=review.encode(response), content_type="application/json")

    async def _body(self, request: web.BaseRequest) -> bytes:
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise _BadRequest(413, f"the body is too large: {request.content_length} bytes, at most {MAX_BODY_BYTES}")
        body = bytearray()
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                async for chunk in request.content.iter_any():
                    body += chunk
                    self._buffered += len(chunk)
                    if len(body) > MAX_BODY_BYTES:
                        raise _BadRequest(413, f"the body is too large: at most {MAX_BODY_BYTES} bytes")
                    if self._buffered > MAX_BUFFERED_BYTES and len(body) > SMALL_BODY_BYTES:
                        raise _BadRequest(503, "too many large requests at a time: try again")
            return bytes(body)
        except TimeoutError as error:
            raise _BadRequest(408, f"the body did not arrive within {READ_TIMEOUT:.0f} seconds") from error
        except (web.RequestPayloadError, aiohttp.ClientError, ConnectionError) as error:
            raise _BadRequest(400, f"the body did not arrive whole: {error}") from error
        finally:
            self._buffered -= len(body)


def _account(path: str, asked: review.Request, response: review.Response) -> None:
    operation = asked.operation if asked.operation in _OPERATIONS else "other"
    verdict = ("allowed" if response.patch is None else "patched") if response.allowed else "refused"
    REQUESTS.inc(path, operation, verdict)
    if response.status is not None:
        fields = {
            "namespace": asked.namespace,
            "pod": response.status.details.name,
            "operation": operation,
            "dry_run": bool(asked.dry_run),
            "reason": response.status.message,
        }
        log.info("pod refused", extra=fields)


class Serving:
    """A server that runs."""

    def __init__(self, port: int, handler: _Handler) -> None:
        self.port = port
        self._handler = handler

    def drain(self) -> None:
        """Answer as before, but end each connection with its next answer: the client comes back elsewhere."""
        self._handler.draining = True


@contextlib.asynccontextmanager
async def serve(host: str, port: int, pair: certificates.Certificates) -> AsyncIterator[Serving]:
    """Serve admission requests in the running event loop while the context lasts.

    On the way out no new connection is taken, requests in progress get `SHUTDOWN_TIMEOUT` to arrive and be answered,
    and idle connections are closed. OSError where the address cannot be bound.
    """
    loop = asyncio.get_running_loop()
    handler = _Handler()
    server = web.Server(handler, request_factory=_request)
    listener = await loop.create_server(
        lambda: _Connection(server, loop),
        host,
        port,
        ssl=pair.context,
        ssl_handshake_timeout=READ_TIMEOUT,
        ssl_shutdown_timeout=1.0,
    )
    try:
        yield Serving(int(listener.sockets[0].getsockname()[1]), handler)
    finally:
        listener.close()
        handler.draining = True
        # aiohttp's own shutdown drops what still arrives, so it must not begin before all has.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_TIMEOUT):
                await handler.idle.wait()
        server.pre_shutdown()
        await server.shutdown(SHUTDOWN_TIMEOUT)


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
