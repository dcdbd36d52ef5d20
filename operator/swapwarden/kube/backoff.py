"""How long to wait after a failure: exponential, with full jitter, so that many clients do not come back at once."""

from __future__ import annotations

import random


class Backoff:
    """Waits of one loop. The bound doubles with each failure in a row; the wait is anything between 0 and the bound."""

    def __init__(self, first: float, longest: float) -> None:
        """`first` and `longest` bound in seconds."""
        self._first = first
        self._longest = longest
        self.failures = 0
        """Failures in a row."""

    def next(self) -> float:
        """Count a failure; seconds to wait before the next try."""
        bound = min(self._longest, self._first * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return random.uniform(0, bound)  # noqa: S311 jitter is no secret

    def reset(self) -> None:
        """A try succeeded."""
        self.failures = 0
