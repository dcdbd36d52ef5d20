"""Kopf's watch and the lists beside it, at an API server made of a dict."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import pathlib
from collections.abc import AsyncIterator
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio
from swapwarden.controller.inventory import profiles as profile_store
from swapwarden.controller.watches import profiles as profile_watch
from swapwarden.kube import backoff, client, config, informer

from testbed.controlplane import pki
from tests.unit.controller.objects import profile_object
from tests.unit.controller.profileapi import NAME, ProfileApi
from tests.unit.kube.scripted import until

# Kopf's loop ends with connections that are half closed, which say so when they are collected.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

WAIT = 20.0
RESOURCE = "nodeswapprofiles"
NEVER = 3600.0


class Site:
    """A server, and what a store has learned of it."""

    def __init__(self, server: ProfileApi, authority: pki.Authority, folder: pathlib.Path) -> None:
        self.server = server
        self.token_file = folder / "token"
        self.token_file.write_text(server.token)
        self.config = config.Config(
            server=f"https://127.0.0.1:{server.port}",
            ca_data=authority.certificate.read_text(),
            tls_server_name=NAME,
            token_file=config.TokenFile(self.token_file),
        )
        self.store = profile_store.ProfileStore()
        self.changes = 0

    @contextlib.asynccontextmanager
    async def watching(self, list_interval: float = NEVER) -> AsyncIterator[profile_watch.ProfileWatch]:
        async with client.Client(self.config, user_agent="test") as api:
            watch = profile_watch.ProfileWatch(
                self.config, api, self.store, on_change=self._changed, list_interval=list_interval
            )
            task = asyncio.create_task(watch.run())
            try:
                yield watch
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _changed(self) -> None:
        self.changes += 1

    async def knows(self, *expected: str) -> None:
        await until(lambda: set(self.store.entries) == set(expected), WAIT)


@pytest_asyncio.fixture
async def site(tmp_path: pathlib.Path) -> AsyncIterator[Site]:
    authority = pki.Authority(tmp_path)
    async with ProfileApi(authority) as server:
        yield Site(server, authority, tmp_path)
    gc.collect()  # here, and not in another test


async def test_what_is_there_is_listed_and_what_comes_is_watched(site: Site) -> None:
    """Over TLS, with a certificate for another name than the address, as behind a tunnel."""
    site.server.set("old")
    async with site.watching() as watch:
        await asyncio.wait_for(watch.synced.wait(), WAIT)
        assert (set(site.store.entries), site.changes) == ({"old"}, 1)
        await until(lambda: site.server.watches, WAIT)
        heard = informer.LAST_EVENT
        assert heard.value(RESOURCE) > 1e9, "a list tells, too"
        heard.set(0, RESOURCE)
        site.server.set("new", priority=7)
        await site.knows("old", "new")
        await until(lambda: heard.value(RESOURCE) > 1e9, WAIT)
        site.server.set("new", priority=8)
        await until(lambda: site.store.valid()["new"].priority == 8, WAIT)
        site.server.delete("old")
        await site.knows("new")
        assert site.changes == 4, "one for each"


async def test_a_token_that_was_replaced_is_used(site: Site) -> None:
    restarts = profile_watch.RESTARTS.value()
    async with site.watching():
        await until(lambda: site.server.watches, WAIT)
        site.server.token = "second"
        site.token_file.write_text("second")
        site.server.cut()
        await until(lambda: site.server.watches == 2, WAIT)
        site.server.set("p")
        await site.knows("p")
        assert profile_watch.RESTARTS.value() == restarts


async def test_credentials_that_are_refused_are_not_tried_without_a_pause(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a service account that was deleted, say: kopf gives up, and the pause before its next start is ours."""
    monkeypatch.setattr(backoff.Backoff, "next", lambda _: NEVER)
    restarts = profile_watch.RESTARTS.value()
    async with site.watching():
        await until(lambda: site.server.watches, WAIT)
        site.server.token = "another one"
        site.server.cut()
        await until(lambda: profile_watch.RESTARTS.value() > restarts, WAIT)
    assert site.server.refused == 2, "once more with the token read anew"
    assert "the watch of profiles failed: the API server refuses this instance's credentials" in caplog.text


async def test_a_list_finds_what_no_watch_has_told(site: Site) -> None:
    site.server.set("p")
    async with site.watching(list_interval=0.05):
        await until(lambda: site.server.watches, WAIT)
        site.server.delete("p", silently=True)
        await site.knows()


async def test_a_watch_that_ends_by_an_error_is_started_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_watch, "BACKOFF_SECONDS", (0.0, 0.0))
    assert profile_watch._settings().process.ultimate_exiting_timeout is None, "nothing may kill the process"
    restarts = profile_watch.RESTARTS.value()
    async with site.watching():
        await until(lambda: site.server.watches, WAIT)
        site.server.tell({"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd has no leader"}})
        await until(lambda: profile_watch.RESTARTS.value() > restarts, WAIT)
        await until(lambda: site.server.watches == 2, WAIT)
        site.server.set("p")
        await site.knows("p")


async def test_a_watch_that_ended_is_made_good_by_a_list(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_watch, "BACKOFF_SECONDS", (0.0, 0.0))
    site.server.set("p")
    async with site.watching():
        await until(lambda: site.server.watches, WAIT)
        site.server.delete("p", silently=True)
        site.server.tell({"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd has no leader"}})
        await until(lambda: site.server.lists == 2, WAIT)
        await site.knows()


async def test_a_profile_that_cannot_be_decoded_stays_as_it_was(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bad", "gone", "good"):
        site.server.set(name, priority=1)
    async with site.watching(list_interval=0.05):
        await site.knows("bad", "gone", "good")
        version = b'{"resourceVersion":"99"}'
        bad = b'{"metadata":{"name":"bad"},"spec":%s}' % (b"[" * 20_000 + b"]" * 20_000)
        good = json.dumps(profile_object("good", 98, 2, priority=2)).encode()
        odd = json.dumps(profile_object("odd", 97)).replace('"97"', '"none"').encode()
        body = b'{"metadata":%s,"items":[%s,%s,%s]}' % (version, bad, odd, good)
        monkeypatch.setattr(client.Client, "get", AsyncMock(return_value=body))
        await until(lambda: site.store.valid()["good"].priority == 2, WAIT)
        await site.knows("bad", "good")
        assert site.store.valid()["bad"].priority == 1
    assert informer.LEFT_OUT.value(RESOURCE) == 2
    assert "profile odd cannot be taken in" in caplog.text
    assert "profile bad cannot be understood" in caplog.text


async def test_nothing_is_in_sync_before_a_list_came(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_watch, "BACKOFF_SECONDS", (0.0, 0.0))
    site.server.set("p")
    site.token_file.write_text("wrong")
    failures = profile_watch.FAILURES.value()
    async with site.watching() as watch:
        await until(lambda: profile_watch.FAILURES.value() > failures + 2, WAIT)
        assert not watch.synced.is_set()
        assert not site.server.lists
        site.token_file.write_text(site.server.token)
        await asyncio.wait_for(watch.synced.wait(), WAIT)
        assert set(site.store.entries) == {"p"}
        await until(lambda: site.server.watches, WAIT)


async def test_a_server_of_another_name_is_not_trusted(site: Site) -> None:
    session = profile_watch._session(config.Config(server=site.config.server, ca_data=site.config.ca_data))
    async with session:
        with pytest.raises(OSError, match="certificate verify failed"):
            await session.get(f"{site.config.server}/api")
