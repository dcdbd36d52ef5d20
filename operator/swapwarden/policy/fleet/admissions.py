"""The admissions of one term: nodes that may follow another profile, or leave one that is being deleted."""

from __future__ import annotations

from collections.abc import Collection

from swapwarden.policy import plan
from swapwarden.policy.observed.states import StateRow
from swapwarden.policy.profile import compiled


class Admissions:
    """Made for one term: the next leader may know of other problems, so it admits by itself."""

    def __init__(self) -> None:
        self.turns: dict[str, compiled.Profile] = {}
        """Nodes that may follow the profile that selects them, before their state says so."""
        self._left: dict[str, set[str]] = {}

    def admit(self, found: Collection[str], profile: compiled.Profile) -> None:
        """Let these nodes follow the profile."""
        self.turns.update(dict.fromkeys(found, profile))

    def release(self, found: Collection[str], ending: compiled.Profile) -> None:
        """Let these nodes leave a profile that is being deleted."""
        self.admit(found, compiled.BUILT_IN)
        self._left.setdefault(ending.uid, set()).update(found)

    def left(self, uid: str) -> Collection[str]:
        """Return the nodes that were admitted to leave the profile with this UID."""
        return self._left.get(uid, ())

    def has_left(self, name: str) -> bool:
        """Return whether a node was admitted to leave a profile."""
        return any(name in found for found in self._left.values())

    def is_admitted(self, name: str, target: compiled.Profile) -> bool:
        """Return whether a node is admitted to this profile in this generation."""
        turn = self.turns.get(name)
        return turn is not None and (turn.uid, plan.reference(turn)) == (target.uid, plan.reference(target))

    def state_named(self, row: StateRow) -> None:
        """Use up the admission of a node whose state names its profile: a node that returns waits for a new one."""
        turn = self.turns.get(row.name)
        if turn is not None and row.profile == plan.reference(turn):
            del self.turns[row.name]

    def withdraw(self, name: str) -> None:
        """Drop a node's admission."""
        self.turns.pop(name, None)

    def keep_ending(self, uids: Collection[str]) -> None:
        """Forget which nodes left profiles that no longer exist."""
        self._left = {uid: found for uid, found in self._left.items() if uid in uids}
