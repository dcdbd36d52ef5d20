"""Namespaces at an API server that gives scripted answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from swapwarden.api import names
from swapwarden.controller.watches import namespaces as namespace_watch
from swapwarden.kube import client, informer
from swapwarden.policy.profile import compiled

from tests.unit import background
from tests.unit.controller.known import Known
from tests.unit.kube.scripted import END, HANG, STREAM, Scripted, error, event, failure, page, until
from tests.unit.objects import container, make_override, named_profile, node, pod

TEAM = (compiled.LabelExpression("team", "In", frozenset({"a"})),)
BY_TEAM = make_override(namespaces=TEAM, policy=names.Policy.DISABLED)


def namespace(name: str, version: int, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version), "labels": labels}}


class Bench:
    def __init__(self, api: client.Client) -> None:
        self.known = Known()
        self.watch = namespace_watch.NamespaceWatch(
            api, known=self.known.namespaces_known, on_change=self.known.namespace_changed
        )
        self.known.node_changed("node-1", None, node())
        self.known.pod_changed("default/pod", None, pod(container()))

    def overrides(self, *entries: compiled.Override) -> None:
        self.known.profiles_changed({"p": named_profile(overrides=entries)})
        self.known.due.clear()
        self.watch.update(needed=self.known.planner.needs_namespaces())

    def swap_max(self) -> str | None:
        """Return the pod's limit; None: what the kubelet gives it."""
        return self.known.plan("node-1").pods["uid-1"].swap_max


@pytest.fixture
async def bench(api: client.Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(informer, "BACKOFF_SECONDS", (0.0, 0.0))
    made = Bench(api)
    async with background.running(made.watch.run()) as task:
        yield made
        assert not task.done(), task


async def test_nobody_asks_where_nobody_needs_them(bench: Bench, server: Scripted) -> None:
    bench.overrides(make_override(pods=TEAM, policy=names.Policy.DISABLED))
    server.answer(page([], 1))
    server.answer(STREAM, HANG)
    bench.overrides(BY_TEAM)
    await until(lambda: not bench.known.lacks_namespaces("node-1"))
    assert [request.path for request in server.requests[:1]] == [namespace_watch.NAMESPACES]


async def test_nodes_wait_until_all_are_known_and_follow_changes(bench: Bench, server: Scripted) -> None:
    change, listed = asyncio.Event(), asyncio.Event()
    server.answer(failure(403, "Forbidden", "no"))
    server.answer(page([namespace("shop", 3)], 5, following="more"))
    server.answer(listed, page([namespace("default", 4, team="a")], 5))
    server.answer(STREAM, change, event("MODIFIED", namespace("default", 6, team="b")), HANG)
    bench.overrides(BY_TEAM)
    await server.seen(3)
    assert bench.known.lacks_namespaces("node-1")
    assert bench.known.due == []
    listed.set()
    await until(lambda: bench.known.due)
    assert not bench.known.lacks_namespaces("node-1")
    assert bench.swap_max() == "0"
    bench.known.due.clear()
    change.set()
    await until(lambda: bench.known.due)
    assert bench.swap_max() is None


async def test_a_repeated_list_takes_no_override_away(bench: Bench, server: Scripted) -> None:
    listed = asyncio.Event()
    server.answer(page([namespace("default", 4, team="a")], 5))
    server.answer(STREAM, error(410, "Expired"), END)
    server.answer(page([namespace("another", 8)], 9, following="more"))
    server.answer(listed, page([namespace("default", 4, team="a")], 9))
    server.answer(STREAM, HANG)
    bench.overrides(BY_TEAM)
    await until(lambda: bench.known.due)
    bench.known.due.clear()
    await server.seen(4)
    assert bench.swap_max() == "0"
    listed.set()
    await server.seen(5)
    assert bench.swap_max() == "0"
    assert bench.known.due == []


async def test_it_ends_with_the_need_and_begins_again(bench: Bench, server: Scripted) -> None:
    for version in (5, 7):
        server.answer(page([namespace("default", version, team="a")], version))
        server.answer(STREAM, HANG)
    bench.overrides(BY_TEAM)
    await until(lambda: not bench.known.lacks_namespaces("node-1"))
    await server.seen(2)
    bench.overrides()
    await until(lambda: informer.SYNCED.value("namespaces") == 0)
    assert bench.swap_max() is None
    bench.overrides(BY_TEAM)
    await server.seen(4)
    await until(lambda: not bench.known.lacks_namespaces("node-1"))
    assert bench.swap_max() == "0"


async def test_a_need_that_returns_at_once_is_met(bench: Bench, server: Scripted) -> None:
    for version in (5, 7):
        server.answer(page([namespace("default", version, team="a")], version))
        server.answer(STREAM, HANG)
    bench.overrides(BY_TEAM)
    await server.seen(2)
    bench.overrides()
    bench.overrides(BY_TEAM)
    await server.seen(4)
    await until(lambda: not bench.known.lacks_namespaces("node-1"))


async def test_it_says_whether_all_that_is_needed_is_known(bench: Bench, server: Scripted) -> None:
    watch, listed = bench.watch, asyncio.Event()
    assert watch.synced.is_set(), "nobody needs them"
    for version in (5, 7):
        server.answer(listed, page([namespace("default", version, team="a")], version))
        server.answer(STREAM, HANG)
    bench.overrides(BY_TEAM)
    assert not watch.synced.is_set()
    since = watch.heard
    await server.seen(1)
    assert not watch.synced.is_set()
    listed.set()
    await until(watch.synced.is_set)
    assert not bench.known.lacks_namespaces("node-1")
    assert watch.heard > since
    bench.overrides()
    assert watch.synced.is_set()
    listed.clear()
    bench.overrides(BY_TEAM)
    assert not watch.synced.is_set()
    await server.seen(3)
    assert not watch.synced.is_set()
    listed.set()
    await until(watch.synced.is_set)
