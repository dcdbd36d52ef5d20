from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from swapwarden.kube import client, errors, watch

from tests.unit.kube.scripted import (
    CUT,
    END,
    HANG,
    RESET,
    STREAM,
    Scripted,
    bookmark,
    chunk,
    configmap,
    error,
    event,
    failure,
    line,
    plain,
    until,
)

Json = dict[str, Any]
Watched = AsyncGenerator[watch.WatchEvent[Json], None]


def decode(body: bytes) -> Json:
    decoded = json.loads(body)
    assert isinstance(decoded, dict)
    return decoded


def following(api: client.Client, **options: Any) -> Watched:
    return watch.watch(api, "/api/v1/configmaps", resource_version="5", decode=decode, **options)


async def seen(events: Watched) -> list[tuple[str, str, str]]:
    """Type, name and version of each event."""
    return [
        (found.type, found.object["metadata"]["name"] if found.object else "", found.resource_version)
        async for found in events
    ]


async def test_events(server: Scripted, api: client.Client) -> None:
    a, b = configmap("a", 6), configmap("b", 7)
    server.answer(STREAM, event("ADDED", a), event("MODIFIED", b), bookmark(8), event("DELETED", a | {"x": 1}), END)
    events = [found async for found in following(api)]
    assert events == [
        watch.WatchEvent("ADDED", a, "6"),
        watch.WatchEvent("MODIFIED", b, "7"),
        watch.WatchEvent("BOOKMARK", None, "8"),
        watch.WatchEvent("DELETED", a | {"x": 1}, "6"),
    ]


async def test_the_request_of_a_watch(server: Scripted, api: client.Client) -> None:
    for _ in range(2):
        server.answer(STREAM, END)
        assert await seen(following(api, params={"fieldSelector": "metadata.name=a"})) == []
    query = server.requests[0].query
    seconds = int(query.pop("timeoutSeconds"))
    assert watch.WATCH_SECONDS[0] <= seconds <= watch.WATCH_SECONDS[1]
    assert query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "5",
        "fieldSelector": "metadata.name=a",
    }
    assert server.connections == 1


async def test_lines_may_come_in_any_pieces(server: Scripted, api: client.Client) -> None:
    text = line("ADDED", configmap("a", 6, "\n")) + line("ADDED", configmap("b", 7))
    for cut in range(1, len(text)):
        server.answer(STREAM, chunk(text[:cut]), chunk(text[cut:]), END)
        assert await seen(following(api)) == [("ADDED", "a", "6"), ("ADDED", "b", "7")], f"cut after {cut} bytes"


async def test_lines_may_come_byte_by_byte(server: Scripted, api: client.Client) -> None:
    text = line("ADDED", configmap("a", 6)) + b"\n \n" + line("ADDED", configmap("b", 7))
    server.answer(STREAM, *(chunk(text[at : at + 1]) for at in range(len(text))), END)
    assert await seen(following(api)) == [("ADDED", "a", "6"), ("ADDED", "b", "7")]


@pytest.mark.parametrize("end", [CUT, RESET, END], ids=["closed", "reset", "ended"])
async def test_half_a_line_is_no_event(server: Scripted, api: client.Client, end: Any) -> None:
    """It is sent again after the last version, unless it breaks the watch itself: so it is an error."""
    go = asyncio.Event()
    server.answer(STREAM, event("ADDED", configmap("a", 6)), chunk(line("ADDED", configmap("b", 7))[:-2]), go, end)
    events = following(api)
    assert (await anext(events)).resource_version == "6"
    go.set()
    with pytest.raises(watch.Broken, match="ended within an event"):
        await anext(events)


@pytest.mark.parametrize("code", [410, 500, 504, 429])
async def test_an_error_event(server: Scripted, api: client.Client, code: int) -> None:
    server.answer(STREAM, event("ADDED", configmap("a", 6)), error(code, "Reason", "too old resource version"))
    events = following(api)
    assert (await anext(events)).resource_version == "6"
    with pytest.raises(watch.Expired if code == 410 else errors.ApiError, match="too old resource version") as caught:
        await anext(events)
    if isinstance(caught.value, errors.ApiError):
        assert (caught.value.status, caught.value.reason) == (code, "Reason")


@pytest.mark.parametrize("status", [{}, {"code": 500, "message": ""}])
async def test_an_error_event_that_says_nothing(server: Scripted, api: client.Client, status: Json) -> None:
    server.answer(STREAM, event("ERROR", status))
    with pytest.raises(errors.ApiError, match="the watch failed") as caught:
        await seen(following(api))
    assert caught.value.status == 500


async def test_a_watch_that_is_too_old_from_the_start(server: Scripted, api: client.Client) -> None:
    server.answer(failure(410, "Expired", "too old resource version: 5 (9)"))
    with pytest.raises(watch.Expired, match="too old resource version"):
        await seen(following(api))


