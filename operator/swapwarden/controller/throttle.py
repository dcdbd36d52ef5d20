"""How many writes a second the controller makes in the whole cluster: a token bucket. No I/O."""

from __future__ import annotations

from collections.abc import Callable


class Throttle:
    """Holds one second's worth of writes, so that a burst of changes is not kept waiting.

    A write is counted when it is made: looking at a node that needs none costs nothing. So the count may go below zero,
    by as many as write at the same time, and they are waited for later.

    `now` is a monotonic clock in seconds.
    """

    def __init__(self, rate: float, now: Callable[[], float]) -> None:
        """`rate` in writes a second."""
        self._rate = rate
        self._now = now
        self._left = rate
        self._counted = now()

    def spend(self) -> None:
        """Count a write that is about to be made."""
        self._fill()
        self._left -= 1

    def pause(self, seconds: float) -> None:
        """Let nobody write for so long: the API server asks for it."""
        self._fill()
        self._left = min(self._left, -seconds * self._rate)

    def wait(self, *, reserve: float = 0.0) -> float:
        """Seconds until a write may be made; 0 where it may be now.

        `reserve` is the share of a second's writes that is left to others; with one write a second, none can be.
        """
        self._fill()
        wanted = min(self._rate, 1 + reserve * self._rate)
        return max(0.0, (wanted - self._left) / self._rate)

    def _fill(self) -> None:
        now = self._now()
        self._left = min(self._rate, self._left + (now - self._counted) * self._rate)
        self._counted = now
