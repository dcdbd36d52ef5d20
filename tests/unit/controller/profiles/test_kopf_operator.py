"""Kopf, at an API server made of a dict."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import pathlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from swapwarden.api import names
from swapwarden.controller import supervise
from swapwarden.controller.profiles import kopf_operator
from swapwarden.controller.watches import profile_list
from swapwarden.kube import backoff, config

from testbed.controlplane import pki
from tests.unit import background
from tests.unit.controller.known import Led, term
from tests.unit.controller.profileapi import ProfileApi, client_config
from tests.unit.kube.scripted import until

# Kopf's loop ends with connections that are half closed, which say so when they are collected.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

WAIT = 20.0
NEVER = 3600.0


class Profiles(profile_list.ProfileList):
    """Keeps what kopf reports."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.gone: list[str] = []
        self.lists = 0
        self.held: dict[str, str] = {}

    def offer(self, body: Mapping[str, Any]) -> None:
        self.seen.append((body["metadata"]["name"], body["metadata"]["generation"]))

    def remove(self, body: Mapping[str, Any]) -> None:
        self.gone.append(body["metadata"]["name"])

    async def read(self, *, mends: bool = False) -> None:
        self.lists += mends

    def ending(self) -> dict[str, str]:
        return self.held


class Site:
    """A server, and what kopf has said of its profiles."""

    def __init__(self, server: ProfileApi, authority: pki.Authority, folder: pathlib.Path) -> None:
        self.server = server
        self.token_file = folder / "token"
        self.config = client_config(server, authority, self.token_file)
        self.led = Led()
        self.profiles = Profiles()
        self.ended: set[str] = set()
        self.restoring = False
        self.released: list[str] = []

    @contextlib.asynccontextmanager
    async def leading(self) -> AsyncIterator[kopf_operator.ProfileOperator]:
        """One term."""
        running = kopf_operator.ProfileOperator(
            self.config,
            term(led=self.led),
            self.profiles,
            ended=lambda uid: uid in self.ended,
            release=self._release,
            restoring=lambda: self.restoring,
        )
        async with background.running(running.run()):
            yield running

    async def _release(self, name: str) -> bool:
        self.released.append(name)
        return True

    async def saw(self, *expected: tuple[str, int]) -> None:
        """Wait for exactly these events since the last call, in any order."""
        await until(lambda: len(self.profiles.seen) >= len(expected), WAIT)
        assert sorted(self.profiles.seen) == sorted(expected)
        self.profiles.seen.clear()


@pytest_asyncio.fixture
async def site(tmp_path: pathlib.Path) -> AsyncIterator[Site]:
    authority = pki.Authority(tmp_path)
    async with ProfileApi(authority) as server:
        yield Site(server, authority, tmp_path)
    gc.collect()  # here, and not in another test


def statuses(site: Site) -> list[object]:
    """Return the patches of kopf, without those of finalizers."""
    return [body for _, body in site.server.patches if not isinstance(body, list)]


async def test_each_term_handles_all_profiles_and_then_their_changes(site: Site) -> None:
    """Over TLS, with a certificate for another name than the address, as behind a tunnel."""
    for name in ("new", "known", "behind"):
        site.server.set(name)
    site.server.observe("known")
    site.server.set("behind")
    site.server.observe("behind", 1)
    async with site.leading():
        await site.saw(("new", 1), ("known", 1), ("behind", 2))
        site.server.set("known")
        await site.saw(("known", 2))
        site.server.observe("known")
        site.server.set("later")
        await site.saw(("later", 1))
        site.server.delete("later")
        await until(lambda: site.profiles.gone == ["later"], WAIT)
    async with site.leading():
        await until(lambda: {name for name, _ in site.profiles.seen} == {"new", "known", "behind"}, WAIT)
    assert not statuses(site), "neither the whole spec in an annotation, nor what a handler returned, nor a touch"


def finalizers(site: Site, name: str) -> list[str]:
    found: list[str] = site.server.objects[name]["metadata"].get("finalizers", [])
    return found


async def test_a_profile_that_is_deleted_is_held_until_its_nodes_have_left_it_under_any_leader(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kopf_operator, "ENDED_SECONDS", 0.02)
    site.server.set("p")
    site.server.set("stays")
    async with site.leading():
        await until(lambda: finalizers(site, "p") == [names.PROFILE_FINALIZER], WAIT)
        await until(lambda: len(site.profiles.seen) >= 2, WAIT)
        site.profiles.seen.clear()
        site.server.begin_delete("p")
        await until(lambda: ("p", 2) in site.profiles.seen, WAIT)
        site.led.seconds = 0.0
        site.ended = {"uid-of-p"}
        site.server.set("stays")
        await asyncio.sleep(3 * kopf_operator.ENDED_SECONDS)
        assert all(finalizers(site, name) for name in ("p", "stays")), "who leads no longer lets nothing go"
        site.ended = set()
    assert finalizers(site, "p") == [names.PROFILE_FINALIZER], "nor does the end of a term"
    site.led.seconds = math.inf
    site.profiles.seen.clear()
    async with site.leading():
        await until(lambda: ("p", 2) in site.profiles.seen, WAIT)
        await asyncio.sleep(3 * kopf_operator.ENDED_SECONDS)
        assert finalizers(site, "p")
        site.ended = {"uid-of-p"}
        await until(lambda: site.profiles.gone == ["p"], WAIT)
        assert finalizers(site, "stays") == [names.PROFILE_FINALIZER]
    assert not statuses(site)


