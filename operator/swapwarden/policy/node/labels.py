"""The labels and the extended resource that a node should carry: by them, the scheduler sees and counts its swap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from swapwarden.api import names, state
from swapwarden.policy.node.settings import NodeOptions
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.swap import limits, requirements
from swapwarden.policy.swap.settings import SwapOptions

_RESTRICTED: Final = "node-restriction.kubernetes.io"
"""Kubelets may not write labels of this domain and its subdomains (k/k: plugin/pkg/admission/noderestriction)."""

Labels = dict[str, str | None]
"""Desired values by key; None for a label that should not exist. A key that is absent here keeps its label."""


def desired(own: NodeOptions, swap: SwapOptions, facts: nodes.NodeFacts, *, attested: bool | None) -> Labels:
    """Return all labels of a node that are Swapwarden's. `attested`: see is_attested.

    NFD's key means that swap is on; our own key means that pods can get some. This function does not decide when to
    remove a label: a kubelet that restarts fails running pods whose node selector no longer matches. For the same
    reason, labels that need an agent's report are left out if none exists: its state may have been deleted.
    """
    on = facts.swap_bytes > 0
    unmet = None if swap.require is None else requirements.first_unmet(swap.require, facts)
    encrypted = _is_encrypted(facts.devices) if on else None
    labels: Labels = {
        names.NFD_SWAP_LABEL: "true" if on else None,
        names.SWAP_LABEL: "true" if unmet is None and _may_give(swap, facts) else None,
        names.BEHAVIOR_LABEL: _behavior(swap, facts, unmet, enforce=own.enforce) if on else None,
        names.BACKING_LABEL: _backing(facts.devices) if on else None,
        names.ENCRYPTED_LABEL: _text(encrypted),
        names.UNMET_LABEL: unmet if on else None,
        names.VOUCHED_LABEL: None if attested is None or encrypted is None else _text(attested and encrypted),
    }
    if facts.reported:
        return labels
    unknown = set() if attested is None else {names.VOUCHED_LABEL}
    unknown |= {names.BACKING_LABEL, names.ENCRYPTED_LABEL}
    if not on:
        unknown |= {names.NFD_SWAP_LABEL, names.BEHAVIOR_LABEL}
    if swap.require is not None:
        unknown |= {names.UNMET_LABEL, names.BEHAVIOR_LABEL}
    if is_unknown(swap, facts):
        unknown.add(names.SWAP_LABEL)
    return {key: value for key, value in labels.items() if key not in unknown}


def gives_swap(swap: SwapOptions, facts: nodes.NodeFacts) -> bool:
    """Return whether pods on the node can get swap."""
    return _may_give(swap, facts) and (swap.require is None or requirements.first_unmet(swap.require, facts) is None)


def _may_give(swap: SwapOptions, facts: nodes.NodeFacts) -> bool:
    """Return whether pods on the node can get swap if it meets the profile's requirements."""
    return bool(facts.swap_bytes) and facts.compatible and swap.behavior is not names.Behavior.NO_SWAP


def is_unknown(swap: SwapOptions, facts: nodes.NodeFacts) -> bool:
    """Return whether only a missing report of an agent can show that pods on the node get swap."""
    if facts.reported or swap.behavior is names.Behavior.NO_SWAP:
        return False
    return not gives_swap(swap, facts)


def is_attested(required: Mapping[str, str], node: nodes.NodeRow) -> bool | None:
    """Return whether an administrator vouches for the node, by labels that are all REQUIRED; None if nobody vouches."""
    return required.items() <= node.labels.items() if required else None


def is_restricted(key: str) -> bool:
    """Return whether neither a kubelet nor this controller writes labels of this key."""
    domain, _, name = key.rpartition("/")
    ours = key == names.VOUCHED_LABEL
    return bool(name) and (domain == _RESTRICTED or domain.endswith(f".{_RESTRICTED}")) and not ours


