"""Builds the status of the node's NodeSwapState from a snapshot: its conditions, and lists of bounded length.

Messages are for people. Conditions are metrics as well.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from swapwarden.agent.desired import resolve
from swapwarden.agent.inventory import board
from swapwarden.agent.node import diagnostics
from swapwarden.agent.report import collector, holds
from swapwarden.agent.report.collector import ConditionVerdict
from swapwarden.api import names, state
from swapwarden.api.conditions import REWRITTEN, AppliedReason, ConditionType, MemoryQoSReason
from swapwarden.api.violations import ViolationReason
from swapwarden.telemetry import metrics

CONDITIONS = metrics.reading(
    "gauge",
    "swapwarden_agent_condition",
    "1 for the current status and reason of each condition of the node's NodeSwapState, also while the API server is"
    " away.",
    labels=("type", "status", "reason"),
)

_ORDER: Final[dict[str, int]] = {reason: number for number, reason in enumerate(ViolationReason)}
_ESSENTIAL: Final = ("pod", "container", "reason")
"""Fields of a violation whose change is written without delay."""
_FAILING: Final = {
    ViolationReason.INTERNAL_ERROR: "met an unexpected error in the agent",
    ViolationReason.WRITE_FAILED: "cannot be written",
    ViolationReason.UNREADABLE: "cannot be listed",
    ViolationReason.ACCESS_DENIED: "are closed to the agent by their own processes",
}
_DEGRADING: Final = (ViolationReason.INTERNAL_ERROR, ViolationReason.WRITE_FAILED)
"""Without the failures that a container can cause in its own cgroup: any user who can run one could stop a profile's
rollout. Cgroups that cannot be listed make the agent poll, with the reason Polling."""
_MEANT: Final = frozenset({names.Problem.AUDIT, names.Problem.NO_EFFECT})
"""Problems of settings that the author of the profile must have intended."""
_PASSING: Final = frozenset(
    {names.Problem.NOT_FOUND, names.Problem.DRAINING, names.Problem.RELOAD_NEEDED, names.Problem.PENDING} | _MEANT
)
"""Problems of settings that do not make a node degraded."""
_OWNED: Final = {
    resolve.Owned.PROTECTION: "memory.min and memory.low (TieredReservation)",
    resolve.Owned.THROTTLING: "memory.high of containers (memoryThrottlingFactor)",
}
_NAMED_FILES: Final = 3


def _compatible(snapshot: collector.Snapshot, facts: state.Facts) -> ConditionVerdict:
    if facts.cgroup_version != 2:
        return ConditionVerdict("False", "NoCgroupV2", "swap limits need cgroup v2 at the agent's --cgroup-root")
    if snapshot.tree.problem is not None and snapshot.tree.problem.reason == "NoSwapController":
        return ConditionVerdict("False", snapshot.tree.problem.reason, str(snapshot.tree.problem))
    if snapshot.tree.root is None:
        reason = "Searching" if snapshot.tree.problem is None else snapshot.tree.problem.reason
        return ConditionVerdict("Unknown", reason, str(snapshot.tree.problem or "looking for the cgroups of pods"))
    return ConditionVerdict("True", ConditionType.COMPATIBLE, f"pods are below /{snapshot.tree.root}")


def _applied(snapshot: collector.Snapshot, compatible: ConditionVerdict) -> ConditionVerdict:  # noqa: PLR0911 a table, one line per row
    if compatible.status != "True":
        return ConditionVerdict(
            "False",
            AppliedReason.INCOMPATIBLE if compatible.status == "False" else AppliedReason.NO_POD_TREE,
            compatible.message,
        )
    if snapshot.spec is None:
        return ConditionVerdict("Unknown", ViolationReason.AWAITING_STATE, "no state has arrived yet")
    mode, failing = snapshot.spec.mode, _failing(snapshot)
    # If nothing must be written, a cgroup that its owner locks the agent out of does no harm. One with a value that the
    # agent must restore counts in to_restore.
    if failing is not None and (mode is names.Mode.ENFORCE or failing.reason != ViolationReason.ACCESS_DENIED):
        return failing
    if snapshot.unseen:
        message = f"{snapshot.unseen} cgroups are not confirmed to hold their desired values yet"
        return ConditionVerdict("False", AppliedReason.RECONCILING, message)
    if mode is not names.Mode.ENFORCE and snapshot.to_restore:
        return ConditionVerdict("False", AppliedReason.RESTORING, f"{snapshot.to_restore} files are yet to be restored")
    if mode is names.Mode.RESTORE:
        return ConditionVerdict("True", AppliedReason.RESTORED, "all cgroups hold their earlier values")
    if mode is names.Mode.AUDIT:
        return ConditionVerdict(
            "True", ViolationReason.AUDIT, "nothing is written; violations has the writes of Enforce"
        )
    draining = sum(violation.reason == ViolationReason.DRAINING for violation in snapshot.violations)
    if draining:
        return ConditionVerdict(
            "False", ViolationReason.DRAINING, f"{draining} cgroups have more swap in use than their limit"
        )
    yielded = sum(violation.reason == ViolationReason.YIELDED for violation in snapshot.violations)
    if yielded:
        return ConditionVerdict(
            "False",
            ViolationReason.YIELDED,
            f"{yielded} cgroups hold less than desired: another writer keeps lowering them",
        )
    unknown = [each for each in snapshot.violations if each.reason == ViolationReason.NOT_SUPPORTED]
    if unknown:
        listed = ", ".join(each.setting for each in unknown)
        return ConditionVerdict("False", ViolationReason.NOT_SUPPORTED, f"this agent does not know {listed}: update it")
    # The reason says all. This is the usual condition, and each start of a pod stores it about three times in etcd.
    return ConditionVerdict("True", AppliedReason.AS_SPECIFIED, "")


def _failing(snapshot: collector.Snapshot) -> ConditionVerdict | None:
    """Return the worst failure that keeps cgroups from their values; None without one."""
    for reason, what in _FAILING.items():
        failed = sum(violation.reason == reason for violation in snapshot.violations)
        if failed:
            return ConditionVerdict("False", reason, f"{failed} cgroups {what}; violations says why")
    return None


def _degraded(snapshot: collector.Snapshot) -> ConditionVerdict:
    if snapshot.refused:
        return ConditionVerdict("True", "StateRefused", snapshot.refused)
    for reason in _DEGRADING:
        failed = [violation.message for violation in snapshot.violations if violation.reason == reason]
        if failed:
            return ConditionVerdict("True", reason, f"{len(failed)} cgroups {_FAILING[reason]}; the first: {failed[0]}")
    failing = [short for short in snapshot.settings or () if short.reason not in _PASSING]
    if failing:
        return ConditionVerdict("True", "SettingsNotApplied", _settings(failing).message)
    if snapshot.degraded:
        return ConditionVerdict("True", "Polling", snapshot.degraded)
    return ConditionVerdict("False", "AsExpected", "")


def _ready(applied: ConditionVerdict, degraded: ConditionVerdict) -> ConditionVerdict:
    """Sum up; Applied is true on compatible nodes only."""
    if degraded.status == "True":
        return ConditionVerdict("False", ConditionType.DEGRADED, "")
    return msgspec.structs.replace(applied, message="")


def _drift(recent: collector.Recent) -> ConditionVerdict:
    if recent.contested:
        reason: str = ViolationReason.YIELDED
        message = f"{recent.contested} cgroups are left to another writer, which keeps lowering them"
    elif recent.drifting or recent.others:
        # systemd's writes end by themselves; other writers remain.
        reason = "OtherWriter" if recent.others else REWRITTEN
        drifting = f"{recent.drifting} running pods were above their limit recently; repaired"
        message = drifting if recent.drifting else "values were overwritten recently; repaired"
    else:
        return ConditionVerdict("False", "Quiet", "")
    return ConditionVerdict("True", reason, f"{message}; {recent.others}" if recent.others else message)


def _memory(memory: collector.Memory) -> ConditionVerdict | None:
    """Return the condition MemoryQoS; None if no state sets files of memory."""
    if memory.kubelets:
        rows = sorted(_OWNED[owned] for owned in memory.kubelets)
        return ConditionVerdict(
            "False",
            MemoryQoSReason.KUBELET_OWNED,
            f"the kubelet's configuration has it set {' and '.join(rows)}: these files are left to it. Take"
            " memoryReservationPolicy and memoryThrottlingFactor out of its configuration, or memoryQoS out of the"
            " profile",
        )
    if memory.foreign:
        first = ", ".join(memory.foreign[:_NAMED_FILES])
        return ConditionVerdict(
            "False",
            MemoryQoSReason.KUBELET_OWNED,
            f"{len(memory.foreign)} files hold numbers of the kubelet or of another writer, which stay: {first}",
        )
    if memory.files:
        return ConditionVerdict("True", MemoryQoSReason.AS_SPECIFIED, "")
    return None


def _settings(shortfalls: Sequence[board.SettingProblem]) -> ConditionVerdict:
    if not shortfalls:
        return ConditionVerdict("True", "AsSpecified", "all settings of the node have their desired values")
    order = list(names.Problem)
    worst = sorted(shortfalls, key=lambda short: order.index(short.reason))
    message = "; ".join(f"{short.name}: {short.message}" for short in worst)
    if worst[0].reason is names.Problem.PENDING:
        return ConditionVerdict("Unknown", worst[0].reason, message)
    return ConditionVerdict("True" if worst[0].reason in _MEANT else "False", worst[0].reason, message)


def verdicts(
    snapshot: collector.Snapshot, facts: state.Facts, diagnosed: Iterable[diagnostics.Diagnostic] = ()
) -> Mapping[str, ConditionVerdict]:
    """Return the conditions of `snapshot` by type; a condition from `diagnosed` exists only while it is true."""
    compatible = _compatible(snapshot, facts)
    applied, degraded = _applied(snapshot, compatible), _degraded(snapshot)
    said: dict[str, ConditionVerdict] = {
        ConditionType.READY: _ready(applied, degraded),
        ConditionType.COMPATIBLE: compatible,
        ConditionType.APPLIED: applied,
        ConditionType.DEGRADED: degraded,
        ConditionType.DRIFTED: _drift(snapshot.recent),
        **({} if snapshot.guarantee is None else {ConditionType.STRICT_IN_EFFECT: snapshot.guarantee}),
    }
    if (memory := _memory(snapshot.memory)) is not None:
        said[ConditionType.MEMORY_QOS] = memory
    if snapshot.settings is not None:
        said[ConditionType.SETTINGS_APPLIED] = _settings(snapshot.settings)
    return said | {one.kind: ConditionVerdict("True", one.reason, f"{one.message}; {one.remedy}") for one in diagnosed}


def publish(verdicts: Mapping[str, ConditionVerdict]) -> None:
    """Publish all conditions, by type."""
    CONDITIONS.hold({(kind, verdict.status, verdict.reason): 1 for kind, verdict in verdicts.items()})


def _rank(violation: state.Violation) -> tuple[int, bool, str, str]:
    order = _ORDER.get(violation.reason, len(_ORDER))
    if violation.reason == ViolationReason.YIELDED and violation.container:
        order = _ORDER[ViolationReason.ACCESS_DENIED]
    # A pod's own limit also bounds its containers.
    within = bool(violation.container)
    return order, within, violation.pod, violation.container


def _rank_exposure(exposure: state.ExposedPod, unreported: Container[str]) -> tuple[bool, int, str]:
    return not (exposure.causes and exposure.pod in unreported), -exposure.milliseconds, exposure.pod


def _rank_throttled(one: state.ThrottledCgroup) -> tuple[bool, int, int, str, str]:
    return not one.guard, -one.trips, -one.milliseconds, one.pod, one.container


def build(
    snapshot: collector.Snapshot,
    facts: state.Facts,
    verdicts: Mapping[str, ConditionVerdict],
    previous: Iterable[Mapping[str, Any]],
    now: str,
) -> state.StateStatus:
    """Return the status that reports a snapshot, with the conditions' verdicts by type.

    `previous` are the conditions of the status before, `now` is RFC 3339.

    Of more than state.MAX_EXPOSURES exposures, those that no status has reported yet precede longer ones.
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
            # The others do not depend on the spec; with it they would be written after every change of the spec.
            snapshot.generation if kind == ConditionType.APPLIED else 0,
        )
        for kind, verdict in verdicts.items()
    ]
    profile = ("", 0) if snapshot.spec is None else snapshot.spec.profile
    ranked = sorted(snapshot.violations, key=_rank)
    throttled = sorted(snapshot.throttled, key=_rank_throttled)
    exposures = sorted(snapshot.recent.exposures, key=lambda each: _rank_exposure(each, snapshot.recent.unreported))
    return state.StateStatus(
        observed_generation=snapshot.generation,
        profile_ref=state.ProfileRef(*profile) if profile[0] else None,
        facts=facts,
        conditions=conditions,
        violations=ranked[: state.MAX_VIOLATIONS],
        violations_omitted=max(0, len(ranked) - state.MAX_VIOLATIONS),
        exposures=exposures[: state.MAX_EXPOSURES],
        exposures_omitted=max(0, len(exposures) - state.MAX_EXPOSURES),
        throttled=throttled[: state.MAX_THROTTLED],
        throttled_omitted=max(0, len(throttled) - state.MAX_THROTTLED),
        preview_cost=snapshot.cost,
    )


