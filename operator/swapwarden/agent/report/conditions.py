"""Builds the conditions of a NodeSwapState from a snapshot, and publishes them as metrics. Messages are for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from swapwarden.agent.desired import problems
from swapwarden.agent.drift import systemd_zero
from swapwarden.agent.host import systemd_dropins
from swapwarden.agent.node import diagnostics
from swapwarden.agent.report.status import ConditionVerdict, Recent, Snapshot
from swapwarden.api import names, state
from swapwarden.api.conditions import REWRITTEN, AppliedReason, ConditionType
from swapwarden.api.violations import ViolationReason
from swapwarden.telemetry import metrics

CONDITIONS = metrics.reading(
    "gauge",
    "swapwarden_agent_condition",
    "1 for the current status and reason of each condition of the node's NodeSwapState, also while the API server is"
    " away.",
    labels=("type", "status", "reason"),
)

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
_NAMED: Final = 8
"""Pods that a message names."""


def _compatible(snapshot: Snapshot, facts: state.Facts) -> ConditionVerdict:
    if facts.cgroup_version != 2:
        return ConditionVerdict("False", "NoCgroupV2", "swap limits need cgroup v2 at the agent's --cgroup-root")
    if snapshot.tree.problem is not None and snapshot.tree.problem.reason == "NoSwapController":
        return ConditionVerdict("False", snapshot.tree.problem.reason, str(snapshot.tree.problem))
    if snapshot.tree.root is None:
        reason = "Searching" if snapshot.tree.problem is None else snapshot.tree.problem.reason
        return ConditionVerdict("Unknown", reason, str(snapshot.tree.problem or "looking for the cgroups of pods"))
    return ConditionVerdict("True", ConditionType.COMPATIBLE, f"pods are below /{snapshot.tree.root}")


def _applied(snapshot: Snapshot, compatible: ConditionVerdict) -> ConditionVerdict:  # noqa: PLR0911 a table, one line per row
    if compatible.status != "True":
        return ConditionVerdict(
            "False",
            AppliedReason.INCOMPATIBLE if compatible.status == "False" else AppliedReason.NO_POD_TREE,
            compatible.message,
        )
    if snapshot.spec is None:
        return ConditionVerdict("Unknown", ViolationReason.AWAITING_STATE, "no state has arrived yet")
    failing = _failing(snapshot)
    # If nothing must be written, a cgroup that its owner locks the agent out of does no harm. One with a value that the
    # agent must restore counts in to_restore.
    if failing is not None and (snapshot.mode is names.Mode.ENFORCE or failing.reason != ViolationReason.ACCESS_DENIED):
        return failing
    if snapshot.unseen:
        message = f"{snapshot.unseen} cgroups are not confirmed to hold their desired values yet"
        return ConditionVerdict("False", AppliedReason.RECONCILING, message)
    if snapshot.mode is not names.Mode.ENFORCE and snapshot.to_restore:
        return ConditionVerdict("False", AppliedReason.RESTORING, f"{snapshot.to_restore} files are yet to be restored")
    if snapshot.mode is names.Mode.RESTORE:
        return ConditionVerdict("True", AppliedReason.RESTORED, "all cgroups hold their earlier values")
    if snapshot.mode is names.Mode.AUDIT:
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
    return ConditionVerdict("True", AppliedReason.AS_SPECIFIED, "all cgroups hold their desired values")


def _failing(snapshot: Snapshot) -> ConditionVerdict | None:
    """Return the worst failure that keeps cgroups from their values; None without one."""
    for reason, what in _FAILING.items():
        failed = sum(violation.reason == reason for violation in snapshot.violations)
        if failed:
            return ConditionVerdict("False", reason, f"{failed} cgroups {what}; violations says why")
    return None


def _degraded(snapshot: Snapshot) -> ConditionVerdict:
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
    return applied._replace(message="")


def _drift(recent: Recent) -> ConditionVerdict:
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


def _settings(shortfalls: Sequence[problems.SettingProblem]) -> ConditionVerdict:
    if not shortfalls:
        return ConditionVerdict("True", "AsSpecified", "all settings of the node have their desired values")
    order = list(names.Problem)
    worst = sorted(shortfalls, key=lambda short: order.index(short.reason))
    message = "; ".join(f"{short.name}: {short.message}" for short in worst)
    if worst[0].reason is names.Problem.PENDING:
        return ConditionVerdict("Unknown", worst[0].reason, message)
    return ConditionVerdict("True" if worst[0].reason in _MEANT else "False", worst[0].reason, message)


def verdicts(
    snapshot: Snapshot, facts: state.Facts, found: Iterable[diagnostics.Diagnostic] = ()
) -> Mapping[str, ConditionVerdict]:
    """Return the conditions of `snapshot` by type; a condition from `found` exists only while it is true."""
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
    if snapshot.settings is not None:
        said[ConditionType.SETTINGS_APPLIED] = _settings(snapshot.settings)
    return said | {each.kind: ConditionVerdict("True", each.reason, f"{each.message}; {each.remedy}") for each in found}


def strict(view: systemd_zero.ZeroEvidence, *, mounted: bool, failed: str) -> ConditionVerdict | None:
    """Return the condition StrictInEffect; None if guarantee Strict neither is nor was in use.

    `mounted`: the agent installs the files itself; `failed`: why it could not install or remove them.
    """
    if not view.wanted:
        return _strict_left(view, failed)
    if view.root is None:
        return ConditionVerdict("Unknown", "NoPodTree", "looking for the cgroups of pods")
    begin = systemd_zero.prefix(view.root)
    if begin is None:
        return ConditionVerdict(
            "False",
            "CgroupfsDriver",
            "the kubelet's cgroup driver is cgroupfs: nothing overwrites the agent's values, even while no agent runs;"
            " but a pod that starts meanwhile has no limit until one runs",
        )
    if failed:
        return ConditionVerdict("False", "InstallFailed", f"the drop-in files cannot be installed: {failed}")
    if view.proved:
        return _strict_in_force(view)
    return _strict_not_in_force(view, begin, mounted=mounted)


def _strict_in_force(view: systemd_zero.ZeroEvidence) -> ConditionVerdict:
    if not view.others:
        return ConditionVerdict(
            "True", "InForce", "systemd makes Burstable and BestEffort pods at 0, and takes them back to it"
        )
    return ConditionVerdict(
        "True",
        "OlderPods",
        f"systemd makes Burstable and BestEffort pods at 0; {view.others} of {view.others + len(view.held)} have not"
        " had a 0 from systemd yet: pods older than the files are covered from its next reload on"
        " (systemctl daemon-reload)",
    )


def _strict_not_in_force(view: systemd_zero.ZeroEvidence, begin: str, *, mounted: bool) -> ConditionVerdict:
    first, second = (
        f"{systemd_dropins.UNITS}/{name}/{systemd_dropins.FILE}" for name in systemd_dropins.folders(begin)
    )
    if mounted:
        remedy = f"{first} and {second} are installed"
        if not view.refuted:
            return ConditionVerdict("Unknown", "AwaitingEvidence", f"{remedy}; no pod has started at 0 yet")
        remedy += ": find what overrides them with `systemctl cat` of a pod's slice"
    else:
        remedy = (
            f"install {first} and {second} as `swapwarden agent --print-drop-ins={begin}` prints them,"
            " or set agent.dropIns.mount in the chart"
        )
    if view.refuted:
        return ConditionVerdict("False", "NotInForce", f"systemd writes no limit to pods' slices; {remedy}")
    return ConditionVerdict("Unknown", "NoEvidence", f"no pod had 0 before the agent wrote to it; {remedy}")


def _strict_left(view: systemd_zero.ZeroEvidence, failed: str) -> ConditionVerdict | None:
    if failed:
        return ConditionVerdict("False", "RemoveFailed", f"the drop-in files cannot be removed: {failed}")
    if not view.held:
        return None
    more = f" and {len(view.held) - _NAMED} more" if len(view.held) > _NAMED else ""
    return ConditionVerdict(
        "False",
        "ReloadNeeded",
        f"systemd takes {len(view.held)} pods' slices back to 0 until it reads its units again: run `systemctl"
        f" daemon-reload` on the node (first remove {systemd_dropins.FILE} if you installed it yourself):"
        f" {', '.join(view.held[:_NAMED])}{more}",
    )


def publish(verdicts: Mapping[str, ConditionVerdict]) -> None:
    """Publish all conditions, by type."""
    CONDITIONS.hold({(kind, verdict.status, verdict.reason): 1 for kind, verdict in verdicts.items()})
