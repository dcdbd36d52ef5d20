"""Judge whether the swap limit of a pod is enforced: one table of rules, tried in order.

| # | rule | status | reason |
|---|---|---|---|
| 1 | the node cannot limit the swap of pods | False | NodeIncompatible |
| 2 | the state orders Audit or Restore | False | Audit, Restore |
| 3 | the agent lists a violation of the pod's limit, the worst first | False | as listed |
| 4 | the state does not name the pod, or there is none | Unknown | NotPlanned, NoState |
| 5 | the present report does not cover the limit, and an earlier one did | as then | as then |
| 6 | no agent is Ready, and the limit is newer than its last report | Unknown | NoAgent |
| 7 | the limit is newer than the agent's report | Unknown | AwaitingAgent |
| 8 | the agent's list is cut | Unknown | NotListed |
| 9 | no agent is Ready: the reported limit stays in the kernel | True | the plan's |
| 10 | always: agents report deviations only | True | the plan's |

A report covers a limit if its generation is as new as the state, and its list is complete. Row 5 keeps a limit from
becoming unknown whenever another pod of the node is planned: the kernel keeps limits that were set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from swapwarden.api import names, runtime_link, state
from swapwarden.api.conditions import ConditionType
from swapwarden.api.violations import PRESENT, ViolationReason
from swapwarden.policy.observed import pods, states
from swapwarden.policy.verdict import words
from swapwarden.policy.verdict.words import PodReason, Words


class ReadState(msgspec.Struct, frozen=True):
    """A node's state as verdicts about its pods read it."""

    row: states.StateRow | None
    """None: the node has no state."""
    spec: states.SpecView
    """The decoded spec of `row`."""
    has_agent: bool | None
    """Whether a Ready agent is on the node; None if that is not known."""

    @classmethod
    def of(cls, row: states.StateRow | None, *, has_agent: bool | None = None) -> ReadState:
        """Return the report in a node's state, with its spec decoded."""
        return cls(row, states.SpecView() if row is None else states.spec_view(row), has_agent)

    def listed(self, key: str) -> list[state.Violation]:
        """Return the violations of a pod's limit that the agent lists."""
        return [] if self.row is None else [each for each in self.row.violations if each.pod == key]

    def entry_reason(self, key: str) -> str:
        """Return the reason of a pod's plan; empty if the state does not name the pod."""
        entry = self.spec.pod(key)
        return "" if entry is None else entry.reason


class PodVerdict(msgspec.Struct, frozen=True):
    """Whether the limit of one pod is enforced, and why."""

    status: str
    """True, False or Unknown, as in a condition."""
    reason: str
    """The rule that gave the limit (names.Reason) if `status` is True; else a key of words.ENFORCEMENT."""
    message: str
    remedy: str = ""
    holder: str = ""
    """Who holds the limit, of names.Holder; empty if that is not known."""
    event: str = ""
    """Reason of the Event about it; empty if there is none."""
    rule: str = ""
    """Name of the rule that gave it."""

    @property
    def sentence(self) -> str:
        """Return the message with the remedy."""
        return words.sentence(self.message, self.remedy)


class PlanShortfall(msgspec.Struct, frozen=True):
    """A plan that gives a pod less than it asks for."""

    reason: str
    message: str
    remedy: str


class _PodCase(msgspec.Struct, frozen=True):
    """The input of the rules."""

    pod: pods.PodRow
    report: ReadState
    entry: states.PodInSpec | None
    """The pod in the state's spec."""
    listed: frozenset[str]
    """Reasons of the pod's violations."""
    before: pods.Enforced | None
    """The last verdict, which an earlier report was the base of."""
    since: int | None
    """The first generation of the state with this entry; None if that is not known."""

    def is_older(self) -> bool:
        """Return whether the agent's report is older than the entry, as far as that is known, else than the state."""
        row = self.report.row
        return row is None or row.observed < (row.generation if self.since is None else self.since)

    def is_cut(self) -> bool:
        """Return whether the agent may leave out violations."""
        return self.report.row is not None and self.report.row.unlisted


