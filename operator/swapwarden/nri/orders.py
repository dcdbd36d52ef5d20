"""The agent's orders on one connection to the runtime, which is asked for one part at a time."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from swapwarden.nri import courier, knowledge, link, messages

PART: Final = 8
"""Containers of a request to the runtime: it updates them one after the other, and starts no container meanwhile."""
MAX_ORDERS: Final = 16
MAX_MESSAGE: Final = 64
"""Characters of an error that are passed on."""
UPDATE_SECONDS: Final = 30.0
"""Time for the runtime to update one part of an order."""
GONE: Final = "no runtime is connected"
TOO_MANY: Final = "too many orders"
UNANSWERED: Final = "the runtime did not answer"
REFUSED: Final = "the runtime could not update it"
"""Errors of orders."""

Carry = Callable[[list[tuple[str, str]], Callable[[list[str]], None]], None]


class Order(NamedTuple):
    """An order that is being carried out."""

    seq: int
    left: deque[tuple[str, str]]
    failed: dict[str, str]


class Updates:
    """Orders in turn, one part of one order at a time."""

    def __init__(self) -> None:
        self._orders: deque[Order] = deque()
        self._part: list[tuple[str, str]] = []
        self._alone = 0
        """The number of containers, first in the order, that are asked for one at a time."""

    def add(self, seq: int, values: dict[str, str]) -> bool:
        """Accept an order; False if there are too many already."""
        if len(self._orders) >= MAX_ORDERS:
            return False
        self._orders.append(Order(seq, deque(values.items()), {}))
        return True

    def next(self, most: int = PART) -> list[tuple[str, str]]:
        """Return the next part: at most so many containers and values.

        Nothing if there is none, or if one is under way.
        """
        if self._part or not self._orders:
            return []
        left = self._orders[0].left
        size = 1 if self._alone else most
        self._alone = max(0, self._alone - 1)
        self._part = [left.popleft() for _ in range(min(size, len(left)))]
        return list(self._part)

    def done(self, error: str | None, refused: Collection[str], *, again: bool = True) -> list[tuple[str, str]]:
        """Record the runtime's answer about the part under way: an error, or the containers that it did not update.

        Return those that it updated. A runtime that could not update one of them reports an error without its name, and
        has updated the others (containerd: internal/nri, updateContainers). With `again` it is then asked for each of
        them by itself.
        """
        part, self._part = self._part, []
        if error is not None and again and len(part) > 1:
            self._orders[0].left.extendleft(reversed(part))
            self._alone = len(part)
            return []
        for container, _ in part:
            if error is not None or container in refused:
                self._orders[0].failed[container] = REFUSED if error is None else error[:MAX_MESSAGE]
        return [] if error is not None else [each for each in part if each[0] not in refused]

    def finished(self) -> Order | None:
        """Remove and return an order that is carried out."""
        if self._orders and not self._part and not self._orders[0].left:
            return self._orders.popleft()
        return None

    def fail(self, message: str) -> list[Order]:
        """Give up all orders: return them, with this message for each container that was not updated."""
        orders = list(self._orders)
        self._orders.clear()
        for at, order in enumerate(orders):
            for container, _ in [*(self._part if at == 0 else ()), *order.left]:
                order.failed[container] = message
        self._part, self._alone = [], 0
        return orders


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
        self._updates = Updates()

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
        part = self._updates.next(PART if is_safe else courier.PART)
        if part and is_safe:
            self._stream, self._until = next(self._streams), self._clock() + UPDATE_SECONDS
            self._ask(self._stream, messages.updates(part))
        elif part:
            self._carry(part, lambda failed: self._done(None, failed))
