"""How a changed profile reaches its nodes: a few at a time, and no further where it does harm.

The next wave follows from what the nodes' states say alone, so that a new leader goes on where the one before stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

NO_ANSWER: Final = "NoAnswer"
"""Stands for an agent that did not answer among what was wrong before."""


class Member(msgspec.Struct, frozen=True):
    """A node that a profile governs, or is to govern when its turn comes."""

    node: str
    updated: bool
    """Whether its plan is made from the newest generation, or its turn has come."""
    silent: bool = False
    """Whether no agent has ever answered there: a plan does nothing on such a node, and it is updated at once."""
    answered: bool = True
    """Whether its agent has taken up what its state says."""
    degraded: str = ""
    """The reason for which its agent says that it is degraded; empty where it is not."""
    before: tuple[str, ...] = ()
    """What was wrong on an updated node before its turn: reasons as in `degraded`, and NO_ANSWER."""
    overdue: bool = False
    """Whether its agent has not answered for so long that nobody waits for it, or asks it, any more."""
    asked: bool = True
    """Whether it is known what the newest generation would take from pods there that use swap now."""
    pods: int = 0
    """So many pods."""
    bytes: int = 0
    """So much swap that they use."""

    def is_worse(self) -> bool:
        """Whether something is wrong that was not before the newest generation came."""
        return self.updated and bool(self.degraded) and self.degraded not in self.before

    def is_under_way(self) -> bool:
        """Whether it is between two plans. One that did not answer before, either, is so for a time only.

        One that has yet to take up an earlier generation is under way, too.
        """
        given_up = self.overdue and (not self.updated or NO_ANSWER in self.before)
        return not self.silent and not self.answered and not given_up

    def answers(self) -> bool:
        """Whether its agent has taken up what it was told, and has said what it was asked."""
        return self.answered and self.asked


class Taken(msgspec.Struct, frozen=True):
    """What a change takes, or would take, from pods that use swap now, on nodes whose turn has not come."""

    nodes: int = 0
    pods: int = 0
    bytes: int = 0


class Progress(msgspec.Struct, frozen=True):
    """Where a rollout stands. Nodes are named in the order of their names."""

    updated: int
    pending: int
    """Nodes whose turn has not come."""
    next: tuple[str, ...] = ()
    """Nodes whose turn comes now."""
    waiting: tuple[str, ...] = ()
    """Nodes whose turn has come and whose agents have not answered yet."""
    unheard: tuple[str, ...] = ()
    """Nodes whose turn has not come, and whose agents have yet to answer something."""
    stopped_by: tuple[str, ...] = ()
    """Nodes that do worse than before with the newest generation; while there is one, no other node gets it."""
    held: tuple[str, ...] = ()
    """Nodes whose turn does not come because pods there would lose swap that they use."""
    asking: tuple[str, ...] = ()
    """Nodes that have yet to say what the change would take from their pods: their turn does not come before."""
    taken: Taken = Taken()
    paused: bool = False


def limit(max_unavailable: str, members: int) -> int:
    """How many nodes may be under way at once, at least 1. `max_unavailable` is a number of nodes or percents of them.

    Percents are rounded down, as for Deployments (k/k: pkg/controller/deployment/util/deployment_util.go).
    """
    if max_unavailable.endswith("%"):
        return max(1, members * int(max_unavailable[:-1]) // 100)
    return max(1, int(max_unavailable))


def progress(members: Iterable[Member], max_unavailable: str, *, hold: bool = False, paused: bool = False) -> Progress:
    """Judge a rollout over all MEMBERS of a profile.

    Never more nodes than `max_unavailable` says are under way at once. Nodes that do well come first, then degraded
    ones, then those whose agents do not answer: these prove least. A node that does worse than before its turn stops
    it. Where all nodes may be under way at once, there are no waves, and no node stops another. With `hold`, a node
    keeps what it has while pods there would lose swap that they use, or may. With `paused`, no node's turn comes.
    """
    ordered = sorted(members, key=lambda member: member.node)
    live = sum(not member.silent for member in ordered)
    most = limit(max_unavailable, live)
    moved = [member for member in ordered if member.updated and not member.silent]
    left = [member for member in ordered if not member.updated]
    stopped_by = tuple(member.node for member in moved if member.is_worse()) if most < live else ()
    asking = [member for member in left if not (member.asked or member.overdue)]
    told = [member for member in left if member.asked or member.overdue]
    free = [member for member in told if not hold or (member.asked and not member.pods)]
    if paused:
        chosen: list[Member] = []
    elif most >= live:
        chosen = free
    elif stopped_by:
        chosen = []
    else:
        places = max(0, most - sum(member.is_under_way() for member in ordered))
        chosen = _first(free, last=not asking)[:places]
    losing = [member for member in left if member.pods]
    return Progress(
        updated=len(ordered) - len(left),
        pending=len(left) - len(chosen),
        next=_names(chosen),
        waiting=tuple(member.node for member in moved if not member.answered and not member.is_worse()),
        unheard=tuple(member.node for member in left if not member.answers()),
        stopped_by=stopped_by if left else (),
        held=tuple(member.node for member in told if member not in free),
        asking=_names(asking),
        taken=Taken(len(losing), sum(member.pods for member in losing), sum(member.bytes for member in losing)),
        paused=paused,
    )


def _first(free: Sequence[Member], *, last: bool) -> list[Member]:
    """Those that do best of all that may be next; only such as do well where others may still turn out to."""
    well = [member for member in free if member.answers() and not member.degraded]
    if well or not last:
        return well
    return [member for member in free if member.answers()] or list(free)


def _names(members: Iterable[Member]) -> tuple[str, ...]:
    return tuple(member.node for member in members)
