"""Collects how things stand on the node: violations, exposures, and counts of the files' statuses.

A violation is a cgroup that does not hold its desired value; an exposure, one that was above it for a while.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.host import cgroup_files, cgroupfs, inotify
from swapwarden.agent.inventory import board, exposure, inventory, layout, records
from swapwarden.agent.node import diagnostics
from swapwarden.api import names, state
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

_OF_TENANTS: Final = frozenset({ViolationReason.ACCESS_DENIED, ViolationReason.YIELDED})
_UNMANAGED: Final = resolve.Handling.UNMANAGED


class ConditionVerdict(msgspec.Struct, frozen=True):
    """A condition without the time of its last transition."""

    status: str
    reason: str
    message: str


class Recent(msgspec.Struct, frozen=True):
    """Events of the last minutes."""

    drifting: int = 0
    """Pods that another writer raised above their value."""
    contested: int = 0
    """Cgroups left to another writer, which lowers them; without those that a container may have made itself."""
    others: str = ""
    """A description of other writers than systemd; empty if none is known."""
    lost: int = 0
    """How often the kernel dropped events; all cgroups were compared after each."""
    storm: bool = False
    """Whether many cgroups stood still at memory.high at once."""
    unreported: frozenset[str] = frozenset()
    """UIDs of pods that took swap while exposed, which no status has reported."""
    exposures: Sequence[state.ExposedPod] = ()
    """Pods that were above their values in the last minutes, or whose exposure no status has reported yet."""


class Memory(msgspec.Struct, frozen=True):
    """The files of memory that a state sets."""

    files: int = 0
    """How many files the agent sets."""
    foreign: tuple[str, ...] = ()
    """Paths of memory.* files that another writer owns; the agent leaves their values."""
    kubelets: frozenset[resolve.Owned] = frozenset()
    """Files that the kubelet sets by a policy of its own."""
    shortfall: diagnostics.Shortfall | None = None
    """The cgroup above all pods that makes their protection ineffective; None without one."""


class Tree(msgspec.Struct, frozen=True):
    """The place of the pods' cgroups."""

    root: str | None
    """The cgroup above all pods; None if none was found."""
    problem: layout.TreeError | None = None
    """Why no cgroup above all pods was found."""


class Snapshot(msgspec.Struct, frozen=True):
    """The agent's records at one time, from which status and metrics are built."""

    spec: spec.NodeSpec | None
    """The state in force."""
    generation: int
    """Generation of the state whose values were applied last."""
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
    settings: Sequence[board.SettingProblem] | None = None
    """Settings of the node that differ from its profile; None if none must be set or restored."""
    guarantee: ConditionVerdict | None = None
    """The condition StrictInEffect, or None."""
    memory: Memory = Memory()
    throttled: Sequence[state.ThrottledCgroup] = ()
    """Cgroups that were throttled in the last minutes, or whose memory.high the guard has raised."""

    @property
    def passing(self) -> bool:
        """Whether it has events of the last minutes: no later event marks their end."""
        recent = self.recent
        of_memory = recent.storm or self.throttled
        return bool(recent.exposures or recent.drifting or recent.others or recent.lost or of_memory)


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
    violations: list[state.Violation | None] = []
    exposures: list[state.ExposedPod] = []
    unreported: list[str] = []
    foreign: list[str] = []
    beside: list[str] = []
    """Paths of other writers' memory.high beside the plan's, such as that of the only container of a throttled pod."""
    throttled: list[state.ThrottledCgroup] = []
    to_restore = drifting = unseen = contested = of_memory = 0
    for file in known.files():
        unseen += file.status.reason is None and file.status.confirmed != file.desired.value is not _UNMANAGED
        contested += file.contention is not None and yielded(file) and not file.is_inner
        to_restore += file.status.to_restore
        if not file.usage and isinstance(file.desired.if_enforced, int):
            of_memory += 1
            foreign += [f"/{file.name}"] * (file.status.foreign or file.throttling.foreign > 0)
        elif file.throttling.foreign:
            beside.append(f"/{file.name}")
        if file.throttling.why or now - file.throttling.last < exposure.RECENT_SECONDS:
            throttled.append(of_throttling(file))
        violations.append(of_file(file, audit=audit))
    for pod in known.pods.values():
        drifting += now - pod.tally.rewritten < exposure.RECENT_SECONDS
        # It took swap, by a known cause, that no status has reported.
        is_unreported = pod.tally.attributed > pod.tally.reported
        if is_unreported or now - pod.tally.overlap.last < exposure.RECENT_SECONDS:
            unreported += [pod.uid] * is_unreported
            exposures.append(of_exposure(pod))
        # A pod without a container runs nothing, such as the rest of a deleted pod.
        if pod.containers and now - pod.since >= resolve.AWAIT_SECONDS and _awaits_entry(current, pod):
            violations.append(of_silence(pod))
    if beside and _plans(current, cgroupfs.MEMORY_HIGH):
        foreign += beside
    violations += [of_failure(each) for each in progress.failures]
    violations += [of_unsupported(each) for each in (current.unsupported if current else ())]
    return Snapshot(
        spec=current,
        generation=progress.generation,
        tree=Tree(None if known.root is None else known.root.path, progress.problem),
        violations=once(each for each in violations if each is not None),
        degraded=progress.degraded,
        refused=refused,
        to_restore=to_restore + progress.to_restore,
        unseen=unseen,
        recent=Recent(
            drifting,
            contested,
            progress.others,
            progress.lost,
            now - progress.memory.storm_at < exposure.RECENT_SECONDS,
            frozenset(unreported),
            exposures,
        ),
        cost=_cost(known, current, cgroups),
        settings=progress.settings,
        guarantee=guarantee,
        memory=Memory(
            of_memory,
            tuple(foreign),
            progress.memory.kubelet_owns if _plans_memory(current) else frozenset(),
            _shortfall(known, progress, cgroups) if current is not None and current.above else None,
        ),
        throttled=throttled,
    )


