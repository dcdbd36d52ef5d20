"""Decide the swap limits of a pod and its containers, with the reason: the table in docs/semantics.md.

Numbers are bytes. Values for memory.swap.max are floored to the page, as the kernel does on a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from swapwarden.api import names, quantity
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.swap import requirements
from swapwarden.policy.swap.settings import SwapOptions, SwapOverride

Reason = names.Reason


_ABOUT_PLACEMENT: Final = frozenset(names.Policy) - {names.Policy.DISABLED}
"""Policies that leave the amount to the profile."""


_NOT_YET: Final = "~"
"""Sorts after every time: the kubelet has not accepted the pod."""


class ContainerDecision(msgspec.Struct, frozen=True):
    """The limit of one container."""

    name: str
    id: str
    swap_max: str | None
    """The container's own limit. "max": none below the pod's. None: not decided, because the node is incompatible."""
    reason: names.Reason
    cap: bool = False
    """Whether swap_max is the most: the kubelet may give less, and that stays."""
    write: bool = False
    """Whether to write the container's file; otherwise, the pod's value alone has this effect."""


class PodDecision(msgspec.Struct, frozen=True):
    """The limits of one pod; containers in the order of the row."""

    swap_max: str | None
    """Value for the pod's cgroup. None: nothing is written."""
    reason: names.Reason
    containers: tuple[ContainerDecision, ...]
    cap: bool = False
    """Whether swap_max is the most. With "max", the pod has what the kubelet or systemd gives it."""


def as_settings(decision: PodDecision | ContainerDecision) -> tuple[str | None, str | None]:
    """Return swapMax and swapAtMost of a state for this decision. Without both, the kubelet and systemd decide.

    A limit of 0 is exact: nothing is less.
    """
    if not decision.cap or decision.swap_max == "0":
        return decision.swap_max, None
    return None, None if decision.swap_max == names.MAX_SWAP else decision.swap_max


class _Limits(msgspec.Struct, frozen=True):
    """The pod's own limits in bytes; None if there is none."""

    pod: int | None
    containers: tuple[int | None, ...]
    reason: names.Reason = Reason.WORKLOAD_LIMIT
    """The reason of a pod that gets these limits."""
    valid: bool = True
    """False if one of them is no quantity: the first rules refuse such a pod, and no later one reads its limits."""

    def are_none(self) -> bool:
        """Return whether nothing is limited."""
        return self.pod is None and all(limit is None for limit in self.containers)


_INVALID: Final = _Limits(None, (), valid=False)


class TraceStep(msgspec.Struct, frozen=True):
    """One rule on the way to a decision."""

    reason: names.Reason
    matched: bool
    decision: PodDecision | None = None
    """The pod's limit after it; None if the rule does not match, or if the next step has the result."""


class _Case(msgspec.Struct, frozen=True):
    """The input of the rules."""

    swap: SwapOptions
    node: nodes.NodeFacts
    pod: pods.PodRow
    override: SwapOverride | None
    policy: str | None
    """The pod's, unless the override lifts it."""
    limits: _Limits
    """The pod's, or those of the override in their place."""


class _Rule(msgspec.Struct, frozen=True):
    """A row of the table."""

    reason: names.Reason
    matches: Callable[[_Case], bool]
    give: Callable[[_Case], PodDecision]


def floor_to_page(value: int, page_size: int) -> int:
    """Return the bytes that the kernel keeps after a write of `value` (mm/page_counter.c: page_counter_memparse)."""
    return value // page_size * page_size


def container_swap(request: int, limit: int, memory: int, swap: int) -> int:
    """Return the limit of a Burstable pod's container under LimitedSwap, before the kernel's page floor; all in bytes.

    `request` and `limit` are its memory request and limit (0: unset), `memory` and `swap` the node's for pods. From
    k/k: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go, calcSwapForBurstablePods: division first, in float64,
    then truncation. Its errors (a request above the node's memory, no memory) give 0 here, with the same effect.
    """
    if request == limit or not 0 < request <= memory:
        return 0
    # float64 does not distinguish sizes above 2**53: without the minimum, the product may exceed the total.
    return min(swap, int(float(request) / float(memory) * float(swap)))


