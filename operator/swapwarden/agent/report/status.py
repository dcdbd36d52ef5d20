"""The status of a NodeSwapState: conditions, deviations, and the patch from one status to the next. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from swapwarden.agent.drift import systemd_zero
from swapwarden.agent.inventory import layout
from swapwarden.agent.node import diagnostics
from swapwarden.agent.reconcile import problems
from swapwarden.api import names, state
from swapwarden.api.conditions import REWRITTEN, AppliedReason, ConditionType
from swapwarden.api.violations import ViolationReason

_FAILING: Final = {
    ViolationReason.INTERNAL_ERROR: "met an unexpected error in the agent",
    ViolationReason.WRITE_FAILED: "cannot be written",
    ViolationReason.UNREADABLE: "cannot be listed",
    ViolationReason.ACCESS_DENIED: "are closed to the agent by who runs in them",
}
_DEGRADING: Final = (ViolationReason.INTERNAL_ERROR, ViolationReason.WRITE_FAILED)
"""Not what a container does to its own cgroup: whoever can run one could stop a profile's rollout by it. What cannot be
listed makes the agent poll, which says why."""
_ORDER: Final[dict[str, int]] = {reason: number for number, reason in enumerate(ViolationReason)}
_MEANT: Final = frozenset({names.Problem.AUDIT, names.Problem.NO_EFFECT})
"""Shortfalls of settings that are as whoever wrote the profile must have meant it."""
_PASSING: Final = frozenset(
    {names.Problem.NOT_FOUND, names.Problem.DRAINING, names.Problem.RELOAD_NEEDED, names.Problem.PENDING} | _MEANT
)
"""Shortfalls of settings with which a node is as good as others."""
_ESSENTIAL: Final = ("pod", "container", "reason", "since")
"""Fields of a violation whose change is worth a write at once; so is that of its causes."""


class Standing(NamedTuple):
    """How things stand on the node."""

    root: str | None
    """The cgroup above all pods; None where there is none."""
    problem: layout.TreeError | None
    """Why there is none."""
    polling: str
    """Why not everything can be watched; empty where everything is."""
    refused: str
    """Why the newest state was not taken; empty where it was."""
    mode: names.Mode
    generation: int
    profile: state.ProfileRef | None
    """Of the state in force."""
    stated: bool
    """Whether any state is in force."""
    violations: Sequence[state.Violation]
    to_put_back: int
    """Files that still hold a value of ours and should not."""
    drifting: int
    """Pods that another writer raised above their value lately."""
    contested: int = 0
    """Cgroups that are left to another writer, who lowers them; not those that a container may have made itself."""
    unseen: int = 0
    """Files that were not seen to hold what they are to, for no failure."""
    untold: frozenset[str] = frozenset()
    """UIDs of pods that took swap while exposed which no status has told of."""
    lost: int = 0
    """How often the kernel dropped events of late, after each of which all was compared."""
    kubelet_swap: int | None = None
    """Swap in bytes that the kubelet counted, where that is not what there is; None elsewhere."""
    others: str = ""
    """What is known of other writers of late, systemd left out; empty where there is none."""
    cost: state.Cost | None = None
    """What a proposal would take from pods that use it now; None where there is none."""
    settings: Sequence[problems.SettingProblem] | None = None
    """Settings of the node that are not as its profile asks; None where there are none to be set or put back."""
    guarantee: systemd_zero.Verdict | None = None
    """What is to be said of guarantee Strict; None where that is nothing."""
    unmet: Mapping[str, str] | None = None
    """What the profile requires and the node does not have, as the state says; None where nothing is required."""

    @property
    def passing(self) -> bool:
        """Whether something of it is only about the last minutes: nothing tells when these are over."""
        exposed = any(violation.reason == ViolationReason.EXPOSED for violation in self.violations)
        return bool(exposed or self.drifting or self.others or self.lost)


_Verdict = systemd_zero.Verdict


def _compatible(standing: Standing, facts: state.Facts) -> _Verdict:
    if facts.cgroup_version != 2:
        return _Verdict("False", "NoCgroupV2", "swap limits need cgroup v2 at the agent's --cgroup-root")
    if standing.problem is not None and standing.problem.reason == "NoSwapController":
        return _Verdict("False", standing.problem.reason, str(standing.problem))
    if standing.root is None:
        reason = "Searching" if standing.problem is None else standing.problem.reason
        return _Verdict("Unknown", reason, str(standing.problem or "looking for the cgroups of pods"))
    return _Verdict("True", ConditionType.COMPATIBLE, f"pods are below /{standing.root}")


def _applied(standing: Standing, compatible: _Verdict) -> _Verdict:  # noqa: PLR0911 a table, one line per row
    if compatible.status != "True":
        return _Verdict(
            "False",
            AppliedReason.INCOMPATIBLE if compatible.status == "False" else AppliedReason.NO_POD_TREE,
            compatible.message,
        )
    if not standing.stated:
        return _Verdict("Unknown", ViolationReason.AWAITING_STATE, "no state has arrived yet")
    failing = _failing(standing)
    # Where nothing is to be written, a cgroup that its owner keeps the agent out of is in nobody's way: what a value of
    # the agent's is left in counts as that.
    if failing is not None and (standing.mode is names.Mode.ENFORCE or failing.reason != ViolationReason.ACCESS_DENIED):
        return failing
    if standing.unseen:
        message = f"{standing.unseen} cgroups have not been seen to hold what the spec says yet"
        return _Verdict("False", AppliedReason.RECONCILING, message)
    if standing.mode is not names.Mode.ENFORCE and standing.to_put_back:
        return _Verdict("False", AppliedReason.RESTORING, f"{standing.to_put_back} files still hold a value of ours")
    if standing.mode is names.Mode.RESTORE:
        return _Verdict("True", AppliedReason.RESTORED, "all cgroups hold what they held before")
    if standing.mode is names.Mode.AUDIT:
        return _Verdict("True", ViolationReason.AUDIT, "nothing is written; violations lists what would be")
    draining = sum(violation.reason == ViolationReason.DRAINING for violation in standing.violations)
    if draining:
        return _Verdict("False", ViolationReason.DRAINING, f"{draining} cgroups have more swap in use than wanted")
    yielded = sum(violation.reason == ViolationReason.YIELDED for violation in standing.violations)
    if yielded:
        return _Verdict(
            "False",
            ViolationReason.YIELDED,
            f"{yielded} cgroups hold less than wanted: another writer keeps lowering them",
        )
    return _Verdict("True", AppliedReason.AS_SPECIFIED, "all cgroups hold what the spec says")


def _failing(standing: Standing) -> _Verdict | None:
    """What keeps cgroups from their values, the worst first; None where nothing does."""
    for reason, what in _FAILING.items():
        failed = sum(violation.reason == reason for violation in standing.violations)
        if failed:
            return _Verdict("False", reason, f"{failed} cgroups {what}; violations says why")
    return None


def _degraded(standing: Standing) -> _Verdict:
    if standing.refused:
        return _Verdict("True", "StateRefused", standing.refused)
    for reason in _DEGRADING:
        failed = [violation.message for violation in standing.violations if violation.reason == reason]
        if failed:
            return _Verdict("True", reason, f"{len(failed)} cgroups {_FAILING[reason]}; the first: {failed[0]}")
    failing = [short for short in standing.settings or () if short.reason not in _PASSING]
    if failing:
        return _Verdict("True", ConditionType.NODE_SETTINGS, _settings(failing).message)
    if standing.polling:
        return _Verdict("True", "Polling", standing.polling)
    return _Verdict("False", "AsExpected", "")


def _drift(standing: Standing) -> _Verdict:
    if standing.contested:
        reason: str = ViolationReason.YIELDED
        message = f"{standing.contested} cgroups are left to another writer, who keeps lowering them"
    elif standing.drifting or standing.others:
        # What systemd writes passes; who else writes does not go away by itself.
        reason = "OtherWriter" if standing.others else REWRITTEN
        drifting = f"{standing.drifting} running pods were above their value lately; repaired"
        message = drifting if standing.drifting else "values were written over lately; repaired"
    else:
        return _Verdict("False", "Quiet", "")
    return _Verdict("True", reason, f"{message}; {standing.others}" if standing.others else message)


def _settings(shortfalls: Sequence[problems.SettingProblem]) -> _Verdict:
    if not shortfalls:
        return _Verdict("True", "AsSpecified", "the node's settings are as the spec says")
    order = list(names.Problem)
    worst = sorted(shortfalls, key=lambda short: order.index(short.reason))
    message = "; ".join(f"{short.name}: {short.message}" for short in worst)
    if worst[0].reason is names.Problem.PENDING:
        return _Verdict("Unknown", worst[0].reason, message)
    return _Verdict("True" if worst[0].reason in _MEANT else "False", worst[0].reason, message)


def _requirements(unmet: Mapping[str, str]) -> _Verdict:
    if not unmet:
        return _Verdict("True", "AllMet", "the node has what its profile requires")
    return _Verdict("False", "RequirementUnmet", "; ".join(f"{name}: {found}" for name, found in unmet.items()))


def _rank(violation: state.Violation, untold: Container[str]) -> tuple[int, bool, int, str, str]:
    order = _ORDER.get(violation.reason, len(_ORDER))
    if violation.reason == ViolationReason.YIELDED and violation.container:
        order = _ORDER[ViolationReason.ACCESS_DENIED]
    if violation.reason == ViolationReason.EXPOSED and violation.causes and violation.pod in untold:
        order = 0  # for one write only
    # A pod's own limit rules its containers, too.
    within = bool(violation.container)
    return order, within, -violation.exposed_milliseconds, violation.pod, violation.container


def verdicts(
    standing: Standing, facts: state.Facts, found: Iterable[diagnostics.Diagnostic] = ()
) -> Mapping[str, systemd_zero.Verdict]:
    """What the conditions say of `standing`, by their types; `found` are conditions only while they are true."""
    compatible = _compatible(standing, facts)
    said: dict[str, systemd_zero.Verdict] = {
        ConditionType.COMPATIBLE: compatible,
        ConditionType.APPLIED: _applied(standing, compatible),
        ConditionType.DEGRADED: _degraded(standing),
        ConditionType.DRIFT: _drift(standing),
        **({} if standing.guarantee is None else {ConditionType.STRICT: standing.guarantee}),
        **({} if standing.unmet is None else {ConditionType.REQUIREMENTS_MET: _requirements(standing.unmet)}),
    }
    if standing.settings is not None:
        said[ConditionType.NODE_SETTINGS] = _settings(standing.settings)
    return said | {each.kind: _Verdict("True", each.reason, f"{each.message}; {each.remedy}") for each in found}


def build(
    standing: Standing,
    facts: state.Facts,
    previous: Iterable[Mapping[str, Any]],
    now: str,
    found: Iterable[diagnostics.Diagnostic] = (),
) -> state.StateStatus:
    """The status that tells of `standing`, and of what was `found`.

    `previous` are the conditions of the status before, `now` is RFC 3339.

    Violations are cut to state.MAX_VIOLATIONS: first what no status has told of yet, then what is wrong now.
    """
    since = {
        (condition.get("type"), condition.get("status")): str(condition.get("lastTransitionTime", ""))
        for condition in previous
    }
    conditions = [
        state.Condition(
            kind,
            verdict.status,
            verdict.reason,
            verdict.message[:1024],
            since.get((kind, verdict.status)) or now,
            # The others are not about the spec; with it they would be written with every change of the spec.
            standing.generation if kind == ConditionType.APPLIED else 0,
        )
        for kind, verdict in verdicts(standing, facts, found).items()
    ]
    ranked = sorted(standing.violations, key=lambda each: _rank(each, standing.untold))
    return state.StateStatus(
        observed_generation=standing.generation,
        profile=standing.profile,
        facts=facts,
        conditions=conditions,
        violations=ranked[: state.MAX_VIOLATIONS],
        violations_omitted=max(0, len(ranked) - state.MAX_VIOLATIONS),
        proposal=standing.cost,
    )


def as_json(status: state.StateStatus) -> dict[str, Any]:
    """As it stands in the object: defaults left out."""
    built: dict[str, Any] = msgspec.to_builtins(status)
    return built


def essence(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status less what grows all the time: where two of these are equal, a write can wait."""
    conditions = [{**condition, "message": "", "observedGeneration": 0} for condition in status.get("conditions", [])]
    listed = sorted(
        (
            # That a pod took swap while exposed is worth an event, which waits for this.
            violation.get("reason") == ViolationReason.EXPOSED and bool(violation.get("swapBytes")),
            *[violation.get(field, "") for field in _ESSENTIAL],
            *violation.get("causes", ()),
        )
        for violation in status.get("violations", [])
    )
    cost = {key: value for key, value in status.get("proposal", {}).items() if key != "bytes"}
    lean = {"conditions": conditions, "violations": listed, "violationsOmitted": 0, "proposal": cost}
    return {**status, **lean, "observedGeneration": 0}