async def test_a_watch_that_is_refused(server: Scripted, api: client.Client) -> None:
    server.answer(failure(403, "Forbidden", "you may not watch"))
    with pytest.raises(errors.ApiError, match="you may not watch"):
        await seen(following(api))


@pytest.mark.parametrize(
    "text",
    [
        b"<html>\n",
        b"[]\n",
        b'"ADDED"\n',
        b'{"type":"ADDED"}\n',
        b'{"type":5,"object":{}}\n',
        b'{"type":"ADDED","object":{"metadata":{}}}\n',
        b'{"type":"ADDED","object":{"metadata":{"resourceVersion":7}}}\n',
        b'{"type":"BOOKMARK","object":{}}\n',
        b'{"type":"ERROR","object":[]}\n',
        b'{"type":"ERROR","object":{"code":"410"}}\n',
        b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"\xff"}}}\n',
        b'{"type":"\xff","object":{}}\n',
    ],
)
async def test_a_line_that_is_no_event(server: Scripted, api: client.Client, text: bytes) -> None:
    server.answer(STREAM, chunk(text), HANG)
    with pytest.raises(errors.Unreachable, match=watch.NO_EVENT):
        await seen(following(api))


async def test_an_event_of_unknown_type(server: Scripted, api: client.Client) -> None:
    server.answer(STREAM, event("RENAMED", configmap("a", 6)), HANG)
    with pytest.raises(errors.Unreachable, match=watch.UNKNOWN_TYPE.format("RENAMED")):
        await seen(following(api))


async def test_an_answer_that_is_no_watch(server: Scripted, api: client.Client) -> None:
    server.answer(plain(b'{"kind":"ConfigMapList","items":[]}\n'))
    with pytest.raises(errors.Unreachable, match=watch.NO_EVENT):
        await seen(following(api))


async def test_a_line_without_end(server: Scripted, api: client.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_LINE_BYTES", 1024 * 1024)
    server.answer(STREAM, event("ADDED", configmap("a", 6, "x" * 1_000_000)), *[chunk(b"x" * 100_000)] * 11, HANG)
    events = following(api)
    assert (await anext(events)).resource_version == "6"
    with pytest.raises(errors.Unreachable, match="1 MiB"):
        await anext(events)


@pytest.mark.parametrize("before", [(), (event("ADDED", configmap("a", 6)),), (chunk(b'{"type"'),)])
async def test_a_silent_watch(
    server: Scripted, api: client.Client, monkeypatch: pytest.MonkeyPatch, before: tuple[bytes, ...]
) -> None:
    monkeypatch.setattr(watch, "WATCH_SECONDS", (0, 0))
    server.answer(STREAM, *before, HANG)
    with pytest.raises(errors.Unreachable, match=re.escape(watch.SILENT.format(0.05))):
        await seen(following(api, silence=0.05))
    await until(lambda: not server.open)


def test_a_watch_that_hangs_is_noticed_within_90_seconds() -> None:
    """A server ends each watch when its time is over; later events are not sent."""
    assert watch.WATCH_SECONDS[1] + watch.SILENCE_SECONDS <= 90


def test_a_watch_gets_one_bookmark() -> None:
    """Servers send one each minute, and one two seconds before the end."""
    assert watch.WATCH_SECONDS[1] - 2 <= 60


@pytest.mark.parametrize("levels", [1_100, 9_995, 50_000])
async def test_an_object_that_is_nested_deeply(server: Scripted, api: client.Client, levels: int) -> None:
    """Its version is known, and the decoder gets its deep part."""
    body = b'{"data":%s,"metadata":{"name":"a","resourceVersion":"6"}}' % (b"[" * levels + b"]" * levels)
    server.answer(STREAM, chunk(b'{"type":"ADDED","object":%s}\n' % body), HANG)
    async with contextlib.aclosing(watch.watch(api, "/x", resource_version="5", decode=bytes)) as events:
        assert await anext(events) == watch.WatchEvent("ADDED", body, "6")


async def test_what_cannot_be_decoded_is_the_callers(server: Scripted, api: client.Client) -> None:
    server.answer(STREAM, event("ADDED", configmap("a", 6)), HANG)

    def refuse(body: bytes) -> Json:
        raise LookupError(body[:1])

    events = watch.watch(api, "/x", resource_version="5", decode=refuse)
    with pytest.raises(LookupError):
        await anext(events)


async def test_a_watch_that_is_left_is_closed(server: Scripted, api: client.Client) -> None:
    server.answer(STREAM, event("ADDED", configmap("a", 6)), HANG)
    async with contextlib.aclosing(following(api)) as events:
        await anext(events)
        assert server.open == 1
    await until(lambda: not server.open)


async def test_a_cancelled_watch_is_closed(server: Scripted, api: client.Client) -> None:
    server.answer(STREAM, HANG)
    task = asyncio.create_task(seen(following(api)))
    await server.seen(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not server.open)
