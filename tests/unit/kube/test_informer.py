from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from swapwarden.kube import client, config, informer, paging, transport, watch

from tests.unit.kube.scripted import (
    CUT,
    END,
    HANG,
    RESET,
    STREAM,
    Part,
    Scripted,
    bookmark,
    chunk,
    configmap,
    error,
    event,
    failure,
    line,
    page,
    plain,
    reply,
    until,
)

pytestmark = pytest.mark.usefixtures("no_backoff")

PATH = "/api/v1/configmaps"
WATCHED = {"watch", "allowWatchBookmarks", "timeoutSeconds", "resourceVersion"}


class Meta(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Wire(msgspec.Struct):
    metadata: Meta
    data: dict[str, str] = {}


Row = tuple[str, str]
Change = tuple[str, Row | None, Row | None]


def project(wire: Wire) -> Row:
    if wire.data["value"] == "impossible":
        raise ValueError("an impossible value")
    return wire.metadata.uid, wire.data["value"]


class Running:
    """An informer, its reports, and its task."""

    def __init__(self, api: client.Client, name: str) -> None:
        self.changes: list[Change] = []
        self.react: Callable[[str], None] = lambda _: None
        self.informer = informer.Informer(
            api, PATH, wire=Wire, project=project, name=name, on_change=self._changed, page_size=2, params={"a": "b"}
        )
        self.task = asyncio.create_task(self.informer.run())

    def _changed(self, key: str, old: Row | None, new: Row | None) -> None:
        self.changes.append((key, old, new))
        self.react(key)

    @property
    def rows(self) -> dict[str, str]:
        return {key: value for key, (_, value) in self.informer.rows.items()}

    async def synced(self) -> None:
        async with asyncio.timeout(5):
            await self.informer.synced.wait()

    def count(self, metric: Any, *labels: str) -> float:
        return float(metric.value(self.informer.name, *labels))


@pytest.fixture
async def running(api: client.Client, request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    made = Running(api, request.node.name)
    yield made
    assert not made.task.done(), made.task
    made.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await made.task


def values(**named: str) -> dict[str, str]:
    return {f"n/{name}": value for name, value in named.items()}


def added(name: str, value: str) -> Change:
    return f"n/{name}", None, (f"uid-{name}", value)


def one_page(server: Scripted, version: int, **named: str) -> None:
    server.answer(page([configmap(name, version, value) for name, value in named.items()], version))


def resumed(server: Scripted) -> list[str]:
    """The versions that watches began at; `list` for each list."""
    return [
        request.query.get("resourceVersion", "none") if "watch" in request.query else "list"
        for request in server.requests
        if "continue" not in request.query
    ]


async def test_a_list_in_pages_and_a_watch(server: Scripted, running: Running) -> None:
    server.answer(page([configmap("a", 1, "1"), configmap("b", 2, "1")], 9, "token & co"))
    server.answer(page([configmap("c", 3, "1")], 9))
    server.answer(
        STREAM,
        event("ADDED", configmap("d", 10, "1")),
        event("MODIFIED", configmap("a", 11, "2")),
        event("MODIFIED", configmap("c", 12, "1")),
        event("DELETED", configmap("b", 13, "1")),
        event("DELETED", configmap("unknown", 14, "1")),
        HANG,
    )
    await until(lambda: len(running.changes) == 6)
    assert running.changes == [
        *(added(name, "1") for name in "abcd"),
        ("n/a", ("uid-a", "1"), ("uid-a", "2")),
        ("n/b", ("uid-b", "1"), None),
    ]
    await until(lambda: running.count(informer.EVENTS, "DELETED") == 2)
    assert running.rows == values(a="2", c="1", d="1")
    assert running.count(informer.OBJECTS) == 3
    first, second, third = (request.query for request in server.requests)
    assert first == {"a": "b", "limit": "2"}
    assert second == {"a": "b", "limit": "2", "continue": "token & co"}
    assert {key: value for key, value in third.items() if key != "timeoutSeconds"} == {
        "a": "b",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "9",
    }


async def test_objects_without_a_namespace(server: Scripted, running: Running) -> None:
    server.answer(page([configmap("a", 1, "1", namespace="")], 9))
    await running.synced()
    assert running.rows == {"a": "1"}


async def test_an_empty_collection_is_known_too(server: Scripted, running: Running) -> None:
    server.answer(page([], 9))
    await running.synced()
    assert running.rows == {}
    assert running.count(informer.SYNCED) == 1


@pytest.mark.parametrize(
    "second",
    [
        (page([configmap("c", 3)], 9)[:-10], CUT),
        (b"HTTP/1.1 2", CUT),
        (b"HTTP/1.1 2", RESET),
        (failure(500, "InternalError", "etcd has gone"),),
        (plain(b"<html>not today</html>"),),
        (plain(b'{"metadata":{},"items":[]}'),),
        (plain(b'{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"\xff"}}]}'),),
    ],
    ids=["cut", "closed", "reset", "500", "html", "no version", "no text"],
)
async def test_half_a_list_is_never_shown(server: Scripted, running: Running, second: tuple[Part, ...]) -> None:
    go = asyncio.Event()
    server.answer(page([configmap("a", 1), configmap("b", 2)], 9, "more"))
    server.answer(*second)
    server.answer(go, page([configmap("a", 1, "whole")], 10))
    await until(lambda: len(server.requests) >= 3 and not server.unused)
    assert (running.rows, running.changes) == ({}, [])
    assert not running.informer.synced.is_set()
    assert running.count(informer.SYNCED) == 0
    go.set()
    await running.synced()
    assert running.changes == [added("a", "whole")]
    assert running.count(informer.ERRORS, "request") == 1


async def test_half_a_list_deletes_nothing(server: Scripted, running: Running) -> None:
    """Neither is it shown when the collection was known before."""
    go = asyncio.Event()
    one_page(server, 9, a="1", b="1", c="1")
    server.answer(STREAM, error(410, "Expired"))
    server.answer(page([configmap("a", 12, "2")], 12, "more"))
    server.answer(HANG, CUT)
    server.answer(go)
    await server.seen(4)
    assert running.rows == values(a="1", b="1", c="1")
    assert len(running.changes) == 3


async def test_a_continue_token_that_expired(server: Scripted, running: Running) -> None:
    server.answer(page([configmap("a", 1), configmap("b", 2)], 9, "old"))
    server.answer(failure(410, "Expired", "The provided continue parameter is too old"))
    server.answer(page([configmap("b", 2, "1")], 20, "new"))
    server.answer(page([configmap("c", 3, "1")], 20))
    await running.synced()
    assert running.changes == [added("b", "1"), added("c", "1")]
    assert [request.query.get("continue") for request in server.requests[:4]] == [None, "old", None, "new"]
    assert (running.count(informer.LISTS, "start"), running.count(informer.ERRORS, "request")) == (2, 1)
    await server.seen(5)
    assert server.requests[4].query["resourceVersion"] == "20"


@pytest.mark.parametrize(
    "expired",
    [(STREAM, error(410, "Expired")), (failure(410, "Gone", "too old resource version: 9 (20)"),)],
    ids=["event", "answer"],
)
async def test_changes_during_a_gap_are_reported(server: Scripted, running: Running, expired: tuple[Part, ...]) -> None:
    one_page(server, 9, kept="1", changed="1", deleted="1", replaced="1")
    server.answer(*expired)
    items = [configmap("kept", 9, "1"), configmap("changed", 15, "2")]
    items += [configmap("new", 16, "1"), configmap("replaced", 17, "1", uid="another")]
    server.answer(page(items, 20))
    server.answer(STREAM, event("MODIFIED", configmap("kept", 21, "2")), HANG)
    await until(lambda: len(running.changes) == 9)
    assert running.changes[4:] == [
        ("n/deleted", ("uid-deleted", "1"), None),
        ("n/changed", ("uid-changed", "1"), ("uid-changed", "2")),
        added("new", "1"),
        ("n/replaced", ("uid-replaced", "1"), ("another", "1")),
        ("n/kept", ("uid-kept", "1"), ("uid-kept", "2")),
    ]
    assert running.rows == values(kept="2", changed="2", new="1", replaced="1")
    assert resumed(server) == ["list", "9", "list", "20"]
    assert running.count(informer.LISTS, "start") == 1
    assert running.count(informer.LISTS, "expired") == 1
    assert running.count(informer.ERRORS, "request") == 0


async def test_the_whole_list_is_known_before_any_change_is_reported(server: Scripted, running: Running) -> None:
    seen = []
    running.react = lambda _: seen.append(len(running.rows))
    one_page(server, 9, a="1", b="1", c="1")
    await running.synced()
    assert seen == [3, 3, 3]


async def test_a_watch_resumes_where_it_ended(server: Scripted, running: Running) -> None:
    one_page(server, 9, a="1")
    server.answer(STREAM, event("MODIFIED", configmap("a", 10, "2")), END)
    server.answer(STREAM, event("MODIFIED", configmap("a", 11, "3")), CUT)
    server.answer(STREAM, bookmark(50), RESET)
    server.answer(STREAM, chunk(line("MODIFIED", configmap("a", 51, "4"))[:-2]), CUT)
    server.answer(CUT)
    await server.seen(7)
    assert resumed(server) == ["list", "9", "10", "11", "50", "50", "50"]
    assert running.rows == values(a="3")
    assert len(running.changes) == 3


async def test_errors_that_pass(server: Scripted, running: Running) -> None:
    one_page(server, 9, a="1")
    server.answer(STREAM, error(500, "InternalError", "etcdserver: leader changed"))
    server.answer(STREAM, error(500, "InternalError"))
    server.answer(STREAM, event("MODIFIED", configmap("a", 10, "2")), error(500, "InternalError"))
    server.answer(STREAM, error(500, "InternalError"))
    server.answer(STREAM, event("MODIFIED", configmap("a", 11, "3")), HANG)
    await until(lambda: running.rows == values(a="3"))
    assert resumed(server) == ["list", "9", "9", "9", "10", "10"]
    assert running.count(informer.ERRORS, "request") == 4


async def test_errors_that_stay(server: Scripted, running: Running) -> None:
    one_page(server, 9, a="1", b="1")
    for _ in range(3):
        server.answer(failure(500, "InternalError", "odd version"))
    one_page(server, 20, a="0")
    await server.seen(6)
    assert resumed(server) == ["list", "9", "9", "9", "list", "20"]
    assert running.changes[2:] == [("n/b", ("uid-b", "1"), None), ("n/a", ("uid-a", "1"), ("uid-a", "0"))]
    assert running.count(informer.LISTS, "error") == 1


@pytest.mark.parametrize("status", [401, 403, 429, 503])
async def test_errors_that_no_list_would_help(server: Scripted, running: Running, status: int) -> None:
    one_page(server, 9, a="1")
    for _ in range(5):
        server.answer(failure(status, "Reason", "no"))
    await server.seen(7)
    assert resumed(server) == ["list", *["9"] * 6]
    assert running.rows == values(a="1")


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "service account"),
        (403, "as the chart does"),
        (404, "CustomResourceDefinition"),
        (500, "0.0 s"),
    ],
)
async def test_refusals_are_logged_with_a_remedy(
    server: Scripted, running: Running, caplog: pytest.LogCaptureFixture, status: int, remedy: str
) -> None:
    server.answer(failure(status, "Reason", "no"))
    await server.seen(2)
    refusal, _, rest = caplog.text.partition(f"no ({status} Reason)")
    assert running.informer.name in refusal
    assert remedy in rest
    assert not running.informer.synced.is_set()