async def test_during_a_restore_no_profile_is_held(site: Site) -> None:
    site.server.set("p")
    site.server.set("q")
    async with site.leading():
        await until(lambda: finalizers(site, "p") and finalizers(site, "q"), WAIT)
    site.restoring = True
    async with site.leading():
        await until(lambda: not finalizers(site, "p") and not finalizers(site, "q"), WAIT)


async def test_a_finalizer_that_kopf_leaves_is_removed_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kopf_operator, "MEND_SECONDS", 0.02)
    mended = profile_list.MENDED.value("released")
    site.profiles.held = {"a": "ended", "b": "holds nodes"}
    site.ended = {"a", "c"}
    async with site.leading():
        await until(lambda: len(site.released) > 2, WAIT)
    assert set(site.released) == {"ended"}
    assert profile_list.MENDED.value("released") >= mended + 2


async def test_who_leads_no_longer_takes_up_nothing(site: Site) -> None:
    site.led.seconds = 0.0
    site.server.set("p")
    async with site.leading():
        await until(lambda: site.server.watches, WAIT)
        site.server.delete("p")
        await until(lambda: site.profiles.gone == ["p"], WAIT)
    assert site.profiles.seen == []


async def test_one_that_cannot_be_handled_is_left_to_the_list_and_keeps_no_other_from_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, faults = kopf_operator.own_copy, supervise.FAULTS.value(kopf_operator.PART)

    def fails(body: kopf_operator.Body) -> dict[str, Any]:
        if body["metadata"]["name"] == "odd":
            raise RecursionError("nobody thought of it")
        return own(body)

    monkeypatch.setattr(kopf_operator, "own_copy", fails)
    site.server.set("odd")
    site.server.set("sound")
    async with site.leading():
        await site.saw(("sound", 1))
        await until(lambda: supervise.FAULTS.value(kopf_operator.PART) == faults + 1, WAIT)
        site.server.set("later")
        await site.saw(("later", 1))
    assert not statuses(site), "it would be tried again by a change of the object"


async def test_managed_fields_as_deep_as_can_be_decoded_hide_no_spec(site: Site) -> None:
    found = site.server.set("deep")
    deep: dict[str, Any] = {}
    for _ in range(150):
        deep = {"f:a": deep}
    found["metadata"]["managedFields"] = [{"manager": "x", "fieldsV1": deep}]
    async with site.leading():
        await site.saw(("deep", 1))


async def test_kopf_that_answers_no_probe_is_restarted_and_then_the_process(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kopf_operator, "PROBE_SECONDS", 0.02)
    monkeypatch.setattr(kopf_operator, "BACKOFF_SECONDS", (0.0, 0.0))
    restarts = kopf_operator.RESTARTS.value()
    async with site.leading() as running:
        await until(lambda: site.server.watches, WAIT)
        await asyncio.sleep(0.3)
        assert kopf_operator.RESTARTS.value() == restarts, "it answers"
        # Some other port than kopf's.
        monkeypatch.setattr(kopf_operator.ProfileOperator, "probe", _unheard(running))
    async with site.leading() as running:
        monkeypatch.setattr(kopf_operator.ProfileOperator, "probe", _unheard(running))
        await until(running.stuck, WAIT)
        assert "no probe" in str(running.stuck())
        assert kopf_operator.RESTARTS.value() >= restarts + kopf_operator.STARTS - 1
        assert site.profiles.lists, "what came meanwhile"


def _unheard(running: kopf_operator.ProfileOperator) -> Any:
    probe = type(running).probe

    async def unheard(operator: kopf_operator.ProfileOperator, port: int) -> None:
        del port
        await probe(operator, kopf_operator.free_port())

    return unheard


async def test_a_token_that_was_replaced_is_used(site: Site) -> None:
    restarts = kopf_operator.RESTARTS.value()
    async with site.leading():
        await until(lambda: site.server.watches, WAIT)
        site.server.token = "second"
        site.token_file.write_text("second")
        site.server.cut()
        await until(lambda: site.server.watches == 2, WAIT)
        site.server.set("p")
        await site.saw(("p", 1))
        assert kopf_operator.RESTARTS.value() == restarts


async def test_credentials_that_are_refused_are_not_tried_without_a_pause(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a service account that was deleted, say: kopf gives up, and the pause before its next start is ours."""
    monkeypatch.setattr(backoff.Backoff, "next", lambda _: NEVER)
    restarts = kopf_operator.RESTARTS.value()
    async with site.leading():
        await until(lambda: site.server.watches, WAIT)
        site.server.token = "another one"
        site.server.cut()
        await until(lambda: kopf_operator.RESTARTS.value() > restarts, WAIT)
    assert site.server.refused == 2, "once more with the token read again"
    assert "credentials" in caplog.text


async def test_a_watch_that_ends_by_an_error_is_started_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kopf_operator, "BACKOFF_SECONDS", (0.0, 0.0))
    assert kopf_operator.operator_settings().process.ultimate_exiting_timeout is None, "nothing may kill the process"
    restarts = kopf_operator.RESTARTS.value()
    async with site.leading():
        await until(lambda: site.server.watches, WAIT)
        site.server.tell({"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd has no leader"}})
        await until(lambda: kopf_operator.RESTARTS.value() > restarts, WAIT)
        await until(lambda: site.server.watches == 2, WAIT)
        assert site.profiles.lists == 1, "what came meanwhile"
        site.server.set("p")
        await site.saw(("p", 1))


async def test_a_server_of_another_name_is_not_trusted(site: Site) -> None:
    session = kopf_operator.session_for(config.Config(server=site.config.server, ca_data=site.config.ca_data))
    async with session:
        with pytest.raises(OSError, match="certificate verify failed"):
            await session.get(f"{site.config.server}/api")
