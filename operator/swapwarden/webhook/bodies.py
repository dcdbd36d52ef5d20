"""Request bodies in memory: if there are too many, those that hold up others give way.

Clients do not authenticate. They may claim any namespace, and share an address with the API server if a node stands
between. So stalled bodies of any sender give way first; then bodies of the address, and of its namespace, with
most of them.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from swapwarden.webhook import review

MAX_BUFFERED_BYTES: Final = 64 * 1024 * 1024
"""The limit of all bodies in memory, as far as they have arrived: an announced length holds up nobody."""

SMALL_BODY_BYTES: Final = 64 * 1024
"""Bodies up to this size are always accepted: nearly every pod's is smaller."""

STALLED_AFTER: Final = 1.0
"""Seconds after which an unfinished body gives way before all younger ones."""


class GaveWay(Exception):  # noqa: N818 it names what it is about
    """The body was dropped to make room for others."""


class Body:
    """The part of a request that has arrived."""

    def __init__(self, bodies: Bodies, peer: str, limit: asyncio.Timeout) -> None:
        self.data = bytearray()
        self.peer = peer
        self.namespace = ""
        """The namespace that it claims, once it is large."""
        self.unfinished_since: float | None = asyncio.get_running_loop().time()
        self._bodies = bodies
        self._limit = limit
        self._gave_way = False

    def add(self, chunk: bytes) -> None:
        """Append arrived bytes; raise GaveWay if this body is one of too many."""
        self.check()
        was_large = self.is_large
        self.data += chunk
        if self.is_large and not was_large:
            self.namespace = review.namespace_in(self.data)
        self._bodies.grew(len(chunk))
        self.check()

    def arrived(self) -> None:
        """Mark the body as whole: it has no time limit from now on."""
        self._limit.reschedule(None)
        self.unfinished_since = None

    def check(self) -> None:
        """Raise GaveWay if the body has given way."""
        if self._gave_way:
            raise GaveWay

    @property
    def is_large(self) -> bool:
        """Whether the body may have to give way."""
        return len(self.data) > SMALL_BODY_BYTES

    def give_way(self) -> None:
        """Free the arrived bytes, and wake the waiter for the rest or for its turn."""
        self._gave_way = True
        self.data.clear()
        with contextlib.suppress(RuntimeError):  # Its time is over already, so its waiter wakes anyway.
            self._limit.reschedule(asyncio.get_running_loop().time())


class Bodies:
    """All bodies in memory, in order of arrival of their heads."""

    def __init__(self) -> None:
        self._all: dict[Body, None] = {}
        self._bytes = 0

    @contextlib.asynccontextmanager
    async def receive(self, peer: str, seconds: float) -> AsyncIterator[Body]:
        """Hold a body for as long as the block lasts.

        TimeoutError if it has not `arrived` within so many seconds; GaveWay, at any await, if it gives way.
        """
        body: Body | None = None
        try:
            async with asyncio.timeout(seconds) as limit:
                body = Body(self, peer, limit)
                self._all[body] = None
                yield body
        except TimeoutError:
            if body is not None:
                body.check()
            raise
        finally:
            if body is not None:
                self._bytes -= len(body.data)
                del self._all[body]

    def grew(self, count: int) -> None:
        """Count arrived bytes; make bodies give way until the rest is within the limit."""
        self._bytes += count
        while self._bytes > MAX_BUFFERED_BYTES and (body := self._first_to_go()) is not None:
            self._bytes -= len(body.data)
            body.give_way()

    def _first_to_go(self) -> Body | None:
        late = asyncio.get_running_loop().time() - STALLED_AFTER
        large = [body for body in self._all if body.is_large]
        stalled = [body for body in large if body.unfinished_since is not None and body.unfinished_since < late]
        among = stalled or large
        of_peer, of_namespace = collections.Counter[str](), collections.Counter[tuple[str, str]]()
        for body in among:
            of_peer[body.peer] += len(body.data)
            of_namespace[body.peer, body.namespace] += len(body.data)
        # The youngest, as it is furthest from its end.
        return max(
            reversed(among),
            key=lambda body: (of_peer[body.peer], of_namespace[body.peer, body.namespace]),
            default=None,
        )
