"""How a changed profile reaches its nodes: a few at a time, and no further where it does harm.

The next wave follows from what the nodes' states say alone, so that a new leader goes on where the one before stopped.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


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
    """What its agent says is wrong; empty where nothing is."""
    asked: bool = True
    """Whether it is known what the newest generation would take from pods there that use swap now."""
    pods: int = 0
    """So many pods."""
    bytes: int = 0
    """So much swap that they use."""


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
    """Nodes of this wave whose agents have not answered yet."""
    stopped_by: tuple[str, ...] = ()
    """Nodes that do worse with the newest generation; while there is one, no other node gets it."""
    held: tuple[str, ...] = ()
    """Nodes whose turn does not come because pods there would lose swap that they use."""
    asking: tuple[str, ...] = ()
    """Nodes that have yet to say what the change would take from their pods: their turn does not come before."""
    taken: Taken = Taken()


def limit(max_unavailable: str, members: int) -> int:
    """How many nodes may be under way at once, at least 1. `max_unavailable` is a number of nodes or percents of them.

    Percents are rounded down, as for Deployments (k/k: pkg/controller/deployment/util/deployment_util.go).
    """
    if max_unavailable.endswith("%"):
        return max(1, members * int(max_unavailable[:-1]) // 100)
    return max(1, int(max_unavailable))


def progress(members: Iterable[Member], max_unavailable: str, *, hold: bool = False, overdue: bool = False) -> Progress:
    """Judge a rollout over all MEMBERS of a profile.

    Nodes that do well come first. Those that did not answer, or were degraded, before their turn prove nothing, so they
    come together at the end. A node of the wave that has not answered holds its place in it. Where all nodes may be
    under way at once, there are no waves, and a degraded node stops nobody. With `hold`, a node keeps what it has
    while pods there would lose swap that they use, or may. With `overdue`, nodes that are asked what they would lose
    have not answered for long, and count with those that do not answer.
    """
    ordered = sorted(members, key=lambda member: member.node)
    live = sum(not member.silent for member in ordered)
    most = limit(max_unavailable, live)
    moved = [member for member in ordered if member.updated and not member.silent]
    left = [member for member in ordered if not member.updated]
    stopped_by = tuple(member.node for member in moved if member.degraded) if most < live else ()
    waiting = tuple(member.node for member in moved if not member.answered and not member.degraded)
    chosen: list[str] = []
    well = [member for member in left if member.answered and not member.degraded]
    asking = [] if overdue else [member for member in well if not member.asked]
    told = [member for member in left if member not in asking]
    free = [member.node for member in told if not hold or (member.asked and not member.pods)]
    first = [member.node for member in well if member.asked and member.node in free]
    if most >= live:
        chosen = free
    elif first and not stopped_by:
        chosen = first[: max(0, most - len(waiting))]
    elif not (stopped_by or waiting or asking):
        chosen = free
    losing = [member for member in left if member.pods]
    return Progress(
        updated=len(ordered) - len(left),
        pending=len(left) - len(chosen),
        next=tuple(chosen),
        waiting=waiting,
        stopped_by=stopped_by if len(left) > len(chosen) else (),
        held=tuple(member.node for member in told if member.node not in free),
        asking=tuple(member.node for member in asking),
        taken=Taken(len(losing), sum(member.pods for member in losing), sum(member.bytes for member in losing)),
    )
