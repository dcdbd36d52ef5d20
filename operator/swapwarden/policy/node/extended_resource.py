"""The extended resource by which the scheduler counts swap limits: how much of it a node offers.

It is part of the capacity in the Node's status. The kubelet reports every 10 s by default. It keeps entries of other
writers, makes them allocatable, and removes entries from allocatable that capacity lacks (k/k:
pkg/kubelet/nodestatus/setters.go, MachineInfo). On a node that it considers new, it sets all extended resources to 0
(pkg/kubelet/kubelet_node_status.go, reconcileExtendedResource); any difference is written again.
"""

from __future__ import annotations

from collections.abc import Iterable

from swapwarden.policy.node import labels
from swapwarden.policy.node.settings import NodeOptions
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.swap import limits
from swapwarden.policy.swap.settings import SwapOptions


def capacity(own: NodeOptions, swap: SwapOptions, facts: nodes.NodeFacts) -> int | None:
    """Return the bytes that a node offers, the bound on the sum of its pods' limits; None for no such resource."""
    if not (own.extended_resource and own.enforce and labels.gives_swap(swap, facts)):
        return None
    total = limits.overcommit_budget(swap, facts)
    return limits.available(swap, facts) if total is None else total


def desired(
    own: NodeOptions,
    swap: SwapOptions,
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
    total, offered = capacity(own, swap, facts), node.swap_resource
    asked = own.extended_resource and own.enforce
    if asked and offered is not None and labels.is_unknown(swap, facts):
        return max(offered, total or 0)
    if total is None or (offered is None and not enforced):
        return None
    return total if offered is None else max(total, min(offered, _asked(rows)))


def _asked(rows: Iterable[pods.PodRow]) -> int:
    """Return the sum that the scheduler counts for pods that have not ended."""
    return sum(
        resources.peak((one.kind, one.swap_resource or 0) for one in row.containers) for row in rows if not row.terminal
    )