def _plans_memory(current: spec.NodeSpec | None) -> bool:
    """Return whether a state sets files of memory in cgroups of pods."""
    if current is None:
        return False
    of_pods = ((pod.settings, pod.each or {}, *pod.containers.values()) for pod in current.pods.values())
    return bool(current.above) or any(each.keys() - {cgroupfs.SWAP_MAX} for settings in of_pods for each in settings)


def _plans(current: spec.NodeSpec | None, name: str) -> bool:
    """Return whether a state sets a file of this name in a cgroup of a pod or container."""
    pods = () if current is None else current.pods.values()
    return any(name in each for pod in pods for each in (pod.settings, pod.each or {}, *pod.containers.values()))


def _shortfall(
    known: inventory.Inventory, progress: board.ReconcileProgress, cgroups: cgroupfs.Cgroups
) -> diagnostics.Shortfall | None:
    """Return the cgroup above all pods that protects less than the agent has that of all pods protect."""
    current, root = progress.spec, known.root_path
    if current is None or root is None or current.mode is not names.Mode.ENFORCE:
        return None
    needed = {
        file.name: setting.value
        for file in (cgroup_files.MEMORY_MIN, cgroup_files.MEMORY_LOW)
        if (setting := current.above.get(spec.KUBEPODS, {}).get(file.name)) is not None
        and not resolve.is_kubelets(progress.memory.kubelet_owns, file, container=False)
    }
    return diagnostics.shortfall(cgroups, root, needed) if needed else None


def _awaits_entry(current: spec.NodeSpec | None, pod: records.Pod) -> bool:
    return resolve.awaits_entry(current, pod.uid, origin=pod.origin, last=pod.file.last_stated)


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
    exposure.lines.flush()


def yielded(file: records.ControlFile) -> bool:
    """Return whether a file holds less than desired because another writer keeps lowering it."""
    contention = file.contention
    return (
        contention is not None
        and contention.until is not None
        and file.status.limit == contention.limit
        and file.status.observed < contention.limit
    )


def of_file(file: records.ControlFile, *, audit: bool) -> state.Violation | None:
    """Return the violation of one file now, or None; with `audit` also what Enforce would write."""
    would_write = audit and resolve.differs(
        file.desired.if_enforced, file.status.observed, at_most=file.desired.at_most
    )
    desired = file.desired.if_enforced if would_write else file.desired.value
    number = desired if isinstance(desired, int) else file.status.limit if file.status.draining else None
    if file.status.reason is not None:
        reason, message = file.status.reason, file.status.message
    elif yielded(file):
        reason, message = ViolationReason.YIELDED, "another writer keeps lowering it; its value stays for a time"
    elif file.status.draining:
        reason, message = ViolationReason.DRAINING, _draining(file)
    elif file.throttling.least:
        reason, message = ViolationReason.THROTTLING_EASED, file.throttling.why
    elif file.throttling.why:
        reason, message = ViolationReason.THROTTLING_STUCK, file.throttling.why
    elif would_write:
        reason, message = ViolationReason.AUDIT, ""
    else:
        return None
    return state.Violation(
        pod=_above_pods(file) if file.pod is None else file.pod.uid,
        reason=reason,
        container=file.container,
        setting="" if file.usage else file.setting,
        desired="" if number is None else cgroupfs.render(number),
        observed=cgroupfs.render(file.status.observed),
        swap_bytes=file.status.in_use,
        message=message[:512],
    )


