"""Reports who was observed to hold the limits of pods beside the agent: the container runtime, and systemd.

It decides the condition StrictInEffect from that. That a file is installed, or a plugin connected, is no evidence for a
pod. A means counts while it also holds pods that start: systemd until it was observed to write no limit, the container
runtime while its plugin is connected.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from swapwarden.agent.desired import runtime_values
from swapwarden.agent.drift import repairs, systemd_zero
from swapwarden.agent.host import cgroupfs, systemd_dropins
from swapwarden.agent.inventory import board, inventory, records
from swapwarden.agent.ledger import runtime_records
from swapwarden.agent.report.collector import ConditionVerdict
from swapwarden.api import runtime_link, state
from swapwarden.api.conditions import ConditionType
from swapwarden.telemetry import metrics

HELD = metrics.gauge(
    "swapwarden_agent_nri_held_containers", "Containers for which the runtime itself holds a limit of the node's state."
)
AGENT_ONLY = metrics.gauge(
    "swapwarden_agent_pods_held_by_agent_only",
    "Pods with a limit that neither the container runtime nor systemd was observed to hold; only with --nri-dir or"
    " under guarantee Strict.",
)
STRICT = metrics.gauge(
    "swapwarden_agent_strict_pods",
    "Pods with a limit under guarantee Strict, by who was observed to hold it beside the agent: both, runtime, systemd"
    " or neither.",
    labels=("seen",),
)
LISTS: Final = ("agentOnly", "agentOnlyOmitted")
"""Fields that each new pod may change for a moment: a change of these alone can wait."""
SETTLING_SECONDS: Final = 5.0
"""How long a container may run until it is reported who holds it: the runtime takes over one that it started with the
kubelet's number a few seconds later."""


_NAMED: Final = 8
"""Pods that a message names."""
_CONNECTING: Final = "the plugin of the container runtime is connecting"


class HeldPods(msgspec.Struct, frozen=True):
    """Who was observed to hold pods that have a limit and a container."""

    both: int = 0
    runtime: int = 0
    """The container runtime alone."""
    systemd: int = 0
    """systemd alone."""
    alone: tuple[str, ...] = ()
    """UIDs of the pods that neither of the two was observed to hold."""
    starting: tuple[str, ...] = ()
    """More of these, which began, or got a container, less than SETTLING_SECONDS ago."""


def tally(
    known: inventory.Inventory,
    progress: board.ReconcileProgress,
    evidence: systemd_zero.ZeroEvidence,
    runtime: runtime_records.RuntimeRecords,
    now: float,
) -> HeldPods | None:
    """Return who holds the limits of pods; None if neither the runtime nor systemd should. `now` in monotonic seconds.

    Of a pod with a limit, the runtime holds the running containers by numbers that the limit allows together. systemd
    holds the pod by its drop-in files: at 0, so never above the limit.
    """
    by_systemd = evidence.desired or evidence.installed
    if progress.runtime is None and not by_systemd:
        return None
    counts = {(True, True): 0, (True, False): 0, (False, True): 0}
    alone: list[str] = []
    starting: list[str] = []
    for pod in known.pods.values():
        limit = pod.file.desired.value
        if not isinstance(limit, int) or limit >= cgroupfs.NO_LIMIT or not pod.containers:
            continue
        seen = (
            progress.runtime is not None and repairs.allows(pod, limit, runtime),
            by_systemd and pod.file.systemd.zero,
        )
        if seen in counts:
            counts[seen] += 1
        else:
            (starting if _is_starting(pod, now) else alone).append(pod.uid)
    both, first, second = counts.values()
    return HeldPods(both, first, second, tuple(sorted(alone)), tuple(sorted(starting)))


def _is_starting(pod: records.Pod, now: float) -> bool:
    # A container that was found together with its pod has no time of its own.
    latest = max(pod.file.created_at, *(container.since for container in pod.containers.values()))
    return now - latest < SETTLING_SECONDS


