"""Judge how far a node is with its plan: one table of rules, for `kubectl swap` and the status of profiles."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
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


def judge(case: NodeCase) -> NodeVerdict:
    """Judge a node. All rules that match count; the first one decides the health.

    That observedGeneration is behind says little: plans change with every pod. The profile's generation counts.
    """
    row = case.row
    findings = [*_about_agent(case), *([] if row is None else _reported(row)), *_about_plan(case)]
    return NodeVerdict(tuple(findings))


PENDING: Final = ("NotItsTurn", "NotWritten", "NotSeen", "NotApplied")
"""Rules by which a node has not applied a plan by its profile."""


def _about_agent(case: NodeCase) -> Iterator[Finding]:
    """Yield the findings about a missing plan and a missing agent."""
    if case.row is None:
        message = "the controller has not planned this node; check that it runs"
        yield Finding("NoState", NodeHealth.NO_STATE, "", message)
    elif not case.row.reported and case.has_agent:
        yield Finding("NoAgent", NodeHealth.PENDING, "", NOT_REPORTED)
    elif not case.row.reported:
        message = "no agent has reported; see whether the DaemonSet's pods may run there"
        yield Finding("NoAgent", NodeHealth.NO_AGENT, "", message)
    if case.has_agent is False:
        message = "no Ready agent: its values stay, but external writes are not repaired"
        yield Finding("Silent", NodeHealth.SILENT, "", message)


def _reported(row: states.StateRow) -> Iterator[Finding]:
    """Yield the findings about an agent that cannot do all that it should."""
    if row.incompatible:
        yield Finding("Incompatible", NodeHealth.INCOMPATIBLE, *_split(row.incompatible))
    if row.degraded:
        reason, message = _split(row.degraded)
        health = NodeHealth.NOT_UNDERSTOOD if reason == "NotUnderstood" else NodeHealth.DEGRADED
        yield Finding(ConditionType.DEGRADED, health, reason, message)


def _about_plan(case: NodeCase) -> Iterator[Finding]:
    """Yield the findings about the progress with the plan; the last one matches every node."""
    row = case.row
    # Nothing is asked of a node that restores.
    problems = {} if case.mode == names.Mode.RESTORE else case.problems
    if refused := problems.get(NodeProblem.SETTINGS_REFUSED):
        yield Finding("SettingsRefused", NodeHealth.DEGRADED, "", refused)
    if not case.in_turn:
        yield Finding("NotItsTurn", NodeHealth.PENDING, "", NOT_ITS_TURN)
    if row is None or (case.desired is not None and row.profile != case.desired):
        yield Finding("NotWritten", NodeHealth.PENDING, "", NOT_WRITTEN)
    if row is not None and row.acted != row.profile:
        yield Finding("NotSeen", NodeHealth.PENDING, "", NOT_SEEN)
    if row is not None and not row.applied:
        reason, message = _split(row.unapplied or f": {NOT_REPORTED}")
        yield Finding("NotApplied", _UNAPPLIED.get(reason, NodeHealth.NOT_UNDERSTOOD), reason, message)
    if unmet := problems.get(NodeProblem.REQUIREMENT_UNMET):
        yield Finding("RequirementUnmet", NodeHealth.UNMET, "", unmet)
    conditions = {} if row is None else {each.type: each for each in row.conditions}
    drift = conditions.get(ConditionType.DRIFTED)
    messages = [] if drift is None else [drift.message]
    messages += [f"{kind}: {conditions[kind].message}" for kind in DIAGNOSTICS if kind in conditions]
    messages += [f"{problem}: {message}" for problem, message in problems.items()]
    yield Finding("Done", _DONE.get(case.mode, NodeHealth.ENFORCED), "", "; ".join(messages))


def _split(text: str) -> tuple[str, str]:
    """Return reason and message of a condition in a row."""
    reason, _, message = text.partition(": ")
    return reason, message
