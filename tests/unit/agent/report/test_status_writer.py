"""Writes of the status and their times, at an API server made of a list."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest
from swapwarden.agent.inventory import board
from swapwarden.agent.report import status_writer
from swapwarden.kube import client, errors

from tests.unit import background
from tests.unit.agent.agent_node import until

Json = dict[str, Any]


class Api:
    """Applies merge patches to one status, the way the real one does."""

    def __init__(self) -> None:
        self.status: Json = {}
        self.patches: list[Json] = []
        self.errors: list[Exception] = []
        """Raised one after the other."""
        self.answers_lost = False
        """Whether what fails was done all the same."""
        self.gate = asyncio.Event()
        self.gate.set()

    async def merge_patch(self, path: str, body: bytes, *, params: Mapping[str, str]) -> bytes:
        assert path.endswith("/n1/status")
        assert params == {"fieldManager": "swapwarden-agent"}
        patch = json.loads(body)["status"]
        self.patches.append(patch)
        await self.gate.wait()
        failed = bool(self.errors)
        if not failed or self.answers_lost:
            self.status = {key: value for key, value in (self.status | patch).items() if value is not None}
        if failed:
            raise self.errors.pop(0)
        return json.dumps({"status": self.status}).encode()


class Running:
    """A reporter at work; `desired` is what it is to report."""

    def __init__(self) -> None:
        self.api = Api()
        self.desired: Json = {"observedGeneration": 1}
        self.looks = 0
        self.broken = False
        self.stood: list[Mapping[str, Any]] = []
        self.board = board.Board()
        self.reporter = status_writer.StatusWriter(cast("client.Client", self.api), "n1", self.board, self)

    def build(self, previous: list[Mapping[str, Any]]) -> Json:  # noqa: ARG002 the signature
        self.looks += 1
        if self.broken:
            raise LookupError("a mistake")
        return dict(self.desired)

    def acknowledge(self, written: Mapping[str, Any]) -> None:
        self.stood.append(written)

    def want(self, **status: Any) -> None:
        self.desired = status
        self.board.touch()

    async def written(self) -> None:
        await until(lambda: self.api.status == self.desired)


@pytest.fixture
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setattr(status_writer, "PATCH_SECONDS", 0.0)
    monkeypatch.setattr(status_writer, "BACKOFF_SECONDS", (0.001, 0.001))
    monkeypatch.setattr(status_writer, "GENERATION_SECONDS", 0.0)
    made = Running()
    async with background.running(made.reporter.run()):
        yield made


async def test_nothing_is_written_before_there_is_an_object(running: Running) -> None:
    running.board.touch()
    await asyncio.sleep(0.01)
    assert running.api.patches == []
    running.reporter.fetched({})
    await running.written()


async def test_only_differences_are_written(running: Running) -> None:
    running.reporter.fetched({"observedGeneration": 1, "exposures": [{"pod": "x"}]})
    running.want(observedGeneration=2, facts={"swapBytes": 5})
    await until(lambda: len(running.api.patches) == 1)
    assert running.api.patches == [{"observedGeneration": 2, "facts": {"swapBytes": 5}, "exposures": None}]
    looks = running.looks
    running.board.touch()
    await until(lambda: running.looks > looks)
    assert len(running.api.patches) == 1


async def test_what_stands_is_said_also_where_the_answer_to_the_write_is_lost(running: Running) -> None:
    running.reporter.fetched({"observedGeneration": 1})
    assert running.stood == []
    running.api.errors = [errors.Unreachable("gone")]
    running.api.answers_lost = True
    running.want(observedGeneration=2, exposures=[{"pod": "x"}])
    await running.written()
    running.reporter.fetched(dict(running.api.status))
    await until(lambda: running.stood != [])
    assert running.stood[0] == running.desired


async def test_counters_alone_wait(running: Running) -> None:
    running.reporter.fetched({"exposures": [{"pod": "x", "count": 1}]})
    looks = running.looks
    running.want(exposures=[{"pod": "x", "count": 2}])
    await until(lambda: len(running.api.patches) == 1)
    running.want(exposures=[{"pod": "x", "count": 3}])
    looks = running.looks
    await until(lambda: running.looks > looks)
    running.board.touch()
    await until(lambda: running.looks > looks + 1)
    assert len(running.api.patches) == 1
    running.want(violations=[{"pod": "x", "reason": "WriteFailed", "exposures": 3}])
    await running.written()


async def test_generations_that_are_only_about_pods_share_a_write(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_writer, "GENERATION_SECONDS", 0.1)
    running.reporter.fetched({"observedGeneration": 1})
    running.want(observedGeneration=2, conditions=[])
    await until(lambda: running.looks == 1)
    running.want(observedGeneration=3, conditions=[])
    await running.written()
    assert running.api.patches == [{"observedGeneration": 3, "conditions": []}]


@pytest.mark.parametrize(
    "news", [{"profileRef": {"name": "p", "generation": 2}}, {"violations": [{"pod": "x", "reason": "WriteFailed"}]}]
)
async def test_a_generation_that_somebody_waits_for_is_reported_at_once(
    running: Running, monkeypatch: pytest.MonkeyPatch, news: Json
) -> None:
    monkeypatch.setattr(status_writer, "GENERATION_SECONDS", 3600.0)
    running.reporter.fetched({"observedGeneration": 1})
    running.want(observedGeneration=2, **news)
    await running.written()


async def test_many_nudges_are_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_writer, "PATCH_SECONDS", 0.2)
    made = Running()
    async with background.running(made.reporter.run()):
        made.reporter.fetched({"observedGeneration": 1})
        await until(lambda: made.looks == 1)
        for _ in range(100):
            made.board.touch()
            await asyncio.sleep(0)
        assert made.looks == 1
        await until(lambda: made.looks == 2)


@pytest.mark.parametrize("lost", [True, False])
async def test_after_a_failure_the_whole_status_is_written(running: Running, *, lost: bool) -> None:
    """The answer may have been lost, and the write done: what the API server has is not known."""
    running.api.status = {"observedGeneration": 1}
    running.reporter.fetched({"observedGeneration": 1})
    running.api.errors = [errors.Unreachable("no answer")]
    running.api.answers_lost = lost
    running.api.gate.clear()
    running.want(observedGeneration=1, violations=[{"pod": "x", "reason": "WriteFailed"}])
    await until(lambda: len(running.api.patches) == 1)
    # Back to the status before the failed write.
    running.want(observedGeneration=1)
    running.api.gate.set()
    await until(lambda: len(running.api.patches) == 2)
    await running.written()


async def test_a_refusal_is_tried_again(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    running.api.errors = [errors.ApiError(403, "Forbidden", "no"), errors.ApiError(500, "InternalError", "later")]
    with caplog.at_level(logging.WARNING):
        running.reporter.fetched({})
        await running.written()
    assert caplog.text.count("trying again") == 2


async def test_an_object_recreated_during_a_write_also_gets_the_status(running: Running) -> None:
    running.reporter.fetched({})
    running.api.gate.clear()
    await until(lambda: len(running.api.patches) == 1)
    running.reporter.fetched({})
    running.api.gate.set()
    await until(lambda: len(running.api.patches) == 2)
    await until(lambda: running.api.status == {"observedGeneration": 1})


async def test_a_watch_that_is_faster_than_the_answer_costs_no_second_write(running: Running) -> None:
    running.api.gate.clear()
    running.reporter.fetched({})
    await until(lambda: len(running.api.patches) == 1)
    running.reporter.fetched(dict(running.desired))
    running.api.gate.set()
    looks = running.looks
    running.board.touch()
    await until(lambda: running.looks > looks)
    running.want(observedGeneration=2)
    await running.written()
    assert running.api.patches == [{"observedGeneration": 1}, {"observedGeneration": 2}]


async def test_a_404_of_an_object_recreated_meanwhile_is_no_end(running: Running) -> None:
    running.reporter.fetched({})
    running.api.gate.clear()
    running.api.errors = [errors.ApiError(404, "NotFound", "gone")]
    await until(lambda: len(running.api.patches) == 1)
    running.reporter.fetched({})
    running.api.gate.set()
    await running.written()


async def test_after_a_404_nothing_is_written_until_there_is_an_object_again(running: Running) -> None:
    running.api.errors = [errors.ApiError(404, "NotFound", "gone")]
    running.reporter.fetched({})
    await until(lambda: running.api.errors == [])
    running.board.touch()
    await asyncio.sleep(0.01)
    assert len(running.api.patches) == 1
    running.reporter.fetched({})
    await running.written()


async def test_a_look_that_fails_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reporter starts again after a fault, and writes without a new revision of the board."""
    monkeypatch.setattr(status_writer, "PATCH_SECONDS", 0.0)
    monkeypatch.setattr(status_writer, "GENERATION_SECONDS", 0.0)
    made = Running()
    made.broken = True
    made.reporter.fetched({"observedGeneration": 0})
    with pytest.raises(LookupError):
        await made.reporter.run()
    made.broken = False
    async with background.running(made.reporter.run()):
        await made.written()