def for_node(labels: Labels, node: nodes.NodeRow, *, features: bool) -> Labels:
    """Return the labels to write to the Node itself; Node Feature Discovery keeps its own.

    `features`: public labels are written to a NodeFeature; on the Node, unowned ones are then only removed.
    """
    left = {key: value for key, value in labels.items() if key not in node.nfd}
    if not features:
        return left
    return {key: value for key, value in left.items() if value is None or key not in names.PUBLIC_LABELS}


def for_node_feature(labels: Labels) -> Labels:
    """Return the labels to write to the node's NodeFeature."""
    return {key: labels[key] for key in names.PUBLIC_LABELS if key in labels}


def _behavior(swap: SwapOptions, facts: nodes.NodeFacts, unmet: names.Requirement | None, *, enforce: bool) -> str:
    """Return the behavior in force: the kubelet's own if nothing is written, NoSwap if a requirement is not met."""
    if not facts.compatible or not enforce:
        return names.Behavior.KUBELET
    return swap.behavior if unmet is None else names.Behavior.NO_SWAP


def _backing(devices: Iterable[state.SwapDevice]) -> str | None:
    """Return all kinds of backing in alphabetical order; a newer agent's kinds count as unknown."""
    known = frozenset[str](names.Backing)
    kinds = {device.backing if device.backing in known else names.Backing.UNKNOWN for device in devices}
    return "_".join(sorted(kind.lower() for kind in kinds)) or None


def _is_encrypted(devices: tuple[state.SwapDevice, ...]) -> bool | None:
    return all(device.encrypted for device in devices) if devices else None


def _text(value: bool | None) -> str | None:  # noqa: FBT001 the value itself is what is spelled
    return None if value is None else str(value).lower()


def swap_resource_capacity(own: NodeOptions, swap: SwapOptions, facts: nodes.NodeFacts) -> int | None:
    """Return the bytes of the extended resource that a node offers, the bound on the sum of its pods' limits.

    None: the node has no such resource.
    """
    if not (own.extended_resource and own.enforce and gives_swap(swap, facts)):
        return None
    total = limits.overcommit_budget(swap, facts)
    return limits.available(swap, facts) if total is None else total


def desired_swap_resource(
    own: NodeOptions,
    swap: SwapOptions,
    facts: nodes.NodeFacts,
    node: nodes.NodeRow,
    rows: Iterable[pods.PodRow],
    *,
    enforced: bool,
) -> int | None:
    """Return the bytes of the extended resource that the node should offer now; None for none. `rows` are its pods.

    The resource is part of the capacity in the Node's status. The kubelet reports every 10 s by default. It keeps
    entries of other writers, makes them allocatable, and removes entries from allocatable that capacity lacks (k/k:
    pkg/kubelet/nodestatus/setters.go, MachineInfo). On a node that it considers new, it sets all extended resources to
    0 (pkg/kubelet/kubelet_node_status.go, reconcileExtendedResource); any difference is written again.

    The resource appears once the agent enforces the profile. It remains while plans change, and keeps its value while
    the agent's last report is unknown. It is never lowered below the requests of the node's pods: a kubelet that
    restarts fails running pods that no longer fit. If the resource is missing altogether, the kubelet ignores requests
    for it (k/k: pkg/kubelet/lifecycle/predicate.go).
    """
    total, offered = swap_resource_capacity(own, swap, facts), node.swap_resource
    asked = own.extended_resource and own.enforce
    if asked and offered is not None and is_unknown(swap, facts):
        return max(offered, total or 0)
    if total is None or (offered is None and not enforced):
        return None
    return total if offered is None else max(total, min(offered, _resource_requests(rows)))


def _resource_requests(rows: Iterable[pods.PodRow]) -> int:
    """Return the extended resource that the scheduler counts for pods that have not ended, in bytes."""
    return sum(
        resources.peak((one.kind, one.swap_resource or 0) for one in row.containers) for row in rows if not row.terminal
    )
