"""Advice for another outcome than the one that a pod has, with the command where there is one. Pure.

Nothing is advised that was not tried: each remedy is applied to the pod, to the profile or to the node, and planned
again. Only changes that lead to their outcome by themselves are shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from swapwarden.api import names, quantity
from swapwarden.cli.kubectl.explain.advice import (
    EXAMPLE_BYTES,
    MOST_OVERCOMMIT,
    Advice,
    AdviceKind,
    advise,
    bytes_of,
    policy,
    tried,
)
from swapwarden.cli.kubectl.explain.rules import PlannedPod, wrong_limits
from swapwarden.policy.observed import pods, resources
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.swap import limits, requirements

Reason = names.Reason

_SHOWN: Final = 2
"""The number of ways to one outcome that are shown."""


def changes(pod: WirePod, row: pods.PodRow, planned: PlannedPod | None) -> Iterator[Advice]:
    """Yield advice for other outcomes, the likeliest first."""
    if planned is not None:
        yield from _by_plan(planned)
    elif row.policy == names.Policy.DISABLED:
        yield policy(pod, names.Policy.NO_PREFERENCE, "swap, where the node gives some")
    else:
        yield policy(pod, names.Policy.DISABLED, "no swap")


def _by_plan(planned: PlannedPod) -> Iterator[Advice]:
    reason = planned.trace.decision.reason
    if reason is Reason.NODE_INCOMPATIBLE:
        yield advise(planned, AdviceKind.CGROUP, outcome="limits that hold")
        return
    if reason is Reason.INVALID_POLICY:
        yield from _towards("what was meant", *_correct(planned))
        return
    if reason is Reason.REQUIREMENT_UNMET:
        for field, obstacle in (requirements.unmet(planned.profile.swap.require, planned.facts) or {}).items():
            yield advise(planned, AdviceKind.REQUIREMENT, obstacle, target=field, outcome=f"{field} met")
    if reason is Reason.KUBELET_DECIDES and planned.profile.name == names.BUILT_IN_PROFILE:
        yield advise(planned, AdviceKind.NEW_PROFILE, outcome="limits by Swapwarden")
    elif reason is Reason.KUBELET_DECIDES:
        yield _to_behavior(planned, names.Behavior.LIMITED_SWAP, "limits by Swapwarden")
    yield from _more(planned)
    if planned.row.defaulted and reason is Reason.POLICY_DISABLED:
        yield advise(planned, AdviceKind.NAMESPACE_DEFAULT, outcome="no such default for new pods")
    yield from _less(planned)
    if planned.trace.decision.swap_max != "0":
        yield policy(planned.pod, names.Policy.DISABLED, "no swap")


def _towards(outcome: str, *changes_to_it: Advice) -> Iterator[Advice]:
    yield from (msgspec.structs.replace(each, outcome=outcome) for each in changes_to_it)


def _more(planned: PlannedPod) -> Iterator[Advice]:
    """Yield single changes that give the pod more swap than it has."""
    now = bytes_of(planned)
    candidates = _BY_REASON[planned.trace.decision.reason](planned)
    leading = (each for each in candidates if bytes_of(tried(planned, each)) > now)
    yield from _towards("swap" if now == 0 else "more", *itertools.islice(leading, _SHOWN))


def _less(planned: PlannedPod) -> Iterator[Advice]:
    """Yield how the pod gets less, but some: by a limit of its own."""
    now = planned.trace.decision.swap_max
    if now in {None, "0"}:
        return
    below = min(planned.facts.swap_bytes, limits.in_bytes(now or "0"))
    advice = advise(planned, AdviceKind.LOWER_LIMIT, target=names.LIMIT_ANNOTATION, below=below, outcome="less")
    if now == names.MAX_SWAP and below > EXAMPLE_BYTES:
        advice = advise(planned, AdviceKind.FIRST_LIMIT, target=names.LIMIT_ANNOTATION, outcome="less")
    if 0 < bytes_of(tried(planned, advice)) < bytes_of(planned):
        yield advice


# Changes to the rule that decides, the likeliest first


def _correct(planned: PlannedPod) -> Iterator[Advice]:
    """Yield what to do about annotations that are not understood."""
    wrong = [key for key, _ in wrong_limits(planned.row)]
    if limits.forbids_swap(planned.row.policy) and planned.row.policy != names.Policy.DISABLED:
        wrong.append(names.POLICY_ANNOTATION)
    yield advise(planned, AdviceKind.MISTAKES, target=", ".join(wrong))


def _override_limit(planned: PlannedPod) -> Iterator[Advice]:
    yield _raised_override(planned)
    match planned.profile.swap.behavior:
        case names.Behavior.LIMITED_SWAP:
            yield from _share(planned)
        case names.Behavior.WORKLOAD_CONTROLLED:
            yield from _workload(planned)
        case _:
            yield from _kubelet(planned)


def _raised_override(planned: PlannedPod) -> Advice:
    name, top = (planned.override.name, planned.override.swap.limit) if planned.override else ("", None)
    return advise(planned, AdviceKind.OVERRIDE_LIMIT, target=name, above=top or 0)


def _to_behavior(planned: PlannedPod, behavior: names.Behavior, outcome: str = "") -> Advice:
    """Advise another behavior of the profile."""
    return advise(planned, AdviceKind.BEHAVIOR, target=behavior.value, outcome=outcome)


def _kubelet(planned: PlannedPod) -> Iterator[Advice]:
    yield from _limit(planned, names.LIMIT_ANNOTATION, planned.row.swap_limit)
    yield _larger_node(planned)


def _uncritical(planned: PlannedPod) -> Iterator[Advice]:
    if not planned.pod.is_static:
        yield advise(planned, AdviceKind.PRIORITY)
    yield _to_behavior(planned, names.Behavior.WORKLOAD_CONTROLLED)


def _burstable(planned: PlannedPod) -> Iterator[Advice]:
    """Yield changes that make the pod Burstable; one container is enough."""
    made = planned.recreated(planned.pod)
    whole = planned.pod.spec.resources
    if whole is not None and made.row.qos is resources.Class.GUARANTEED:
        stated = whole.limits.memory if whole.requests.memory is None else whole.requests.memory
        yield advise(planned, AdviceKind.POD_MEMORY_LIMIT, above=quantity.capped(str(stated or 0)))
    else:
        for one in _asking(made.row):
            yield from _requests(planned, one)


def _share(planned: PlannedPod) -> Iterator[Advice]:
    """Yield what gives a larger share of the node's swap; first containers that have none."""
    row = planned.recreated(planned.pod).row
    for one in sorted(_asking(row), key=lambda each: bool(each.request) and each.request != each.limit):
        yield from _requests(planned, one)
    yield from _own_limits(planned, row)
    yield from _reserve(planned)
    yield _larger_node(planned)


