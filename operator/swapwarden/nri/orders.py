"""The agent's orders on one connection to the runtime, which is asked for one part at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from swapwarden.nri import courier, knowledge, link, messages, updates

UPDATE_SECONDS: Final = 30.0
"""Time for the runtime to update one part of an order."""
GONE: Final = "no runtime is connected"
TOO_MANY: Final = "too many orders"
UNANSWERED: Final = "the runtime did not answer"
"""Errors of orders."""

Carry = Callable[[list[tuple[str, str]], Callable[[list[str]], None]], None]


class RuntimeOrders:
    """The agent's orders on one connection. Times are in seconds, on the clock that is passed in."""

    def __init__(
        self,
        known: knowledge.Knowledge,
        *,
        ask: Callable[[int, bytes], None],
        carry: Carry,
        notify: Callable[[bytes], bool],
        clock: Callable[[], float],
    ) -> None:
        """`ask` calls UpdateContainers on a stream; `carry` is courier.Courier.carry, for some runtimes."""
        self._known = known
        self._ask = ask
        self._carry = carry
        self._notify = notify
        self._clock = clock
        self._streams = itertools.count(3, 2)
        self._stream = 0
        """The stream of the part that the runtime is asked for; or 0."""
        self._until = 0.0
        self._updates = updates.Updates()

    @property
    def until(self) -> float | None:
        """When the runtime's answer is late; None if it is not asked."""
        return self._until if self._stream else None

    def accept(self, order: link.Update) -> None:
        """Pass an order on to the runtime."""
        refused = GONE if self._known.runtime is None else TOO_MANY
        if self._known.runtime is None or not self._updates.add(order.seq, order.values):
            self._notify(link.outcome(order.seq, dict.fromkeys(order.values, refused)))
        self._go_on()

    def fail(self) -> None:
        """Report the orders that are not carried out: the runtime is gone."""
        for order in self._updates.fail(GONE):
            self._notify(link.outcome(order.seq, order.failed))

    def expire(self) -> None:
        """Give up an answer that is late."""
        if self._stream and self._until <= self._clock():
            self._done(UNANSWERED, [], again=False)

    def answered(self, stream: int, outcome: messages.CallOutcome) -> None:
        """Take an answer of the runtime."""
        if stream != self._stream:
            return
        try:
            refused = messages.read_failed(outcome.payload)
        except ValueError as error:
            self._done(str(error), [], again=False)
        else:
            self._done(outcome.error, refused)

    def _done(self, error: str | None, refused: list[str], *, again: bool = True) -> None:
        self._stream = 0
        for container, value in self._updates.done(error, refused, again=again):
            self._known.inventory.set_value(container, value)
        self._go_on()

    def _go_on(self) -> None:
        while order := self._updates.finished():
            self._notify(link.outcome(order.seq, order.failed))
        is_safe = self._known.runtime is not None and courier.is_safe(self._known.runtime.nri)
        part = self._updates.next(updates.PART if is_safe else courier.PART)
        if part and is_safe:
            self._stream, self._until = next(self._streams), self._clock() + UPDATE_SECONDS
            self._ask(self._stream, messages.updates(part))
        elif part:
            self._carry(part, lambda failed: self._done(None, failed))
