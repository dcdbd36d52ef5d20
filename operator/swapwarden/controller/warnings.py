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
        limited = row.swap_limit is not None or any(one.swap_limit is not None for one in row.containers)
        planned = spec.pods.get(row.key)
        if planned is None or not (limited or row.policy is not None):
            continue
        message = _message(row, planned.reason, spec.profile.name, limited=limited)
        if message:
            yield Warning(row, planned.reason.value, message)


def _message(row: pods.PodRow, reason: names.Reason, profile: str, *, limited: bool) -> str:
    match reason:
        case names.Reason.NODE_INCOMPATIBLE:
            return (
                f"node {row.node} cannot limit the swap of pods (it needs cgroup v2 with the swap controller):"
                " this pod's swap policy is not enforced there"
            )
        case names.Reason.INVALID_POLICY:
            accepted = ", ".join(names.Policy)
            return (
                f"a swap annotation of this pod is not understood, so it gets no swap: {names.POLICY_ANNOTATION} takes"
                f" {accepted}, and swap limits are quantities such as 512Mi"
            )
        case names.Reason.PROFILE_NO_SWAP if limited:
            return f"profile {profile} gives no swap to pods on node {row.node}: this pod's swap limit has no effect"
        case names.Reason.BOUNDED:
            return f"this pod gets less swap than its limit: profile {profile} or node {row.node} allows no more"
        case names.Reason.OVERCOMMIT_REACHED:
            return (
                f"this pod gets less swap than its limit: what profile {profile} lets the pods of node {row.node} have"
                " in all (overcommitPercent) went to pods that were there before"
            )
        case _:
            return ""
