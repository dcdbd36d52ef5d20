"""Turns at work that holds up everything else."""

from __future__ import annotations

import asyncio

import pytest
from swapwarden.telemetry import turns


async def test_keys_take_turns_whoever_came_first() -> None:
    queue = turns.Turns(1.0, waiting=10, waiting_per_key=4)
    order: list[str] = []
    begun, going_on = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with queue.take("busy"):
            begun.set()
            await going_on.wait()

    async def work(key: str) -> None:
        async with queue.take(key):
            order.append(key)

    async with asyncio.TaskGroup() as group:
        group.create_task(first())
        await begun.wait()
        for key in ("busy", "busy", "busy", "quiet", "other"):
            group.create_task(work(key))
        while sum(map(len, queue._queues.values())) < 5:  # noqa: ASYNC110 nothing says so
            await asyncio.sleep(0)
        going_on.set()
    assert order == ["busy", "quiet", "other", "busy", "busy"]


async def test_too_many_are_turned_away_at_once_those_of_one_key_first() -> None:
    queue = turns.Turns(1.0, waiting=3, waiting_per_key=2)
    async with queue.take("a"):
        waiting = [asyncio.create_task(take(queue, key)) for key in ("a", "a", "b")]
        await asyncio.sleep(0)
        for key in ("a", "c"):
            with pytest.raises(turns.Busy):
                await take(queue, key)
    await asyncio.gather(*waiting)
    await take(queue, "c")


async def test_one_that_gives_up_costs_nobody_a_turn() -> None:
    queue = turns.Turns(1.0, waiting=9, waiting_per_key=9)
    async with queue.take("a"):
        impatient, patient = asyncio.create_task(take(queue, "a")), asyncio.create_task(take(queue, "a"))
        await asyncio.sleep(0)
        impatient.cancel()
    await patient
    assert impatient.cancelled()
    await take(queue, "a")


async def test_work_takes_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    pauses: list[float] = []
    monkeypatch.setattr("time.perf_counter", lambda: now)
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def call_later(delay: float, callback: object, *args: object) -> asyncio.TimerHandle:
        if callback == queue._next:
            pauses.append(delay)
        return later(0, callback, *args)  # type: ignore[arg-type]  # it is passed on as it came

    queue = turns.Turns(0.25, waiting=1, waiting_per_key=1)
    monkeypatch.setattr(loop, "call_later", call_later)
    for took in (0.02, 5.0):
        async with queue.take("a"):
            now += took
    assert pauses == [pytest.approx(0.06), turns.LONGEST_PAUSE]


async def take(queue: turns.Turns, key: str) -> None:
    async with queue.take(key):
        pass
