"""Records when an agent was last alive on this node: no agent may have run since then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

ALIVE_SECONDS: Final = 30.0
"""The longest time between beats: reports of a time without an agent are exact to that. Otherwise an idle agent only
watches its state and rarely compares all."""
AWAKE_SECONDS: Final = ALIVE_SECONDS / 2
"""Time since the last beat, after which the agent also beats when something else wakes it up."""
_BYTES: Final = 32


class Heartbeat:
    """A file with a time of the monotonic clock, which all processes share until a reboot.

    Its directory must not survive a reboot. Only one agent on the node may open it.
    """

    def __init__(self, file: pathlib.Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Open or create `file`. OSError if its directory cannot be written."""
        self._file = file
        self._clock = clock
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.last_seen = self._read()
        """When the previous agent was last alive, or None."""

    def _read(self) -> float | None:
        text = os.pread(self._fd, _BYTES, 0).decode("ascii", "replace").strip("\x00\n ")
        if not text.replace(".", "", 1).isdecimal():
            return None
        last = float(text)
        return last if last <= self._clock() else None

    def beat(self) -> None:
        """Record that this agent is alive. A failure only makes a later report less exact."""
        try:
            os.pwrite(self._fd, f"{self._clock():.3f}".ljust(_BYTES - 1).encode() + b"\n", 0)
        except OSError as error:
            log.debug("cannot record that this agent is alive", extra={"file": str(self._file), "error": str(error)})

    def close(self) -> None:
        """Record the last time, and close the file."""
        self.beat()
        os.close(self._fd)

    def remove(self) -> None:
        """Remove the file, since the product is being removed. OSError if that fails."""
        with contextlib.suppress(FileNotFoundError):
            self._file.unlink()


class Pulse:
    """Beats in time. Not thread-safe: only the event loop may use it."""

    def __init__(self, alive: Heartbeat, each: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`each` is called after each beat, for periodic work that should not wake up the agent by itself."""
        self._alive = alive
        self._each = each
        self._clock = clock
        self._next: asyncio.TimerHandle | None = None
        self._last = float("-inf")

    async def run(self) -> None:
        """Beat until cancelled, by a timer: a task would wake up the event loop twice."""
        try:
            self._beat()
            await asyncio.get_running_loop().create_future()
        finally:
            if self._next is not None:
                self._next.cancel()
                self._next = None

    def awake(self) -> None:
        """Beat if it is time, since something else woke up the agent."""
        if self._next is not None and self._clock() - self._last >= AWAKE_SECONDS:
            self._beat()

    def _beat(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = asyncio.get_running_loop().call_later(ALIVE_SECONDS, self._beat)
        self._last = self._clock()
        self._alive.beat()
        self._each()
