from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from swapwarden.kube import client, errors, watch

from testbed.controlplane.servers import ControlPlane
from tests.integration.conftest import Json
from tests.integration.kube.conftest import ConfigMaps
from tests.integration.kube.proxy import Proxy
from tests.unit.kube.scripted import until

Watched = AsyncGenerator[watch.WatchEvent[Json], None]


def following(api: client.Client, maps: ConfigMaps, version: str, **options: Any) -> Watched:
    return watch.watch(api, maps.path, resource_version=version, decode=json.loads, **options)


def said(event: watch.WatchEvent[Json]) -> tuple[str, str, str, str]:
    """Type, name, value and version."""
    assert event.object is not None
    metadata = event.object["metadata"]
    assert event.resource_version == metadata["resourceVersion"]
    return event.type, metadata["name"], event.object["data"]["v"], event.resource_version


async def take(events: Watched, count: int) -> list[tuple[str, str, str, str]]:
    async with asyncio.timeout(10):
        return [said(await anext(events)) for _ in range(count)]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WATCH_SECONDS", (1, 1))


async def test_changes_in_order(api: client.Client, maps: ConfigMaps) -> None:
    start = maps.version()
    first, second = maps.create("a"), maps.set("a", "2")
    async with contextlib.aclosing(following(api, maps, start)) as events:
        assert await take(events, 2) == [("ADDED", "a", "1", first), ("MODIFIED", "a", "2", second)]
        third = maps.create("b")
        maps.delete("a")
        assert await take(events, 1) == [("ADDED", "b", "1", third)]
        ((kind, name, _, version),) = await take(events, 1)
        assert (kind, name) == ("DELETED", "a")
        assert int(version) > int(third), "the version of the deletion, not the object's last one"
    async with contextlib.aclosing(following(api, maps, second)) as events:
        assert [event[:2] for event in await take(events, 2)] == [("ADDED", "b"), ("DELETED", "a")]


async def test_only_selected_objects(api: client.Client, maps: ConfigMaps) -> None:
    start = maps.version()
    maps.create("a")
    maps.create("b")
    selected = {"fieldSelector": "metadata.name=b"}
    async with contextlib.aclosing(following(api, maps, start, params=selected)) as events:
        assert [event[:2] for event in await take(events, 1)] == [("ADDED", "b")]


async def test_bookmarks(
    own: ControlPlane, api: client.Client, maps: ConfigMaps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is also sent two seconds before the end, if other objects of the kind have changed: the collection's version
    rises, while the watched objects stay as they are."""
    monkeypatch.setattr(watch, "WATCH_SECONDS", (3, 3))
    others = ConfigMaps(own)
    start = maps.create("a")
    waiting = asyncio.ensure_future(anext(following(api, maps, start)))
    changes = itertools.count()
    await until(lambda: others.create(f"c{next(changes)}") and waiting.done())
    bookmark = await waiting
    assert (bookmark.type, bookmark.object) == ("BOOKMARK", None)
    assert int(bookmark.resource_version) > int(start)


@pytest.mark.usefixtures("short")
async def test_an_end_in_time(api: client.Client, maps: ConfigMaps, proxy: Proxy) -> None:
    maps.create("a")
    async with asyncio.timeout(10):
        assert [event async for event in following(api, maps, maps.version()) if event.object] == []
    await api.get(maps.path)
    assert proxy.connections == 1, "the connection is kept"


async def test_a_cut_loses_nothing(api: client.Client, maps: ConfigMaps, proxy: Proxy) -> None:
    """Wherever in the stream it happens, also in the middle of a line."""
    version = maps.version()
    for at in range(20):
        maps.create(f"c{at:02}", "x" * 2000)
    names: list[str] = []
    while len(names) < 20:
        proxy.cut_after(15_000)
        async with asyncio.timeout(10):
            with contextlib.suppress(errors.Unreachable):
                async for event in following(api, maps, version):
                    names.append(said(event)[1])
                    version = event.resource_version
                    if len(names) == 20:
                        break
    assert names == [f"c{at:02}" for at in range(20)]
    assert proxy.connections >= 4


@pytest.mark.usefixtures("short")
async def test_silence(api: client.Client, maps: ConfigMaps, proxy: Proxy) -> None:
    events = following(api, maps, maps.version(), silence=0.1)
    waiting = asyncio.ensure_future(anext(events))
    await until(lambda: proxy.connections)
    maps.create("a")
    await asyncio.wait_for(waiting, 5)
    proxy.stall()
    with pytest.raises(errors.Unreachable, match=re.escape(watch.SILENT.format(1.1))):
        await asyncio.wait_for(anext(events), 5)


async def test_versions_too_old(own: ControlPlane, api: client.Client, maps: ConfigMaps) -> None:
    """Not only that of an old list: that of an object, which nobody has changed for a while, is no version to watch
    from either."""
    old = maps.version()
    untouched = maps.create("untouched")
    maps.create("a")
    maps.set("a", "2")
    own.servers.stop_apiserver()
    own.servers.etcd.compact()
    await asyncio.to_thread(own.servers.start_apiserver)
    for version in (old, untouched):
        with pytest.raises(watch.Expired, match="too old resource version"):
            await asyncio.wait_for(anext(following(api, maps, version)), 10)
    async with contextlib.aclosing(following(api, maps, maps.version())) as events:
        changed = maps.set("a", "3")
        assert await take(events, 1) == [("MODIFIED", "a", "3", changed)]


async def test_a_collection_that_is_not_there(api: client.Client) -> None:
    with pytest.raises(errors.ApiError) as caught:
        await anext(watch.watch(api, "/apis/nobody.example.com/v1/things", resource_version="", decode=json.loads))
    assert caught.value.status == 404