async def checks() -> None:
    """Wait until the writer has checked what a watch showed: timers of one delay run in their order."""
    for _ in range(2):
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(status_writer.FOREIGN_SECONDS, over.set)
        await over.wait()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_writer, "FOREIGN_SECONDS", 0.01)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "left", [{}, {"observedGeneration": 99}, {"observedGeneration": 1, "conditions": [{"type": "Applied"}]}]
)
async def test_a_status_that_others_changed_is_written_again(running: Running, left: Json) -> None:
    before = status_writer.OVERWRITTEN.value()
    running.reporter.fetched({})
    await running.written()
    running.api.status = dict(left)
    running.reporter.seen(dict(left))
    await running.written()
    assert status_writer.OVERWRITTEN.value() == before + 1
    assert len(running.api.patches) == 2


async def test_a_status_that_others_changed_is_written_again_if_the_next_write_came_before_the_watch(
    running: Running,
) -> None:
    before = status_writer.OVERWRITTEN.value()
    running.want(observedGeneration=1, facts={"pageSize": 4096})
    running.reporter.fetched({})
    await running.written()
    running.api.status = {}
    running.want(observedGeneration=2, facts={"pageSize": 4096})
    await running.written()
    assert status_writer.OVERWRITTEN.value() == before + 1


@pytest.mark.usefixtures("impatient")
async def test_a_status_that_others_put_back_is_written_again_if_the_watch_is_faster_than_the_answer(
    running: Running,
) -> None:
    """The status before the write counts as the agent's own only until the write is answered."""
    before = status_writer.OVERWRITTEN.value()
    running.want(observedGeneration=1)
    running.api.gate.clear()
    running.reporter.fetched({})
    await until(lambda: bool(running.api.patches))
    running.reporter.seen({"observedGeneration": 1})
    running.reporter.seen({})
    running.api.gate.set()
    await until(lambda: len(running.api.patches) == 2)
    assert status_writer.OVERWRITTEN.value() == before + 1