def observed(
    held: HeldPods | None, progress: board.ReconcileProgress, evidence: systemd_zero.ZeroEvidence
) -> state.Holds | None:
    """Return this part of the status."""
    if held is None:
        return None
    alone = sorted(held.alone + held.starting)
    return state.Holds(
        runtime=progress.runtime is not None and progress.runtime.connected,
        systemd=(evidence.desired or evidence.installed) and evidence.proved,
        agent_only=alone[: state.MAX_AGENT_ONLY],
        agent_only_omitted=max(0, len(alone) - state.MAX_AGENT_ONLY),
    )


def essence(holds: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a status' holds whose change is written without delay."""
    return {key: value for key, value in holds.items() if key not in LISTS}


def publish(
    held: HeldPods | None,
    progress: board.ReconcileProgress,
    runtime: runtime_records.RuntimeRecords,
    *,
    strict: bool,
) -> None:
    """Set the metrics. `strict`: guarantee Strict is in use."""
    seen = held or HeldPods()
    alone = len(seen.alone) + len(seen.starting)
    AGENT_ONLY.set(alone)
    for value, label in ((seen.both, "both"), (seen.runtime, "runtime"), (seen.systemd, "systemd"), (alone, "neither")):
        STRICT.set(value if strict else 0, label)
    if progress.runtime is None or progress.spec is None:
        return
    count = 0
    for each in runtime:
        desired = runtime_values.desired(each, progress.spec)
        limits = each.is_reported and not each.is_sandbox and desired is not None and desired.value < cgroupfs.NO_LIMIT
        count += limits and desired is not None and runtime_values.is_held(each, desired)
    HELD.set(count)


def strict_verdict(
    view: systemd_zero.ZeroEvidence,
    seen: HeldPods,
    *,
    files: board.DropInStatus,
    runtime: board.RuntimeStatus | None,
) -> ConditionVerdict | None:
    """Return the condition StrictInEffect; None if guarantee Strict neither is nor was in use.

    `files` are those that the installation has on the node. `runtime`: None if the runtime should hold no limit.
    """
    if not view.desired:
        return _unasked(view)
    if view.root is None:
        return ConditionVerdict("Unknown", "NoPodTree", "looking for the cgroups of pods")
    systemd = _of_systemd(view, systemd_zero.prefix(view.root), files)
    if runtime is not None and runtime.connected:
        return _in_effect(view, seen, files, runs=True, systemd=systemd)
    if view.proved:
        return _in_effect(view, seen, files, runs=False, systemd=systemd, nri=_nri(runtime))
    return _not_in_effect(seen, files, runtime, systemd)


def _in_effect(
    view: systemd_zero.ZeroEvidence,
    seen: HeldPods,
    files: board.DropInStatus,
    *,
    runs: bool,
    systemd: ConditionVerdict,
    nri: str = "",
) -> ConditionVerdict:
    """Return the verdict where at least one of the two holds pods that start. `runs`: the runtime does."""
    by_runtime = seen.both + seen.runtime if runs else 0
    by_systemd = seen.both + seen.systemd if view.proved else 0
    held = seen.both + (seen.runtime if runs else 0) + (seen.systemd if view.proved else 0)
    total = seen.both + seen.runtime + seen.systemd + len(seen.alone)
    counts = " and ".join(
        [f"the container runtime holds {by_runtime}"] * runs
        + [f"systemd, by its drop-in files, holds {by_systemd}"] * view.proved
    )
    message = f"of {total} pods with a limit {counts}"
    if seen.starting:
        message += f"; {len(seen.starting)} more began, or got a container, less than {SETTLING_SECONDS:.0f} s ago"
    broken = f"; {systemd.message}" if files.visible and not view.proved and systemd.status == "False" else ""
    if held < total:
        before = f" (the runtime held {seen.runtime} of them when its plugin was last connected)"
        missing = f"; for {total - held} neither was observed{before if seen.runtime and not runs else ''}"
        missing += _remedies(view, files, broken, nri)
        return ConditionVerdict("Unknown", "NotAllPods", message + missing + _names(seen.alone))
    if by_runtime and by_systemd:
        return ConditionVerdict("True", "HeldByBoth", message)
    if by_runtime:
        return ConditionVerdict("True", "HeldByRuntime", message + broken)
    if view.proved:
        return ConditionVerdict("True", "HeldBySystemd", message)
    return ConditionVerdict("Unknown", "AwaitingEvidence", f"no pod with a limit runs{broken}")


def _remedies(view: systemd_zero.ZeroEvidence, files: board.DropInStatus, broken: str, nri: str) -> str:
    """Return what would have more pods held."""
    if view.proved:
        older = "; pods older than the drop-in files are held from systemd's next reload on (systemctl daemon-reload)"
        return f"{older}; Guaranteed pods need NRI: {nri}" if nri else older
    if broken or files.visible:
        return broken
    return "; systemd's drop-in files hold Burstable and BestEffort pods at 0 (agent.dropIns.mount in the chart)"


def _not_in_effect(
    seen: HeldPods,
    files: board.DropInStatus,
    runtime: board.RuntimeStatus | None,
    systemd: ConditionVerdict,
) -> ConditionVerdict:
    """Return the verdict where nobody beside the agent was observed to hold pods that start."""
    if runtime is not None and not runtime.reason:
        return ConditionVerdict("Unknown", "AwaitingEvidence", _CONNECTING)
    message = f"{systemd.message}; {_nri(runtime)}"
    if known := seen.both + seen.runtime:
        message += f"; running pods that it held when its plugin was last connected: {known}"
    message += _names(seen.alone)
    if runtime is not None and runtime.reason != runtime_link.Away.NO_SOCKET and not files.visible:
        return ConditionVerdict("False", ConditionType.NRI_UNAVAILABLE, message)
    return msgspec.structs.replace(systemd, message=message)


def _nri(runtime: board.RuntimeStatus | None) -> str:
    """Return how the container runtime could hold limits."""
    if runtime is None:
        return "set nri.mode to auto in the chart, so that the container runtime holds containers"
    if not runtime.reason:
        return _CONNECTING
    return f"the container runtime holds no new container, see the condition NriUnavailable ({runtime.reason})"


def _of_systemd(view: systemd_zero.ZeroEvidence, begin: str | None, files: board.DropInStatus) -> ConditionVerdict:
    """Return why systemd was not observed to hold pods, and the remedy. `begin` is the prefix of slices."""
    if begin is None:
        return ConditionVerdict(
            "False",
            "CgroupfsDriver",
            "the kubelet's cgroup driver is cgroupfs: nothing overwrites the agent's values, even while no agent runs;"
            " but a pod that starts meanwhile has no limit until one runs",
        )
    first, second = (
        f"{systemd_dropins.UNITS}/{name}/{systemd_dropins.FILE}" for name in systemd_dropins.folders(begin)
    )
    if files.visible and begin not in files.held:
        return ConditionVerdict(
            "False",
            "NotInstalled",
            f"{first} or {second} is missing: set agent.dropIns.prefix to {begin}, or see the log of the agent's init"
            f" container {systemd_dropins.INSTALLER}",
        )
    if files.visible:
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


def _unasked(view: systemd_zero.ZeroEvidence) -> ConditionVerdict | None:
    if view.installed:
        return ConditionVerdict(
            "True",
            "NotAskedFor",
            "the node has the drop-in files (agent.dropIns.mount), though its profile does not ask for Strict: systemd"
            " makes Burstable and BestEffort pods at 0, and the agent raises those that may have swap",
        )
    if not view.held:
        return None
    return ConditionVerdict(
        "False",
        "ReloadNeeded",
        f"systemd takes {len(view.held)} pods' slices back to 0 until it reads its units again: run `systemctl"
        f" daemon-reload` on the node (first remove {systemd_dropins.FILE} if you installed it yourself)"
        f": {_listed(view.held)}",
    )


def _names(alone: tuple[str, ...]) -> str:
    return f"; the agent alone holds {_listed(alone)}" if alone else ""


def _listed(uids: tuple[str, ...]) -> str:
    more = f" and {len(uids) - _NAMED} more" if len(uids) > _NAMED else ""
    return ", ".join(uids[:_NAMED]) + more
