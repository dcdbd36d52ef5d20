from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from swapwarden.agent.host import worker


@pytest.fixture
def work() -> Iterator[worker.Worker]:
    made = worker.Worker(2)
    yield made
    made.close()


async def test_a_job_gives_its_result_or_its_error(work: worker.Worker) -> None:
    assert await work.do("test", lambda: threading.current_thread().name, 10) == "test"

    def fails() -> None:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        await work.do("test", fails, 10)


async def test_what_takes_too_long_is_left_to_go_on_and_nothing_else_is_begun_meanwhile(work: worker.Worker) -> None:
    disk, begun = threading.Event(), []

    def waits(number: int) -> int:
        begun.append(number)
        disk.wait()
        return number

    for _ in range(2):
        with pytest.raises(TimeoutError):
            await work.do("disk", lambda: waits(1), 0.01)
    assert begun == [1]
    disk.set()
    assert await work.do("disk", lambda: waits(2), 10) == 2
    assert begun == [1, 2]


async def test_a_cancelled_caller_does_not_start_a_second_thread(work: worker.Worker) -> None:
    disk = threading.Event()
    task = asyncio.create_task(work.do("disk", disk.wait, 10))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TimeoutError):
        await work.do("disk", lambda: pytest.fail("two at a time"), 0.01)
    disk.set()
    assert await work.do("disk", lambda: "done", 10) == "done"


async def test_an_error_after_the_time_limit_is_dropped(work: worker.Worker) -> None:
    disk = threading.Event()

    def fails() -> None:
        disk.wait()
        raise LookupError("no such thing")

    with pytest.raises(TimeoutError):
        await work.do("disk", fails, 0.01)
    disk.set()
    assert await work.do("disk", lambda: "done", 10) == "done"


async def test_one_key_that_hangs_keeps_no_other_waiting(work: worker.Worker) -> None:
    disk = threading.Event()
    with pytest.raises(TimeoutError):
        await work.do("disk", disk.wait, 0.01)
    assert await work.do("kernel", lambda: "done", 10) == "done"
    disk.set()


def taken(work: worker.Worker, number: int) -> list[worker.Job]:
    """So many that ended, waited for by the descriptor."""
    jobs: list[worker.Job] = []
    while len(jobs) < number:
        assert select.select([work], [], [], 10)[0]
        jobs += work.take()
    return jobs


def held(gate: threading.Event, value: int) -> Callable[[], int]:
    def wait() -> int:
        gate.wait()
        return value

    return wait


def test_of_what_waits_for_one_key_only_the_newest_is_done(work: worker.Worker) -> None:
    gate = threading.Event()
    for value in range(4):
        work.submit("file", held(gate, value))
    gate.set()
    assert [job.value for job in taken(work, 2)] == [0, 3]
    assert not select.select([work], [], [], 0)[0]


def test_no_more_threads_than_allowed_and_what_waits_is_begun_when_one_is_free(work: worker.Worker) -> None:
    gates = [threading.Event() for _ in range(3)]
    jobs = [work.submit(number, held(gate, number)) for number, gate in enumerate(gates)]
    assert [job.began is not None for job in jobs] == [True, True, False]
    gates[2].set()
    gates[0].set()
    assert [job.value for job in taken(work, 2)] == [0, 2]
    gates[1].set()
    assert [job.value for job in taken(work, 1)] == [1]


def test_an_error_is_data_too(work: worker.Worker) -> None:
    def fails() -> None:
        raise OSError(28, "No space left on device")

    work.submit("file", fails)
    [job] = taken(work, 1)
    assert isinstance(job.error, OSError)


def test_without_a_thread_the_job_ends_with_the_error(work: worker.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        work.submit("file", lambda: 1)
    [job] = taken(work, 1)
    assert isinstance(job.error, RuntimeError)
    work.submit("file", lambda: 2)
    assert taken(work, 1)[0].value == 2


def test_what_ends_after_the_end_writes_to_no_descriptor_of_another() -> None:
    made, gate = worker.Worker(), threading.Event()
    number = made.fileno()
    made.submit("file", held(gate, 1))
    [thread] = [each for each in threading.enumerate() if each.name == "file"]
    made.close()
    reused = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        assert reused == number
        gate.set()
        thread.join()
        with pytest.raises(BlockingIOError):
            os.eventfd_read(reused)
    finally:
        os.close(reused)


async def test_a_system_call_of_a_job_ends_early(work: worker.Worker) -> None:
    """pause(2) ends only by a signal."""
    before = signal.getsignal(signal.SIGURG)
    worker.begin_interrupts()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        job = work.submit("test", libc.pause)
        while not job.ended:
            work.interrupt(job)  # again: the thread may not be in the call yet
            if select.select([work], [], [], 0.01)[0]:
                assert list(work.take()) == [job]
        assert job.value == -1
        work.interrupt(job)
    finally:
        signal.signal(signal.SIGURG, before)
