"""Notices about pods whose policy or limit has no effect in the plan of their node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from swapwarden.api import names, state
from swapwarden.api.violations import ViolationReason
from swapwarden.controller.inventory import states
from swapwarden.controller.notices import pod_violations, regarding
from swapwarden.kube.events import Notice
from swapwarden.policy.observed import pods

_IN_ANY_MODE: Final = frozenset({names.Reason.NODE_INCOMPATIBLE, names.Reason.INVALID_POLICY})
"""Faults of a node or a pod, whether the plan is written or not."""


def notices(before: states.SpecView, known: Iterable[pods.PodRow], spec: state.StateSpec) -> Iterator[Notice]:
    """Yield a notice for each pod and reason that is in `spec` and was not in the state `before`."""
    if (before.mode == names.Mode.AUDIT) != (spec.mode is names.Mode.AUDIT):
        before = states.SpecView()  # in the other mode the same reason meant another message, or none
    noticed = {key: pod.reason or before.default_reason for key, pod in before.pods.items()}
    changed = {key for key, pod in spec.pods.items() if noticed.get(key) != state.reason_of(spec, pod)}
    yield from about((row for row in known if row.key in changed), spec)


def about(rows: Iterable[pods.PodRow], spec: state.StateSpec) -> Iterator[Notice]:
    """Yield a notice for each of a node's pods whose policy or limits cannot be honoured in its plan `spec`.

    Under mode Audit nothing is written: what the plan would do to a pod is not reported as done.
    """
    audit = spec.mode is names.Mode.AUDIT
    for row in rows:
        planned = spec.pods.get(row.key)
        reason = None if planned is None else state.reason_of(spec, planned)
        if reason is None or not (row.policy is not None or row.limited()):
            continue
        if audit and reason not in _IN_ANY_MODE:
            if reason is names.Reason.POLICY_DISABLED or row.limited():
                text = pod_violations.message(ViolationReason.AUDIT, row.node, spec.profile_ref.name)
                yield Notice(regarding.pod(row), "Warning", names.Mode.AUDIT, text)
            continue
        message = _message(row, reason, spec.profile_ref.name, limited=row.limited(), audit=audit)
        if message:
            yield Notice(regarding.pod(row), "Warning", reason, message)


def _message(row: pods.PodRow, reason: names.Reason, profile: str, *, limited: bool, audit: bool) -> str:
    message = ""
    match reason:
        case names.Reason.NODE_INCOMPATIBLE:
            message = (
                f"node {row.node} cannot limit the swap of pods (it needs cgroup v2 with the swap controller):"
                " this pod's swap policy is not enforced there"
            )
        case names.Reason.INVALID_POLICY:
            accepted = ", ".join(names.Policy)
            result = "would get no swap in mode Enforce" if audit else "gets no swap"
            message = (
                f"a swap annotation of this pod is not understood, so it {result}: {names.POLICY_ANNOTATION} takes"
                f" {accepted}, and swap limits are quantities such as 512Mi"
            )
        case names.Reason.REQUIREMENT_UNMET if limited:
            message = (
                f"profile {profile} gives swap only to nodes that have what it requires, and node {row.node} does not:"
                " this pod's swap limit has no effect"
            )
        case names.Reason.PROFILE_NO_SWAP if limited:
            message = f"profile {profile} gives no swap to pods on node {row.node}: this pod's swap limit has no effect"
        case names.Reason.QOS_NOT_ELIGIBLE if limited:
            message = (
                f"profile {profile} gives swap to Burstable pods only on node {row.node} (behavior LimitedSwap), and"
                f" this pod is {row.qos}: its swap limit has no effect"
            )
        case names.Reason.CRITICAL_POD if limited:
            message = (
                f"profile {profile} gives no swap to critical pods on node {row.node} (behavior LimitedSwap): this"
                " pod's swap limit has no effect"
            )
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
