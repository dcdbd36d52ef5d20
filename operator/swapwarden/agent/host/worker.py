"""Work that may wait for a disk or for the kernel: aside of the event loop, which repairs limits meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")


class Worker:
    """One thread at a time, which nobody waits for at the end of the process: the kernel may never let go of it."""

    def __init__(self, name: str) -> None:
        """`name` is what tools show of the thread: 15 characters at most."""
        self._name: Final = name
        self._running: asyncio.Future[Any] | None = None

    async def do(self, work: Callable[[], T], seconds: float) -> T:
        """What `work` gives or raises. TimeoutError where it, or what was begun before it, has not ended by then.

        What was begun goes on after that, and nothing else is begun until it has ended.
        """
        async with asyncio.timeout(seconds):
            if self._running is not None:
                await asyncio.wait({self._running})
            self._running = running = self._begin(work)
            # Whoever is cancelled or has waited for too long does not take the result along.
            result: T = await asyncio.shield(running)
            return result

    def _begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        # An error that nobody waits for any more is no news: whoever waited has said that it took too long.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

        def end(step: Callable[..., None], value: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(step, value)

        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 the caller's, to whom it is raised
                end(future.set_exception, error)
            else:
                end(future.set_result, result)

        threading.Thread(target=run, name=self._name, daemon=True).start()
        return future
