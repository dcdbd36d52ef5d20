"""Words for each rule that was tried for a pod: why it matched, or why not. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from swapwarden.api import names
from swapwarden.cli.kubectl.explain.planned import PlannedPod, wrong_limits
from swapwarden.cli.kubectl.output.sizes import exact
from swapwarden.policy import pod_annotations
from swapwarden.policy.profile import requirements
from swapwarden.policy.swap import limits
from swapwarden.webhook import validation

Reason = names.Reason
_POLICIES: Final = sorted(names.Policy)


def why(step: limits.TraceStep, planned: PlannedPod) -> str:
    """Return why a rule matched or not."""
    if step.matched:
        return _MATCHED[step.reason](planned)
    return _PASSED[step.reason](planned)


def is_policy(value: str) -> bool:
    """Return whether a value of the annotation is understood."""
    return value in _POLICIES


def no_policy(value: str) -> str:
    """Return why a value of the annotation is invalid."""
    meant = pod_annotations.closest(value, _POLICIES)
    hint = f"did you mean {meant}?" if meant else f"there are {', '.join(_POLICIES)}"
    return f"{validation.quoted(value)} is no policy; {hint}"


def _behavior(planned: PlannedPod) -> str:
    return f"behavior {planned.profile.behavior} of {planned.profile.name}"


def _disabled(planned: PlannedPod) -> str:
    return "the policy is Disabled" + (", its namespace's default" if planned.row.defaulted else "")


def _not_disabled(planned: PlannedPod) -> str:
    policy = planned.row.policy
    if policy == names.Policy.DISABLED:
        return f"Disabled is the namespace's default, which {planned.override_name} lifts"
    if policy is None:
        return "there is no policy"
    return f"the policy is {policy if is_policy(policy) else 'another one'}"


def _misunderstood(planned: PlannedPod) -> str:
    policy = planned.row.policy
    if policy is not None and not is_policy(policy):
        return no_policy(policy)
    key, value = wrong_limits(planned.row)[0]
    meant = pod_annotations.closest_quantity(value)
    return f"{key}: {validation.quoted(value)} is no quantity" + (f"; did you mean {meant}?" if meant else "")


def _lacking(planned: PlannedPod) -> str:
    lacking = ", ".join(requirements.unmet(planned.profile.require, planned.facts) or ())
    return f"{planned.profile.name} has unmet requirements: {lacking}"


def _at_most(planned: PlannedPod) -> str:
    limit = planned.override.swap_limit if planned.override else None
    return f"{planned.override_name} of {planned.profile.name} says at most {exact(limit or 0)}"


_MATCHED: Final[dict[names.Reason, Callable[[PlannedPod], str]]] = {
    Reason.NODE_INCOMPATIBLE: lambda planned: f"{planned.row.node} has no cgroup v2 with the swap controller",
    Reason.POLICY_DISABLED: _disabled,
    Reason.INVALID_POLICY: _misunderstood,
    Reason.OVERRIDE_DISABLED: lambda planned: f"{planned.override_name} of {planned.profile.name} says Disabled",
    Reason.REQUIREMENT_UNMET: _lacking,
    Reason.PROFILE_NO_SWAP: _behavior,
    Reason.KUBELET_DECIDES: _behavior,
    Reason.CRITICAL_POD: lambda _: "a static pod, or one of a system priority: LimitedSwap gives them none",
    Reason.QOS_NOT_ELIGIBLE: lambda planned: f"the pod is {planned.row.qos}: only Burstable pods get a share",
    Reason.LIMITED_SWAP: lambda planned: f"{_behavior(planned)}: a share of the node's swap, by memory request",
    Reason.NO_LIMIT: lambda planned: f"{_behavior(planned)}, and the pod has no limit",
    Reason.WORKLOAD_LIMIT: lambda planned: f"{_behavior(planned)}: the pod's own limit",
    Reason.BOUNDED: lambda planned: f"{planned.profile.name}, or the node's swap, allows less than that",
    Reason.OVERCOMMIT_REACHED: lambda planned: f"earlier pods leave {exact(max(0, planned.trace.left or 0))}",
    Reason.OVERRIDE_LIMIT: _at_most,
}
_PASSED: Final[dict[names.Reason, Callable[[PlannedPod], str]]] = {
    Reason.NODE_INCOMPATIBLE: lambda planned: (
        "the node has cgroup v2 with the swap controller" if planned.reported else "not known before an agent reports"
    ),
    Reason.POLICY_DISABLED: _not_disabled,
    Reason.INVALID_POLICY: lambda _: "the policy and the limits are valid",
    Reason.OVERRIDE_DISABLED: lambda _: "no override has the policy Disabled",
    Reason.REQUIREMENT_UNMET: lambda planned: (
        "the node meets the requirements" if planned.profile.require else "the profile has no requirements"
    ),
    Reason.CRITICAL_POD: lambda _: "neither a static pod nor of a system priority",
    Reason.QOS_NOT_ELIGIBLE: lambda planned: f"the pod is {planned.row.qos}",
    Reason.NO_LIMIT: lambda _: "there is a limit",
}
"""Of the rules that can be passed by."""
