"""When to try again: exponential waits with jitter, and short ones shortly after a loss."""

from __future__ import annotations

import os
from typing import Final

FIRST: Final = 0.2
LONGEST: Final = 10.0
SOON: Final = 0.5
"""The longest wait, in seconds, in the first minute: a runtime or an agent that restarts is back within seconds."""
MINUTE: Final = 60.0
STEADY: Final = 10.0
"""A connection that lasted as long resets the waits."""


class Retry:
    """The next attempt of one connection. Times are of time.monotonic()."""

    def __init__(self, now: float) -> None:
        self.at = now
        """When to try."""
        self._failures = 0
        self._since = now
        """When it was connected last."""
        self._connected: float | None = None

    def connected(self, now: float) -> None:
        """Record a success."""
        self._connected = now

    def failed(self, now: float, *, restarts: bool) -> None:
        """Plan the next attempt after a failure, or after a loss. `restarts`: the peer seems to be restarting."""
        if self._connected is not None:
            if now - self._connected >= STEADY:
                self._failures, self._since = 0, now
            self._connected = None
        soon = restarts and now - self._since < MINUTE
        bound = min(SOON if soon else LONGEST, FIRST * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self.at = now + bound * (0.5 + int.from_bytes(os.urandom(2)) / (1 << 17))
