"""The extended resource by which the scheduler counts swap limits: how much of it a node offers.

It stands in the capacity of the Node's status. The kubelet leaves there what others wrote, makes it allocatable, and
takes from allocatable what capacity has no more, with its next report, within 10 s by default (k/k:
pkg/kubelet/nodestatus/setters.go, MachineInfo). On a node that it takes for a new one it sets all extended resources to
0 (pkg/kubelet/kubelet_node_status.go, reconcileExtendedResource); whatever is found to differ is written again.
"""

from __future__ import annotations

from collections.abc import Iterable

from swapwarden.api import names
from swapwarden.policy.node import labels
from swapwarden.policy.observed import nodes, pods
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits, overcommit, phases


def capacity(profile: compiled.Profile, facts: nodes.NodeFacts) -> int | None:
    """Bytes that a node offers: what the profile lets the limits of its pods add up to; None for no such resource."""
    if not profile.extended_resource or profile.mode is not names.Mode.ENFORCE or not labels.gives_swap(profile, facts):
        return None
    total = overcommit.budget(profile, facts)
    return limits.available(profile, facts) if total is None else total


def desired(
    profile: compiled.Profile,
    facts: nodes.NodeFacts,
    node: nodes.NodeRow,
    rows: Iterable[pods.PodRow],
    *,
    applied: bool,
) -> int | None:
    """What the node should offer now, in bytes; None for no such resource. `rows` are its pods.

    It comes when the node has applied its profile, and then stays while plans change, and as it is while what an agent
    reported of the node is not known any more. It is not lowered below what pods
    there ask for: a kubelet that restarts fails running pods which do not fit any more. Where there is no such resource
    at all, it passes over what they ask of it (k/k: pkg/kubelet/lifecycle/predicate.go).
    """
    total, offered = capacity(profile, facts), node.swap_resource
    asked = profile.extended_resource and profile.mode is names.Mode.ENFORCE
    if asked and offered is not None and labels.is_unknown(profile, facts):
        return max(offered, total or 0)
    if total is None or (offered is None and not applied):
        return None
    return total if offered is None else max(total, min(offered, _asked(rows)))


def _asked(rows: Iterable[pods.PodRow]) -> int:
    """What the scheduler counts for pods that have not ended."""
    return sum(
        phases.peak((one.kind, one.swap_resource or 0) for one in row.containers) for row in rows if not row.terminal
    )
