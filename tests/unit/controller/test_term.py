"""Writes that a leadership allows, and for how long it may be on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from swapwarden.api import state
from swapwarden.controller.term import LANDING_SECONDS, Deposed, Outcome, Term, TermOver, outcome
from swapwarden.kube import errors

from tests.unit.controller.known import Led, term
from tests.unit.kube.scripted import until


class Request:
    """A write that is on its way until the test says otherwise."""

    def __init__(self) -> None:
        self.begun = self.ended = False
        self.answer = asyncio.Event()

    async def send(self) -> bytes:
        self.begun = True
        try:
            await self.answer.wait()
        finally:
            self.ended = True
        return b"done"


def is_unsure(term: Term) -> bool:
    """Whether the API server may still do a write that had no answer, or was cut off."""
    return asyncio.get_running_loop().time() < term.unsure_until


class Flight:
    """Writes of one term."""

    def __init__(self, led: Led) -> None:
        self.term = term(3, led)
        self.tasks: list[asyncio.Task[bytes]] = []

    async def begins(self) -> tuple[Request, asyncio.Task[bytes]]:
        request = Request()
        task = asyncio.create_task(self.term.write(request.send()))
        self.tasks.append(task)
        await until(lambda: request.begun)
        return request, task


@pytest.fixture
async def fly() -> AsyncIterator[Callable[..., Flight]]:
    made: list[Flight] = []

    def begin(led: Led | None = None) -> Flight:
        made.append(Flight(led or Led()))
        return made[-1]

    yield begin
    for task in (task for flight in made for task in flight.tasks):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def refused(over: Term) -> None:
    request = Request()
    with pytest.raises(TermOver):
        await over.write(request.send())
    assert not request.begun


async def test_no_write_begins_when_the_leaders_time_is_over() -> None:
    led = Led(10.0)
    lasting = term(3, led)
    assert lasting.is_valid()
    led.seconds = 0.0
    assert not lasting.is_valid()
    await refused(lasting)
    assert not is_unsure(lasting), "nothing was sent"


async def test_a_write_ends_with_the_leaders_time_and_not_with_its_own(fly: Callable[..., Flight]) -> None:
    flight = fly(Led(0.01))
    request, task = await flight.begins()
    with pytest.raises(TermOver, match="before the API server's answer"):
        await asyncio.wait_for(task, 10)
    assert request.ended
    assert is_unsure(flight.term)


async def test_an_error_of_a_write_is_its_own(fly: Callable[..., Flight]) -> None:
    async def late() -> bytes:
        raise TimeoutError("no answer within 10 s")

    lasting = fly().term
    with pytest.raises(TimeoutError, match="10 s"):
        await lasting.write(late())
    assert not is_unsure(lasting)


async def test_the_end_of_a_term_cancels_writes_in_flight(fly: Callable[..., Flight]) -> None:
    flight = fly()
    writes = [await flight.begins() for _ in range(3)]
    writes[0][0].answer.set()
    assert await writes[0][1] == b"done"
    flight.term.end()
    flight.term.end()
    for request, task in writes[1:]:
        with pytest.raises(TermOver):
            await task
        assert request.ended
    await refused(flight.term)


async def test_draining_lets_writes_finish_and_none_begin(fly: Callable[..., Flight]) -> None:
    flight = fly()
    earlier, done = await flight.begins()
    earlier.answer.set()
    await done
    request, task = await flight.begins()
    draining = asyncio.create_task(flight.term.drain(60.0))
    await asyncio.sleep(0)
    await refused(flight.term)
    assert not draining.done()
    request.answer.set()
    await draining
    assert await task == b"done"
    assert not is_unsure(flight.term), "the Lease can be given back at once"


async def test_draining_cuts_what_does_not_finish_and_remembers_that(fly: Callable[..., Flight]) -> None:
    flight = fly()
    request, task = await flight.begins()
    await flight.term.drain(0.0)
    assert request.ended, "before the Lease is given back"
    with pytest.raises(TermOver):
        await task
    assert is_unsure(flight.term)


async def test_draining_waits_for_no_longer_than_the_leaders_time(fly: Callable[..., Flight]) -> None:
    flight = fly(Led(0.01))
    await flight.begins()
    async with asyncio.timeout(10.0):
        await flight.term.drain(3600.0)


async def test_a_cancelled_write_leaves_it_open_whether_it_was_done(fly: Callable[..., Flight]) -> None:
    flight = fly()
    _, task = await flight.begins()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_unsure(flight.term)


async def test_a_term_that_nothing_is_written_in_drains_at_once() -> None:
    await term().drain()


@pytest.mark.parametrize(
    ("error", "unsure"),
    [
        (errors.Unreachable("no answer from api:443 within 10 s"), True),
        (errors.ApiError(504, "Timeout", "the request did not complete in time"), True),
        (errors.ApiError(500, "InternalError", "etcdserver: request timed out"), True),
        (errors.ApiError(422, "Invalid", "a newer controller leads"), False),
        (errors.ApiError(409, "Conflict", "it is another one now"), False),
    ],
    ids=str,
)
async def test_only_a_write_without_an_answer_leaves_it_open_whether_it_was_done(
    error: Exception, unsure: bool
) -> None:
    async def fails() -> bytes:
        raise error

    lasting = term()
    with pytest.raises(type(error)):
        await lasting.write(fails())
    assert is_unsure(lasting) is unsure


async def test_a_write_of_long_ago_is_done_by_now_or_never(
    fly: Callable[..., Flight], monkeypatch: pytest.MonkeyPatch
) -> None:
    flight = fly(led := Led(0.01))
    _, task = await flight.begins()
    with pytest.raises(TermOver):
        await asyncio.wait_for(task, 10)
    led.seconds = 10.0  # the Lease was renewed after all
    loop = asyncio.get_running_loop()
    now = loop.time()
    for later, unsure in ((LANDING_SECONDS - 1, True), (LANDING_SECONDS + 1, False)):
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", lambda later=later: now + later)
            assert is_unsure(flight.term) is unsure


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (errors.ApiError(404, "NotFound", "no such state"), Outcome.GONE),
        (errors.ApiError(409, "Conflict", "another version"), Outcome.CHANGED),
        (errors.ApiError(422, "Invalid", f"is invalid: spec: {state.EPOCH_REFUSAL}"), Outcome.DEPOSED),
        (Deposed(term(), "a newer controller leads"), Outcome.DEPOSED),
        (errors.ApiError(422, "Invalid", "spec.mode: Unsupported value"), Outcome.REFUSED),
        (errors.ApiError(403, "Forbidden", "no right"), Outcome.REFUSED),
        (errors.ApiError(429, "TooManyRequests", "busy"), Outcome.OVERLOADED),
        (errors.ApiError(500, "InternalError", "etcd is away"), Outcome.UNKNOWN),
        (errors.Unreachable("no answer"), Outcome.UNKNOWN),
        (TermOver("the term is over"), Outcome.UNKNOWN),
    ],
)
def test_the_result_of_a_write_by_its_error(error: Exception, result: Outcome) -> None:
    assert outcome(error) is result


def test_a_patch_whose_test_failed_came_too_late() -> None:
    assert outcome(errors.ApiError(422, "Invalid", "the test failed"), tested=True) is Outcome.CHANGED
