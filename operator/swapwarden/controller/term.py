"""One leadership of the controller: what may be written in it, and the parts that run as long as it.

A new Term is made whenever this instance begins to lead, with new parts, and both are dropped when it does not lead any
more. So nothing that an earlier leadership remembered, queued or decided counts in a later one: others may have led in
between.

The API server refuses states of an earlier term by their epoch. For all other writes this is the fence: none begins
without a term, it is the one under which it was decided, and none is waited for beyond the leader's time. The next
leader's begins a third of the Lease's duration later.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from swapwarden.api import state
from swapwarden.kube import errors

DRAIN_SECONDS: Final = 5.0
"""How long writes in flight may take to finish when the process ends."""
LANDING_SECONDS: Final = 60.0
"""How long an unanswered write may still be executed: the API server gives up on a request after as long (k/k:
staging/src/k8s.io/apiserver/pkg/server/config.go, RequestTimeout)."""


class TermOver(Exception):  # noqa: N818 the name states the problem
    """The term is over: the next leader writes."""


class Deposed(Exception):  # noqa: N818 the name states the problem
    """The API server refused a write because a newer controller leads."""

    def __init__(self, term: Term, message: str) -> None:
        super().__init__(message)
        self.term = term


class Outcome(enum.Enum):
    """The result of a write that raised an error."""

    GONE = enum.auto()
    """There is no such object: a watch will report that it was deleted."""
    CHANGED = enum.auto()
    """The object is another one or a newer one by now, which a watch will report."""
    DEPOSED = enum.auto()
    """A newer controller leads."""
    OVERLOADED = enum.auto()
    """The API server asks to send the request again later."""
    REFUSED = enum.auto()
    """The API server will not do it, as for a missing right or an invalid value."""
    UNKNOWN = enum.auto()
    """It may have been executed, or may yet be: the API server itself does not know of one that timed out."""


def outcome(error: Exception, *, tested: bool = False) -> Outcome:
    """Return the result of a write by its error. `tested`: it was a JSON patch with tests of the former value."""
    if isinstance(error, Deposed):
        return Outcome.DEPOSED
    if not isinstance(error, errors.ApiError) or error.status >= 500:
        return Outcome.UNKNOWN
    if error.status == 422:
        # Admission and a failed test have one status; a rule of the CustomResourceDefinition also has its message.
        if state.EPOCH_REFUSAL in error.message:
            return Outcome.DEPOSED
        return Outcome.CHANGED if tested else Outcome.REFUSED
    by_status = {404: Outcome.GONE, 409: Outcome.CHANGED, 429: Outcome.OVERLOADED}
    return by_status.get(error.status, Outcome.REFUSED)


class LeaseTenure(Protocol):
    """The part of an elector.Tenure that a term needs."""

    def left(self) -> float:
        """Return the seconds until this instance must have stopped leading; 0 if it has."""


class Term:
    """One leadership; all of it in one event loop."""

    def __init__(self, epoch: int, leadership: LeaseTenure) -> None:
        """All states that are written in the term carry `epoch`."""
        self.epoch: Final = epoch
        self.leadership: Final = leadership
        self.unsure_until = -math.inf
        """Until when, in the event loop's time, a write without an answer may still be executed."""
        self._closed = False
        self._writing: set[asyncio.Timeout] = set()
        self._finished = asyncio.Event()

    def left(self) -> float:
        """Return how many seconds a write may take; 0 if none may begin."""
        return 0.0 if self._closed else self.leadership.left()

    def is_valid(self) -> bool:
        """Return whether a write may begin."""
        return self.left() > 0

    async def write(self, request: Coroutine[Any, Any, bytes]) -> bytes:
        """Await a request that writes, no longer than the term lasts. Raise TermOver if too little of it is left."""
        left = self.left()
        if left <= 0:
            request.close()
            raise TermOver("the term is over")
        bound = asyncio.timeout(left)
        try:
            async with bound:
                self._writing.add(bound)
                return await request
        except errors.ApiError as error:
            if outcome(error) is Outcome.UNKNOWN:
                self._lose()
            raise
        except (asyncio.CancelledError, errors.Unreachable):
            self._lose()
            raise
        except TimeoutError:
            if not bound.expired():
                raise
            self._lose()
            raise TermOver("the term ended before the API server's answer came") from None
        finally:
            self._writing.discard(bound)
            if not self._writing:
                self._finished.set()

    def _lose(self) -> None:
        self.unsure_until = asyncio.get_running_loop().time() + LANDING_SECONDS

    async def drain(self, seconds: float | None = None) -> None:
        """Let no further write begin; wait for those in flight, by default DRAIN_SECONDS, then cancel them."""
        self._close(DRAIN_SECONDS if seconds is None else seconds)
        while self._writing:
            self._finished.clear()
            await self._finished.wait()

    def end(self) -> None:
        """Let no further write begin, and cut off those in flight: another instance may lead."""
        if self._writing:
            self._lose()
        self._close(0.0)

    def _close(self, seconds: float) -> None:
        self._closed = True
        latest = asyncio.get_running_loop().time() + seconds
        for bound in self._writing:
            due = bound.when()
            if not bound.expired() and (due is None or due > latest):
                bound.reschedule(latest)