def _above_pods(file: records.ControlFile) -> str:
    """Return the name of a cgroup above pods in spec."""
    return spec.BURSTABLE if records.is_burstable(file.path.rpartition("/")[2]) else spec.KUBEPODS


def _draining(file: records.ControlFile) -> str:
    left = file.status.in_use - (file.status.observed if file.status.limit is None else file.status.limit)
    return f"{max(0, left)} bytes more than the limit are in use; they can grow little, and fall as pages are touched"


def of_failure(failed: board.KeyFailure) -> state.Violation:
    """Return the violation of a cgroup that could not be reconciled."""
    message = failed.message[:512]
    return state.Violation(pod=failed.pod[:128], reason=failed.reason, container=failed.container, message=message)


def causes(tally: exposure.Tally) -> list[names.Cause]:
    """Return the causes of a pod's exposures, the longest first."""
    return sorted(tally.milliseconds_of, key=tally.milliseconds_of.__getitem__, reverse=True)


def of_exposure(pod: records.Pod) -> state.ExposedPod:
    """Return how often and for how long a pod was above its value."""
    tally = pod.tally
    return state.ExposedPod(
        pod=pod.uid,
        desired=cgroupfs.render(tally.desired),
        observed=cgroupfs.render(tally.observed),
        swap_bytes=tally.attributed,
        count=tally.count,
        milliseconds=round(tally.milliseconds),
        causes=causes(tally),
        since=tally.since,
    )


def of_throttling(file: records.ControlFile) -> state.ThrottledCgroup:
    """Return how often and for how long a file of memory.high throttled its cgroup."""
    known, plan = file.throttling, file.desired.if_enforced
    return state.ThrottledCgroup(
        pod="" if file.pod is None else file.pod.uid,
        container=file.container,
        high=cgroupfs.render(known.foreign or (plan if isinstance(plan, int) else file.status.observed)),
        foreign=known.foreign > 0,
        count=known.events,
        milliseconds=round(known.seconds * 1000),
        since=known.since,
        trips=known.trips,
        guard=known.phase,
    )


def of_unsupported(unsupported: spec.Unsupported) -> state.Violation:
    """Return the violation of a setting that this agent does not know."""
    return state.Violation(
        pod=unsupported.owner,
        reason=ViolationReason.NOT_SUPPORTED,
        setting=unsupported.setting[:64],
        message=f"this agent has no such setting, which {unsupported.cgroups} cgroups should have: update it",
    )


def of_silence(pod: records.Pod) -> state.Violation:
    """Return the violation of a pod that no state has named."""
    return state.Violation(
        pod=pod.uid,
        reason=ViolationReason.AWAITING_STATE,
        observed=cgroupfs.render(pod.file.status.observed),
        message="the state has no entry for this pod: is the controller running?",
    )


def once(violations: Iterable[state.Violation]) -> list[state.Violation]:
    """Return the violations without repetitions: those that containers can cause are listed once for each pod.

    A container can lock the agent out, or lower its own limits. A pod can have any number of such containers, and a
    list has room for few violations.
    """
    kept: list[state.Violation] = []
    listed: set[tuple[str, str, str]] = set()
    for each in violations:
        if each.reason not in FAILURES and each.reason != ViolationReason.YIELDED:
            kept.append(each)
            continue
        whose = each.pod, "" if each.reason in _OF_TENANTS else each.container
        if (each.reason, *whose) not in listed:
            listed.add((each.reason, *whose))
            kept.append(each)
    return kept


def acknowledge(known: Iterable[records.Pod], reported: Iterable[Mapping[str, Any]]) -> bool:
    """Note which exposures the API server has, with their causes; return whether they make room for others."""
    sums = {each.get("pod"): each.get("swapBytes", 0) for each in reported if each.get("causes")}
    news = [pod for pod in known if sums.get(pod.uid, 0) > pod.tally.reported]
    for pod in news:
        pod.tally.reported = sums[pod.uid]
    return bool(news)
