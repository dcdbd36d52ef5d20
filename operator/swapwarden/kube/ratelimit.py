"""Limit requests to the API server: token buckets, without a clock or I/O of their own.

By hand: aiolimiter waits by itself, and has no buckets by key.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Bucket:
    """Allow `burst` at once, then `per_second`. Taking more leaves a debt, which the next callers wait for."""

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._tokens = burst
        self._at = now

    def delay(self, now: float, tokens: float = 0.0) -> float:
        """Return the seconds until so many tokens are available; 0 if they are."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        return max(0.0, (tokens - self._tokens) / self._per_second)

    def acquire(self, now: float) -> float:
        """Take a token; return the seconds to wait until it is available."""
        self.delay(now)
        self._tokens -= 1.0
        return self.delay(now)

    def try_acquire(self, now: float) -> bool:
        """Take a token if one is available; return whether it was."""
        if self.delay(now, 1.0):
            return False
        self._tokens -= 1.0
        return True

    def pause(self, now: float, seconds: float) -> None:
        """Have no token for this many seconds."""
        self.delay(now)
        self._tokens = min(self._tokens, -seconds * self._per_second)


class Buckets(Generic[K]):
    """A bucket for each key; of more than `most`, the least recently used one is forgotten."""

    def __init__(self, burst: float, per_second: float, most: int) -> None:
        self._burst, self._per_second, self._most = burst, per_second, most
        # The least recently used key is first.
        self._buckets: collections.OrderedDict[K, Bucket] = collections.OrderedDict()

    def try_acquire(self, key: K, now: float) -> bool:
        """Take a token of the key's bucket if one is available; return whether it was."""
        bucket = self._buckets.pop(key, None) or Bucket(self._burst, self._per_second, now)
        self._buckets[key] = bucket
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return bucket.try_acquire(now)


class Throttle:
    """The writes of one process. It holds one second's worth, so that a burst of changes does not wait.

    A write is counted when it is made: a look without a write costs nothing. Concurrent writers may therefore exceed
    the rate; later writes wait for the excess. `now` is a monotonic clock in seconds.
    """

    def __init__(self, rate: float, now: Callable[[], float]) -> None:
        """`rate` in writes a second."""
        self._rate = rate
        self._now = now
        self._bucket = Bucket(rate, rate, now())

    def acquire(self) -> None:
        """Count a write that is about to be made."""
        self._bucket.acquire(self._now())

    def pause(self, seconds: float) -> None:
        """Allow no write for this many seconds: the API server asks for it."""
        self._bucket.pause(self._now(), seconds)

    def delay(self, *, reserve: float = 0.0) -> float:
        """Return the seconds until the next write is allowed; 0 for now.

        `reserve` is the share of a second's writes that is left to others; with one write a second, none can be.
        """
        return self._bucket.delay(self._now(), min(self._rate, 1 + reserve * self._rate))
