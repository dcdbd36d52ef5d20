"""ControllerRevisions of profiles, at an API server that gives scripted answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from typing import Any

import pytest
from swapwarden.controller.profiles import revision_history
from swapwarden.controller.writers.fenced import Fenced
from swapwarden.kube import client, errors, ratelimit
from swapwarden.policy.observed import revisions
from swapwarden.policy.profile.store import ProfileStore

from tests.unit import background
from tests.unit.controller.known import term
from tests.unit.kube.scripted import Request, Scripted, failure, page, reply, until
from tests.unit.objects import profile_object

PATH = "/apis/apps/v1/namespaces/here/controllerrevisions"
NO_SWAP, LIMITED = {"behavior": "NoSwap"}, {"behavior": "LimitedSwap"}


def kept(generation: int, uid: str = "uid-of-p", **spec: Any) -> dict[str, Any]:
    """A ControllerRevision as the API server gives it."""
    found = revisions.to_object("p", uid, generation, {"nodeSelector": {}, **spec})
    found["metadata"]["uid"] = f"of-{generation}"
    return found


class Bench:
    """Revisions of the profiles of a store."""

    def __init__(self, api: client.Client, server: Scripted) -> None:
        self.server = server
        self.store = ProfileStore()
        self.named: dict[str, Collection[int]] = {}
        self.changes = 0
        writes = Fenced(api, term(), ratelimit.Throttle(100.0, asyncio.get_running_loop().time))
        self.revisions = revision_history.RevisionHistory(
            api, "here", self.store, writes, named=lambda: self.named, on_change=self.changed
        )

    def changed(self) -> None:
        self.changes += 1

    def asked(self) -> list[tuple[str, str]]:
        """Return all requests but lists: the method, and the name of the revision."""
        return [
            (
                each.method,
                json.loads(each.body)["metadata"]["name"] if each.method == "POST" else each.path[len(PATH) + 1 :],
            )
            for each in self.server.requests
            if each.method != "GET"
        ]


def _name(request: Request) -> str:
    if request.method == "POST":
        return str(json.loads(request.body)["metadata"]["name"])
    return request.path.partition("?")[0].rpartition("/")[2]


@pytest.fixture
async def bench(api: client.Client, server: Scripted) -> Bench:
    return Bench(api, server)


async def test_each_generation_that_is_needed_is_stored_once(bench: Bench) -> None:
    for number, swap in enumerate(({}, NO_SWAP, LIMITED), 1):
        bench.store.offer(profile_object(version=number, generation=number, swap=swap))
    for number in (3, 2):
        bench.server.answer(reply(kept(number)))
    await bench.revisions.ensure("p")
    assert bench.asked() == [("POST", "nsp-uid-of-p-3"), ("POST", "nsp-uid-of-p-2")]
    made = json.loads(bench.server.requests[0].body)
    assert (made["revision"], made["data"]["spec"]) == (3, {"nodeSelector": {}, "swap": LIMITED})
    bench.named = {"p": {1}}
    bench.server.answer(reply(kept(1)))
    await bench.revisions.ensure("p")
    assert bench.asked()[2:] == [("POST", "nsp-uid-of-p-1")]


async def test_a_refused_revision_is_an_error(bench: Bench) -> None:
    bench.store.offer(profile_object())
    bench.server.answer(failure(403, "Forbidden", "not you"))
    with pytest.raises(errors.ApiError):
        await bench.revisions.ensure("p")
    bench.server.answer(reply(kept(1)))
    await bench.revisions.ensure("p")
    assert bench.asked() == [("POST", "nsp-uid-of-p-1")] * 2


async def test_one_that_an_earlier_leader_stored_counts(bench: Bench) -> None:
    bench.store.offer(profile_object(swap=NO_SWAP))
    bench.server.answer(failure(409, "AlreadyExists", "there"))
    bench.server.answer(page([kept(1, swap=NO_SWAP)], 7))
    await bench.revisions.ensure("p")
    assert bench.asked() == [("POST", "nsp-uid-of-p-1")]


async def test_one_that_says_something_else_is_recreated(bench: Bench) -> None:
    bench.store.offer(profile_object(swap=NO_SWAP))
    forged = kept(1, swap=LIMITED)
    for part in (failure(409, "AlreadyExists", "there"), page([forged], 7), reply({}), reply(kept(1))):
        bench.server.answer(part)
    await bench.revisions.ensure("p")
    assert bench.asked() == [("POST", "nsp-uid-of-p-1"), ("DELETE", "nsp-uid-of-p-1"), ("POST", "nsp-uid-of-p-1")]
    assert json.loads(bench.server.requests[2].body)["preconditions"] == {"uid": "of-1"}


async def test_one_that_somebody_puts_back_again_and_again_is_not_relied_on(bench: Bench) -> None:
    bench.store.offer(profile_object(swap=NO_SWAP))
    taken = failure(409, "AlreadyExists", "there")
    for part in (taken, page([kept(1, swap=LIMITED)], 7), reply({}), taken):
        bench.server.answer(part)
    with pytest.raises(revision_history.NotKept):
        await bench.revisions.ensure("p")
    assert not bench.store.entries["p"].revisions[0].stored


async def test_a_new_leader_reads_all_revisions(bench: Bench) -> None:
    bench.store.offer(profile_object(generation=2))
    bench.server.answer(page([kept(1, swap=LIMITED), {"metadata": {"name": "odd"}}], 7))
    await bench.revisions.read()
    [asked] = bench.server.requests
    assert (asked.path, asked.query["labelSelector"]) == (PATH, "swapwarden.dev/profile-uid")
    assert [each.generation for each in bench.store.entries["p"].revisions] == [2, 1]
    assert bench.changes == 1


async def test_unneeded_revisions_are_deleted_ten_at_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revision_history, "LOOK_SECONDS", 0.0)
    bench.store.offer(profile_object(generation=20))
    bench.named = {"p": {3}}
    others = [kept(5, uid="of-a-profile-that-is-not-known-yet"), {**kept(4), "data": {"apiVersion": "of the future"}}]
    bench.named = {"p": {3, 4}}
    bench.server.answer(page([*others, *(kept(number) for number in (*range(5, 21), 3))], 7))
    for _ in range(10):
        bench.server.answer(reply({}))
    async with background.running(bench.revisions.run()):
        await until(lambda: len(bench.asked()) == 10)
    # 20 is the newest, 19 the one before, 3 and 4 are on nodes.
    assert [name for _, name in bench.asked()] == [f"nsp-uid-of-p-{number}" for number in range(5, 15)]
    assert {each.generation for each in bench.store.entries["p"].revisions} == {20, 19, 3}
