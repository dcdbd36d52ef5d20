"""How the agent's parts report that something was recorded: a call down, which wakes up who reads it."""

from __future__ import annotations

import asyncio


class Board:
    """Not thread-safe: only the event loop may use it."""

    def __init__(self) -> None:
        self.revision = 0
        self._touched = asyncio.Event()

    def touch(self) -> None:
        """Something was recorded that a report may show."""
        self.revision += 1
        self._touched.set()

    async def after(self, revision: int) -> int:
        """Wait for a later revision than the one that was read last, and return it. Any number may wait."""
        while self.revision == revision:
            # Those that wait already are woken up by the next touch all the same.
            self._touched.clear()
            await self._touched.wait()
        return self.revision
