"""A pod as it is planned, and words for each rule that was tried for it and for the arithmetic. Pure.

Every result is the planner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from swapwarden.api import names, quantity
from swapwarden.api.sizes import exact
from swapwarden.cli import behaviors
from swapwarden.policy import plan
from swapwarden.policy.admission import pod_annotations, validation
from swapwarden.policy.observed import namespaces, nodes, pods, resources
from swapwarden.policy.observed.pods import WirePod, WirePodStatus
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits, requirements

Reason = names.Reason
_POLICIES: Final = sorted(names.Policy)


class PlannedPod(msgspec.Struct, frozen=True):
    """A pod that is planned, and how."""

    pod: WirePod
    row: pods.PodRow
    profile: compiled.Profile
    chosen: str
    """How the profile was chosen."""
    facts: nodes.NodeFacts
    reported: bool
    """Whether the facts are an agent's."""
    trace: plan.Trace
    others: tuple[pods.PodRow, ...] = ()
    """The other pods of the node; empty if they were not read."""
    known: namespaces.Labels = {}
    """Labels of the pod's namespace, if they were read."""

    def recreated(self, pod: WirePod) -> PlannedPod:
        """Plan POD in this one's place once it is created: its template counts, its status does not."""
        bare = msgspec.structs.replace(pod, status=WirePodStatus())
        return self._planned(pod=bare, row=msgspec.structs.replace(pods.project(bare), node=self.row.node))

    def with_profile(self, **fields: object) -> PlannedPod:
        """Plan under the profile with other FIELDS."""
        return self._planned(profile=msgspec.structs.replace(self.profile, **fields))

    def with_swap(self, **fields: object) -> PlannedPod:
        """Plan under the profile with other FIELDS of its swap settings."""
        return self.with_profile(swap=msgspec.structs.replace(self.profile.swap, **fields))

    def on(self, facts: nodes.NodeFacts) -> PlannedPod:
        """Plan on a node with these facts."""
        return self._planned(facts=facts)

    def _planned(self, **fields: object) -> PlannedPod:
        changed = msgspec.structs.replace(self, **fields)
        trace = plan.trace_pod(changed.profile, changed.facts, changed.row, changed.others, changed.known)
        return msgspec.structs.replace(changed, trace=trace)

    @property
    def override(self) -> compiled.Override | None:
        """Return the override that selects the pod."""
        return None if self.trace.override is None else self.profile.overrides[self.trace.override]

    @property
    def override_name(self) -> str:
        """Return its name for messages: overrides[caches]."""
        return f"overrides[{self.override.name if self.override else ''}]"

    @property
    def has_whole_limit(self) -> bool:
        """Whether there is a limit on the pod as a whole under WorkloadControlled, its own or an override's."""
        named = self.override is not None and self.override.swap.limit is not None
        return self.row.swap_limit is not None or (named and not self.row.limited())


def own_limit(one: pods.ContainerRow) -> int | None:
    """Return a container's own limit in bytes: of its annotation and what it asks of the resource the smaller."""
    stated = [] if one.swap_limit is None else [quantity.capped(one.swap_limit)]
    stated += [] if one.swap_resource is None else [one.swap_resource]
    return min(stated, default=None)


def wrong_limits(row: pods.PodRow) -> list[tuple[str, str]]:
    """Return annotations for limits that are no quantity, with their values."""
    stated = [(names.LIMIT_ANNOTATION, row.swap_limit)]
    stated += [(names.CONTAINER_LIMIT_PREFIX + one.name, one.swap_limit) for one in row.containers]
    return [(key, value) for key, value in stated if value is not None and not quantity.is_quantity(value)]


# The rules


def why(step: limits.TraceStep, planned: PlannedPod) -> str:
    """Return why a rule matched or not."""
    return (_MATCHED if step.matched else _PASSED)[step.reason](planned)


def is_policy(value: str) -> bool:
    """Return whether a value of the annotation is understood."""
    return value in _POLICIES


def no_policy(value: str) -> str:
    """Return why a value of the annotation is invalid."""
    meant = pod_annotations.closest(value, _POLICIES)
    hint = f"did you mean {meant}?" if meant else f"there are {', '.join(_POLICIES)}"
    return f"{validation.quoted(value)} is no policy; {hint}"


def _behavior(planned: PlannedPod) -> str:
    return f"behavior {planned.profile.swap.behavior} of {planned.profile.name}"


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
    lacking = ", ".join(requirements.unmet(planned.profile.swap.require, planned.facts) or ())
    return f"{planned.profile.name} has unmet requirements: {lacking}"


def _at_most(planned: PlannedPod) -> str:
    limit = planned.override.swap.limit if planned.override else None
    return f"{planned.override_name} of {planned.profile.name} says at most {exact(limit or 0)}"


_MATCHED: Final[dict[names.Reason, Callable[[PlannedPod], str]]] = {
    Reason.NODE_INCOMPATIBLE: lambda planned: f"{planned.row.node} has no cgroup v2 with the swap controller",
    Reason.POLICY_DISABLED: lambda planned: (
        "the policy is Disabled" + (", its namespace's default" if planned.row.defaulted else "")
    ),
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
        "the node meets the requirements" if planned.profile.swap.require else "the profile has no requirements"
    ),
    Reason.CRITICAL_POD: lambda _: "neither a static pod nor of a system priority",
    Reason.QOS_NOT_ELIGIBLE: lambda planned: f"the pod is {planned.row.qos}",
    Reason.NO_LIMIT: lambda _: "there is a limit",
}
"""Words for the rules that can be passed by."""


# The arithmetic