class _VerdictRule(msgspec.Struct, frozen=True):
    """A row of the table."""

    name: str
    matches: Callable[[_PodCase], bool]
    give: Callable[[_PodCase], PodVerdict]


def judge(
    pod: pods.PodRow, report: ReadState, before: pods.Enforced | None = None, since: int | None = None
) -> PodVerdict:
    """Judge a pod on a node by the state of that node. The first matching rule wins.

    `before` is the last verdict on the same pod, if one is known: from its condition, or from the caller's memory.
    `since` is the first generation of the state with the pod's present entry, if that is known: on a busy node, later
    ones are about other pods, and the agent may never have reported on the newest.
    """
    listed = frozenset(each.reason for each in report.listed(pod.key))
    case = _PodCase(pod, report, report.spec.pod(pod.key), listed, before, since)
    rule = next(rule for rule in RULES if rule.matches(case))
    return msgspec.structs.replace(rule.give(case), rule=rule.name)


def shortfall(pod: pods.PodRow, reason: str, profile: str, *, audit: bool) -> PlanShortfall | None:
    """Return what a plan with this reason does not give to a pod; None if it asks for nothing more.

    `profile` is the profile of its node's state. Under `audit` nothing is written: only faults of the pod or the node
    themselves count.
    """
    if reason not in words.SHORTFALL or not _asks(pod):
        return None
    if reason not in _IN_ANY_MODE:
        # A namespace's default is no choice of the pod's owner.
        chosen = reason == names.Reason.OVERRIDE_DISABLED and not pod.defaulted
        if audit or not (pod.limited() or chosen or reason in _IMPLY_LIMIT):
            return None
    text = words.SHORTFALL[reason].about(pod, profile, audit=audit)
    return PlanShortfall(reason, text.message, text.remedy)


_IN_ANY_MODE: Final = frozenset[str]({names.Reason.NODE_INCOMPATIBLE, names.Reason.INVALID_POLICY})
"""Faults of a node or a pod, whether the plan is written or not."""
_IMPLY_LIMIT: Final = frozenset[str]({names.Reason.BOUNDED, names.Reason.OVERCOMMIT_REACHED})
"""Reasons of plans that cut a limit, which may be an override's."""


def concerns(pod: pods.PodRow, verdict: PodVerdict, planned: str) -> bool:
    """Return whether a verdict concerns the owner of a pod; `planned` is the plan's reason.

    Verdicts that end within seconds concern nobody, nor does the removal of Swapwarden. A cut report concerns the
    administrator of the node.
    """
    if verdict.reason in {PodReason.NO_AGENT, PodReason.NO_STATE}:
        return _asks(pod)
    if verdict.status != "False" or verdict.reason == PodReason.RESTORE or not _asks(pod):
        return False
    return verdict.reason != names.Mode.AUDIT or is_audited(pod, planned)


def is_audited(pod: pods.PodRow, planned: str) -> bool:
    """Return whether mode Audit keeps a pod from what it asks for; `planned` is the plan's reason."""
    return pod.limited() or (pod.policy is not None and planned == names.Reason.POLICY_DISABLED)


def _asks(pod: pods.PodRow) -> bool:
    return pod.policy is not None or pod.limited()


def _said(case: _PodCase, status: str, reason: str, text: Words) -> PodVerdict:
    about = text.about(case.pod, case.report.spec.profile_ref.name)
    return PodVerdict(status, reason, about.message, about.remedy, event=about.event)


def _not(status: str, reason: Callable[[_PodCase], str]) -> Callable[[_PodCase], PodVerdict]:
    """Return a verdict that is not True, with the words of its reason."""

    def give(case: _PodCase) -> PodVerdict:
        why = reason(case)
        return _said(case, status, why, words.ENFORCEMENT[why])

    return give


def _is_incompatible(case: _PodCase) -> bool:
    planned = case.entry is not None and case.entry.reason == names.Reason.NODE_INCOMPATIBLE
    return planned or (case.report.row is not None and bool(case.report.row.incompatible))


