"""Keys that wait to be reconciled: what came or went, and what is only to be compared.

A repair does not wait here: files that another wrote to are settled as soon as the kernel tells of them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")


class Weight(enum.Enum):
    """Of the first kind many are taken in a turn of the event loop, and of the second one: neither starves."""

    ARRIVAL = "arrival"
    """A cgroup may have come or gone."""
    SWEEP = "sweep"
    """Nothing is known to have happened."""


class Mark(NamedTuple):
    """Why a key waits, in monotonic seconds."""

    noticed: float
    """When it was first marked."""
    since: float
    """Until when events told of everything that happened to it."""


class Worklist(Generic[K]):
    """Keys of one weight are taken in the order in which they were marked first."""

    def __init__(self) -> None:
        self._marks: dict[Weight, dict[K, Mark]] = {weight: {} for weight in Weight}

    def mark(self, key: K, weight: Weight, mark: Mark) -> None:
        """Have a key reconciled. One that waits already keeps its place, and the earlier of both times."""
        known = self._marks[weight].get(key)
        if known is not None:
            mark = Mark(min(known.noticed, mark.noticed), min(known.since, mark.since))
        self._marks[weight][key] = mark

    def take(self, weight: Weight) -> tuple[K, Mark] | None:
        """The next key of this weight, which then waits no more; None where none does."""
        marks = self._marks[weight]
        if not marks:
            return None
        key = next(iter(marks))
        return key, marks.pop(key)

    def waits(self, weight: Weight) -> bool:
        """Whether any key of this weight does."""
        return bool(self._marks[weight])

    def clear(self) -> None:
        """Nothing is to be reconciled any more."""
        for marks in self._marks.values():
            marks.clear()

    def __iter__(self) -> Iterator[K]:
        """All that wait."""
        for marks in self._marks.values():
            yield from marks

    def __bool__(self) -> bool:
        """Whether any key waits."""
        return any(self._marks.values())
