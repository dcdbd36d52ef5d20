"""The arithmetic behind a pod's limit in words; every result is the planner's. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.cli import behaviors
from swapwarden.cli.kubectl.explain.planned import PlannedPod, own_limit
from swapwarden.cli.kubectl.output.sizes import exact
from swapwarden.policy import quantity
from swapwarden.policy.observed import nodes, pods
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits, phases

Reason = names.Reason


class Number(msgspec.Struct, frozen=True, rename="camel"):
    """A line of the arithmetic."""

    of: str
    formula: str
    result: str
    """As memory.swap.max takes it: bytes, 0 or max."""


def lines(row: pods.PodRow, planned: PlannedPod) -> Iterator[Number]:
    """Yield the arithmetic. Every result is the planner's."""
    matched = [step for step in planned.trace.steps if step.matched]
    base = next((step.decision for step in matched if step.decision is not None), None)
    if base is None or base.reason in _WITHOUT_NUMBERS:
        return
    profile, facts = planned.profile, planned.facts
    shares = profile.behavior is not names.Behavior.KUBELET
    if shares:
        yield _of_node(profile, facts)
    for one, decided in zip(row.containers, base.containers, strict=True):
        if one.kind is not phases.Kind.EPHEMERAL and (shares or own_limit(one) is not None):
            yield Number(_label(one), _of_container(one, planned), decided.swap_max or "")
    yield Number("pod", _of_pod(row, planned), base.swap_max or "")
    for step in matched:
        if step.decision is None or step.decision is base:
            continue
        if step.reason is Reason.OVERCOMMIT_REACHED:
            total = limits.available(profile, facts) * (profile.overcommit_percent or 0) // 100
            left = max(0, planned.trace.left or 0)
            formula = f"{profile.overcommit_percent}% of {exact(limits.available(profile, facts))} (overcommitPercent)"
            formula += f" - {exact(total - left)} of pods before it"
        else:
            override = profile.overrides[planned.trace.override or 0]
            formula = f"at most {exact(override.swap_limit or 0)} (overrides[{override.name}])"
        yield Number("pod", formula, step.decision.swap_max or "")


_WITHOUT_NUMBERS: Final = frozenset(
    {
        Reason.NODE_INCOMPATIBLE,
        Reason.POLICY_DISABLED,
        Reason.INVALID_POLICY,
        Reason.OVERRIDE_DISABLED,
        Reason.REQUIREMENT_UNMET,
        Reason.PROFILE_NO_SWAP,
        Reason.CRITICAL_POD,
        Reason.QOS_NOT_ELIGIBLE,
        Reason.NO_LIMIT,
    }
)


def _label(one: pods.ContainerRow) -> str:
    kind = {phases.Kind.INIT: " (init)", phases.Kind.SIDECAR: " (sidecar)"}.get(one.kind, "")
    return f"{one.name}{kind}"


def _of_node(profile: compiled.Profile, facts: nodes.NodeFacts) -> Number:
    available = limits.available(profile, facts)
    if profile.reserved is None:
        return Number("node", "its swap, nothing reserved", str(available))
    reserved = profile.reserved_bytes(facts.swap_bytes)
    return Number(
        "node", f"{exact(facts.swap_bytes)} - {exact(reserved)} (reserved {profile.reserved})", str(available)
    )


def _of_container(one: pods.ContainerRow, planned: PlannedPod) -> str:
    limit = own_limit(one)
    own = "" if limit is None else f"its limit {exact(limit)}"
    if planned.profile.behavior is names.Behavior.LIMITED_SWAP:
        share = _share(one, planned)
        return f"{share}, at most {own}" if own else share
    if planned.profile.behavior is names.Behavior.KUBELET:
        return f"{own}, or the kubelet's if less"
    if not own:
        return "no limit of its own: below the pod's" if planned.has_whole_limit else "no limit"
    top = planned.profile.max_per_container
    return own if top is None or top >= (limit or 0) else f"{own}, at most {exact(top)} (maxPerContainer)"


def _share(one: pods.ContainerRow, planned: PlannedPod) -> str:
    facts = planned.facts
    if not one.request:
        return "no memory request"
    if one.request == one.limit:
        return f"its memory request equals its limit ({exact(one.request)})"
    if one.request > facts.memory_bytes:
        return f"its request {exact(one.request)} is more than the node's memory"
    available = limits.available(planned.profile, facts)
    return f"request {exact(one.request)} / memory {exact(facts.memory_bytes)} x {exact(available)}"


def _of_pod(row: pods.PodRow, planned: PlannedPod) -> str:
    profile, facts = planned.profile, planned.facts
    own = "" if row.swap_limit is None else f"its limit {exact(quantity.capped(row.swap_limit))}"
    if profile.behavior is names.Behavior.KUBELET:
        return f"{own}, or the kubelet's if less" if own else "no limit: what the kubelet gives"
    starts = any(one.kind is phases.Kind.INIT for one in row.containers)
    total = "the larger of its containers together and its start-up" if starts else "its containers together"
    if profile.behavior is names.Behavior.LIMITED_SWAP:
        return f"{total}, at most {own}" if own else total
    if not own and planned.has_whole_limit:
        own = planned.override_name
    tops = [("maxPerPod", profile.max_per_pod), ("the node's", limits.available(profile, facts))]
    bounds = [f"at most {exact(top)} ({which})" for which, top in tops if top is not None]
    bounded = any(step.reason is Reason.BOUNDED for step in planned.trace.steps)
    return ", ".join([own or total, *(bounds if bounded else [])])


def by_behavior(row: pods.PodRow) -> Iterator[Number]:
    """Yield the limit by each behavior, unless the pod itself refuses swap; an override may lift a default."""
    if behaviors.refused(row) is not None and not (row.defaulted and row.policy == names.Policy.DISABLED):
        return
    for one in behaviors.each(row):
        yield Number(one.behavior, one.text, one.swap_max)
