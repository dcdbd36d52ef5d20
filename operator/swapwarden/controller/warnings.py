"""What the owner of a pod should be told about its plan: a policy or a limit that has no effect on its node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from swapwarden.api import names, state
from swapwarden.policy import pods


class Warning(msgspec.Struct, frozen=True):  # noqa: A001 the type of a Kubernetes event is called so
    """A warning event to be."""

    pod: pods.PodRow
    reason: str
    message: str


def about(rows: Iterable[pods.PodRow], spec: state.StateSpec) -> Iterator[Warning]:
    """Yield a warning for each of a node's pods whose policy or limits cannot be honoured in its plan `spec`."""
    for row in rows:
        planned = spec.pods.get(row.key)
        if planned is None or not (row.policy is not None or row.limited()):
            continue
        message = _message(row, planned.reason, spec.profile.name, limited=row.limited())
        if message:
            yield Warning(row, planned.reason.value, message)


def _message(row: pods.PodRow, reason: names.Reason, profile: str, *, limited: bool) -> str:
    message = ""
    match reason:
        case names.Reason.NODE_INCOMPATIBLE:
            message = (
                f"node {row.node} cannot limit the swap of pods (it needs cgroup v2 with the swap controller):"
                " this pod's swap policy is not enforced there"
            )
        case names.Reason.INVALID_POLICY:
            accepted = ", ".join(names.Policy)
            message = (
                f"a swap annotation of this pod is not understood, so it gets no swap: {names.POLICY_ANNOTATION} takes"
                f" {accepted}, and swap limits are quantities such as 512Mi"
            )
        case names.Reason.REQUIREMENT_UNMET if limited:
            message = (
                f"profile {profile} gives swap only to nodes that have what it requires, and node {row.node} does not:"
                " this pod's swap limit has no effect"
            )
        case names.Reason.PROFILE_NO_SWAP if limited:
            message = f"profile {profile} gives no swap to pods on node {row.node}: this pod's swap limit has no effect"
        case names.Reason.OVERRIDE_DISABLED if limited or not row.defaulted:
            message = f"an override of profile {profile}, which governs node {row.node}, gives no swap to this pod"
        case names.Reason.OVERRIDE_LIMIT if limited:
            message = (
                f"this pod gets less swap than its limit: an override of profile {profile}, which governs node"
                f" {row.node}, allows no more"
            )
        case names.Reason.BOUNDED:
            message = f"this pod gets less swap than its limit: profile {profile} or node {row.node} allows no more"
        case names.Reason.OVERCOMMIT_REACHED:
            message = (
                f"this pod gets less swap than its limit: what profile {profile} lets the pods of node {row.node} have"
                " in all (overcommitPercent) went to pods that were there before"
            )
    return message
