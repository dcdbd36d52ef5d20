"""Runs kopf for one term: it reports new, changed and deleted NodeSwapProfiles, and holds those that are being deleted.

Kopf's finalizer holds a profile that is being deleted until its nodes have left it, under any leader.

It runs in a thread and an event loop of its own, because it cancels all other tasks of its loop at its exit. An
instance that stands by runs none. A list finds the changes that kopf misses (watches.profiles): deletions between two
of its watches, and all changes while it restarts after an error.

Kopf writes nothing but the finalizer. By default it would keep the whole spec in an annotation, which the API server
refuses if the spec is large. The observedGeneration of our own status is the generation that was handled last.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final

import aiohttp
import kopf
import msgspec

from swapwarden.api import names
from swapwarden.controller import supervise
from swapwarden.controller.term import Term, TermOver
from swapwarden.controller.watches import profile_list
from swapwarden.kube import backoff, config, errors, transport
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

RESTARTS = metrics.counter(
    "swapwarden_profile_watch_restarts_total", "Times that the watch of profiles ended and was restarted."
)

PART: Final = "profile_operator"
BACKOFF_SECONDS: Final = (0.5, 30.0)
STOP_SECONDS: Final = 5.0
ENDED_SECONDS: Final = 0.2
"""Seconds between two checks of whether nodes follow a profile."""
MEND_SECONDS: Final = 60.0
PROBE_SECONDS: Final = 10.0
PROBE_TIMEOUT: Final = 5.0
MISSES: Final = 3
"""Probes in a row that kopf may leave without an answer before it is restarted."""
STARTS: Final = 5
"""Starts in a row without an answered probe after which the process is restarted."""

Body = Mapping[str, Any]


class Generations(kopf.DiffBaseStorage):
    """Compares, for kopf, the generation of a spec with the one that our status has observed."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> Any:
        """Return the present generation."""
        del extra_fields
        return {"generation": body["metadata"].get("generation")}

    def fetch(self, *, body: kopf.Body) -> Any:
        """Return the generation that was handled last; None if there is none."""
        observed = (body.get("status") or {}).get("observedGeneration")
        return None if observed is None else {"generation": observed}

    def store(self, **_: object) -> None:
        """Do nothing: the status is written elsewhere."""


class Nothing(kopf.ProgressStorage):
    """Stores no progress of handlers: none of ours is ever retried, see _quietly()."""

    def fetch(self, **_: object) -> None:
        """Do nothing."""

    store = purge = touch = fetch

    def clear(self, *, essence: Any) -> Any:
        """Return an object without the progress in it: there is none."""
        return essence


