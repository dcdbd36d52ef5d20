"""Threads for work that may wait for a disk or for the kernel, while the event loop repairs limits.

Results are data, taken by the reader of `fileno`. Nothing waits for the threads at the end of the process: one may hang
in the kernel for ever.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")


class Job(msgspec.Struct, eq=False):
    """Work of one key."""

    key: Hashable
    work: Callable[[], Any]
    value: Any = None
    """The result."""
    error: BaseException | None = None
    """Raised by the work; RuntimeError if no thread could be started."""
    began: float | None = None
    """Monotonic seconds; None while it waits."""
    ended: bool = False
    """Whether it was taken."""
    answer: asyncio.Future[Any] | None = None
    thread: int | None = None
    """Identifier of the job's thread while it runs; None otherwise."""


def begin_interrupts() -> None:
    """Have SIGURG interrupt system calls, for Worker.interrupt. Only the main thread may call it."""
    signal.signal(signal.SIGURG, _ignore)


def _ignore(_number: int, _frame: object) -> None:
    """Handle a signal: with the default action, the kernel would not notice it."""


class Worker:
    """At most so many threads, and one job at a time for each key. The event loop submits and takes."""

    def __init__(self, threads: int = 4, *, nice: int = 0) -> None:
        """`nice` lowers the priority of the threads against others of the process, as nice(2) does."""
        self._threads: Final = threads
        self._nice: Final = nice
        self._waiting: Final[dict[Hashable, Job]] = {}
        self._running: Final[dict[Hashable, Job]] = {}
        self._ended: Final[collections.deque[Job]] = collections.deque()
        self._lock = threading.Lock()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._read_by: asyncio.AbstractEventLoop | None = None

    def fileno(self) -> int:
        """Return the descriptor: readable once a job ended."""
        return self._event

    def submit(self, key: Hashable, work: Callable[[], Any]) -> Job:
        """Begin, or wait for a thread and for the key's job before. Of one key only the newest waits."""
        job = self._waiting[key] = Job(key, work)
        self._begin()
        return job

    def take(self) -> Iterator[Job]:
        """Yield the jobs that ended, and begin those that waited for them."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        while self._ended:
            job = self._ended.popleft()
            self._running.pop(job.key, None)
            job.ended = True
            yield job
        self._begin()

    def interrupt(self, job: Job) -> None:
        """End the system call of a running job early, if the kernel looks for signals in it."""
        with self._lock:  # the thread cannot end meanwhile
            if job.thread is not None:
                signal.pthread_kill(job.thread, signal.SIGURG)

    async def do(self, key: Hashable, work: Callable[[], T], seconds: float | None) -> T:
        """Do the work in a thread. TimeoutError if it, or the key's job before it, has not ended in time.

        A job that began continues after that. With `do` nothing else may `take`.
        """
        loop = asyncio.get_running_loop()
        if self._read_by is not loop:
            self._read_by = loop
            loop.add_reader(self._event, self._answer)
        job = self.submit(key, work)
        job.answer = loop.create_future()
        try:
            async with asyncio.timeout(seconds):
                result: T = await job.answer
                return result
        finally:
            if self._waiting.get(key) is job:
                del self._waiting[key]

    def close(self) -> None:
        """Begin no more jobs, and take none; running ones continue."""
        self._waiting.clear()
        if self._read_by is not None:
            self._read_by.remove_reader(self._event)
        with self._lock:
            event, self._event = self._event, -1
        os.close(event)

    def _begin(self) -> None:
        for key, job in list(self._waiting.items()):
            if len(self._running) < self._threads and key not in self._running:
                self._running[key] = self._waiting.pop(key)
                job.began = time.monotonic()
                try:
                    threading.Thread(target=self._run, args=(job,), name=str(key), daemon=True).start()
                except RuntimeError as error:
                    job.error = error
                    self._end(job)

    def _run(self, job: Job) -> None:
        job.thread = threading.get_ident()
        if self._nice:
            with contextlib.suppress(OSError):  # a seccomp filter may forbid it
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)
        try:
            job.value = job.work()
        except BaseException as error:  # noqa: BLE001 it is raised to who waits
            job.error = error
        self._end(job)

    def _end(self, job: Job) -> None:
        self._ended.append(job)
        with self._lock:
            job.thread = None
            if self._event >= 0:
                os.eventfd_write(self._event, 1)

    def _answer(self) -> None:
        for job in self.take():
            # An error after the timeout is no news: the caller has reported that it took too long.
            if job.answer is None or job.answer.done():
                continue
            if job.error is not None:
                job.answer.set_exception(job.error)
            else:
                job.answer.set_result(job.value)
