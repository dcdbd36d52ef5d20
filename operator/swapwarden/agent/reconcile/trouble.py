"""Keys that could not be reconciled: each one's failure is its own, with a reason, a next try and a violation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from swapwarden.agent.host import cgroupfs, faults
from swapwarden.api.violations import ViolationReason
from swapwarden.kube import backoff

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = (2.0, 120.0)
"""First and longest bound of the wait before a key is tried again."""
SOON_SECONDS: Final = (0.01, 5.0)
"""The same for one that has only just been made, and is not ready."""
SOON_ATTEMPTS: Final = 9
"""Tries of such a key, within some seconds, after which it waits for an event or a full comparison."""
K = TypeVar("K")


class Trouble:
    """Why one key could not be reconciled."""

    __slots__ = ("backoff", "message", "reason", "retry")

    def __init__(self, bounds: tuple[float, float]) -> None:
        self.reason: ViolationReason | None = None
        """None where that is normal for a moment, and no violation."""
        self.message = ""
        self.backoff = backoff.Backoff(*bounds)
        self.retry: asyncio.TimerHandle | None = None


class Troubles(Generic[K]):
    """Not thread-safe. Call it in the running event loop."""

    def __init__(
        self, *, again: Callable[[K], None], short: Callable[[cgroupfs.CgroupError], None], changed: Callable[[], None]
    ) -> None:
        """`again` marks a key; `short` hears of errors that are not of one cgroup; `changed` of others to report."""
        self._again = again
        self._short = short
        self._changed = changed
        self._of: dict[K, Trouble] = {}

    def attempt(self, key: K, step: Callable[[], None], *, whole: bool = True) -> None:
        """Run a step of reconciling a key. What fails is this key's violation, and the key is tried again.

        A step that is not the `whole` of it says nothing of what failed in others.
        """
        try:
            step()
        except cgroupfs.TransientError as error:
            self.failed(key, None, str(error))
        except cgroupfs.DeniedError as error:
            self.failed(key, ViolationReason.ACCESS_DENIED, str(error))
        except cgroupfs.GoneError:  # events tell of that
            self.clear(key)
        except cgroupfs.CgroupError as error:
            self._short(error)
            self.failed(key, ViolationReason.UNREADABLE, str(error))
        except Exception as error:  # noqa: BLE001 a mistake in one key must not stop the others
            self.failed(key, ViolationReason.INTERNAL_ERROR, faults.fault(str(key), error))
        else:
            if whole:
                self.clear(key)

    def failed(self, key: K, reason: ViolationReason | None, message: str) -> None:
        """Note a failure, and try the key again later."""
        trouble = self._of.get(key)
        if trouble is None or (trouble.reason is None) != (reason is None):
            self.clear(key)
            trouble = self._of[key] = Trouble(SOON_SECONDS if reason is None else RETRY_SECONDS)
        if reason is not None and trouble.reason is None:
            faults.warn("a cgroup cannot be looked after; trying again", str(key), message)
        if (trouble.reason, trouble.message) != (reason, message):
            trouble.reason, trouble.message = reason, message
            self._changed()
        if trouble.retry is None and (reason is not None or trouble.backoff.failures < SOON_ATTEMPTS):
            loop = asyncio.get_running_loop()
            trouble.retry = loop.call_later(trouble.backoff.next(), self._due, key, trouble)

    def clear(self, key: K) -> None:
        """It was reconciled, or is gone."""
        trouble = self._of.pop(key, None)
        if trouble is None:
            return
        if trouble.retry is not None:
            trouble.retry.cancel()
        if trouble.reason is not None:
            self._changed()

    def clear_all(self) -> None:
        """Nothing is to be tried again."""
        for key in list(self._of):
            self.clear(key)

    def items(self) -> Iterator[tuple[K, ViolationReason, str]]:
        """Yield those that are violations, with reason and message."""
        for key, trouble in self._of.items():
            if trouble.reason is not None:
                yield key, trouble.reason, trouble.message

    def _due(self, key: K, trouble: Trouble) -> None:
        trouble.retry = None
        self._again(key)