def _asking(row: pods.PodRow) -> list[pods.ContainerRow]:
    """Return the containers that can request memory: the app's first, then init containers."""
    asking = [one for one in row.containers if one.kind is not resources.Kind.EPHEMERAL]
    return sorted(asking, key=lambda one: one.kind is not resources.Kind.APP)


def _requests(planned: PlannedPod, one: pods.ContainerRow) -> Iterator[Advice]:
    """Yield how a container's memory request and limit get it a larger share."""
    memory, limit = planned.facts.memory_bytes, one.limit or None
    if one.request > memory or (not one.request and one.limit > memory):
        yield advise(planned, AdviceKind.MEMORY_REQUEST_IN_NODE, target=one.name, below=memory)
    elif one.request and one.request == one.limit:
        lower = advise(planned, AdviceKind.MEMORY_REQUEST, target=one.name, below=limit)
        # A limit of the whole pod may leave no room for a larger one.
        if planned.pod.spec.resources is not None:
            yield lower
            return
        either = bytes_of(tried(planned, lower)) > bytes_of(planned)
        kind = AdviceKind.MEMORY_LIMIT_OR_REQUEST if either else AdviceKind.MEMORY_LIMIT
        yield advise(planned, kind, target=one.name, above=one.request)
    elif one.request < memory:
        yield advise(planned, AdviceKind.MEMORY_REQUEST, target=one.name, above=one.request or None, below=limit)


