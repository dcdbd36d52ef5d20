"""Waits after failures: exponential, with full jitter, so that many clients do not retry at the same time.

By hand: tenacity takes 0.8 MB on every node, backoff 0.5, and both call the function again themselves, where the event
loop needs the time of the next try.
"""

from __future__ import annotations

import os

from swapwarden.kube import errors


def between(least: float, most: float) -> float:
    """Return a random number between the two. The module `random` would cost each agent 0.2 MB."""
    return least + (most - least) * int.from_bytes(os.urandom(4)) / (1 << 32)


class Backoff:
    """Waits of one loop: random, from 0 to a bound that doubles with each failure in a row."""

    def __init__(self, first: float, longest: float) -> None:
        """`first` and `longest` bound in seconds."""
        self._first = first
        self._longest = longest
        self.failures = 0
        """Failures in a row."""

    def next(self) -> float:
        """Count a failure; return the seconds to wait before the next attempt."""
        bound = min(self._longest, self._first * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return between(0, bound)

    def after(self, error: Exception) -> float:
        """Count a failure; return the seconds to wait, at least as many as the API server asks for."""
        asked = error.retry_after if isinstance(error, errors.KubeError) else 0.0
        return max(self.next(), asked)

    def reset(self) -> None:
        """Start over after a success."""
        self.failures = 0
