"""How the state is followed, at an API server made of a script: one step per list and watch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, cast

import msgspec
import pytest
from swapwarden.agent.desired import spec, state_watch
from swapwarden.api import names
from swapwarden.kube import backoff, client, errors, watch

from tests.unit.agent.agent_node import until

Event = watch.WatchEvent[spec.ReceivedState]


def made(uid: str, generation: int) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1", "uid": uid, "resourceVersion": "5", "generation": generation},
        "spec": {"pods": {}},
        "status": {"of": uid},
    }


def received(body: dict[str, Any]) -> spec.ReceivedState:
    return msgspec.json.decode(msgspec.json.encode(body), type=spec.ReceivedState)


def event(kind: Any, uid: str, generation: int) -> Event:
    return watch.WatchEvent(kind, received(made(uid, generation)), "6")


class Api:
    """Lists and watches, as scripted; the last of each never ends."""

    def __init__(self) -> None:
        self.lists: list[Exception | dict[str, Any] | None] = []
        self.watches: list[list[Event | Exception]] = []
        self.listed = self.watched = 0

    async def get(self, path: str, *, params: Mapping[str, str], timeout: float) -> bytes:  # noqa: ASYNC109 as the real one
        assert path == names.STATES_PATH
        assert params == {"fieldSelector": "metadata.name=n1"}
        assert 0 < timeout <= 60
        self.listed += 1
        answer = self.lists.pop(0) if self.lists else None
        if isinstance(answer, Exception):
            raise answer
        items = [] if answer is None else [answer]
        return msgspec.json.encode({"metadata": {"resourceVersion": "5"}, "items": items})

    async def watch(self, *_: object, **__: object) -> AsyncGenerator[Event, None]:
        self.watched += 1
        if not self.watches:
            await asyncio.Event().wait()
        for step in self.watches.pop(0):
            if isinstance(step, Exception):
                raise step
            yield step


class Follower:
    """Notes the events of the source."""

    def __init__(self, api: Api) -> None:
        self.accepted: list[tuple[str, int]] = []
        self.fetched: list[dict[str, Any] | None] = []
        """Statuses; None: no object."""
        self.refused: list[str] = []
        self.shown: list[dict[str, Any]] = []
        self.heard = 0
        self.source = state_watch.StateWatch(cast("client.Client", api), "n1")

    async def follow(self) -> None:
        async with contextlib.aclosing(self.source.events()) as events:
            async for event in events:
                self.note(event)

    def note(self, event: state_watch.Event) -> None:
        match event:
            case state_watch.Fetched(_, newer):
                self.fetched.append(event.status)
                self.accept(newer)
            case state_watch.Changed(status, newer):
                self.shown.append(status)
                self.accept(newer)
            case state_watch.Refused(why):
                self.refused.append(why)
            case state_watch.Contact():
                self.heard += 1

    def accept(self, new: spec.ReceivedState | None) -> None:
        if new is not None:
            self.accepted.append((new.metadata.uid, new.metadata.generation))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    scripted = Api()
    monkeypatch.setattr(watch, "watch", scripted.watch)
    monkeypatch.setattr(state_watch, "BACKOFF_SECONDS", (0.001, 0.002))
    return scripted


@pytest.fixture
def bounds(api: Api, monkeypatch: pytest.MonkeyPatch) -> list[float]:  # noqa: ARG001 which sets short waits
    """Longest waits after failures; the waits themselves are none."""
    most_seconds: list[float] = []

    def between(_: float, most: float) -> float:
        most_seconds.append(most)
        return 0.0

    monkeypatch.setattr(state_watch, "BACKOFF_SECONDS", (0.5, 30.0))
    monkeypatch.setattr(backoff, "between", between)
    return most_seconds


Follow = Callable[[], Follower]


@pytest.fixture
async def follow(api: Api) -> AsyncIterator[Follow]:
    tasks = []

    def begin() -> Follower:
        follower = Follower(api)
        tasks.append(asyncio.create_task(follower.follow()))
        return follower

    yield begin
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_list_is_trusted_and_then_only_newer_generations(api: Api, follow: Follow) -> None:
    api.lists = [made("a", 5)]
    api.watches = [[event("MODIFIED", "a", 5), event("MODIFIED", "a", 4), event("MODIFIED", "a", 6)]]
    follower = follow()
    await until(lambda: api.watched == 2)
    assert follower.accepted == [("a", 5), ("a", 6)]


async def test_a_status_that_others_changed_is_shown_also_where_the_generation_is_the_same(
    api: Api, follow: Follow
) -> None:
    wiped = watch.WatchEvent("MODIFIED", received({**made("a", 5), "status": {}}), "6")
    newer = {**made("a", 6), "status": {"observedGeneration": 5}}
    api.lists = [{**made("a", 5), "status": {"observedGeneration": 5}}]
    api.watches = [[wiped, watch.WatchEvent("MODIFIED", received(newer), "7")]]
    follower = follow()
    await until(lambda: api.watched == 2)
    assert follower.shown == [{}, {"observedGeneration": 5}]
    assert follower.accepted == [("a", 5), ("a", 6)]


async def test_whatever_a_watch_says_is_heard_and_so_is_its_end(api: Api, follow: Follow) -> None:
    api.watches = [[watch.WatchEvent("BOOKMARK", None, "7"), event("MODIFIED", "a", 5)], []]
    follower = follow()
    await until(lambda: api.watched == 3)
    assert follower.heard == 4


async def test_a_recreated_state_counts_whatever_its_generation(api: Api, follow: Follow) -> None:
    api.lists = [made("a", 5)]
    api.watches = [[event("DELETED", "a", 5), event("ADDED", "b", 1)]]
    follower = follow()
    await until(lambda: api.watched == 2)
    assert follower.accepted == [("a", 5), ("b", 1)]
    assert follower.fetched == [{"of": "a"}, None, {"of": "b"}]


async def test_a_deletion_is_logged_once_also_if_a_list_shows_it(
    api: Api, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    api.lists = [made("a", 5), None, None]
    api.watches = [[errors.Unreachable("cut")], [errors.Unreachable("cut")]]
    follow()
    await until(lambda: api.watched == 3)
    assert caplog.text.count("state was deleted") == 1


async def test_a_fresh_list_counts_whatever_its_generation(api: Api, follow: Follow) -> None:
    """etcd may have been restored from a backup."""
    api.lists = [made("a", 5), made("a", 2)]
    api.watches = [[watch.Expired("too old")]]
    follower = follow()
    await until(lambda: api.watched == 2)
    assert follower.accepted == [("a", 5), ("a", 2)]


@pytest.mark.parametrize(
    "failure",
    [
        errors.ApiError(403, "Forbidden", "no"),
        errors.ApiError(404, "NotFound", "no"),
        errors.ApiError(500, "InternalError", "no"),
        errors.Unreachable("no"),
    ],
)
async def test_failures_are_retried_and_the_last_state_stays(
    api: Api, follow: Follow, bounds: list[float], failure: Exception
) -> None:
    api.lists = [made("a", 5), failure, failure, made("a", 6)]
    api.watches = [[failure]]
    follower = follow()
    await until(lambda: api.watched == 2)
    assert follower.accepted == [("a", 5), ("a", 6)]
    assert bounds == [0.5, 1.0, 2.0]


async def test_a_list_alone_is_no_success(api: Api, follow: Follow, bounds: list[float]) -> None:
    """With watches refused, lists that are answered must not go on at full speed."""
    api.watches = [[errors.ApiError(403, "Forbidden", "no")] for _ in range(5)]
    follow()
    await until(lambda: api.watched == 6)
    assert bounds == [0.5, 1.0, 2.0, 4.0, 8.0]


async def test_watches_that_end_at_once_follow_each_other_more_slowly(
    api: Api, follow: Follow, bounds: list[float]
) -> None:
    api.watches = [[], [], []]
    follow()
    await until(lambda: api.watched == 4)
    assert (bounds, api.listed) == ([0.5, 1.0, 2.0], 1)


async def test_an_event_is_a_success(api: Api, follow: Follow, bounds: list[float]) -> None:
    api.watches = [[], [event("ADDED", "a", 1), errors.Unreachable("cut")]]
    follow()
    await until(lambda: api.listed == 2)
    assert bounds == [0.5, 0.5]


async def test_a_state_that_cannot_be_read_is_refused_until_one_can(api: Api, follow: Follow) -> None:
    api.lists = [made("a", 5), {"metadata": {"name": 7}}, made("a", 6)]
    api.watches = [[msgspec.ValidationError("Expected `str`")]]
    follower = follow()
    await until(lambda: api.watched == 2)
    assert follower.accepted == [("a", 5), ("a", 6)]
    assert len(follower.refused) == 2


async def test_a_spec_that_is_not_understood_is_no_failure_of_the_watch(api: Api, follow: Follow) -> None:
    """The agent, which applies it, reports in the status that it cannot."""
    api.lists = [{**made("b", 1), "spec": {"mode": "FromTheFuture"}}]
    follower = follow()
    await until(lambda: api.watched == 1)
    assert follower.fetched == [{"of": "b"}]
    assert follower.accepted == [("b", 1)]
    assert follower.refused == []


async def test_an_api_server_that_is_gone_for_an_hour_is_asked_seldom_and_found_at_once_when_it_is_back(
    api: Api, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that only the pauses move."""
    monkeypatch.setattr(state_watch, "BACKOFF_SECONDS", (0.5, 30.0))
    waits: list[float] = []
    real = asyncio.sleep
    gone = errors.Unreachable("connection refused")

    async def passing(seconds: float) -> None:
        waits.append(seconds)
        api.lists[:] = [gone] if sum(waits) < 3600 else [made("u1", 7)]
        await real(0)

    monkeypatch.setattr("swapwarden.agent.desired.state_watch.asyncio.sleep", passing)
    api.lists = [gone]
    follower = follow()
    async with asyncio.timeout(10):
        while not follower.accepted:
            await real(0)
    assert follower.accepted == [("u1", 7)]
    assert follower.fetched == [{"of": "u1"}], "an unreachable API server does not mean that there is no state"
    assert max(waits) <= 30.0
    assert 3600 / 30 < len(waits) < 3600 / 5
