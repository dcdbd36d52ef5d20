"""Who waits for the board hears of each touch, however many wait."""

from __future__ import annotations

import asyncio

from swapwarden.agent.inventory import board


async def test_all_who_wait_hear_of_a_touch() -> None:
    made = board.Board()
    waiting = [asyncio.create_task(made.after(0)) for _ in range(3)]
    await asyncio.sleep(0)
    made.touch()
    assert await asyncio.gather(*waiting) == [1, 1, 1]


async def test_a_touch_that_nobody_waited_for_is_not_lost() -> None:
    made = board.Board()
    made.touch()
    made.touch()
    assert await made.after(0) == 2


async def test_nobody_is_woken_up_twice_by_one_touch() -> None:
    made = board.Board()
    made.touch()
    first = await made.after(0)
    again, late = asyncio.create_task(made.after(first)), asyncio.create_task(made.after(0))
    assert await late == 1
    await asyncio.sleep(0)
    assert not again.done()
    made.touch()
    assert await again == 2


async def test_who_begins_to_wait_takes_the_touch_from_nobody() -> None:
    """A touch wakes up one that waits, and before that one runs another begins to wait."""
    made = board.Board()
    first = asyncio.create_task(made.after(0))
    await asyncio.sleep(0)
    made.touch()
    second = asyncio.create_task(made.after(1))
    assert await first == 1
    made.touch()
    assert await second == 2


async def test_a_report_waits_until_a_state_is_applied_but_not_for_ever() -> None:
    made = board.Board()
    await asyncio.wait_for(made.applied(3600.0), 10)
    made.busy = True
    waiting = asyncio.create_task(made.applied(3600.0))
    made.touch()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    made.busy = False
    made.touch()
    await asyncio.wait_for(waiting, 10)
    made.busy = True
    await asyncio.wait_for(made.applied(0.01), 10)