def available(swap: SwapOptions, node: nodes.NodeFacts) -> int:
    """Return the swap for all pods: the node's, less the profile's reserve; bytes, not floored."""
    return node.swap_bytes - swap.reserved_bytes(node.swap_bytes)


def forbids_swap(policy: str | None) -> bool:
    """Return whether a pod with this annotation gets no swap on any node: Disabled, or invalid."""
    return policy is not None and policy not in _ABOUT_PLACEMENT


def decide(
    swap: SwapOptions, node: nodes.NodeFacts, pod: pods.PodRow, override: SwapOverride | None = None
) -> PodDecision:
    """Decide on one pod. The first matching row of the table wins.

    `override` is the profile's for this pod. It applies if it is stricter than the pod's own annotations, or if there
    are none.
    """
    case = _case(swap, node, pod, override)
    for rule in _RULES[swap.behavior]:
        if rule.matches(case):
            given = rule.give(case)
            return given if override is None else _bounded_by_override(case, given)
    raise AssertionError(swap.behavior)  # The last rule of each behavior always matches.


def trace(
    swap: SwapOptions, node: nodes.NodeFacts, pod: pods.PodRow, override: SwapOverride | None = None
) -> Iterator[TraceStep]:
    """Return the steps of decide(), of which the last has the decision: the same rules, for users to follow."""
    case = _case(swap, node, pod, override)
    for rule in _RULES[swap.behavior]:
        if not rule.matches(case):
            yield TraceStep(rule.reason, matched=False)
            continue
        given = rule.give(case)
        if given.reason is Reason.BOUNDED and case.limits.valid:
            yield TraceStep(case.limits.reason, matched=True)
        yield TraceStep(given.reason, matched=True, decision=given)
        decision = _bounded_by_override(case, given)
        if decision is not given:
            yield TraceStep(decision.reason, matched=True, decision=decision)
        return


def _case(swap: SwapOptions, node: nodes.NodeFacts, pod: pods.PodRow, override: SwapOverride | None) -> _Case:
    limits = _limits(pod)
    if override is None:
        return _Case(swap, node, pod, None, pod.policy, limits)
    # A namespace's default is not the pod's own choice: an override that names a policy lifts it.
    lifted = override.policy is not None and pod.defaulted and pod.policy == names.Policy.DISABLED
    if (
        swap.behavior is names.Behavior.WORKLOAD_CONTROLLED
        and override.limit is not None
        and limits.valid
        and limits.are_none()
    ):
        limits = _Limits(override.limit, limits.containers, Reason.OVERRIDE_LIMIT)
    return _Case(swap, node, pod, override, None if lifted else pod.policy, limits)


def _bounded_by_override(case: _Case, decision: PodDecision) -> PodDecision:
    """Return the decision, with the limit of the override, if it has one, as the pod's maximum."""
    if case.override is None or case.override.limit is None:
        return decision
    top = min(case.override.limit, case.node.swap_bytes)
    return cut(decision, top, case.node.page_size, Reason.OVERRIDE_LIMIT)


def _limits(pod: pods.PodRow) -> _Limits:
    """Return limits from the pod's annotations and resources."""
    try:
        own = None if pod.swap_limit is None else quantity.capped(pod.swap_limit)
        # Most containers have none.
        each = (one.swap_resource if one.swap_limit is None else _limit(one, one.swap_limit) for one in pod.containers)
        return _Limits(own, tuple(each))
    except quantity.QuantityError:
        return _INVALID


def _limit(container: pods.ContainerRow, written: str) -> int | None:
    """Return the container's own limit: the smaller of its annotation and its resource."""
    return _least(quantity.capped(written), container.swap_resource)


