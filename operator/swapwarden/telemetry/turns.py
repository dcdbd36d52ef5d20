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

_Queue = collections.deque[asyncio.Future[None]]


class Busy(Exception):  # noqa: N818 it names what it is about
    """Too many callers wait already."""


class Turns:
    """One at a time, by peer and then by key in rotation, and all together for no more than a share of the time."""

    def __init__(self, share: float, *, waiting: int, waiting_per_key: int) -> None:
        """`share` is above 0 and at most 1. At most `waiting` callers wait, and fewer of one key of a peer."""
        self._pause_factor = 1 / share - 1
        self._waiting, self._waiting_per_key = waiting, waiting_per_key
        self._queues: dict[str, dict[str, _Queue]] = {}
        self._taken = False

    def __len__(self) -> int:
        """The number of waiting callers."""
        return sum(map(_length, self._queues.values()))

    @contextlib.asynccontextmanager
    async def take(self, peer: str, key: str) -> AsyncIterator[None]:
        """Wait for a turn; it ends with the block.

        Raises Busy if too many wait: the last of the longest queue of the peer with most is turned away.
        """
        if self._taken:
            await self._wait(peer, key)
        self._taken = True
        begun = time.perf_counter()
        try:
            yield
        finally:
            pause = (time.perf_counter() - begun) * self._pause_factor
            asyncio.get_running_loop().call_later(min(pause, LONGEST_PAUSE), self._next)

    async def _wait(self, peer: str, key: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(peer, {}).setdefault(key, collections.deque())
        queue.append(turn)
        if len(queue) > self._waiting_per_key:
            self._forget(peer, key, turn)
            raise Busy
        if len(self) > self._waiting:
            self._turn_one_away(peer, key)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(peer, key, turn)
            elif turn.exception() is None:
                self._next()
            raise

    def _turn_one_away(self, peer: str, key: str) -> None:
        """Turn away the last of the longest queue; among equals of `key` of `peer`, which is the last to come."""
        most = max(reversed(self._queues), key=lambda each: (_length(self._queues[each]), each == peer))
        queues = self._queues[most]
        longest = max(reversed(queues), key=lambda each: (len(queues[each]), (most, each) == (peer, key)))
        last = queues[longest][-1]
        self._forget(most, longest, last)
        if not last.done():
            last.set_exception(Busy())

    def _forget(self, peer: str, key: str, turn: asyncio.Future[None]) -> None:
        queues = self._queues.get(peer, {})
        queue = queues.get(key)
        if queue is None or turn not in queue:
            return
        queue.remove(turn)
        if not queue:
            del queues[key]
        if not queues:
            del self._queues[peer]

    def _next(self) -> None:
        while self._queues:
            peer = next(iter(self._queues))
            queues = self._queues.pop(peer)
            key = next(iter(queues))
            queue = queues.pop(key)
            turn = queue.popleft()
            if queue:
                queues[key] = queue  # behind the others
            if queues:
                self._queues[peer] = queues
            if not turn.done():  # Its waiter may have been cancelled a moment ago.
                turn.set_result(None)
                return
        self._taken = False


def _length(queues: dict[str, _Queue]) -> int:
    return sum(map(len, queues.values()))
