"""Roll out a changed profile to its nodes: a few at a time, and no further if it does harm.

The next wave follows from the nodes' states alone, so that a new leader continues where the previous one stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

NO_ANSWER: Final = "NoAnswer"
"""Among earlier problems, stands for an agent that did not answer."""


class RolloutNode(msgspec.Struct, frozen=True):
    """A node that a profile governs, or will govern after its turn."""

    node: str
    updated: bool
    """Whether its plan is made from the newest generation."""
    silent: bool = False
    """Whether no agent has ever answered there: a plan has no effect on such a node, and it is updated at once."""
    answered: bool = True
    """Whether its agent has applied the spec of its state."""
    degraded: tuple[str, ...] = ()
    """Present problems: the reason of the agent's condition Degraded, and SettingsRefused."""
    before: tuple[str, ...] = ()
    """The problems of an updated node before its turn: reasons as in `degraded`, and NO_ANSWER."""
    overdue: bool = False
    """Whether its agent has been silent for so long that the rollout no longer waits for it, or asks it."""
    asked: bool = True
    """Whether the agent has reported what the newest generation would take from pods that use swap now."""
    pods: int = 0
    """The number of these pods."""
    bytes: int = 0
    """The swap that they use, in bytes."""

    def is_worse(self) -> bool:
        """Return whether it has a problem that it did not have before the newest generation."""
        return self.updated and any(problem not in self.before for problem in self.degraded)

    def is_under_way(self) -> bool:
        """Return whether it is between two plans. A node that did not answer before counts for a limited time.

        A node that has yet to apply an earlier generation also counts.
        """
        given_up = self.overdue and (not self.updated or NO_ANSWER in self.before)
        return not self.silent and not self.answered and not given_up

    def answers(self) -> bool:
        """Return whether its agent has applied its spec and answered its preview."""
        return self.answered and self.asked


class Taken(msgspec.Struct, frozen=True):
    """The effect of a change on pods that use swap now, on nodes whose turn has not come."""

    nodes: int = 0
    pods: int = 0
    bytes: int = 0


class RolloutProgress(msgspec.Struct, frozen=True):
    """The progress of a rollout. Nodes are sorted by name."""

    updated: int
    pending: int
    """Nodes whose turn has not come."""
    next: tuple[str, ...] = ()
    """Nodes whose turn is now."""
    waiting: tuple[str, ...] = ()
    """Nodes whose turn has come, and whose agents have not answered yet."""
    unheard: tuple[str, ...] = ()
    """Nodes whose turn has not come, and whose agents have yet to answer."""
    stopped_by: tuple[str, ...] = ()
    """Nodes that do worse than before with the newest generation; each of them stops the rollout."""
    held: tuple[str, ...] = ()
    """Nodes whose turn is delayed because pods there would lose swap that they use."""
    asking: tuple[str, ...] = ()
    """Nodes that have yet to report the effect of the change on their pods: their turn waits for it."""
    taken: Taken = Taken()
    paused: bool = False


def limit(max_unavailable: str, members: int) -> int:
    """Return how many nodes may change at once, at least 1. `max_unavailable` is a number of nodes or percents of them.

    Percents are rounded down, as for Deployments (k/k: pkg/controller/deployment/util/deployment_util.go).
    """
    if max_unavailable.endswith("%"):
        return max(1, members * int(max_unavailable[:-1]) // 100)
    return max(1, int(max_unavailable))


def progress(
    members: Iterable[RolloutNode], max_unavailable: str, *, hold: bool = False, paused: bool = False
) -> RolloutProgress:
    """Judge a rollout over all MEMBERS of a profile.

    At most `max_unavailable` nodes change at once. Healthy nodes are first, then degraded ones, then those whose agents
    do not answer: these prove least. A node that does worse than before its turn stops the rollout. If all nodes may
    change at once, there are no waves, and no node stops another. With `hold`, a node keeps its limits while pods there
    would lose swap that they use, or may. With `paused`, no node gets a turn.
    """
    ordered = sorted(members, key=lambda member: member.node)
    live = sum(not member.silent for member in ordered)
    most = limit(max_unavailable, live)
    moved = [member for member in ordered if member.updated and not member.silent]
    left = [member for member in ordered if not member.updated]
    stopped_by = tuple(member.node for member in moved if member.is_worse()) if most < live else ()
    asking = [member for member in left if not (member.asked or member.overdue)]
    answered = [member for member in left if member.asked or member.overdue]
    free = [member for member in answered if not hold or (member.asked and not member.pods)]
    if paused or stopped_by:
        chosen: list[RolloutNode] = []
    elif most >= live:
        chosen = free
    else:
        places = max(0, most - sum(member.is_under_way() for member in ordered))
        chosen = _first(free, last=not asking)[:places]
    losing = [member for member in left if member.pods]
    return RolloutProgress(
        updated=len(ordered) - len(left),
        pending=len(left) - len(chosen),
        next=_names(chosen),
        waiting=tuple(member.node for member in moved if not member.answered and not member.is_worse()),
        unheard=tuple(member.node for member in left if not member.answers()),
        stopped_by=stopped_by if left else (),
        held=tuple(member.node for member in answered if member not in free),
        asking=_names(asking),
        taken=Taken(len(losing), sum(member.pods for member in losing), sum(member.bytes for member in losing)),
        paused=paused,
    )


def _first(free: Sequence[RolloutNode], *, last: bool) -> list[RolloutNode]:
    """Return the best of the candidates; only healthy ones while others may still recover."""
    well = [member for member in free if member.answers() and not member.degraded]
    if well or not last:
        return well
    return [member for member in free if member.answers()] or list(free)


def _names(members: Iterable[RolloutNode]) -> tuple[str, ...]:
    return tuple(member.node for member in members)