def cut(decision: PodDecision, top: int, page_size: int, reason: names.Reason) -> PodDecision:
    """Return the decision on a pod with at most `top` bytes: the same, or less with this reason."""
    if decision.swap_max is None or in_bytes(decision.swap_max) <= top:
        return decision
    given = floor_to_page(top, page_size)
    if given == 0:
        containers = tuple(ContainerDecision(one.name, one.id, "0", reason) for one in decision.containers)
        return PodDecision("0", reason, containers)
    containers = tuple(
        one
        if one.swap_max in {None, names.MAX_SWAP} or int(one.swap_max or 0) <= given
        else msgspec.structs.replace(one, swap_max=str(given), reason=reason)
        for one in decision.containers
    )
    return PodDecision(str(given), reason, containers, cap=decision.cap)


def overcommit_budget(swap: SwapOptions, node: nodes.NodeFacts) -> int | None:
    """Return the bytes that the limits of all pods together may have; None if the profile has no bound."""
    if swap.overcommit_percent is None or swap.behavior is not names.Behavior.WORKLOAD_CONTROLLED:
        return None
    return available(swap, node) * swap.overcommit_percent // 100


def served_order(row: pods.PodRow) -> tuple[str, str, str]:
    """Return a key that sorts pods in the order in which they are served if their limits exceed the bound in total.

    Earlier pods keep their share: the order is that in which the kubelet accepted them, so that a later one, however
    old, gets the rest.
    """
    return row.started or _NOT_YET, row.created, row.key


def in_bytes(swap_max: str) -> int:
    """Return the number that a value of memory.swap.max allows; "max" is larger than any number."""
    return 2**64 if swap_max == names.MAX_SWAP else int(swap_max)


def _same(pod: pods.PodRow, swap_max: str | None, reason: names.Reason) -> PodDecision:
    """Decide by the pod's value alone; the containers below it get no value of their own."""
    containers = tuple(ContainerDecision(one.name, one.id, swap_max, reason) for one in pod.containers)
    return PodDecision(swap_max, reason, containers)


def _refuse(reason: names.Reason, matches: Callable[[_Case], bool]) -> _Rule:
    """Return a rule by which a pod gets no swap."""
    return _Rule(reason, matches, lambda case: _same(case.pod, "0", reason))


def _always(_: _Case) -> bool:
    return True


def _not_understood(case: _Case) -> bool:
    return not case.limits.valid or (case.policy is not None and forbids_swap(case.policy))


def _override_forbids(case: _Case) -> bool:
    return case.override is not None and case.override.policy is names.Policy.DISABLED


def _requirement_unmet(case: _Case) -> bool:
    require = case.swap.require
    return require is not None and requirements.first_unmet(require, case.node) is not None


def _kubelet(case: _Case) -> PodDecision:
    node, limits = case.node, case.limits

    def swap_max(limit: int) -> str:
        return str(floor_to_page(min(limit, node.swap_bytes), node.page_size))

    reason = Reason.KUBELET_DECIDES
    containers = tuple(
        ContainerDecision(one.name, one.id, names.MAX_SWAP, reason, cap=True)
        if limit is None
        else ContainerDecision(one.name, one.id, swap_max(limit), reason, cap=True, write=True)
        for one, limit in zip(case.pod.containers, limits.containers, strict=True)
    )
    own = names.MAX_SWAP if limits.pod is None else swap_max(limits.pod)
    return PodDecision(own, reason, containers, cap=True)


def _limited_swap(case: _Case) -> PodDecision:
    node, pod, limits = case.node, case.pod, case.limits
    usable = available(case.swap, node)
    values = [
        floor_to_page(_least(container_swap(one.request, one.limit, node.memory_bytes, usable), limit), node.page_size)
        for one, limit in zip(pod.containers, limits.containers, strict=True)
    ]
    total = resources.peak((one.kind, value) for one, value in zip(pod.containers, values, strict=True))
    total = floor_to_page(_least(total, limits.pod, usable), node.page_size)
    if total == 0:
        return _same(pod, "0", Reason.LIMITED_SWAP)
    containers = tuple(
        ContainerDecision(one.name, one.id, str(value), Reason.LIMITED_SWAP, write=True)
        for one, value in zip(pod.containers, values, strict=True)
    )
    return PodDecision(str(total), Reason.LIMITED_SWAP, containers)