class ProfileOperator:
    """Runs kopf, and restarts it whenever it ends."""

    def __init__(
        self,
        cfg: config.Config,
        term: Term,
        profiles: profile_list.ProfileList,
        *,
        ended: Callable[[str], bool],
        release: Callable[[str], Coroutine[Any, Any, bool]],
        restoring: Callable[[], bool],
    ) -> None:
        """`profiles` takes what kopf reports, in this event loop, and lists what it may have missed.

        `release` takes the finalizer off the profile of a name, and returns whether it was there. In any thread,
        `ended` says whether the profile with a UID holds no node any more, and `restoring` whether all nodes restore
        their original settings: none is held then.
        """
        self._config = cfg
        self._term = term
        self._profiles = profiles
        self._ended = ended
        self._release = release
        self._restoring = restoring
        self._mute = 0
        self._handled = 0

    def stuck(self) -> str | None:
        """Return why the process must be restarted; None if it need not."""
        if self._mute < STARTS:
            return None
        return f"kopf has answered no probe after {self._mute} starts"

    async def run(self) -> None:
        """Run until cancelled. Its thread has then ended."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_operating())
            group.create_task(self._mend())

    async def _mend(self) -> None:
        """Release profiles whose finalizer kopf has failed to remove: there are objects that it cannot handle."""
        late = set[str]()
        while True:
            await asyncio.sleep(MEND_SECONDS)
            held = {uid: name for uid, name in self._profiles.ending().items() if self._may_go(uid)}
            for uid in late & held.keys():
                try:
                    profile_list.MENDED.inc("released", by=await self._release(held[uid]))
                except (errors.KubeError, msgspec.DecodeError, TermOver) as error:
                    log.warning("cannot take the finalizer off profile %s: %s", held[uid], error)
            late = set(held)

    async def _keep_operating(self) -> None:
        waits, loop = backoff.Backoff(*BACKOFF_SECONDS), asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await self._operate()
            RESTARTS.inc()
            if loop.time() - begun > BACKOFF_SECONDS[1]:
                waits.reset()
            delay = waits.next()
            log.warning("the watch of profiles ended; starting it again in %.1f s", delay)
            await asyncio.sleep(delay)
            await self._profiles.read(mends=True)

    async def _operate(self) -> None:
        """Run kopf until it ends, or answers no probe any more."""
        loop, stop, ended, port = asyncio.get_running_loop(), threading.Event(), asyncio.Event(), free_port()

        def call(callback: Callable[..., object], *arguments: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed when the process ends
                loop.call_soon_threadsafe(callback, *arguments)

        def work() -> None:
            try:
                asyncio.run(self._kopf(stop, port, call))
            except kopf.LoginError:
                log.warning("the watch of profiles failed: the API server refuses this instance's credentials")
            except Exception as error:  # noqa: BLE001 after any error the watch restarts
                log.warning("the watch of profiles failed: %s", error)
            finally:
                call(ended.set)

        thread = threading.Thread(target=work, name="kopf", daemon=True)
        thread.start()
        tasks = [asyncio.create_task(ended.wait()), asyncio.create_task(self.probe(port))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            stop.set()
            await asyncio.to_thread(thread.join, STOP_SECONDS)

    async def probe(self, port: int) -> None:
        """Return when kopf does not answer any more."""
        misses = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PROBE_TIMEOUT)) as session:
            while misses < MISSES:
                await asyncio.sleep(PROBE_SECONDS)
                try:
                    async with session.get(f"http://127.0.0.1:{port}/", raise_for_status=True) as answer:
                        await answer.read()
                except (aiohttp.ClientError, TimeoutError):
                    misses += 1
                else:
                    misses = self._mute = 0
        self._mute += 1
        log.warning("kopf answers no probe any more; it is restarted")

    async def _kopf(self, stop: threading.Event, port: int, call: Callable[..., None]) -> None:
        """Run kopf until it ends or `stop` is set; `call` calls in the event loop that this one was made in."""
        registry = kopf.OperatorRegistry()
        kind = (names.GROUP, names.VERSION, names.PROFILE_PLURAL)
        # One session for all logins: kopf does not retry refused credentials, or it would log in without a pause.
        credentials = kopf.AiohttpSession(server=self._config.server, aiohttp_session=session_for(self._config))

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.AiohttpSession:
            return credentials

        # The store finds out which object is new and which one was changed.
        @kopf.on.resume(*kind, registry=registry, when=self._leads)
        @kopf.on.create(*kind, registry=registry, when=self._leads)
        @kopf.on.update(*kind, registry=registry, when=self._leads)
        async def seen(body: Body, **_: Any) -> None:
            with _quietly():
                self._handled += 1
                call(self._profiles.offer, own_copy(body))

        # One whose condition does not hold has kopf take its finalizer off all profiles: that suits a restore, and
        # nothing else.
        @kopf.on.delete(*kind, registry=registry, when=self._holds)
        async def ending(body: Body, uid: str, **_: Any) -> None:
            with _quietly():
                call(self._profiles.offer, own_copy(body))
            # Kopf takes the finalizer off when this returns.
            while not self._may_go(uid):  # noqa: ASYNC110 what is waited for is in another event loop
                await asyncio.sleep(ENDED_SECONDS)

        @kopf.on.event(*kind, registry=registry, when=_is_gone)
        async def gone(body: Body, **_: Any) -> None:
            with _quietly():
                call(self._profiles.remove, own_copy(body))

        @kopf.on.probe(registry=registry, id="handled")
        async def handled(**_: Any) -> int:
            return self._handled

        @kopf.on.cleanup(registry=registry)
        async def cleanup(**_: Any) -> None:
            # Kopf waits for the flag in a thread of its loop's pool. If kopf ends by itself, that thread would
            # continue, and the loop could not be closed.
            stop.set()

        try:
            await kopf.operator(
                registry=registry,
                settings=operator_settings(),
                standalone=True,
                clusterwide=True,
                stop_flag=stop,
                liveness_endpoint=f"http://127.0.0.1:{port}/",
            )
        finally:
            stop.set()
            await credentials.aiohttp_session.close()

    def _may_go(self, uid: str) -> bool:
        return self._term.is_valid() and self._ended(uid)

    def _holds(self, **_: Any) -> bool:
        return not self._restoring()

    def _leads(self, **_: Any) -> bool:
        return self._term.is_valid()


def _is_gone(**event: Any) -> bool:
    return bool(event["type"] == "DELETED")


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Catch errors in a handler: else kopf would record in the object that it must retry."""
    try:
        yield
    except Exception:
        supervise.FAULTS.inc(PART)
        log.exception("cannot handle what kopf reports of a profile; the next list finds it")


def own_copy(body: Body) -> dict[str, Any]:
    """Return a copy for another thread, without managedFields: nobody reads them, and they may be nested deeply."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return copy.deepcopy({**body, "metadata": metadata})


def free_port() -> int:
    """Return a port that is free now: kopf takes port 0 for 80. If another process takes it first, kopf restarts."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def operator_settings() -> kopf.OperatorSettings:
    """Return the settings of kopf that differ from its defaults, for reasons given here."""
    settings = kopf.OperatorSettings()
    # By default kopf sends SIGKILL to the whole process where one of its ends takes longer than this.
    settings.process.ultimate_exiting_timeout = None
    settings.scanning.disabled = True
    # Our own recorder sends Events: it is bounded, and reports nothing twice.
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.persistence.finalizer = names.PROFILE_FINALIZER
    settings.persistence.progress_storage = Nothing()
    settings.persistence.diffbase_storage = Generations()
    settings.networking.request_timeout = transport.REQUEST_SECONDS
    settings.networking.connect_timeout = transport.CONNECT_SECONDS
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = transport.CONNECT_SECONDS
    # A handler that waits holds up the end of a term for as long.
    settings.queueing.exit_timeout = 0.2
    # Seconds for which kopf leaves an object alone after an error of kopf itself; by default up to ten minutes.
    settings.queueing.error_delays = (1, 2, 5, 10, 30)
    settings.execution.max_workers = 1  # all handlers are coroutines
    return settings


def session_for(cfg: config.Config) -> aiohttp.ClientSession:
    """Return a session as swapwarden.kube makes it: kopf's own ignores tls-server-name and reads a token once."""

    async def identify(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        request.server_hostname = cfg.tls_server_name
        _authorize(request, cfg)
        answer = await send(request)
        if answer.status == 401 and cfg.token_file:
            # The token may have been replaced since the last look at its file.
            answer.release()
            cfg.token_file.forget()
            _authorize(request, cfg)
            answer = await send(request)
        return answer

    context = cfg.ssl_context()
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=True if context is None else context), middlewares=(identify,)
    )


def _authorize(request: aiohttp.ClientRequest, cfg: config.Config) -> None:
    token = cfg.token()
    if token:
        request.headers["Authorization"] = f"Bearer {token}"
