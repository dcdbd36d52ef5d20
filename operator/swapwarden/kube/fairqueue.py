"""A bounded queue with owners: they take turns, and a full queue drops an entry of the owner with most of them."""

from __future__ import annotations

import collections
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FairQueue(Generic[K, V]):
    """At most `size` entries by key, each of one owner. An owner's entries leave in the order in which they came."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._count = 0
        # The next owner to be served is first.
        self._owners: collections.OrderedDict[str, dict[K, V]] = collections.OrderedDict()

    def __len__(self) -> int:
        return self._count

    def get(self, owner: str, key: K) -> V | None:
        """Return the waiting entry; None if there is none."""
        return self._owners.get(owner, {}).get(key)

    def put(self, owner: str, key: K, value: V) -> bool:
        """Add an entry whose key does not wait yet; return whether no entry was lost for it, itself included.

        In a full queue, the newest entry of the owner with most of them makes room. An entry is refused if its owner
        has its fair share or more, or if it could only replace another owner's only entry.
        """
        room = self._count < self._size
        if not room:
            own = len(self._owners.get(owner, ()))
            if own * len(self._owners) >= self._count:
                return False
            longest = max(self._owners, key=lambda each: len(self._owners[each]))
            if len(self._owners[longest]) <= own + 1:
                return False
            self._owners[longest].popitem()
            self._count -= 1
        self._owners.setdefault(owner, {})[key] = value
        self._count += 1
        return room

    def pop(self) -> tuple[K, V]:
        """Remove and return the oldest entry of the owner whose turn it is. KeyError if the queue is empty."""
        owner, entries = self._owners.popitem(last=False)
        key = next(iter(entries))
        value = entries.pop(key)
        self._count -= 1
        if entries:
            self._owners[owner] = entries
        return key, value
