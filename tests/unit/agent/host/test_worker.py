from __future__ import annotations

import asyncio
import threading

import pytest
from swapwarden.agent.host import worker


async def test_what_is_done_aside_gives_its_result_or_its_error() -> None:
    work = worker.Worker("test")
    assert await work.do(lambda: threading.current_thread().name, 10) == "test"

    def fails() -> None:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        await work.do(fails, 10)


async def test_what_takes_too_long_is_left_to_go_on_and_nothing_else_is_begun_meanwhile() -> None:
    work, disk, begun = worker.Worker("test"), threading.Event(), []

    def waits(number: int) -> int:
        begun.append(number)
        disk.wait()
        return number

    for _ in range(2):
        with pytest.raises(TimeoutError):
            await work.do(lambda: waits(1), 0.01)
    assert begun == [1]
    disk.set()
    assert await work.do(lambda: waits(2), 10) == 2
    assert begun == [1, 2]


async def test_whoever_is_cancelled_does_not_let_a_second_thread_in() -> None:
    work, disk = worker.Worker("test"), threading.Event()
    task = asyncio.create_task(work.do(disk.wait, 10))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TimeoutError):
        await work.do(lambda: pytest.fail("two at a time"), 0.01)
    disk.set()
    assert await work.do(lambda: "done", 10) == "done"


async def test_an_error_that_comes_too_late_is_nobodys() -> None:
    work, disk = worker.Worker("test"), threading.Event()

    def fails() -> None:
        disk.wait()
        raise LookupError("no such thing")

    with pytest.raises(TimeoutError):
        await work.do(fails, 0.01)
    disk.set()
    assert await work.do(lambda: "done", 10) == "done"