def _workload_controlled(case: _Case) -> PodDecision:
    swap, node, pod, limits = case.swap, case.node, case.pod, case.limits
    page = node.page_size
    pod_bound = _least(available(swap, node), swap.max_per_pod)
    bound = _least(pod_bound, swap.max_per_container)
    kinds = [one.kind for one in pod.containers]
    asked = [floor_to_page(limit or 0, page) for limit in limits.containers]
    given = [floor_to_page(_least(bound, limit), page) if limit else 0 for limit in limits.containers]
    if limits.pod is None:
        pod_asked = resources.peak(zip(kinds, asked, strict=True))
        pod_given = resources.peak(zip(kinds, given, strict=True))
    else:
        pod_asked = pod_given = floor_to_page(limits.pod, page)
    pod_given = floor_to_page(_least(pod_given, pod_bound), page)
    reason = _workload_reason(pod_asked, pod_given, limits.reason)
    if pod_given == 0:
        return _same(pod, "0", reason)
    # A container without a limit of its own gets all of the pod's limit, if the pod has one and the bound allows.
    rest = ("0", Reason.NO_LIMIT)
    if limits.pod is not None:
        top = floor_to_page(bound, page)
        rest = (names.MAX_SWAP, limits.reason) if top >= pod_given else (str(top), Reason.BOUNDED)
    containers = []
    for row, limit, desired, value in zip(pod.containers, limits.containers, asked, given, strict=True):
        own = (str(value), _workload_reason(desired, value, limits.reason)) if limit is not None else rest
        swap_max, why = ("0", Reason.NO_LIMIT) if row.kind is resources.Kind.EPHEMERAL else own
        containers.append(ContainerDecision(row.name, row.id, swap_max, why, write=True))
    return PodDecision(str(pod_given), reason, tuple(containers))


def _workload_reason(asked: int, given: int, whole: names.Reason) -> names.Reason:
    return Reason.BOUNDED if given < asked else whole


def _least(value: int, *bounds: int | None) -> int:
    for bound in bounds:
        if bound is not None and bound < value:
            value = bound
    return value


_FIRST: Final = (
    _Rule(
        Reason.NODE_INCOMPATIBLE,
        lambda case: not case.node.compatible,
        lambda case: _same(case.pod, None, Reason.NODE_INCOMPATIBLE),
    ),
    _refuse(Reason.POLICY_DISABLED, lambda case: case.policy == names.Policy.DISABLED),
    _refuse(Reason.INVALID_POLICY, _not_understood),
    _refuse(Reason.OVERRIDE_DISABLED, _override_forbids),
    _refuse(Reason.REQUIREMENT_UNMET, _requirement_unmet),
)
_RULES: Final[dict[names.Behavior, tuple[_Rule, ...]]] = {
    names.Behavior.NO_SWAP: (*_FIRST, _refuse(Reason.PROFILE_NO_SWAP, _always)),
    names.Behavior.KUBELET: (*_FIRST, _Rule(Reason.KUBELET_DECIDES, _always, _kubelet)),
    names.Behavior.LIMITED_SWAP: (
        *_FIRST,
        _refuse(Reason.CRITICAL_POD, lambda case: case.pod.critical),
        _refuse(Reason.QOS_NOT_ELIGIBLE, lambda case: case.pod.qos is not resources.Class.BURSTABLE),
        _Rule(Reason.LIMITED_SWAP, _always, _limited_swap),
    ),
    names.Behavior.WORKLOAD_CONTROLLED: (
        *_FIRST,
        _refuse(Reason.NO_LIMIT, lambda case: case.limits.are_none()),
        _Rule(Reason.WORKLOAD_LIMIT, _always, _workload_controlled),
    ),
}
"""The table of docs/semantics.md: by behavior, the rules in the order in which they are tried."""
