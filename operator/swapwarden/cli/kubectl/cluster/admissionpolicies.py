"""Which pods the policies are asked about that stand in for the webhook: admission.mode Policy of the chart. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.cli.kubectl.cluster import registration, workloads
from swapwarden.policy.observed import pods

SELECTOR: Final = "app.kubernetes.io/name=swapwarden"
"""Of the objects that an installation brings."""
CONDITIONS: Final = frozenset({
    "is-no-mirror-pod", "has-a-policy", "has-no-policy-of-its-own", "has-a-key-of-our-domain",
})  # fmt: skip
"""The names of matchConditions whose expressions (CEL) are known here, as those of the chart."""


class Part(enum.StrEnum):
    """What a policy does, by the end of its name."""

    COMPLETION = "pod-completion"
    DEFAULT = "pod-default"
    CONTRADICTIONS = "pod-contradictions"


class Constraints(msgspec.Struct, frozen=True, rename="camel"):
    """The matchConstraints of a policy, or the matchResources of a binding, as far as they select pods."""

    object_selector: registration.Selector = registration.Selector()
    namespace_selector: registration.Selector = registration.Selector()


class _Meta(msgspec.Struct, frozen=True):
    name: str


class _PolicySpec(msgspec.Struct, frozen=True, rename="camel"):
    match_constraints: Constraints = Constraints()
    match_conditions: list[registration.MatchCondition] = []


class WirePolicy(msgspec.Struct, frozen=True):
    """A MutatingAdmissionPolicy or a ValidatingAdmissionPolicy, as far as it is read."""

    metadata: _Meta
    spec: _PolicySpec = _PolicySpec()


class _BindingSpec(msgspec.Struct, frozen=True, rename="camel"):
    policy_name: str = ""
    match_resources: Constraints = Constraints()


class WireBinding(msgspec.Struct, frozen=True):
    """A binding of one of them, as far as it is read."""

    spec: _BindingSpec = _BindingSpec()


class Policy(msgspec.Struct, frozen=True):
    """A policy with what its bindings select: it is asked where both do."""

    name: str
    part: Part
    constraints: Constraints = Constraints()
    conditions: tuple[str, ...] = ()
    bindings: tuple[Constraints, ...] = ()

    def passed_by(self, pod: workloads.Pod, namespace: Mapping[str, str] | None) -> str:
        """Why it is not asked about a pod; empty where it is, as far as that can be told."""
        if not self.bindings:
            return "no binding puts them in force"
        whys = [
            registration.passed_by(
                (*self.constraints.object_selector.requirements(), *one.object_selector.requirements()),
                (*self.constraints.namespace_selector.requirements(), *one.namespace_selector.requirements()),
                pod,
                namespace,
            )
            for one in self.bindings
        ]
        return whys[0] if all(whys) else ""


def join(policies: Iterable[WirePolicy], bindings: Iterable[WireBinding]) -> tuple[Policy, ...]:
    """Those that stand in for the webhook, with what binds them."""
    bound: dict[str, list[Constraints]] = {}
    for one in bindings:
        bound.setdefault(one.spec.policy_name, []).append(one.spec.match_resources)
    return tuple(
        Policy(
            wire.metadata.name,
            part,
            wire.spec.match_constraints,
            tuple(one.name for one in wire.spec.match_conditions),
            tuple(bound.get(wire.metadata.name, ())),
        )
        for wire in policies
        for part in Part
        if wire.metadata.name.endswith(f"-{part}")
    )


def needs_namespace(found: Iterable[Policy], pod: workloads.Pod) -> bool:
    """As registration.needs_namespace, of the policies that stand in for the webhook."""
    there = list(found)
    hidden = not registration.is_own(pod) and any(
        each.passed_by(pod, None) for each in there if each.part is Part.DEFAULT
    )
    selecting = (one.namespace_selector for each in there for one in (each.constraints, *each.bindings))
    return hidden or any(not registration.is_known(one.requirements()) for one in selecting)


def missed(found: Iterable[Policy], pod: workloads.Pod, namespace: Mapping[str, str] | None) -> str:
    """As registration.missed, of the policies that stand in for the webhook."""
    lost = _lost(pods.project(pod), (namespace or {}).get(names.DEFAULT_POLICY_LABEL))
    passing: dict[str, list[Policy]] = {}
    asking: dict[str, list[Policy]] = {}
    for each in found:
        if each.part not in lost:
            continue
        unknown = ", ".join(name for name in each.conditions if name not in CONDITIONS)
        if why := each.passed_by(pod, namespace):
            passing.setdefault(why, []).append(each)
        elif unknown:
            asking.setdefault(unknown, []).append(each)
    told = [
        f"the API server's policies are not asked about pods like it: {why} ({_names(those)});"
        f" {', and '.join(lost[each.part] for each in those)}"
        for why, those in passing.items()
    ]
    told += [
        f"the API server's policies are asked about it only if {unknown} holds (matchConditions of {_names(those)});"
        f" else {', and '.join(lost[each.part] for each in those)}"
        for unknown, those in asking.items()
    ]
    return "; ".join(told)


def _lost(row: pods.PodRow, default: str | None) -> dict[Part, str]:
    """What a pod would miss without each of them."""
    if row.defaulted:
        return {}  # it was looked at
    if row.policy is None and not row.limited():
        known = default in frozenset[str](names.Policy)
        return {Part.DEFAULT: f"the default {default} of its namespace does not reach it"} if known else {}
    lost = {Part.CONTRADICTIONS: "contradictions in what it says are not noticed"}
    return lost if row.policy is None else {Part.COMPLETION: "its policy places it nowhere", **lost}


def _names(found: Iterable[Policy]) -> str:
    return ", ".join(each.name for each in found)
