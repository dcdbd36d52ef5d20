"""The agent's orders to set values of running containers, passed on to the runtime in small parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final, NamedTuple

PART: Final = 8
"""Containers of a request to the runtime: it updates them one after the other, and starts no container meanwhile."""
MAX_ORDERS: Final = 16
MAX_MESSAGE: Final = 64
"""Characters of an error that are passed on."""
REFUSED: Final = "the runtime could not update it"


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
