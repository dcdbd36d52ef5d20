"""Collects how things stand on the node, and makes the status of its NodeSwapState of that."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from swapwarden.agent.desired import problems, resolve, spec
from swapwarden.agent.host import cgroupfs, inotify
from swapwarden.agent.inventory import board, exposure, inventory, layout, records
from swapwarden.agent.report import violations
from swapwarden.api import names, state
from swapwarden.api.conditions import ConditionType
from swapwarden.api.violations import FAILURES, ViolationReason
from swapwarden.telemetry import metrics

AWAITING = metrics.gauge(
    "swapwarden_agent_pods_awaiting_state",
    "New pods that no state includes yet; most get no swap until then.",
)
FAILING = metrics.gauge(
    "swapwarden_agent_failing_cgroups",
    "Cgroups that the agent cannot bring to their desired values, by reason: InternalError, WriteFailed, Unreadable or"
    " AccessDenied (docs/agent.md).",
    labels=("reason",),
)

_ORDER: Final[dict[str, int]] = {reason: number for number, reason in enumerate(ViolationReason)}
_UNMANAGED: Final = resolve.Handling.UNMANAGED
_ESSENTIAL: Final = ("pod", "container", "reason")
"""Fields of a violation whose change is written without delay."""


class ConditionVerdict(NamedTuple):
    """A condition without the time of its last transition."""

    status: str
    reason: str
    message: str


class Recent(NamedTuple):
    """Events of the last minutes."""

    drifting: int = 0
    """Pods that another writer raised above their value."""
    contested: int = 0
    """Cgroups left to another writer, which lowers them; without those that a container may have made itself."""
    others: str = ""
    """A description of other writers than systemd; empty if none is known."""
    lost: int = 0
    """How often the kernel dropped events; all cgroups were compared after each."""
    unreported: frozenset[str] = frozenset()
    """UIDs of pods that took swap while exposed, which no status has reported."""
    exposures: Sequence[state.ExposedPod] = ()
    """Pods that were above their values in the last minutes, or whose exposure no status has reported yet."""


class Tree(NamedTuple):
    """The place of the pods' cgroups."""

    root: str | None
    """The cgroup above all pods; None if none was found."""
    problem: layout.TreeError | None = None
    """Why none was found."""


class Snapshot(NamedTuple):
    """The agent's records at one time, from which status and metrics are built."""

    spec: spec.NodeSpec | None
    """The state in force."""
    generation: int
    """Of the state whose values were applied last."""
    tree: Tree
    violations: Sequence[state.Violation]
    degraded: str = ""
    """Why not everything can be watched, or empty."""
    refused: str = ""
    """Why the newest state was refused, or empty."""
    to_restore: int = 0
    """Files that still hold a value that the agent must restore."""
    unseen: int = 0
    """Files without a failure whose desired value was not read back yet."""
    recent: Recent = Recent()
    cost: state.PreviewCost | None = None
    """How much swap in use the preview would take from pods; None without a preview."""
    settings: Sequence[problems.SettingProblem] | None = None
    """Settings of the node that differ from its profile; None if none must be set or restored."""
    guarantee: ConditionVerdict | None = None
    """The condition StrictInEffect, or None."""

    @property
    def mode(self) -> names.Mode:
        """Of the state in force."""
        return resolve.mode_of(self.spec)

    @property
    def passing(self) -> bool:
        """Whether it has events of the last minutes: no later event marks their end."""
        return bool(self.recent.exposures or self.recent.drifting or self.recent.others or self.recent.lost)


