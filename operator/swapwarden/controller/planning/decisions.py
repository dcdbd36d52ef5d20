"""Desired content of a node's objects, from its view."""

from __future__ import annotations

import msgspec

from swapwarden.api import names
from swapwarden.controller.planning import answers
from swapwarden.controller.planning.view import NodeView
from swapwarden.policy import plan
from swapwarden.policy.node import extended_resource, taints
from swapwarden.policy.node.observations import NodeObservation, observe
from swapwarden.policy.plan import NodePlan
from swapwarden.policy.profile import compiled


def state(view: NodeView) -> NodePlan:
    """Return the desired state of a node, with the epoch 0, and the pods for which it has no room."""
    if view.restoring:
        return NodePlan(plan.restore_node(view.profile))
    made = plan.plan_all(view.profile, view.facts, view.pods, view.namespaces)
    row = view.standing
    if (view.profile != compiled.BUILT_IN or view.leaving) and row is not None and row.observed:
        before = list(answers.before(row, made.spec.profile_ref, refused=view.refused))
        if before:
            made = made._replace(spec=msgspec.structs.replace(made.spec, degraded_before=before))
    if made.spec.profile_ref == plan.reference(view.target):
        return made
    coming = plan.plan_node(view.target, view.facts, view.pods, view.namespaces)
    return made._replace(spec=msgspec.structs.replace(made.spec, preview=plan.preview(made.spec, coming)))


def taint(view: NodeView) -> names.TaintEffect | None:
    """Return the effect of the taint that the node should carry; None for no taint."""
    return taints.desired(view.profile, view.facts, view.node, applied=view.applied)


def resource(view: NodeView) -> int | None:
    """Return the bytes of the extended resource that the node should offer; None for none."""
    return extended_resource.desired(view.profile, view.facts, view.node, view.pods, applied=view.applied)


def observations(view: NodeView) -> tuple[NodeObservation, ...]:
    """Return the problems of the node that its agent does not report; none if its profile asks nothing of it."""
    return () if view.restoring else observe(view.profile.require, view.profile.kernel, view.facts)
