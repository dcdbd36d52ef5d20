"""The API server that the bench imitates for an agent, and the summary of its system calls."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from swapwarden.kube import client, config, watch

from bench import agent
from bench import agent_apiserver as bench


@pytest.fixture
async def played() -> AsyncIterator[tuple[bench.ApiServer, client.Client]]:
    made = bench.ApiServer(2, memory_qos=False)
    server = await asyncio.start_server(made.answer, bench.ADDRESS, 0)
    address = f"http://{bench.ADDRESS}:{server.sockets[0].getsockname()[1]}"
    async with client.Client(config.Config(address), user_agent="test") as api:
        yield made, api
    server.close()


async def watched(api: client.Client, version: str) -> list[tuple[str, str]]:
    """All of one watch: of each event, type and the limit of the first pod, or the version."""
    stream = watch.watch(api, "/states", resource_version=version, decode=json.loads)
    async with contextlib.aclosing(stream) as events:
        return [(each.type, shown(each)) async for each in events]


def shown(event: watch.WatchEvent[Any]) -> str:
    return (
        event.resource_version if event.object is None else next(iter(event.object["spec"]["pods"].values()))["swapMax"]
    )


async def test_a_watch_ends_in_time_with_a_bookmark_before_and_the_connection_stays(
    played: tuple[bench.ApiServer, client.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, api = played
    monkeypatch.setattr(watch, "WATCH_SECONDS", (2, 2))
    connects = 0
    connect = api._connect

    async def counted() -> Any:
        nonlocal connects
        connects += 1
        return await connect()

    monkeypatch.setattr(api, "_connect", counted)
    version = json.loads(await api.get("/states"))["metadata"]["resourceVersion"]
    real = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: real(seconds / 1000))
    first = await watched(api, version)
    assert [kind for kind, _ in first] == ["BOOKMARK"]
    assert int(first[0][1]) > int(version)
    second = await watched(api, first[0][1])
    assert [kind for kind, _ in second] == ["BOOKMARK"]
    assert connects == 1


async def test_changes_between_two_watches_are_sent_to_the_next_one(
    played: tuple[bench.ApiServer, client.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, api = played
    monkeypatch.setattr(watch, "WATCH_SECONDS", (2, 2))
    real = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: real(seconds / 1000))
    version = json.loads(await api.get("/states"))["metadata"]["resourceVersion"]
    server.put(4096)
    assert (await watched(api, version))[0] == ("MODIFIED", "4096")
    found = json.loads(await api.get("/states"))
    assert found["items"][0]["metadata"]["generation"] == 2


def test_system_calls_are_counted_by_the_minute_and_a_full_comparison_by_itself() -> None:
    attached, sign = [0.0, 0.001], [30.0 + number / 1000 for number in range(3)]
    comparison = [50.0 + number / 100 for number in range(6001)]
    end = [115.0 + number / 1000 for number in range(9)]
    found = agent.quiet([*attached, *sign, *comparison, *end], 180.0)
    assert found == {"calls": pytest.approx(6), "awakenings": pytest.approx(1), "comparison": 6001}
    assert agent.quiet([], 60.0) == {"calls": 0, "awakenings": 0, "comparison": None}