def _workload(planned: PlannedPod) -> Iterator[Advice]:
    """Yield what gives more where pods name their limits: these limits, and what bounds them."""
    row, profile = planned.recreated(planned.pod).row, planned.profile
    if planned.override is not None and planned.override.swap.limit is not None and not row.limited():
        yield _raised_override(planned)
    elif row.limited():
        yield from _own_limits(planned, row)
    else:
        yield advise(planned, AdviceKind.FIRST_LIMIT, target=names.LIMIT_ANNOTATION)
    for field, top in (("maxPerPod", profile.swap.max_per_pod), ("maxPerContainer", profile.swap.max_per_container)):
        if top is not None:
            yield advise(planned, AdviceKind.BOUND, target=field, above=top)
    yield from _reserve(planned)
    percent = profile.swap.overcommit_percent
    if percent is not None and percent < MOST_OVERCOMMIT:
        yield advise(planned, AdviceKind.OVERCOMMIT, str(percent), above=percent)
    yield _larger_node(planned)


def _reserve(planned: PlannedPod) -> Iterator[Advice]:
    if planned.facts.swap_bytes and planned.profile.swap.reserved_bytes(planned.facts.swap_bytes):
        yield advise(planned, AdviceKind.RESERVED, str(planned.profile.swap.reserved))


def _larger_node(planned: PlannedPod) -> Advice:
    swap_bytes = planned.facts.swap_bytes
    return (
        advise(planned, AdviceKind.NODE_SWAP, above=swap_bytes) if swap_bytes else advise(planned, AdviceKind.SWAP_ON)
    )


def _own_limits(planned: PlannedPod, row: pods.PodRow) -> Iterator[Advice]:
    """Yield larger limits if the pod or one of its containers has one."""
    yield from _limit(planned, names.LIMIT_ANNOTATION, row.swap_limit)
    for one in row.containers:
        yield from _limit(planned, names.CONTAINER_LIMIT_PREFIX + one.name, one.swap_limit)
        if one.swap_resource is not None:
            yield advise(planned, AdviceKind.SWAP_RESOURCE, target=one.name, above=one.swap_resource)


def _limit(planned: PlannedPod, key: str, stated: str | None) -> Iterator[Advice]:
    if stated is not None:
        yield advise(planned, AdviceKind.LIMIT, stated, target=key, above=quantity.capped(stated))


_BY_REASON: Final[dict[names.Reason, Callable[[PlannedPod], Iterable[Advice]]]] = {
    Reason.NODE_INCOMPATIBLE: lambda _: (),
    Reason.POLICY_DISABLED: lambda it: [policy(it.pod, names.Policy.NO_PREFERENCE)],
    Reason.INVALID_POLICY: _correct,
    Reason.OVERRIDE_DISABLED: lambda it: [
        advise(it, AdviceKind.OVERRIDE_POLICY, target=it.override.name if it.override else "")
    ],
    Reason.OVERRIDE_LIMIT: _override_limit,
    Reason.REQUIREMENT_UNMET: lambda it: [advise(it, AdviceKind.REQUIREMENTS)],
    Reason.PROFILE_NO_SWAP: lambda it: [
        _to_behavior(it, names.Behavior.LIMITED_SWAP),
        _to_behavior(it, names.Behavior.WORKLOAD_CONTROLLED),
    ],
    Reason.KUBELET_DECIDES: _kubelet,
    Reason.CRITICAL_POD: _uncritical,
    Reason.QOS_NOT_ELIGIBLE: _burstable,
    Reason.LIMITED_SWAP: _share,
    Reason.WORKLOAD_LIMIT: _workload,
    Reason.NO_LIMIT: _workload,
    Reason.BOUNDED: _workload,
    Reason.OVERCOMMIT_REACHED: _workload,
}
