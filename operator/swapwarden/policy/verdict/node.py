"""Judge how far a node is with its plan: one table of rules, for `kubectl swap` and the status of profiles."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from swapwarden.api import names, state
from swapwarden.api.conditions import DIAGNOSTICS, AppliedReason, ConditionType
from swapwarden.api.violations import FAILURES, ViolationReason
from swapwarden.policy.node.observations import NodeProblem
from swapwarden.policy.observed import states


class NodeHealth(enum.StrEnum):
    """The health of a node with its plan, the worst first."""

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


ORDER: Final = {health: place for place, health in enumerate(NodeHealth)}

NOT_ITS_TURN: Final = "its turn has not come"
NOT_WRITTEN: Final = "its plan is not written yet"
NOT_SEEN: Final = "its agent has not seen the plan yet"
NOT_REPORTED: Final = "its agent has not reported yet"

# Health by the reason of the condition Applied, if it is not True and Degraded is False.
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
_DONE: Final[dict[str, NodeHealth]] = {
    names.Mode.AUDIT: NodeHealth.AUDIT,
    names.Mode.RESTORE: NodeHealth.RESTORED,
}


class NodeCase(msgspec.Struct, frozen=True):
    """A node as it is judged."""

    row: states.StateRow | None
    """The node's state; None if there is none."""
    mode: str = names.Mode.ENFORCE
    """The mode of the node's state."""
    has_agent: bool | None = None
    """Whether a Ready agent is on the node; None if that is not known."""
    problems: Mapping[NodeProblem, str] = {}
    """Problems that follow from its profile and facts (policy.node.observations)."""
    desired: state.ProfileRef | None = None
    """The profile that selects it; None if that is not known."""
    in_turn: bool = True
    """Whether it may follow that profile now."""


class Finding(msgspec.Struct, frozen=True):
    """A rule that matches a node."""

    rule: str
    health: NodeHealth
    reason: str
    """One word; empty if the rule says it all."""
    message: str

    @property
    def text(self) -> str:
        """Return the reason with the message."""
        return f"{self.reason}: {self.message}" if self.reason else self.message


class NodeVerdict(msgspec.Struct, frozen=True):
    """The findings about a node, in the order of the rules. The first one is its health."""

    findings: tuple[Finding, ...]

    @property
    def health(self) -> NodeHealth:
        """Return the health in one word."""
        return self.findings[0].health

    @property
    def why(self) -> str:
        """Return the reason of the health in a sentence; empty if there is none."""
        return self.findings[0].message

    def text(self, *rules: str) -> str:
        """Return the text of the first finding by one of these rules; empty if there is none."""
        return next((each.text for each in self.findings if each.rule in rules), "")


Said = tuple[NodeHealth, str, str]
"""The health, reason and message of a finding."""


def judge(case: NodeCase) -> NodeVerdict:
    """Judge a node. All rules that match count; the first one decides the health.

    That observedGeneration is behind says little: plans change with every pod. The profile's generation counts.
    """
    said = ((rule, find(case)) for rule, find in RULES)
    return NodeVerdict(tuple(Finding(rule, *parts) for rule, parts in said if parts is not None))


def _split(text: str) -> tuple[str, str]:
    """Return reason and message of a condition in a row."""
    reason, _, message = text.partition(": ")
    return reason, message


def _no_state(case: NodeCase) -> Said | None:
    if case.row is not None:
        return None
    return NodeHealth.NO_STATE, "", "the controller has not planned this node; check that it runs"


def _no_agent(case: NodeCase) -> Said | None:
    if case.row is None or case.row.reported:
        return None
    if case.has_agent:
        return NodeHealth.PENDING, "", NOT_REPORTED
    return NodeHealth.NO_AGENT, "", "no agent has reported; see whether the DaemonSet's pods may run there"


def _silent(case: NodeCase) -> Said | None:
    if case.has_agent is not False:
        return None
    return NodeHealth.SILENT, "", "no Ready agent: its values stay, but external writes are not repaired"


def _incompatible(case: NodeCase) -> Said | None:
    if case.row is None or not case.row.incompatible:
        return None
    return NodeHealth.INCOMPATIBLE, *_split(case.row.incompatible)


def _degraded(case: NodeCase) -> Said | None:
    if case.row is None or not case.row.degraded:
        return None
    reason, message = _split(case.row.degraded)
    return NodeHealth.NOT_UNDERSTOOD if reason == "NotUnderstood" else NodeHealth.DEGRADED, reason, message


def _problem(kind: NodeProblem, health: NodeHealth) -> Callable[[NodeCase], Said | None]:
    def find(case: NodeCase) -> Said | None:
        # Nothing is asked of a node that restores.
        message = case.problems.get(kind, "") if case.mode != names.Mode.RESTORE else ""
        return (health, "", message) if message else None

    return find


def _not_its_turn(case: NodeCase) -> Said | None:
    return None if case.in_turn else (NodeHealth.PENDING, "", NOT_ITS_TURN)


def _not_written(case: NodeCase) -> Said | None:
    row = case.row
    if row is not None and (case.desired is None or row.profile == case.desired):
        return None
    return NodeHealth.PENDING, "", NOT_WRITTEN


def _not_seen(case: NodeCase) -> Said | None:
    row = case.row
    return None if row is None or row.acted == row.profile else (NodeHealth.PENDING, "", NOT_SEEN)


def _not_applied(case: NodeCase) -> Said | None:
    row = case.row
    if row is None or row.applied:
        return None
    if not row.unapplied:
        return NodeHealth.NOT_UNDERSTOOD, "", NOT_REPORTED
    reason, message = _split(row.unapplied)
    return _UNAPPLIED.get(reason, NodeHealth.NOT_UNDERSTOOD), reason, message


def _done(case: NodeCase) -> Said:
    """Return that all is as planned, with other messages about the node."""
    conditions = {} if case.row is None else {each.type: each for each in case.row.conditions}
    drift = conditions.get(ConditionType.DRIFTED)
    messages = [] if drift is None else [drift.message]
    messages += [f"{kind}: {conditions[kind].message}" for kind in DIAGNOSTICS if kind in conditions]
    if case.mode != names.Mode.RESTORE:
        messages += [f"{problem}: {message}" for problem, message in case.problems.items()]
    return _DONE.get(case.mode, NodeHealth.ENFORCED), "", "; ".join(messages)


RULES: Final[tuple[tuple[str, Callable[[NodeCase], Said | None]], ...]] = (
    ("NoState", _no_state),
    ("NoAgent", _no_agent),
    ("Silent", _silent),
    ("Incompatible", _incompatible),
    (ConditionType.DEGRADED, _degraded),
    ("SettingsRefused", _problem(NodeProblem.SETTINGS_REFUSED, NodeHealth.DEGRADED)),
    ("NotItsTurn", _not_its_turn),
    ("NotWritten", _not_written),
    ("NotSeen", _not_seen),
    ("NotApplied", _not_applied),
    ("RequirementUnmet", _problem(NodeProblem.REQUIREMENT_UNMET, NodeHealth.UNMET)),
    ("Done", _done),
)
"""The table, in the order in which its rules are tried."""
PENDING: Final = ("NotItsTurn", "NotWritten", "NotSeen", "NotApplied")
"""Rules by which a node has not applied a plan by its profile."""