class Number(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A line of the arithmetic."""

    of: str
    formula: str
    result: str
    """A value of memory.swap.max: bytes, 0 or max. Empty: what the kubelet gives."""
    at_most: bool = False
    """Whether the kubelet may give less."""


def _number(of: str, formula: str, decision: limits.PodDecision | limits.ContainerDecision) -> Number:
    swap_max, at_most = limits.as_settings(decision)
    return Number(of, formula, swap_max or at_most or "", at_most=at_most is not None)


def numbers(row: pods.PodRow, planned: PlannedPod) -> Iterator[Number]:
    """Yield the arithmetic. Every result is the planner's."""
    matched = [step for step in planned.trace.steps if step.matched]
    base = next((step.decision for step in matched if step.decision is not None), None)
    if base is None or base.reason not in _WITH_NUMBERS:
        return
    profile, facts = planned.profile, planned.facts
    shares = profile.swap.behavior is not names.Behavior.KUBELET
    if shares:
        yield _of_node(profile, facts)
    for one, decided in zip(row.containers, base.containers, strict=True):
        if one.kind is not resources.Kind.EPHEMERAL and (shares or own_limit(one) is not None):
            yield _number(_label(one), _of_container(one, planned), decided)
    yield _number("pod", _of_pod(row, planned), base)
    for step in matched:
        if step.decision is None or step.decision is base:
            continue
        if step.reason is Reason.OVERCOMMIT_REACHED:
            available, percent = limits.available(profile.swap, facts), profile.swap.overcommit_percent or 0
            total = available * percent // 100
            left = max(0, planned.trace.left or 0)
            formula = f"{percent}% of {exact(available)} (overcommitPercent)"
            formula += f" - {exact(total - left)} of pods before it"
        else:
            override = profile.overrides[planned.trace.override or 0]
            formula = f"at most {exact(override.swap.limit or 0)} (overrides[{override.name}])"
        yield _number("pod", formula, step.decision)


_WITH_NUMBERS: Final = frozenset(
    {
        Reason.KUBELET_DECIDES,
        Reason.LIMITED_SWAP,
        Reason.WORKLOAD_LIMIT,
        Reason.BOUNDED,
        Reason.OVERCOMMIT_REACHED,
        Reason.OVERRIDE_LIMIT,
    }
)


def _label(one: pods.ContainerRow) -> str:
    kind = {resources.Kind.INIT: " (init)", resources.Kind.SIDECAR: " (sidecar)"}.get(one.kind, "")
    return f"{one.name}{kind}"


def _of_node(profile: compiled.Profile, facts: nodes.NodeFacts) -> Number:
    formula = "its swap, nothing reserved"
    if profile.swap.reserved is not None:
        reserved = exact(profile.swap.reserved_bytes(facts.swap_bytes))
        formula = f"{exact(facts.swap_bytes)} - {reserved} (reserved {profile.swap.reserved})"
    return Number("node", formula, str(limits.available(profile.swap, facts)))


def _of_container(one: pods.ContainerRow, planned: PlannedPod) -> str:
    limit = own_limit(one)
    own = "" if limit is None else f"its limit {exact(limit)}"
    if planned.profile.swap.behavior is names.Behavior.LIMITED_SWAP:
        return _share(one, planned) + (f", at most {own}" if own else "")
    if planned.profile.swap.behavior is names.Behavior.KUBELET:
        return f"{own}, or the kubelet's if less"
    if not own:
        return "no limit of its own: below the pod's" if planned.has_whole_limit else "no limit"
    top = planned.profile.swap.max_per_container
    return own if top is None or top >= (limit or 0) else f"{own}, at most {exact(top)} (maxPerContainer)"


def _share(one: pods.ContainerRow, planned: PlannedPod) -> str:
    facts = planned.facts
    if not one.request:
        return "no memory request"
    if one.request == one.limit:
        return f"its memory request equals its limit ({exact(one.request)})"
    if one.request > facts.memory_bytes:
        return f"its request {exact(one.request)} is more than the node's memory"
    available = limits.available(planned.profile.swap, facts)
    return f"request {exact(one.request)} / memory {exact(facts.memory_bytes)} x {exact(available)}"


def _of_pod(row: pods.PodRow, planned: PlannedPod) -> str:
    profile, facts = planned.profile, planned.facts
    own = "" if row.swap_limit is None else f"its limit {exact(quantity.capped(row.swap_limit))}"
    if profile.swap.behavior is names.Behavior.KUBELET:
        return f"{own}, or the kubelet's if less" if own else "no limit: what the kubelet gives"
    starts = any(one.kind is resources.Kind.INIT for one in row.containers)
    total = "the larger of its containers together and its start-up" if starts else "its containers together"
    if profile.swap.behavior is names.Behavior.LIMITED_SWAP:
        return f"{total}, at most {own}" if own else total
    if not own and planned.has_whole_limit:
        own = planned.override_name
    tops = [("maxPerPod", profile.swap.max_per_pod), ("the node's", limits.available(profile.swap, facts))]
    bounds = [f"at most {exact(top)} ({which})" for which, top in tops if top is not None]
    bounded = any(step.reason is Reason.BOUNDED for step in planned.trace.steps)
    return ", ".join([own or total, *(bounds if bounded else [])])


def by_behavior(row: pods.PodRow) -> Iterator[Number]:
    """Yield the limit by each behavior, unless the pod itself refuses swap; an override may lift a default."""
    if behaviors.refused(row) is not None and not (row.defaulted and row.policy == names.Policy.DISABLED):
        return
    for one in behaviors.each(row):
        yield Number(one.behavior, one.text, one.swap_max)
