"""The agent's decisions on pods, kept while it is away."""

from __future__ import annotations

from typing import Final

from swapwarden.nri import decide

MAX_SETTINGS: Final = 16_384
"""Settings of all pods together; one more for each pod."""


class TooManyError(ValueError):
    """More decisions than a node can have."""


class Decisions:
    """Decisions by pod UID. While the agent sends all of them again, the earlier ones stay in force."""

    def __init__(self) -> None:
        self._pods: dict[str, decide.PodHolds] = {}
        self._incoming: dict[str, decide.PodHolds] | None = None

    def of(self, uid: str) -> decide.PodHolds | None:
        """Return the decision on a pod."""
        if self._incoming is not None and uid in self._incoming:
            return self._incoming[uid]
        return self._pods.get(uid)

    def begin(self) -> None:
        """Begin to replace all decisions."""
        self._incoming = {}

    def end(self) -> None:
        """Forget the decisions that were not sent again since begin()."""
        if self._incoming is not None:
            self._pods, self._incoming = self._incoming, None

    def interrupt(self) -> None:
        """Keep the earlier decisions and those that arrived since begin(): the agent left before end()."""
        if self._incoming is not None:
            self._pods |= self._incoming
            self._incoming = None

    def put(self, pods: dict[str, decide.PodHolds]) -> None:
        """Add or replace decisions on pods. TooManyError if they are too many."""
        current = self._pods if self._incoming is None else self._incoming
        current |= pods
        if sum(1 + len(each.containers) for each in current.values()) > MAX_SETTINGS:
            for uid in pods:
                del current[uid]
            raise TooManyError(f"more than {MAX_SETTINGS} settings")

    def remove(self, uids: list[str]) -> None:
        """Forget pods that are gone."""
        for uid in uids:
            self._pods.pop(uid, None)
            if self._incoming is not None:
                self._incoming.pop(uid, None)
