"""The extended resource by which the scheduler counts swap limits: how much of it a node offers.

It is part of the capacity in the Node's status. The kubelet reports every 10 s by default. It keeps entries of other
writers, makes them allocatable, and removes entries from allocatable that capacity lacks (k/k:
pkg/kubelet/nodestatus/setters.go, MachineInfo). On a node that it considers new, it sets all extended resources to 0
(pkg/kubelet/kubelet_node_status.go, reconcileExtendedResource); any difference is written again.
"""

from __future__ import annotations

from collections.abc import Iterable

from swapwarden.api import names
from swapwarden.policy.node import labels
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits


def capacity(profile: compiled.Profile, facts: nodes.NodeFacts) -> int | None:
    """Return the bytes that a node offers, the bound on the sum of its pods' limits; None for no such resource."""
    if not profile.extended_resource or profile.mode is not names.Mode.ENFORCE or not labels.gives_swap(profile, facts):
        return None
    total = limits.overcommit_budget(profile, facts)
    return limits.available(profile, facts) if total is None else total


def desired(
    profile: compiled.Profile,
    facts: nodes.NodeFacts,
    node: nodes.NodeRow,
    rows: Iterable[pods.PodRow],
    *,
    enforced: bool,
) -> int | None:
    """Return the bytes that the node should offer now; None for no such resource. `rows` are its pods.

    The resource appears once the agent enforces the profile. It remains while plans change, and keeps its value while
    the agent's last report is unknown. It is never lowered below the requests of the node's pods: a kubelet that
    restarts fails running pods that no longer fit. If the resource is missing altogether, the kubelet ignores requests
    for it (k/k: pkg/kubelet/lifecycle/predicate.go).
    """
    total, offered = capacity(profile, facts), node.swap_resource
    asked = profile.extended_resource and profile.mode is names.Mode.ENFORCE
    if asked and offered is not None and labels.is_unknown(profile, facts):
        return max(offered, total or 0)
    if total is None or (offered is None and not enforced):
        return None
    return total if offered is None else max(total, min(offered, _asked(rows)))


def _asked(rows: Iterable[pods.PodRow]) -> int:
    """Return the sum that the scheduler counts for pods that have not ended."""
    return sum(
        resources.peak((one.kind, one.swap_resource or 0) for one in row.containers) for row in rows if not row.terminal
    )