def _lists(reason: ViolationReason) -> _VerdictRule:
    return _VerdictRule(reason, lambda case: reason in case.listed, _not("False", lambda _: reason))


def _was_reported(case: _PodCase) -> bool:
    """Return whether an earlier report was about this limit.

    Verdicts by the plan alone, such as Audit, end with that plan.
    """
    before = case.before
    if before is None or not (case.is_older() or case.is_cut()):
        return False
    # Pods' conditions are input: an unknown reason is none of ours.
    return before.reason in _REPORTED.get(before.status, ())


_REPORTED: Final[dict[str, frozenset[str]]] = {"True": frozenset(names.Reason), "False": frozenset(PRESENT)}
"""Reasons of verdicts that rest on a report, by status."""


def _as_before(case: _PodCase) -> PodVerdict:
    before = case.before
    assert before is not None  # noqa: S101 for mypy: _was_reported comes first
    if before.status == "True":
        return msgspec.structs.replace(_held(case, before.reason, words.HELD), holder=before.holder)
    return _said(case, before.status, before.reason, words.ENFORCEMENT[before.reason])


def _held(case: _PodCase, reason: str, text: Words) -> PodVerdict:
    """Return that the limit holds, with what the plan does not give."""
    verdict = _said(case, "True", reason, text)
    lacks = shortfall(case.pod, reason, case.report.spec.profile_ref.name, audit=False)
    if lacks is None:
        return verdict
    remedy = "; ".join(filter(None, (lacks.remedy, verdict.remedy)))
    return msgspec.structs.replace(verdict, message=f"{verdict.message}; {lacks.message}", remedy=remedy)


def _as_planned(text: Words) -> Callable[[_PodCase], PodVerdict]:
    def give(case: _PodCase) -> PodVerdict:
        row, entry = case.report.row, case.entry
        assert row is not None  # noqa: S101 for mypy: the rules about pods that are not planned come first
        assert entry is not None  # noqa: S101 the same
        no_nri = any(
            each.type == ConditionType.NRI_UNAVAILABLE and each.reason == runtime_link.Away.NO_SOCKET
            for each in row.abnormal_conditions
        )
        holder = pods.holder_of(case.pod.key, entry.swap_max, row.holds, no_nri=no_nri)
        return msgspec.structs.replace(_held(case, entry.reason, text), holder=holder)

    return give


RULES: tuple[_VerdictRule, ...] = (
    _VerdictRule("NodeIncompatible", _is_incompatible, _not("False", lambda _: names.Reason.NODE_INCOMPATIBLE)),
    _VerdictRule(
        "Mode",
        lambda case: case.report.spec.mode in {names.Mode.AUDIT, names.Mode.RESTORE},
        _not("False", lambda case: case.report.spec.mode),
    ),
    *(_lists(reason) for reason in PRESENT),
    _VerdictRule(
        "NotPlanned",
        lambda case: case.entry is None,
        _not("Unknown", lambda case: PodReason.NO_STATE if case.report.row is None else PodReason.NOT_PLANNED),
    ),
    _VerdictRule("AsReported", _was_reported, _as_before),
    _VerdictRule(
        "NoAgent",
        lambda case: case.report.has_agent is False and case.is_older(),
        _not("Unknown", lambda _: PodReason.NO_AGENT),
    ),
    _VerdictRule("AwaitingAgent", _PodCase.is_older, _not("Unknown", lambda _: PodReason.AWAITING_AGENT)),
    _VerdictRule("NotListed", _PodCase.is_cut, _not("Unknown", lambda _: PodReason.NOT_LISTED)),
    _VerdictRule("Unrepaired", lambda case: case.report.has_agent is False, _as_planned(words.UNREPAIRED)),
    _VerdictRule("Held", lambda _: True, _as_planned(words.HELD)),
)
"""The table, in the order in which its rules are tried; docs/pod-condition.md has it for users."""
