from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from swapwarden.api.notices import EventType, Notice, Regarding
from swapwarden.kube import client, config, events

from tests.unit import background
from tests.unit.kube.scripted import CUT, HANG, Request, Scripted, failure, reply, until

Json = dict[str, Any]

POD = Regarding("v1", "Pod", "shop", "web", "uid-1")
NODE = Regarding("v1", "Node", "", "n1", "uid-2")
CREATED, PATCHED = reply({}, 201), reply({})
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Time:
    """A clock that advances by each sleep."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def idle(api: client.Client, clock: Time) -> events.Recorder:
    """One that does not send yet."""
    return events.Recorder(api, "swapwarden-controller", "one", now=clock.now, sleep=clock.sleep)


@contextlib.asynccontextmanager
async def sending(recorder: events.Recorder) -> AsyncIterator[None]:
    async with background.running(recorder.run()) as task:
        yield
        assert not task.done()


@pytest_asyncio.fixture
async def recorder(idle: events.Recorder) -> AsyncIterator[events.Recorder]:
    async with sending(idle):
        yield idle


@pytest.fixture(autouse=True)
def counts() -> Counts:
    return Counts()


class Counts:
    """The metric's increase since the test began."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> dict[str, float]:
        return {sample.labels[0][1]: sample.value for sample in events.EVENTS.samples()}

    def __call__(self, result: str) -> int:
        return int(self._now().get(result, 0) - self._before.get(result, 0))


def sent(request: Request) -> Json:
    body = json.loads(request.body)
    assert isinstance(body, dict)
    return body


async def all_sent(server: Scripted, recorder: events.Recorder, count: int) -> None:
    """Until so many requests came and nothing waits."""
    await server.seen(count)
    await until(lambda: not recorder.busy.is_set())


# --- one Event ---


async def test_an_event(server: Scripted, recorder: events.Recorder, counts: Counts) -> None:
    server.answer(CREATED)
    recorder.post(Notice(POD, "Warning", "NodeIncompatible", "there is no swap"))
    await all_sent(server, recorder, 1)
    request = server.requests[0]
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/shop/events")
    body = sent(request)
    name = body["metadata"].pop("name")
    assert re.fullmatch(r"web\.[0-9a-f]{16}", name)
    stamp = body["firstTimestamp"]
    assert STAMP.fullmatch(stamp)
    assert body == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "shop"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "shop",
            "name": "web",
            "uid": "uid-1",
        },
        "type": "Warning",
        "reason": "NodeIncompatible",
        "message": "there is no swap",
        "count": 1,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "source": {"component": "swapwarden-controller"},
        "reportingComponent": "swapwarden-controller",
        "reportingInstance": "one",
    }
    assert counts("created") == 1


async def test_an_object_in_no_namespace(server: Scripted, recorder: events.Recorder) -> None:
    server.answer(CREATED)
    recorder.post(Notice(NODE, "Normal", "Labelled", "it has swap"))
    await all_sent(server, recorder, 1)
    assert server.requests[0].path == "/api/v1/namespaces/default/events"
    body = sent(server.requests[0])
    assert body["metadata"]["namespace"] == "default"
    assert body["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-2"}


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("short", "short"),
        ("", ""),
        ("x" * 1024, "x" * 1024),
        ("x" * 1025, "x" * 1021 + "..."),
        ("é" * 512, "é" * 512),
        ("é" * 513, "é" * 510 + "..."),
        ("x" + "😀" * 300, "x" + "😀" * 255 + "..."),
        ("half \ud83d of a pair", "half ? of a pair"),
    ],
)
def test_messages_are_bounded(message: str, wanted: str) -> None:
    assert events.bounded(message) == wanted
    assert len(wanted.encode()) <= 1024


@pytest.mark.parametrize("name", ["web", "n1.example.com", "a" * 253, "a" * 235 + "-" + "b" * 17, "a" * 235 + ".-b"])
def test_names_are_valid(name: str) -> None:
    made = events.event_name(name)
    assert len(made) <= 253
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert re.fullmatch(rf"{label}(\.{label})*", made)
    assert made.startswith(name[:235])
    assert events.event_name(name) != made


