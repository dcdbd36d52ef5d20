"""Reports who was observed to hold the limits of pods beside the agent: the container runtime, and systemd."""

from __future__ import annotations

from typing import Any, Final

from swapwarden.agent.desired import runtime_values
from swapwarden.agent.drift import holders, systemd_zero
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import board, inventory
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
LISTS: Final = ("agentOnly", "agentOnlyOmitted")
"""Fields that each new pod may change for a moment: a change of these alone can wait."""


def observed(
    known: inventory.Inventory,
    progress: board.ReconcileProgress,
    evidence: systemd_zero.ZeroEvidence,
    runtime: runtime_records.RuntimeRecords,
) -> state.Holds | None:
    """Return who holds the limits of pods; None if neither the runtime nor systemd should.

    Of a pod with a limit, the runtime holds the running containers by numbers that the limit allows together. systemd
    holds the pod by its drop-in files: at 0, so never above the limit.
    """
    by_systemd = evidence.wanted or evidence.installed
    if progress.runtime is None and not by_systemd:
        return None
    alone = sorted(
        pod.uid
        for pod in known.pods.values()
        if isinstance(limit := pod.file.desired.value, int)
        and limit < cgroupfs.NO_LIMIT
        and pod.containers
        and not (by_systemd and pod.file.systemd.zero)
        and not (progress.runtime is not None and holders.allows(pod, limit, runtime))
    )
    return state.Holds(
        runtime=progress.runtime is not None and progress.runtime.connected,
        systemd=by_systemd and evidence.proved,
        agent_only=alone[: state.MAX_AGENT_ONLY],
        agent_only_omitted=max(0, len(alone) - state.MAX_AGENT_ONLY),
    )


def essence(holds: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a status' holds whose change is written without delay."""
    return {key: value for key, value in holds.items() if key not in LISTS}


def publish(
    held: state.Holds | None, progress: board.ReconcileProgress, runtime: runtime_records.RuntimeRecords
) -> None:
    """Set the metrics."""
    AGENT_ONLY.set(0 if held is None else len(held.agent_only) + held.agent_only_omitted)
    if progress.runtime is None or progress.spec is None:
        return
    count = 0
    for each in runtime:
        wanted = runtime_values.wanted(each, progress.spec)
        limits = each.is_reported and not each.is_sandbox and wanted is not None and wanted.value < cgroupfs.NO_LIMIT
        count += limits and wanted is not None and runtime_values.is_held(each, wanted)
    HELD.set(count)