def essence(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status without values that grow all the time: if two of these are equal, a write can wait."""
    conditions = [{**condition, "message": "", "observedGeneration": 0} for condition in status.get("conditions", [])]
    listed = sorted(tuple(each.get(field, "") for field in _ESSENTIAL) for each in status.get("violations", []))
    exposed = sorted(
        # The controller's event about swap that a pod took while exposed waits for the first of these.
        (bool(each.get("swapBytes")), each.get("pod", ""), each.get("since", ""), *each.get("causes", ()))
        for each in status.get("exposures", [])
    )
    # Of those that are only throttled, at least one pause for counters passes before they are listed.
    eased = sorted(
        (each.get("pod", ""), each.get("container", ""), each.get("guard", ""), each.get("trips", 0))
        for each in status.get("throttled", [])
        if each.get("trips")
    )
    cost = {key: value for key, value in status.get("previewCost", {}).items() if key != "bytes"}
    lean = {
        "conditions": conditions,
        "violations": listed,
        "exposures": exposed,
        "throttled": eased,
        "previewCost": cost,
    }
    lean["holds"] = holds.essence(status.get("holds", {}))
    omitted = {"violationsOmitted": 0, "exposuresOmitted": 0, "throttledOmitted": 0}
    return {**status, **lean, **omitted, "observedGeneration": 0}