def collect(
    known: inventory.Inventory,
    progress: board.ReconcileProgress,
    *,
    cgroups: cgroupfs.Cgroups,
    now: float,
    guarantee: ConditionVerdict | None = None,
    refused: str = "",
) -> Snapshot:
    """Build a snapshot from the records. `now` is in monotonic seconds."""
    current = progress.spec
    audit = current is not None and current.mode is names.Mode.AUDIT
    found: list[state.Violation | None] = []
    exposures: list[state.ExposedPod] = []
    unreported: list[str] = []
    to_restore = drifting = unseen = contested = 0
    for file in known.files():
        unseen += file.status.reason is None and file.status.confirmed != file.desired.value is not _UNMANAGED
        contested += file.contention is not None and violations.yielded(file) and not file.is_inner
        to_restore += file.status.to_restore
        found.append(violations.of_file(file, audit=audit))
    for pod in known.pods.values():
        drifting += now - pod.tally.rewritten < exposure.RECENT_SECONDS
        # It took swap, by a known cause, that no status has reported.
        is_unreported = pod.tally.attributed > pod.tally.reported
        if is_unreported or now - pod.tally.last < exposure.RECENT_SECONDS:
            unreported += [pod.uid] * is_unreported
            exposures.append(violations.of_exposure(pod))
        # A pod without a container runs nothing, such as the rest of a deleted pod.
        if pod.containers and now - pod.since >= resolve.AWAIT_SECONDS and _awaits_entry(current, pod):
            found.append(violations.of_silence(pod))
    found += [violations.of_failure(each) for each in progress.failures]
    found += [violations.of_unsupported(each) for each in (current.unsupported if current else ())]
    return Snapshot(
        spec=current,
        generation=progress.generation,
        tree=Tree(None if known.root is None else known.root.path, progress.problem),
        violations=violations.once(each for each in found if each is not None),
        degraded=progress.degraded,
        refused=refused,
        to_restore=to_restore + progress.to_restore,
        unseen=unseen,
        recent=Recent(drifting, contested, progress.others, progress.lost, frozenset(unreported), exposures),
        cost=_cost(known, current, cgroups),
        settings=progress.settings,
        guarantee=guarantee,
    )


def _awaits_entry(current: spec.NodeSpec | None, pod: records.Pod) -> bool:
    return resolve.awaits_entry(current, pod.uid, origin=pod.origin, last=pod.last)


def _cost(
    known: inventory.Inventory, current: spec.NodeSpec | None, cgroups: cgroupfs.Cgroups
) -> state.PreviewCost | None:
    """Return how much swap in use the preview would take from pods; None without a preview."""
    if current is None or current.preview is None:
        return None
    preview = current.preview
    over = []
    for pod in known.pods.values():
        if pod.uid in preview.pods:
            with contextlib.suppress(cgroupfs.CgroupError):  # if it matters, the file's own failure reports it
                over.append(cgroups.read(cgroupfs.join(pod.path, cgroupfs.SWAP_CURRENT)) - preview.pods[pod.uid])
    taken = [each for each in over if each > 0]
    return state.PreviewCost(state.ProfileRef(preview.profile, preview.generation), len(taken), sum(taken))


def publish(known: inventory.Inventory, progress: board.ReconcileProgress) -> None:
    """Set the metrics of all pods, also while the API server has no object for a status."""
    AWAITING.set(sum(_awaits_entry(progress.spec, pod) for pod in known.pods.values()))
    failing = collections.Counter(file.status.reason for file in known.files() if file.status.reason)
    failing.update(each.reason for each in progress.failures)
    for reason in FAILURES:
        FAILING.set(failing[reason], reason.value)
    inventory.PODS.set(len(known.pods))
    inotify.WATCHES.set(progress.watches)
    exposure.flush()


def _rank(violation: state.Violation) -> tuple[int, bool, str, str]:
    order = _ORDER.get(violation.reason, len(_ORDER))
    if violation.reason == ViolationReason.YIELDED and violation.container:
        order = _ORDER[ViolationReason.ACCESS_DENIED]
    # A pod's own limit also bounds its containers.
    within = bool(violation.container)
    return order, within, violation.pod, violation.container


def _rank_exposure(exposure: state.ExposedPod, unreported: Container[str]) -> tuple[bool, int, str]:
    return not (exposure.causes and exposure.pod in unreported), -exposure.milliseconds, exposure.pod


def build(
    snapshot: Snapshot,
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
        preview_cost=snapshot.cost,
    )


def as_json(status: state.StateStatus) -> dict[str, Any]:
    """Return the status as in the object, without defaults."""
    built: dict[str, Any] = msgspec.to_builtins(status)
    return built


def essence(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status without values that grow all the time: if two of these are equal, a write can wait."""
    conditions = [{**condition, "message": "", "observedGeneration": 0} for condition in status.get("conditions", [])]
    listed = sorted(tuple(each.get(field, "") for field in _ESSENTIAL) for each in status.get("violations", []))
    exposed = sorted(
        # The controller's event about swap that a pod took while exposed waits for the first of these.
        (bool(each.get("swapBytes")), each.get("pod", ""), each.get("since", ""), *each.get("causes", ()))
        for each in status.get("exposures", [])
    )
    cost = {key: value for key, value in status.get("previewCost", {}).items() if key != "bytes"}
    lean = {"conditions": conditions, "violations": listed, "exposures": exposed, "previewCost": cost}
    return {**status, **lean, "violationsOmitted": 0, "exposuresOmitted": 0, "observedGeneration": 0}
