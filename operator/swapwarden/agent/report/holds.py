"""Reports who was observed to hold the limits of pods beside the agent: the container runtime, and systemd."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from swapwarden.agent.desired import runtime_values
from swapwarden.agent.drift import holders, systemd_zero
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import board, inventory, records
from swapwarden.agent.ledger import runtime_records
from swapwarden.api import state
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
    by_systemd = evidence.wanted or evidence.installed
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
            progress.runtime is not None and holders.allows(pod, limit, runtime),
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
        systemd=(evidence.wanted or evidence.installed) and evidence.proved,
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
        wanted = runtime_values.wanted(each, progress.spec)
        limits = each.is_reported and not each.is_sandbox and wanted is not None and wanted.value < cgroupfs.NO_LIMIT
        count += limits and wanted is not None and runtime_values.is_held(each, wanted)
    HELD.set(count)
