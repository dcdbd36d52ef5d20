"""Brings NodeSwapProfiles to the store: kopf watches them, and a list now and then catches what a watch can miss.

kopf runs in a thread and an event loop of its own, because it cancels on its exit whatever else runs in its loop. A
deletion between two of its watches is lost to it, it passes over profiles whose managedFields are nested deeply, and it
ends on some errors, such as managedFields that are nested more deeply yet; hence the lists, and the restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp
import kopf
import msgspec

from swapwarden.api import names
from swapwarden.controller.inventory import profiles as profile_store
from swapwarden.kube import backoff, config, decoding, errors, informer, paging, reads, transport
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

RESTARTS = metrics.counter(
    "swapwarden_profile_watch_restarts_total", "Times that the watch of profiles ended and was restarted."
)
FAILURES = metrics.counter("swapwarden_profile_list_failures_total", "Lists of profiles that failed.")

LIST_SECONDS: Final = 60.0
"""Between two lists: what kopf has missed is known after so long."""
BACKOFF_SECONDS: Final = (0.5, 30.0)
STOP_SECONDS: Final = 5.0


class ProfileWatch:
    """Feeds a store, in whose event loop it runs."""

    def __init__(
        self,
        cfg: config.Config,
        api: reads.Reader,
        store: profile_store.ProfileStore,
        *,
        on_change: Callable[[], None],
        list_interval: float = LIST_SECONDS,
    ) -> None:
        """`on_change` is called when the store knows more than before, or less."""
        self._config = cfg
        self._api = api
        self._store = store
        self._on_change = on_change
        self._list_interval = list_interval
        self.name: Final = "profiles"
        self.heard = time.monotonic()
        """When all profiles were listed last, on the clock of time.monotonic()."""
        self.synced = asyncio.Event()
        """Set once all profiles were listed; stays set."""

    async def run(self) -> None:
        """Never returns. What it started has ended when it is cancelled."""
        await self._list_until_done()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_listing())
            group.create_task(self._keep_watching())

    async def _keep_listing(self) -> None:
        while True:
            await asyncio.sleep(self._list_interval)
            await self._list_until_done()

    async def _list_until_done(self) -> None:
        wait = backoff.Backoff(*BACKOFF_SECONDS)
        while True:
            try:
                await self._list()
            except (errors.KubeError, msgspec.DecodeError) as error:
                delay = wait.after(error)
                log.warning("cannot list profiles: %s; trying again in %.1f s", error, delay)
            except Exception:
                delay = wait.next()
                log.exception("cannot take in the list of profiles; trying again in %.1f s", delay)
            else:
                self.synced.set()
                return
            FAILURES.inc()
            await asyncio.sleep(delay)

    async def _list(self) -> None:
        """Read all profiles. A page that expired midway fails the whole list."""
        found: list[dict[str, Any]] = []
        left_out = set[str]()

        def take(body: bytes) -> decoding.ListMetadata:
            page = decoding.page(body)
            for item in page.items or ():
                try:
                    found.append(decoding.decode(item, dict[str, Any]))
                except msgspec.DecodeError as error:
                    name = decoding.identity(item).name
                    left_out.add(name)
                    log.error("profile %s cannot be understood; what was known of it stays: %s", name, error)  # noqa: TRY400 the text says all
            return page.metadata

        listed = await paging.read(self._api.get, profile_store.PROFILES, take, {})
        replaced = self._store.replace(found, int(listed.resource_version), left_out)
        left_out |= replaced.failed
        if replaced.changed:
            self._on_change()
        informer.LEFT_OUT.set(len(left_out), names.PROFILE_PLURAL)
        informer.LAST_EVENT.set(time.time(), names.PROFILE_PLURAL)
        self.heard = time.monotonic()

    async def _keep_watching(self) -> None:
        wait = backoff.Backoff(*BACKOFF_SECONDS)
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            await self._watch()
            RESTARTS.inc()
            if loop.time() - begun > BACKOFF_SECONDS[1]:
                wait.reset()
            delay = wait.next()
            log.warning("the watch of profiles ended; starting it again in %.1f s", delay)
            await asyncio.sleep(delay)
            # What ends each watch must not hold back what others changed: json, with which kopf decodes, gives up where
            # managedFields are nested deeply.
            await self._list_until_done()

    async def _watch(self) -> None:
        """Run kopf in a thread until it ends."""
        loop = asyncio.get_running_loop()
        stop, ended = threading.Event(), asyncio.Event()

        def tell(callback: Callable[..., object], *args: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed when the process ends
                loop.call_soon_threadsafe(callback, *args)

        def work() -> None:
            try:
                asyncio.run(_operate(self._config, stop, lambda kind, body: tell(self._take, kind, body)))
            except kopf.LoginError:
                log.warning("the watch of profiles failed: the API server refuses this instance's credentials")
            except Exception as error:  # noqa: BLE001 whatever it was, the watch is started again
                log.warning("the watch of profiles failed: %s", error)
            finally:
                tell(ended.set)

        thread = threading.Thread(target=work, name="kopf", daemon=True)
        thread.start()
        try:
            await ended.wait()
        finally:
            stop.set()
            await asyncio.to_thread(thread.join, STOP_SECONDS)

    def _take(self, kind: str | None, body: Mapping[str, Any]) -> None:
        informer.LAST_EVENT.set(time.time(), names.PROFILE_PLURAL)
        if kind == "DELETED":
            changed = self._store.remove(body["metadata"]["name"], body["metadata"]["uid"])
        else:
            changed = self._store.offer(body)
        if changed:
            self._on_change()


async def _operate(
    cfg: config.Config, stop: threading.Event, deliver: Callable[[str | None, dict[str, Any]], None]
) -> None:
    """Run kopf until it ends or `stop` is set; `deliver(type, object)` is called for each event."""
    registry = kopf.OperatorRegistry()

    # One for all logins: credentials that were refused are not tried again, or kopf would log in without a pause.
    credentials = kopf.AiohttpSession(server=cfg.server, aiohttp_session=_session(cfg))

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return credentials

    @kopf.on.event(names.GROUP, names.VERSION, names.PROFILE_PLURAL, registry=registry)
    async def seen(event: Mapping[str, Any], **_: Any) -> None:
        deliver(event["type"], copy.deepcopy(dict(event["object"])))

    @kopf.on.cleanup(registry=registry)
    async def ending(**_: Any) -> None:
        # Kopf waits for the flag in a thread of its loop's pool. Where it ends by itself, that thread would go on, and
        # the loop could not be closed.
        stop.set()

    try:
        await kopf.operator(
            registry=registry,
            settings=_settings(),
            standalone=True,
            clusterwide=True,
            stop_flag=stop,
        )
    finally:
        stop.set()
        await credentials.aiohttp_session.close()


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    # By default kopf sends SIGKILL to the whole process where one of its ends takes longer than this.
    settings.process.ultimate_exiting_timeout = None
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.persistence.finalizer = f"{names.GROUP}/unused"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    settings.networking.request_timeout = transport.REQUEST_SECONDS
    settings.networking.connect_timeout = transport.CONNECT_SECONDS
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = transport.CONNECT_SECONDS
    return settings


def _session(cfg: config.Config) -> aiohttp.ClientSession:
    """Connections as swapwarden.kube makes them: kopf's own know no tls-server-name, and keep a token once read."""

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