async def test_the_server_says_when_to_come_back(
    server: Scripted, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer(failure(429, "TooManyRequests", f"slow down, {running.informer.name}", Retry_After="7"))
    await until(lambda: "trying again in 7.0 s" in caplog.text)
    assert len(server.requests) == 1


async def test_failures_wait_longer_and_longer(
    server: Scripted, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []
    following = running.informer.backoff.next

    def count() -> float:
        failures.append(running.informer.backoff.failures)
        return following()

    monkeypatch.setattr(running.informer.backoff, "next", count)
    server.answer(CUT)
    one_page(server, 9, a="1")
    server.answer(b"HTTP/1.1 2", CUT)
    server.answer(STREAM, END)
    server.answer(STREAM, bookmark(10), END)
    server.answer(STREAM, error(410, "Expired"))
    one_page(server, 20, a="1")
    await server.seen(8)
    assert failures == [0, 1, 2, 0, 1], "only an event shows that all is well"


async def test_a_long_watch_is_a_good_one(server: Scripted, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "QUICK_SECONDS", 0.0)
    server.answer(CUT)
    one_page(server, 9, a="1")
    server.answer(STREAM, END)
    await server.seen(4)
    assert running.informer.backoff.failures == 0
    assert running.count(informer.ERRORS, "request") == 1
    assert running.count(informer.LAST_EVENT) > 1e9, "the end in good order is a word of the server"


async def test_a_token_that_is_not_there_yet(server: Scripted, tmp_path: Any) -> None:
    cfg = config.Config(server=server.url, token_file=config.TokenFile(tmp_path / "token"))
    one_page(server, 9, a="1")
    async with client.Client(cfg, user_agent="test") as api:
        late = Running(api, "late")
        await until(lambda: late.count(informer.ERRORS, "request") > 1)
        (tmp_path / "token").write_text("here")
        cfg.token_file.forget()  # type: ignore[union-attr]  # it is the one above
        await late.synced()
        late.task.cancel()
    assert server.requests[0].headers["authorization"] == "Bearer here"


async def test_a_handler_that_fails(server: Scripted, running: Running, caplog: pytest.LogCaptureFixture) -> None:
    def fail(key: str) -> None:
        raise LookupError(f"cannot cope with {key}")

    running.react = fail
    one_page(server, 9, a="1", b="1")
    server.answer(STREAM, event("DELETED", configmap("a", 10, "1")), HANG)
    await until(lambda: len(running.changes) == 3)
    await until(lambda: running.count(informer.ERRORS, "handler") == 3)
    assert running.rows == values(b="1")
    assert running.informer.synced.is_set()
    assert "could not be handled" in caplog.text
    assert "LookupError: cannot cope with n/a" in caplog.text


def odd(name: str, version: int) -> dict[str, Any]:
    """An object that does not fit the wire type."""
    return configmap(name, version) | {"data": {"value": 5}}


@pytest.mark.parametrize("kind", ["decode", "project"])
async def test_an_object_that_cannot_be_understood(
    server: Scripted, running: Running, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """It hides no other one; its last valid version stays; its deletion is reported."""

    def bad(name: str, version: int) -> dict[str, Any]:
        return odd(name, version) if kind == "decode" else configmap(name, version, "impossible")

    server.answer(page([configmap("a", 1, "1"), bad("b", 2), configmap("c", 3, "1")], 9))
    server.answer(
        STREAM,
        event("MODIFIED", bad("a", 10)),
        event("MODIFIED", bad("b", 11)),
        event("MODIFIED", configmap("c", 12, "2")),
        error(410, "Expired"),
    )
    server.answer(page([bad("a", 10), bad("b", 11), configmap("c", 12, "2")], 20))
    server.answer(
        STREAM,
        event("MODIFIED", configmap("b", 21, "2")),
        event("DELETED", bad("a", 22)),
        event("DELETED", bad("b", 23)),
        HANG,
    )
    await until(lambda: running.changes[-1:] == [("n/b", ("uid-b", "2"), None)])
    assert running.changes == [
        added("a", "1"),
        added("c", "1"),
        ("n/c", ("uid-c", "1"), ("uid-c", "2")),
        added("b", "2"),
        ("n/a", ("uid-a", "1"), None),
        ("n/b", ("uid-b", "2"), None),
    ]
    assert running.rows == values(c="2")
    assert running.count(informer.ERRORS, "object") == (7 if kind == "decode" else 5)
    assert f"n/b of {running.informer.name} is invalid" in caplog.text


async def test_an_object_without_a_name_is_no_object(server: Scripted, running: Running) -> None:
    one_page(server, 9, a="1")
    server.answer(STREAM, event("ADDED", {"metadata": {"resourceVersion": "10"}}), HANG)
    server.answer(reply({}))
    await server.seen(3)
    assert running.rows == values(a="1")
    assert resumed(server)[2] == "9"


async def test_a_slow_consumer_gets_all(server: Scripted, running: Running) -> None:
    """Here the server loses patience with it."""
    one_page(server, 9, a="0")
    server.answer(STREAM, event("MODIFIED", configmap("a", 10, "x" * 99_999)), CUT)
    server.answer(STREAM, *(event("MODIFIED", configmap("a", 11 + at, f"{at}")) for at in range(100)), HANG)
    running.react = lambda _: time.sleep(0.002)
    await until(lambda: len(running.changes) == 102)
    assert [new[1] for _, _, new in running.changes[2:] if new] == [str(at) for at in range(100)]


async def test_a_bookmark_is_no_change(server: Scripted, running: Running) -> None:
    one_page(server, 9, a="1")
    server.answer(STREAM, bookmark(10), bookmark(11), HANG)
    await until(lambda: running.count(informer.EVENTS, "BOOKMARK") == 2)
    assert running.rows == values(a="1")
    assert len(running.changes) == 1
    assert running.count(informer.LAST_EVENT) > 1e9


async def test_a_cancelled_informer_leaves_nothing_open(server: Scripted, api: client.Client) -> None:
    one_page(server, 9, a="1")
    made = Running(api, "cancelled")
    await server.seen(2)
    made.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await made.task
    await until(lambda: server.open <= 1)


def raw_page(version: int, *items: bytes) -> bytes:
    return plain(b'{"metadata":{"resourceVersion":"%d"},"items":[%s]}' % (version, b",".join(items)))


def deep(name: str, version: int, value: str, *, fields: int = 1, data: int = 1) -> bytes:
    """An object with so many levels in managedFields, and in something else."""
    text = json.dumps(configmap(name, version, value)).encode()
    members = b',"managedFields":[{"fieldsV1":%s}]}, "data"' % (b"[" * fields + b"]" * fields)
    text = text.replace(b'}, "data"', members)
    return text[:-1] + b',"x":%s}' % (b"[" * data + b"]" * data)


def raw_event(kind: str, body: bytes) -> bytes:
    return chunk(b'{"type":"%s","object":%s}\n' % (kind.encode(), body))


@pytest.mark.parametrize("levels", [1_100, 9_995, 50_000])
async def test_deep_managed_fields_hide_nothing(server: Scripted, running: Running, levels: int) -> None:
    server.answer(raw_page(9, deep("a", 1, "1"), deep("b", 2, "1", fields=levels), deep("c", 3, "1")))
    server.answer(STREAM, raw_event("MODIFIED", deep("a", 10, "2", fields=levels)), bookmark(11), HANG)
    await until(lambda: running.count(informer.EVENTS, "BOOKMARK") == 1)
    assert running.rows == values(a="2", b="1", c="1")
    assert running.count(informer.ERRORS, "request") == running.count(informer.LEFT_OUT) == 0


async def test_an_object_that_is_too_deep_is_left_out_alone(
    server: Scripted, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted and named once, its last valid version stays, and it returns when it can be decoded."""
    bad = 20_000
    server.answer(raw_page(9, deep("a", 1, "1"), deep("b", 2, "1", data=bad), deep("c", 3, "1")))
    server.answer(
        STREAM,
        raw_event("MODIFIED", deep("a", 10, "2", data=bad)),
        raw_event("MODIFIED", deep("a", 11, "3", data=bad)),
        raw_event("MODIFIED", deep("c", 12, "2")),
        error(410, "Expired"),
    )
    listed = asyncio.Event()
    server.answer(
        listed,
        raw_page(20, deep("a", 11, "3", data=bad), deep("b", 2, "1", data=bad), deep("c", 12, "2")),
    )
    end = asyncio.Event()
    changed = [raw_event("MODIFIED", deep("a", 21, "4")), raw_event("DELETED", deep("b", 22, "1", data=bad))]
    server.answer(STREAM, bookmark(20), end, *changed, HANG)
    await until(lambda: running.rows == values(a="1", c="2"))
    assert running.count(informer.LEFT_OUT) == 2
    listed.set()
    await until(lambda: running.count(informer.EVENTS, "BOOKMARK") == 1)
    assert running.rows == values(a="1", c="2")
    assert running.count(informer.LEFT_OUT) == 2
    end.set()
    await until(lambda: running.rows == values(a="4", c="2") and not running.count(informer.LEFT_OUT))
    for name in ("a", "b"):
        assert caplog.text.count(f"n/{name} of {running.informer.name} is invalid") == 1
    assert running.count(informer.ERRORS, "request") == 0


async def test_a_page_that_is_too_large_is_read_in_smaller_ones(
    server: Scripted, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_BODY_BYTES", 200_000)
    server.answer(page([configmap("a", 1, "x" * 150_000), configmap("b", 2, "y" * 150_000)], 9))
    server.answer(page([configmap("a", 1, "x" * 150_000)], 9, "more"))
    server.answer(page([configmap("b", 2, "y" * 150_000)], 9))
    server.answer(STREAM, HANG)
    await running.synced()
    assert set(running.rows) == {"n/a", "n/b"}
    asked = [(request.query["limit"], request.query.get("continue", "")) for request in server.requests[:3]]
    assert asked == [("2", ""), ("1", ""), ("1", "more")]


async def test_what_can_be_neither_listed_nor_watched_is_read_by_itself_and_holds_up_no_watch(
    server: Scripted, running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As an API server before 1.33 does with custom resources that are as deep as they can be."""
    monkeypatch.setattr(informer, "QUICK_SECONDS", 0.0)
    end = asyncio.Event()
    rests: tuple[tuple[Part, ...], ...] = ((end, END), (HANG,))
    for value, rest in zip("12", rests, strict=True):
        deep = configmap("b", 2, value)
        server.answer(page([configmap("a", 1, "1")], 9, "more"))
        server.answer(failure(500, "", "json: invalid character '{' exceeded max depth"))
        server.answer(failure(500, "", "json: invalid character '{' exceeded max depth"))
        server.answer(reply({"rows": [{"object": deep}], "metadata": {"resourceVersion": "9"}}))
        server.answer(reply(deep))
        server.answer(STREAM, event("MODIFIED", configmap("a", 10, "2")), *rest)
    await until(lambda: running.rows == values(a="2", b="1"))
    assert server.requests[3].headers["accept"] == paging.TABLE
    assert server.requests[4].path == "/api/v1/namespaces/n/configmaps/b"
    assert server.requests[5].query["fieldSelector"] == "metadata.name!=b"
    end.set()
    await until(lambda: running.rows == values(a="2", b="2"))
    assert running.count(informer.LISTS, "unwatched") == 1
    assert len([one for one in caplog.messages if "b of" in one]) == 1


@pytest.mark.parametrize(
    "failing",
    [
        (chunk(b'{"type":"ADDED","object":' + b"x" * 150_000), HANG),
        (event("ADDED", configmap("b", 10))[:-20], CUT),
        (chunk(b"<html>\n"), HANG),
        (event("ADDED", {"metadata": {"resourceVersion": "10"}}), HANG),
        (END,),
    ],
    ids=["a line too long", "cut within an event", "no event", "an event without a name", "over at once"],
)
async def test_a_watch_that_cannot_go_on_ends_in_a_list(
    server: Scripted, running: Running, monkeypatch: pytest.MonkeyPatch, failing: tuple[Part, ...]
) -> None:
    """It never asks from the same version for ever."""
    monkeypatch.setattr(watch, "MAX_LINE_BYTES", 2_000)
    one_page(server, 9, a="1")
    for _ in range(1 + informer.RESUMES):
        server.answer(STREAM, *failing)
    one_page(server, 12, a="1", b="2")
    server.answer(STREAM, HANG)
    await until(lambda: running.rows == values(a="1", b="2"))
    await server.seen(6)
    assert resumed(server) == ["list", "9", "9", "9", "list", "12"]


async def test_an_unexpected_error_ends_nothing(
    server: Scripted, running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = running.informer._take

    def fail(_: object) -> None:
        monkeypatch.setattr(running.informer, "_take", real)
        raise AttributeError("a mistake of ours")

    monkeypatch.setattr(running.informer, "_take", fail)
    one_page(server, 9, a="1")
    server.answer(STREAM, event("MODIFIED", configmap("a", 10, "2")), HANG)
    server.answer(STREAM, event("MODIFIED", configmap("a", 10, "2")), HANG)
    await until(lambda: running.rows == values(a="2"))
    assert running.count(informer.ERRORS, "internal") == 1
    assert "a mistake of ours" in caplog.text


@pytest.fixture(autouse=True)
def _logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


async def test_gauges_of_one_that_has_ended_are_gone(api: client.Client, server: Scripted) -> None:
    one_page(server, 5, a="1")
    server.answer(STREAM, bookmark(6), HANG)
    ended = Running(api, "ended")
    await ended.synced()
    gauges = (informer.OBJECTS, informer.SYNCED, informer.LAST_EVENT, informer.LEFT_OUT)
    await until(lambda: informer.LAST_EVENT.value("ended"))
    assert [gauge.value("ended") for gauge in gauges[:2]] == [1, 1]
    ended.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ended.task
    assert not [sample for gauge in gauges for sample in gauge.samples() if ("resource", "ended") in sample.labels]
