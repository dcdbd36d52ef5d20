"""The health of a node in one word, from its NodeSwapState and its agent. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from swapwarden.api import names, state
from swapwarden.api.conditions import DIAGNOSTICS, AppliedReason, ConditionType
from swapwarden.api.violations import FAILURES, ViolationReason
from swapwarden.policy.node.observations import NodeObservation, NodeProblem


class NodeHealth(enum.StrEnum):
    """The worst first."""

    DEGRADED = "Degraded"
    """The agent cannot do all that it should."""
    SILENT = "Silent"
    """An agent reported from there, and none is Ready now: its values stay, but external writes are not repaired."""
    NO_AGENT = "NoAgent"
    """No agent ever reported."""
    INCOMPATIBLE = "Incompatible"
    """Nothing can be enforced: no cgroup v2, or no swap controller."""
    NOT_UNDERSTOOD = "NotUnderstood"
    """The agent's report is invalid here: an agent of another version."""
    NO_STATE = "NoState"
    """The controller has not planned the node."""
    YIELDED = "Yielded"
    """Another writer keeps lowering values, and the agent accepts that."""
    DRAINING = "Draining"
    """Pods use more swap than their limits."""
    PENDING = "Pending"
    """The agent has not acted on the newest plan yet."""
    RESTORING = "Restoring"
    """The agent is restoring the values from before Swapwarden."""
    UNMET = "RequirementUnmet"
    """The node lacks what its profile requires, so its pods get no swap."""
    AUDIT = "Audit"
    """Nothing is written, only reported."""
    RESTORED = "Restored"
    """All values are those from before Swapwarden."""
    ENFORCED = "Enforced"
    """All cgroups hold what the plan says."""
    UNKNOWN = "Unknown"
    """The user may not see it."""


class HealthVerdict(msgspec.Struct, frozen=True):
    """The health of a node, and the reason in a sentence; empty if there is none."""

    health: NodeHealth
    why: str = ""


_NO: Final = state.Condition("", "", "")

# Reasons of the condition Applied where it is not True, and Degraded says nothing.
_UNAPPLIED: Final[dict[str, NodeHealth]] = {
    AppliedReason.INCOMPATIBLE: NodeHealth.INCOMPATIBLE,
    AppliedReason.NO_POD_TREE: NodeHealth.PENDING,
    AppliedReason.RECONCILING: NodeHealth.PENDING,
    ViolationReason.AWAITING_STATE: NodeHealth.PENDING,
    AppliedReason.RESTORING: NodeHealth.RESTORING,
    ViolationReason.DRAINING: NodeHealth.DRAINING,
    ViolationReason.YIELDED: NodeHealth.YIELDED,
    **dict.fromkeys((*FAILURES, ViolationReason.NOT_SUPPORTED), NodeHealth.DEGRADED),
}
_DONE: Final = {
    names.Mode.ENFORCE: NodeHealth.ENFORCED,
    names.Mode.AUDIT: NodeHealth.AUDIT,
    names.Mode.RESTORE: NodeHealth.RESTORED,
}


def judge(
    spec: state.StateSpec | None,
    status: state.StateStatus,
    *,
    has_agent: bool | None,
    observed: Iterable[NodeObservation] = (),
) -> HealthVerdict:
    """Return the health of a node with such a state; `has_agent`: an agent is Ready there, None if unknown.

    That observedGeneration is behind says little: plans change with every pod. The profile's generation counts.
    """
    if spec is None:
        return HealthVerdict(NodeHealth.NO_STATE, "the controller has not planned this node; check that it runs")
    conditions = {condition.type: condition for condition in status.conditions}
    applied, compatible = conditions.get(ConditionType.APPLIED, _NO), conditions.get(ConditionType.COMPATIBLE, _NO)
    degraded = conditions.get(ConditionType.DEGRADED, _NO)
    problems = {} if spec.mode is names.Mode.RESTORE else dict(observed)
    refused, unmet = problems.get(NodeProblem.SETTINGS_REFUSED, ""), problems.get(NodeProblem.REQUIREMENT_UNMET, "")
    unapplied = _UNAPPLIED.get(applied.reason, NodeHealth.NOT_UNDERSTOOD)
    absent = "no agent has reported; see whether the DaemonSet's pods may run there"
    silent = "no Ready agent: its values stay, but external writes are not repaired"
    rows = (
        (not conditions and has_agent, NodeHealth.PENDING, "its agent has not reported yet"),
        (not conditions, NodeHealth.NO_AGENT, absent),
        (has_agent is False, NodeHealth.SILENT, silent),
        (compatible.status == "False", NodeHealth.INCOMPATIBLE, compatible.message),
        (degraded.status == "True", NodeHealth.DEGRADED, degraded.message),
        (refused, NodeHealth.DEGRADED, refused),
        (status.profile_ref != spec.profile_ref, NodeHealth.PENDING, "its agent has not seen the newest plan yet"),
        (applied.status != "True", unapplied, applied.message or f"condition Applied is {applied.status or 'absent'}"),
        (unmet, NodeHealth.UNMET, unmet),
        (True, _DONE[spec.mode], _others(conditions, problems)),
    )
    return next(HealthVerdict(health, why) for matches, health, why in rows if matches)


def _others(conditions: Mapping[str, state.Condition], problems: Mapping[NodeProblem, str]) -> str:
    """Return other messages about a healthy node."""
    drift = conditions.get(ConditionType.DRIFTED, _NO)
    found = [drift.message] if drift.status == "True" else []
    found += [f"{kind}: {conditions[kind].message}" for kind in DIAGNOSTICS if kind in conditions]
    found += [f"{problem}: {message}" for problem, message in problems.items()]
    return "; ".join(found)


ORDER: Final = {health: place for place, health in enumerate(NodeHealth)}
STYLES: Final = {
    NodeHealth.ENFORCED: "green",
    NodeHealth.AUDIT: "cyan",
    NodeHealth.RESTORED: "cyan",
    NodeHealth.UNKNOWN: "",
    **dict.fromkeys((NodeHealth.DRAINING, NodeHealth.PENDING, NodeHealth.RESTORING, NodeHealth.UNMET), "yellow"),
    **dict.fromkeys((NodeHealth.YIELDED, NodeHealth.NO_STATE), "yellow"),
    **dict.fromkeys((NodeHealth.DEGRADED, NodeHealth.SILENT, NodeHealth.NO_AGENT), "bold red"),
    **dict.fromkeys((NodeHealth.INCOMPATIBLE, NodeHealth.NOT_UNDERSTOOD), "bold red"),
}
