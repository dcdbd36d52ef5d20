"""The desired state of a node from its view, and the problems and answers in its state that a rollout reads."""

from __future__ import annotations

import msgspec

from swapwarden.api import state
from swapwarden.policy import plan
from swapwarden.policy.fleet import rollout
from swapwarden.policy.fleet.view import NodeView
from swapwarden.policy.node.observations import NodeProblem
from swapwarden.policy.observed.states import StateRow
from swapwarden.policy.plan import NodePlan
from swapwarden.policy.profile import compiled


def desired_state(view: NodeView) -> NodePlan:
    """Return the desired state of a node, with the epoch 0, and the pods for which it has no room."""
    if view.restoring:
        return NodePlan(plan.restore_node(view.profile))
    made = plan.plan_all(view.profile, view.facts, view.pods, view.namespaces)
    row = view.standing
    if (view.profile != compiled.BUILT_IN or view.leaving) and row is not None and row.observed:
        problems = list(before(row, made.spec.profile_ref, refused=view.refused))
        if problems:
            made = made._replace(spec=msgspec.structs.replace(made.spec, degraded_before=problems))
    if made.spec.profile_ref == plan.reference(view.target):
        return made
    coming = plan.plan_node(view.target, view.facts, view.pods, view.namespaces)
    return made._replace(spec=msgspec.structs.replace(made.spec, preview=plan.preview(made.spec, coming)))


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
