"""Facts that a rollout reads from a node's state: problems, and answers of its agent."""

from __future__ import annotations

from swapwarden.api import state
from swapwarden.controller.inventory.states import StateRow
from swapwarden.policy import rollout
from swapwarden.policy.node.observations import NodeProblem


def degraded(row: StateRow, *, refused: bool) -> tuple[str, ...]:
    """Return the problems of a node, in the form in which they are compared with later ones.

    `refused`: the profile that its state names has settings that are unsafe for it.
    """
    reported = row.degraded.partition(":")[0][: state.MAX_REASON]
    return tuple(filter(None, (reported, NodeProblem.SETTINGS_REFUSED if refused else "")))


def has_answered(row: StateRow, desired: state.ProfileRef) -> bool:
    """Return whether a node's agent has reported the cost of this profile for its pods, or cannot report it."""
    # An agent of an older version takes the state, and does not answer what it does not know.
    mute = row.cost is None and row.observed >= row.generation
    return row.preview == desired and (mute or (row.cost is not None and row.cost.profile_ref == desired))


def before(row: StateRow, desired: state.ProfileRef, *, refused: bool) -> tuple[str, ...]:
    """Return the problems of a node before it follows this generation of a profile, or before it did."""
    if row.profile == desired:
        return row.before
    silent = row.acted != row.profile or not has_answered(row, desired)
    return (*degraded(row, refused=refused), *([rollout.NO_ANSWER] if silent else []))
