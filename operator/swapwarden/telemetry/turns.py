"""Take turns at work that holds up everything else while it lasts."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

LONGEST_PAUSE: Final = 1.0
"""Seconds after one turn, however long it was."""


class Busy(Exception):  # noqa: N818 it names what it is about
    """Too many wait already."""


class Turns:
    """One at a time, by key in rotation, and all together for no more than a share of the time."""

    def __init__(self, share: float, *, waiting: int, waiting_per_key: int) -> None:
        """`share` is above 0 and at most 1. Of those that wait there are at most `waiting`, of one key fewer."""
        self._pause_factor = 1 / share - 1
        self._waiting, self._waiting_per_key = waiting, waiting_per_key
        self._queues: dict[str, collections.deque[asyncio.Future[None]]] = {}
        self._taken = False

    @contextlib.asynccontextmanager
    async def take(self, key: str) -> AsyncIterator[None]:
        """Wait for a turn; it ends with the block. Raises Busy at once where too many wait."""
        if self._taken:
            await self._wait(key)
        self._taken = True
        begun = time.perf_counter()
        try:
            yield
        finally:
            pause = (time.perf_counter() - begun) * self._pause_factor
            asyncio.get_running_loop().call_later(min(pause, LONGEST_PAUSE), self._next)

    async def _wait(self, key: str) -> None:
        queue = self._queues.get(key, ())
        if len(queue) >= self._waiting_per_key or sum(map(len, self._queues.values())) >= self._waiting:
            raise Busy
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(key, collections.deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()
            raise

    def _next(self) -> None:
        while self._queues:
            key = next(iter(self._queues))
            queue = self._queues.pop(key)
            turn = queue.popleft()
            if queue:
                self._queues[key] = queue  # behind the others
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False
