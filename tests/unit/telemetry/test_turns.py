"""Turns at work that holds up everything else."""

from __future__ import annotations

import asyncio

import pytest
from swapwarden.telemetry import turns


async def test_keys_take_turns_not_in_order_of_arrival() -> None:
    queue = turns.Turns(1.0, waiting=10, waiting_per_key=4)
    order: list[str] = []
    begun, going_on = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with queue.take("api", "busy"):
            begun.set()
            await going_on.wait()

    async def work(key: tuple[str, str]) -> None:
        async with queue.take(*key):
            order.append(key[1])

    async with asyncio.TaskGroup() as group:
        group.create_task(first())
        await begun.wait()
        for key in ("busy", "busy", "busy", "quiet", "other"):
            group.create_task(work(("api", key)))
        while len(queue) < 5:  # noqa: ASYNC110 nothing says so
            await asyncio.sleep(0)
        going_on.set()
    assert order == ["busy", "quiet", "other", "busy", "busy"]


async def test_too_many_are_turned_away_at_once_those_of_one_key_first() -> None:
    queue = turns.Turns(1.0, waiting=3, waiting_per_key=2)
    async with queue.take("api", "a"):
        waiting = [asyncio.create_task(take(queue, key)) for key in ("a", "b", "c")]
        await asyncio.sleep(0)
        for key in ("a", "d"):
            with pytest.raises(turns.Busy):
                await take(queue, key)
    await asyncio.gather(*waiting)
    await take(queue, "d")


async def test_where_too_many_wait_the_last_of_the_longest_queue_gives_way() -> None:
    queue = turns.Turns(1.0, waiting=3, waiting_per_key=2)
    async with queue.take("api", "a"):
        waiting = [asyncio.create_task(take(queue, key)) for key in ("a", "a", "b")]
        await asyncio.sleep(0)
        modest = asyncio.create_task(take(queue, "c"))
        await asyncio.sleep(0)
        assert len(queue) == 3
    answers = await asyncio.gather(*waiting, modest, return_exceptions=True)
    assert [type(each) for each in answers] == [type(None), turns.Busy, type(None), type(None)]


async def test_a_peer_that_invents_keys_keeps_no_other_peer_waiting() -> None:
    queue = turns.Turns(1.0, waiting=4, waiting_per_key=2)
    order: list[str] = []

    async def work(peer: str, key: str) -> None:
        async with queue.take(peer, key):
            order.append(peer)

    async with queue.take("hostile", "0"):
        hostile = [asyncio.create_task(work("hostile", str(number))) for number in range(1, 5)]
        await asyncio.sleep(0)
        others = [asyncio.create_task(work("api", key)) for key in ("a", "b")]
        await asyncio.sleep(0)
    answers = await asyncio.gather(*hostile, return_exceptions=True)
    await asyncio.gather(*others)
    assert [type(each) for each in answers] == [type(None), type(None), turns.Busy, turns.Busy]
    assert order == ["hostile", "api", "hostile", "api"]


async def test_one_that_gives_up_costs_nobody_a_turn() -> None:
    queue = turns.Turns(1.0, waiting=9, waiting_per_key=9)
    async with queue.take("api", "a"):
        impatient, patient = asyncio.create_task(take(queue, "a")), asyncio.create_task(take(queue, "a"))
        await asyncio.sleep(0)
        impatient.cancel()
    await patient
    assert impatient.cancelled()
    await take(queue, "a")


async def test_one_that_gives_up_waits_no_more() -> None:
    queue = turns.Turns(1.0, waiting=1, waiting_per_key=1)
    async with queue.take("api", "a"):
        impatient = asyncio.create_task(take(queue, "a"))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
        patient = asyncio.create_task(take(queue, "a"))
        await asyncio.sleep(0)
        assert len(queue) == 1
    await patient


async def test_one_that_is_turned_away_and_gives_up_at_once_begins_no_turn() -> None:
    queue = turns.Turns(1.0, waiting=2, waiting_per_key=2)

    async def give_up() -> None:
        await asyncio.sleep(0)
        assert len(queue) == 2, "one was turned away"
        unlucky.cancel()

    async with queue.take("api", "a"):
        lucky, unlucky = asyncio.create_task(take(queue, "a")), asyncio.create_task(take(queue, "a"))
        await asyncio.sleep(0)
        giving_up, newcomer = asyncio.create_task(give_up()), asyncio.create_task(take(queue, "b"))
        await asyncio.wait([giving_up, unlucky])
        assert unlucky.cancelled()
        assert len(queue) == 2, "the turn that is going on has not ended"
    await asyncio.gather(giving_up, lucky, newcomer)


async def test_work_takes_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    pauses: list[float] = []
    monkeypatch.setattr("time.perf_counter", lambda: now)
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def call_later(delay: float, callback: object, *args: object) -> asyncio.TimerHandle:
        if getattr(callback, "__self__", None) is queue:
            pauses.append(delay)
        return later(0, callback, *args)  # type: ignore[arg-type]  # it is passed on as it came

    queue = turns.Turns(0.25, waiting=1, waiting_per_key=1)
    monkeypatch.setattr(loop, "call_later", call_later)
    for took in (0.02, 5.0):
        async with queue.take("api", "a"):
            now += took
    assert pauses == [pytest.approx(0.06), turns.LONGEST_PAUSE]


async def take(queue: turns.Turns, key: str) -> None:
    async with queue.take("api", key):
        pass
