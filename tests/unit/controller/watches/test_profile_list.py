"""Lists of profiles, at an API server made of a dict."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncIterator
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio
from swapwarden.controller.watches import profile_list
from swapwarden.kube import client, informer
from swapwarden.policy.profile.store import ProfileStore

from testbed.controlplane import pki
from tests.unit import background
from tests.unit.controller.profileapi import ProfileApi, client_config
from tests.unit.kube.scripted import until
from tests.unit.objects import profile_object

WAIT = 20.0
RESOURCE = "nodeswapprofiles"
NEVER = 3600.0


class Site:
    """A server, and what a store has learned of it."""

    def __init__(self, server: ProfileApi, authority: pki.Authority, folder: pathlib.Path) -> None:
        self.server = server
        self.token_file = folder / "token"
        self.config = client_config(server, authority, self.token_file)
        self.store = ProfileStore()
        self.changes = 0
        self.leads = True

    @contextlib.asynccontextmanager
    async def watching(self, list_interval: float = NEVER) -> AsyncIterator[profile_list.ProfileList]:
        async with client.Client(self.config, user_agent="test") as api:
            watch = profile_list.ProfileList(
                api, self.store, on_change=self._changed, mends=lambda: self.leads, list_interval=list_interval
            )
            async with background.running(watch.run()):
                yield watch

    def _changed(self) -> None:
        self.changes += 1

    async def knows(self, *expected: str) -> None:
        await until(lambda: set(self.store.entries) == set(expected), WAIT)


@pytest_asyncio.fixture
async def site(tmp_path: pathlib.Path) -> AsyncIterator[Site]:
    authority = pki.Authority(tmp_path)
    async with ProfileApi(authority) as server:
        yield Site(server, authority, tmp_path)


async def test_existing_profiles_are_listed(site: Site) -> None:
    """Over TLS, with a certificate for another name than the address, as behind a tunnel."""
    site.server.set("old")
    async with site.watching() as watch:
        await asyncio.wait_for(watch.synced.wait(), WAIT)
        assert (set(site.store.entries), site.changes) == ({"old"}, 1)
        assert informer.LAST_EVENT.value(RESOURCE) > 1e9


async def test_a_list_finds_what_kopf_has_missed_and_counts_it(site: Site) -> None:
    def mended() -> tuple[float, float]:
        return profile_list.MENDED.value("changed"), profile_list.MENDED.value("gone")

    changed, gone = mended()
    site.server.set("p")
    async with site.watching(list_interval=0.05):
        await site.knows("p")
        site.server.observe("p")
        await until(lambda: site.store.entries["p"].status, WAIT)
        assert mended() == (changed, gone), "the first list finds all, and nobody watches statuses"
        site.server.set("p", priority=7)
        await until(lambda: site.store.valid()["p"].priority == 7, WAIT)
        site.server.delete("p", silently=True)
        await site.knows()
        assert mended() == (changed + 1, gone + 1)
        site.leads = False
        site.server.set("q")
        await site.knows("q")
        assert mended() == (changed + 1, gone + 1), "one that stands by has lists only"


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
    assert all(f"profile {name} cannot be" in caplog.text for name in ("odd", "bad"))


async def test_nothing_is_in_sync_before_a_list_came(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_list, "BACKOFF_SECONDS", (0.0, 0.0))
    site.server.set("p")
    site.token_file.write_text("wrong")
    failures = profile_list.FAILURES.value()
    async with site.watching() as watch:
        await until(lambda: profile_list.FAILURES.value() > failures + 2, WAIT)
        assert not watch.synced.is_set()
        assert not site.server.lists
        site.token_file.write_text(site.server.token)
        await asyncio.wait_for(watch.synced.wait(), WAIT)
        assert set(site.store.entries) == {"p"}


def test_a_version_that_cannot_be_used_is_logged_once_and_counted_until_it_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = ProfileStore(profile_list.report)
    odd = profile_object("odd", swap={"behavior": "Newfangled"})
    store.offer(profile_object("sound"))
    for version in (1, 2):
        store.offer(odd | {"metadata": odd["metadata"] | {"resourceVersion": str(version)}})
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert "generation 1 of profile odd cannot be used: spec.swap.behavior" in record.getMessage()
    assert "none is known that can" in record.getMessage()
    assert [profile_list.VALID.value(name) for name in ("sound", "odd")] == [1, 0]
    store.remove("odd", "uid-of-odd")
    store.remove("sound", "uid-of-sound")
    assert not {"sound", "odd"} & {dict(each.labels)["profile"] for each in profile_list.VALID.samples()}