@pytest.mark.usefixtures("impatient")
async def test_the_agents_own_writes_are_nobody_elses_however_late_a_watch_shows_them(running: Running) -> None:
    before, first = status_writer.OVERWRITTEN.value(), dict(running.desired)
    running.reporter.fetched({})
    await running.written()
    running.want(observedGeneration=2)
    await running.written()
    running.reporter.seen(first)
    running.reporter.seen(dict(running.desired))
    await checks()
    assert (status_writer.OVERWRITTEN.value(), len(running.api.patches)) == (before, 2)


@pytest.mark.usefixtures("impatient")
async def test_a_field_that_the_api_server_does_not_know_is_no_other_writer(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CRD may be older than the agent."""
    before, real = status_writer.OVERWRITTEN.value(), running.api.merge_patch

    async def prune(*arguments: Any, **more: Any) -> bytes:
        await real(*arguments, **more)
        running.api.status.pop("previewCost", None)
        return json.dumps({"status": running.api.status}).encode()

    monkeypatch.setattr(running.api, "merge_patch", prune)
    running.reporter.fetched({})
    running.want(observedGeneration=1, previewCost={"pods": 1})
    await until(lambda: running.api.status == {"observedGeneration": 1})
    running.reporter.seen(dict(running.api.status))
    await checks()
    assert (status_writer.OVERWRITTEN.value(), len(running.api.patches)) == (before, 1)


@pytest.mark.usefixtures("impatient")
async def test_an_answer_that_says_nothing_of_the_object_is_a_write_all_the_same(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = running.api.merge_patch

    async def mute(*arguments: Any, **more: Any) -> bytes:
        await real(*arguments, **more)
        return b"<html>"

    monkeypatch.setattr(running.api, "merge_patch", mute)
    running.reporter.fetched({})
    await until(lambda: bool(running.stood) and running.api.status == running.desired)
    assert len(running.api.patches) == 1