async def test_an_event_with_a_key_is_sent_once_by_all_instances(
    server: Scripted, recorder: events.Recorder, counts: Counts
) -> None:
    server.answer(CREATED)
    server.answer(failure(409, "AlreadyExists", "it exists"))
    server.answer(CREATED)
    for _ in range(2):
        recorder.post(Notice(POD, "Warning", "SwappedAgainstPolicy", "it did", key="growth"))
    await all_sent(server, recorder, 1)
    recorder.post(Notice(POD, "Warning", "SwappedAgainstPolicy", "it did", key="growth"))
    await all_sent(server, recorder, 2)
    recorder.post(Notice(POD, "Warning", "SwappedAgainstPolicy", "it did", key="more growth"))
    await all_sent(server, recorder, 3)
    first, again, other = map(sent, server.requests)
    assert {request.method for request in server.requests} == {"POST"}
    assert first["count"] == 1
    assert first["metadata"]["name"] == again["metadata"]["name"] != other["metadata"]["name"]
    assert counts("failed") == 0


# --- again and again ---


async def test_what_happens_again_raises_the_count(server: Scripted, recorder: events.Recorder, counts: Counts) -> None:
    server.answer(CREATED)
    server.answer(PATCHED)
    server.answer(PATCHED)
    for count in (1, 2, 3):
        recorder.post(Notice(POD, "Warning", "R", "m"))
        await all_sent(server, recorder, count)
    name = sent(server.requests[0])["metadata"]["name"]
    for count, request in zip((2, 3), server.requests[1:], strict=True):
        assert (request.method, request.path) == ("PATCH", f"/api/v1/namespaces/shop/events/{name}")
        assert request.headers["content-type"] == client.MERGE_PATCH
        body = sent(request)
        assert body.keys() == {"count", "lastTimestamp"}
        assert body["count"] == count
        assert STAMP.fullmatch(body["lastTimestamp"])
    assert (counts("created"), counts("repeated")) == (1, 2)


async def test_what_happens_again_before_it_is_sent_is_sent_once(server: Scripted, idle: events.Recorder) -> None:
    for _ in range(5):
        idle.post(Notice(POD, "Warning", "R", "m"))
    server.answer(CREATED)
    async with sending(idle):
        await all_sent(server, idle, 1)
    assert sent(server.requests[0])["count"] == 5


async def test_what_happens_while_it_is_being_sent_is_a_repeat(server: Scripted, recorder: events.Recorder) -> None:
    go = asyncio.Event()
    server.answer(go, CREATED)
    server.answer(PATCHED)
    recorder.post(Notice(POD, "Warning", "R", "m"))
    await server.seen(1)
    for _ in range(3):
        recorder.post(Notice(POD, "Warning", "R", "m"))
    go.set()
    await all_sent(server, recorder, 2)
    assert sent(server.requests[1])["count"] == 4


@pytest.mark.parametrize(
    ("regarding", "type_", "reason", "message"),
    [
        (NODE, "Warning", "R", "m"),
        (Regarding("v1", "Pod", "shop", "web", "uid-9"), "Warning", "R", "m"),
        (POD, "Normal", "R", "m"),
        (POD, "Warning", "S", "m"),
        (POD, "Warning", "R", "n"),
    ],
)
async def test_what_makes_another_event(
    server: Scripted, recorder: events.Recorder, regarding: Regarding, type_: EventType, reason: str, message: str
) -> None:
    server.answer(CREATED)
    server.answer(CREATED)
    recorder.post(Notice(POD, "Warning", "R", "m"))
    recorder.post(Notice(regarding, type_, reason, message))
    await all_sent(server, recorder, 2)
    assert [request.method for request in server.requests] == ["POST", "POST"]


@pytest.mark.parametrize(("later", "method"), [(600.0, "PATCH"), (600.1, "POST")])
async def test_after_ten_minutes_it_is_news(
    server: Scripted, recorder: events.Recorder, clock: Time, later: float, method: str
) -> None:
    server.answer(CREATED)
    server.answer(CREATED)
    recorder.post(Notice(POD, "Warning", "R", "m"))
    await all_sent(server, recorder, 1)
    clock.seconds += later
    recorder.post(Notice(POD, "Warning", "R", "m"))
    await all_sent(server, recorder, 2)
    assert server.requests[1].method == method


