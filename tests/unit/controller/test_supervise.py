from __future__ import annotations

import asyncio

import pytest
from swapwarden.controller import supervise


async def test_a_part_that_fails_is_started_again_and_later_each_time(caplog: pytest.LogCaptureFixture) -> None:
    faults = supervise.FAULTS.value("part-x")
    slept: list[float] = []
    runs = 0

    async def job() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ZeroDivisionError
        if runs <= 20:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())

    async def fails() -> None:
        raise LookupError("a mistake")

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    await supervise.unending("part-x", job, sleep=sleep)
    assert runs == 21
    assert supervise.FAULTS.value("part-x") == faults + 20
    assert all(0 <= seconds <= supervise.BACKOFF_SECONDS[1] for seconds in slept)
    assert max(slept) > 1.0
    assert "a mistake" in caplog.text
    assert "unexpected error in part-x" in caplog.text


async def test_a_part_that_is_cancelled_ends() -> None:
    task = asyncio.create_task(supervise.unending("part-x", asyncio.Event().wait))  # type: ignore[arg-type]  # never returns
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_parts_are_in_the_metric_before_any_fault() -> None:
    await supervise.run({"part-y": lambda: asyncio.sleep(0)})
    assert supervise.FAULTS.value("part-y") == 0
    assert "part-y" in "\n".join(str(each) for each in supervise.FAULTS.samples())