async def test_an_event_that_is_gone_is_recreated(server: Scripted, recorder: events.Recorder, counts: Counts) -> None:
    server.answer(CREATED)
    server.answer(failure(404, "NotFound", "gone"))
    server.answer(CREATED)
    server.answer(PATCHED)
    for count in (1, 3, 4):
        recorder.post(Notice(POD, "Warning", "R", "m"))
        await all_sent(server, recorder, count)
    first, _, anew, patch = server.requests
    assert anew.method == "POST"
    assert sent(anew)["count"] == 1
    assert sent(anew)["metadata"]["name"] != sent(first)["metadata"]["name"]
    assert patch.path.endswith(sent(anew)["metadata"]["name"])
    assert sent(patch)["count"] == 2
    assert (counts("created"), counts("repeated")) == (2, 1)


async def test_only_so_many_are_remembered(
    server: Scripted, recorder: events.Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_REMEMBERED", 2)
    for at, message in enumerate("abacb", start=1):
        server.answer(CREATED)
        recorder.post(Notice(POD, "Warning", "R", message))
        await all_sent(server, recorder, at)
    # With c, b was the one that was sent longest ago.
    assert [request.method for request in server.requests] == ["POST", "POST", "PATCH", "POST", "POST"]


# --- too many ---


def pod(namespace: str, number: int) -> Regarding:
    return Regarding("v1", "Pod", namespace, f"pod-{number}", f"{namespace}-{number}")


async def test_namespaces_take_turns(server: Scripted, idle: events.Recorder) -> None:
    for at in range(20):
        idle.post(Notice(pod("flood", at), "Warning", "Bounded", "m"))
    for namespace in ("shop", "bank"):
        idle.post(Notice(pod(namespace, 0), "Warning", "Bounded", "m"))
    idle.post(Notice(NODE, "Warning", "SwapDegraded", "m"))
    for _ in range(23):
        server.answer(CREATED)
    async with sending(idle):
        await all_sent(server, idle, 23)
    about = [sent(request)["involvedObject"] for request in server.requests]
    assert [one.get("namespace") for one in about[:5]] == ["flood", "shop", "bank", None, "flood"]
    assert [one["name"] for one in about if one.get("namespace") == "flood"] == [f"pod-{at}" for at in range(20)]


async def test_a_flood_of_one_namespace_leaves_room_for_the_events_of_another(
    idle: events.Recorder, counts: Counts
) -> None:
    for at in range(events.MAX_WAITING + 100):
        idle.post(Notice(pod("flood", at), "Warning", "Bounded", "m"))
    assert counts("dropped") == 100
    for at in range(10):
        idle.post(Notice(pod("shop", at), "Warning", "Bounded", "m"))
    assert counts("dropped") == 110
    assert events.WAITING.value() == events.MAX_WAITING
    kept = [idle.queues.pop()[0].regarding.namespace for _ in range(len(idle.queues))]
    assert kept.count("shop") == 10


async def test_urgent_events_come_first_and_keep_no_other_waiting_for_ever(
    server: Scripted, idle: events.Recorder, counts: Counts
) -> None:
    for at in range(events.MAX_WAITING + 100):
        idle.post(Notice(pod("flood", at), "Warning", "Bounded", "m"))
    for at in range(8):
        idle.post(Notice(pod("shop", at), "Warning", "SwappedAgainstPolicy", "m", urgent=True))
    assert counts("dropped") == 100
    for _ in range(12):
        server.answer(CREATED)
    async with sending(idle):
        await server.seen(12)
    assert [sent(request)["reason"] for request in server.requests[:4]] == [*["SwappedAgainstPolicy"] * 3, "Bounded"]
    assert {sent(request)["involvedObject"]["namespace"] for request in server.requests} == {"shop", "flood"}


async def test_of_urgent_events_that_wait_the_last_word_counts(server: Scripted, idle: events.Recorder) -> None:
    for at in range(50):
        idle.post(Notice(POD, "Warning", "SwappedAgainstPolicy", f"{at} bytes", key=f"{at}", urgent=True))
    server.answer(CREATED)
    async with sending(idle):
        await all_sent(server, idle, 1)
    body = sent(server.requests[0])
    assert body["message"] == "49 bytes"
    assert body["metadata"]["name"] == events.event_name(POD.name, "49")


async def test_about_one_object_there_are_only_so_many_events(
    idle: events.Recorder, counts: Counts, clock: Time
) -> None:
    for at in range(100):
        idle.post(Notice(NODE, "Warning", "SwapDegraded", f"a reason of its own: {at}"))
    assert counts("dropped") == 100 - events.OBJECT_BURST
    clock.seconds += 2 / events.OBJECT_PER_SECOND
    for at in range(100):
        idle.post(Notice(NODE, "Warning", "SwapDegraded", f"another: {at}"))
    assert counts("dropped") == 200 - events.OBJECT_BURST - 2
    idle.post(Notice(POD, "Warning", "R", "m"))
    assert counts("dropped") == 200 - events.OBJECT_BURST - 2


async def test_a_flood_is_slowed_down(server: Scripted, recorder: events.Recorder, clock: Time) -> None:
    for at in range(150):
        server.answer(CREATED)
        recorder.post(Notice(pod("shop", at), "Warning", "R", f"{at}"))
    await all_sent(server, recorder, 150)
    assert sum(clock.slept[:100]) == 0
    assert clock.slept[100:] == pytest.approx([0.2] * 50)
    assert [sent(request)["message"] for request in server.requests] == [f"{at}" for at in range(150)]


async def test_of_too_many_some_are_dropped(
    server: Scripted, idle: events.Recorder, counts: Counts, caplog: pytest.LogCaptureFixture
) -> None:
    idle.queues.others = events.FairQueue(3)
    for at in range(5):
        idle.post(Notice(POD, "Warning", "R", f"{at}"))
    idle.post(Notice(POD, "Warning", "R", "0"))
    assert counts("dropped") == 2, "a repeat takes no place"
    assert events.WAITING.value() == 3
    assert len(caplog.records) == 1
    for _ in range(3):
        server.answer(CREATED)
    async with sending(idle):
        await all_sent(server, idle, 3)
    assert [sent(request)["message"] for request in server.requests] == ["0", "1", "2"]
    assert events.WAITING.value() == 0
    # Told again when it begins again.
    for at in range(4):
        idle.post(Notice(POD, "Warning", "R", f"later {at}"))
    assert counts("dropped") == 3
    assert len(caplog.records) == 2


# --- errors ---


@pytest.mark.parametrize(
    "trouble",
    [
        (CUT,),
        (failure(500, "InternalError", "etcd is down"),),
        (failure(503, "ServiceUnavailable", "not ready"),),
        (failure(429, "TooManyRequests", "later"),),
        (failure(401, "Unauthorized", "who?"),),
    ],
)
async def test_passing_trouble_loses_no_event(
    server: Scripted, recorder: events.Recorder, counts: Counts, trouble: Any
) -> None:
    server.answer(*trouble)
    server.answer(*trouble)
    server.answer(CREATED)
    recorder.post(Notice(POD, "Warning", "R", "m"))
    await all_sent(server, recorder, 3)
    assert len({sent(request)["metadata"]["name"] for request in server.requests}) == 1
    assert (counts("created"), counts("failed")) == (1, 0)


async def test_a_create_that_got_through_without_an_answer(
    server: Scripted, recorder: events.Recorder, counts: Counts
) -> None:
    server.answer(CUT)
    server.answer(failure(409, "AlreadyExists", "it exists"))
    server.answer(PATCHED)
    recorder.post(Notice(POD, "Warning", "R", "m"))
    await all_sent(server, recorder, 2)
    recorder.post(Notice(POD, "Warning", "R", "m"))
    await all_sent(server, recorder, 3)
    assert server.requests[2].path.endswith(sent(server.requests[0])["metadata"]["name"])
    assert sent(server.requests[2])["count"] == 2
    assert (counts("created"), counts("repeated"), counts("failed")) == (1, 1, 0)


async def test_a_count_that_got_through_without_an_answer_is_not_raised_twice(
    server: Scripted, recorder: events.Recorder
) -> None:
    server.answer(CREATED)
    server.answer(b"HTTP/1.1 2", CUT)
    server.answer(PATCHED)
    for count in (1, 3):
        recorder.post(Notice(POD, "Warning", "R", "m"))
        await all_sent(server, recorder, count)
    assert [sent(request)["count"] for request in server.requests] == [1, 2, 2]


async def test_a_count_that_is_refused_for_a_moment_is_raised_later(
    server: Scripted, recorder: events.Recorder, counts: Counts
) -> None:
    server.answer(CREATED)
    server.answer(failure(500, "InternalError", "etcd is down"))
    server.answer(PATCHED)
    for count in (1, 3):
        recorder.post(Notice(POD, "Warning", "R", "m"))
        await all_sent(server, recorder, count)
    assert [request.method for request in server.requests] == ["POST", "PATCH", "PATCH"]
    assert (counts("created"), counts("repeated"), counts("failed")) == (1, 1, 0)


async def test_an_event_is_given_up_after_some_tries(
    server: Scripted, recorder: events.Recorder, counts: Counts, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(events.TRIES):
        server.answer(failure(500, "InternalError", "etcd is down"))
    server.answer(CREATED)
    recorder.post(Notice(POD, "Warning", "R", "m"))
    recorder.post(Notice(NODE, "Warning", "R", "m"))
    await all_sent(server, recorder, events.TRIES + 1)
    assert (counts("created"), counts("failed")) == (1, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "the event R about Pod web is lost: etcd is down (500 InternalError)"
    ]


async def test_the_server_says_how_long_to_wait(server: Scripted, recorder: events.Recorder, clock: Time) -> None:
    server.answer(failure(429, "TooManyRequests", "later", Retry_After="40"))
    server.answer(CREATED)
    recorder.post(Notice(POD, "Warning", "R", "m"))
    await all_sent(server, recorder, 2)
    assert max(clock.slept) == 40.0


async def test_a_missing_right_is_named_once(
    server: Scripted, recorder: events.Recorder, counts: Counts, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        server.answer(failure(403, "Forbidden", "events is forbidden"))
    for at in range(3):
        recorder.post(Notice(POD, "Warning", "R", f"{at}"))
    await all_sent(server, recorder, 3)
    assert counts("failed") == 3
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    (warning,) = warnings
    assert all(part in warning for part in ("Pod web", "(403 Forbidden)", "create and patch on events"))


async def test_an_event_that_is_refused_does_not_hold_up_others(
    server: Scripted, recorder: events.Recorder, counts: Counts
) -> None:
    server.answer(failure(422, "Invalid", "involvedObject.namespace: Invalid value"))
    server.answer(CREATED)
    recorder.post(Notice(POD, "Warning", "R", "m"))
    recorder.post(Notice(NODE, "Warning", "R", "m"))
    await all_sent(server, recorder, 2)
    assert (counts("created"), counts("failed")) == (1, 1)


async def test_credentials_that_cannot_be_read_for_a_moment(
    server: Scripted, clock: Time, counts: Counts, tmp_path: Any
) -> None:
    token = tmp_path / "token"
    cfg = config.Config(server=server.url, token_file=config.TokenFile(token))
    server.answer(CREATED)

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        if len(clock.slept) == 3:
            token.write_text("t")

    async with client.Client(cfg, user_agent="test") as api:
        recorder = events.Recorder(api, "c", "i", now=clock.now, sleep=sleep)
        async with sending(recorder):
            recorder.post(Notice(POD, "Warning", "R", "m"))
            await all_sent(server, recorder, 1)
    assert (counts("created"), counts("failed")) == (1, 0)


async def test_nobody_waits_for_an_api_server_that_hangs(server: Scripted, recorder: events.Recorder) -> None:
    server.answer(HANG)
    for at in range(events.MAX_WAITING + 10):
        recorder.post(Notice(pod("shop", at), "Warning", "R", f"{at}"))
    await server.seen(1)
    recorder.post(Notice(pod("shop", 0), "Normal", "R", "m"))
    assert len(recorder.queues.others) == events.MAX_WAITING


async def test_after_an_unexpected_error_it_waits_for_the_next_event(
    server: Scripted, idle: events.Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("unexpected")

    idle.post(Notice(POD, "Warning", "R", "lost"))
    with monkeypatch.context() as patch:
        patch.setattr(idle, "_send", broken)
        with pytest.raises(RuntimeError, match="unexpected"):
            await idle.run()
    server.answer(CREATED)
    async with sending(idle):
        for _ in range(5):  # it begins with nothing to send
            await asyncio.sleep(0)
        idle.post(Notice(POD, "Warning", "R", "next"))
        await all_sent(server, idle, 1)
