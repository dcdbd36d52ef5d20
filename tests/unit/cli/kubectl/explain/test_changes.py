"""Each remedy that `kubectl swap explain` shows is followed to the letter here, and the pod is planned again."""

from __future__ import annotations

import copy
import dataclasses
import json
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swapwarden.api import names, quantity, state
from swapwarden.api.sizes import exact
from swapwarden.cli.kubectl.explain import model
from swapwarden.cli.kubectl.explain.advice import Advice, AdviceKind
from swapwarden.policy import plan
from swapwarden.policy.admission import validation
from swapwarden.policy.observed import nodes, pods
from swapwarden.policy.observed.new_pods import NewPod
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits, requirements

from tests.unit.cli.kubectl.explained import DISK, FACTS, GI, MI, NODE, POOL, profile, reported
from tests.unit.objects import changed, make_override

Behavior = names.Behavior
Json = dict[str, Any]
POLICY, LIMIT = "swapwarden.dev/swap-policy", "swapwarden.dev/swap-limit"
PREFIX, RESOURCE = "swap-limit.swapwarden.dev/", names.SWAP_RESOURCE
PLENTY = 2**36


@dataclasses.dataclass(frozen=True)
class Case:
    pod: Json
    profile: compiled.Profile
    facts: state.Facts
    others: tuple[pods.PodRow, ...] = ()

    def decision(self) -> limits.PodDecision:
        row = pods.project(msgspec.convert(self.pod, WirePod))
        return plan.trace_pod(self.profile, nodes.facts(NODE, self.facts), row, self.others).decision

    def swap(self) -> int:
        return limits.in_bytes(self.decision().swap_max or names.MAX_SWAP)

    def told(self) -> model.PodExplanation:
        found = msgspec.convert(self.pod, WirePod)
        rows = [pods.project(found), *self.others]
        spec = plan.plan_node(self.profile, nodes.facts(NODE, self.facts), rows)
        known = {} if self.profile.name == names.BUILT_IN_PROFILE else {self.profile.name: self.profile}
        return model.explain(
            model.Observed(found, node=NODE, profiles=known, state=reported(spec, facts=self.facts), others=self.others)
        )

    def refused(self) -> set[str]:
        """The fields that admission refuses."""
        return {error.field for error in validation.errors(msgspec.convert(self.pod, NewPod))}

    def containers(self) -> Iterator[Json]:
        spec = self.pod["spec"]
        yield from (*spec.get("initContainers", []), *spec["containers"])

    def with_pod(self, change: Callable[[Case], None]) -> Case:
        """Another pod, which its template makes: what the old one's status says does not count for it."""
        made = dataclasses.replace(self, pod=copy.deepcopy(self.pod))
        made.pod["status"] = {}
        change(made)
        return made

    def with_annotation(self, key: str, value: str | None) -> Case:
        def change(made: Case) -> None:
            made.pod["metadata"]["annotations"].pop(key, None)
            if value is not None:
                made.pod["metadata"]["annotations"][key] = value

        return self.with_pod(change)

    def with_memory(self, name: str, part: str, value: int) -> Case:
        def change(made: Case) -> None:
            for one in made.containers():
                if one["name"] == name:
                    resources = one.setdefault("resources", {})
                    limit = resources.get("limits", {}).get("memory")
                    if part == "limits" and limit:  # what the API server fills in
                        resources.setdefault("requests", {}).setdefault("memory", limit)
                    resources.setdefault(part, {})["memory"] = str(value)

        return self.with_pod(change)

    def memory(self, name: str) -> tuple[int, int]:
        resources: Json = next(one for one in self.containers() if one["name"] == name).get("resources", {})
        limit = resources.get("limits", {}).get("memory", "0")
        return quantity.capped(resources.get("requests", {}).get("memory", limit)), quantity.capped(limit)

    def with_profile(self, **fields: Any) -> Case:
        return dataclasses.replace(self, profile=changed(self.profile, **fields))

    def with_override(self, name: str, **fields: Any) -> Case:
        entries = [
            msgspec.structs.replace(one, swap=msgspec.structs.replace(one.swap, **fields)) if one.name == name else one
            for one in self.profile.overrides
        ]
        return self.with_profile(overrides=tuple(entries))


Followed = Callable[[Case, Advice], list[Case]]


def in_pod(change: Callable[[Json], None]) -> Followed:
    return lambda case, _: [case.with_pod(lambda made: change(made.pod["spec"]))]


def limit_above(case: Case, advice: Advice) -> list[Case]:
    assert case.memory(advice.target) == (advice.above, advice.above), "only where they are equal it matters for swap"
    return [case.with_memory(advice.target, "limits", PLENTY)]


def limit_above_or_request_below(case: Case, advice: Advice) -> list[Case]:
    return [*limit_above(case, advice), case.with_memory(advice.target, "requests", (advice.above or 0) // 2)]


def request_within(case: Case, advice: Advice) -> list[Case]:
    request, limit = case.memory(advice.target)
    assert request == (advice.above or 0) or advice.below in {request, None}
    if advice.above is None and advice.below is not None:
        assert 1 < advice.below <= limit, "there is such a value"
        return [case.with_memory(advice.target, "requests", advice.below // 2)]
    top = min(case.facts.memory_bytes, (advice.below or PLENTY) - 1)
    assert top > request, "there is such a value"
    return [case.with_memory(advice.target, "requests", top)]


def request_within_node(case: Case, advice: Advice) -> list[Case]:
    assert max(case.memory(advice.target)) > case.facts.memory_bytes, "else it bounds nothing"
    return [case.with_memory(advice.target, "requests", advice.below or 0)]


def corrected(case: Case, advice: Advice) -> list[Case]:
    for key in advice.target.split(", "):
        assert key in case.pod["metadata"]["annotations"]
        case = case.with_annotation(key, "NoPreference" if key == POLICY else None)
    return [case]


def limit_is_above(case: Case, advice: Advice) -> list[Case]:
    assert quantity.capped(case.pod["metadata"]["annotations"][advice.target]) == advice.above
    return [case.with_annotation(advice.target, str(PLENTY))]


def resource_above(case: Case, advice: Advice) -> list[Case]:
    def change(made: Case) -> None:
        for one in made.containers():
            if one["name"] == advice.target:
                one["resources"]["limits"][RESOURCE] = str(PLENTY)

    return [case.with_pod(change)]


def raised_bound(case: Case, advice: Advice) -> list[Case]:
    field = {"maxPerPod": "max_per_pod", "maxPerContainer": "max_per_container"}[advice.target]
    assert getattr(case.profile.swap, field) == advice.above
    return [case.with_profile(**{field: PLENTY})]


def commanded(case: Case, command: str) -> Case:
    """The case after the printed command was run: its annotations are written, and admission refuses none of them."""
    if command.startswith("kubectl patch "):
        patch = json.loads(shlex.split(command)[-1])
        annotations = patch["spec"]["template"]["metadata"]["annotations"]
        # Admission writes the source into pods only.
        case = case.with_annotation(names.POLICY_SOURCE_ANNOTATION, None) if POLICY in annotations else case
    else:
        _, annotate, _ = command.split(" | ")
        changes = [word.partition("=") for word in shlex.split(annotate)[8:]]
        annotations = {key.removesuffix("-"): value if equals else None for key, equals, value in changes}
    refused = case.refused()
    for key, value in annotations.items():
        case = case.with_annotation(key, value)
    assert case.refused() <= refused
    return case


def with_first_limit(case: Case, advice: Advice) -> list[Case]:
    if advice.command:
        return [commanded(case, advice.command)]
    return [case.with_annotation(advice.target, "512Mi")]


def with_policy(case: Case, advice: Advice) -> list[Case]:
    if advice.command:
        return [commanded(case, advice.command)]
    return [case.with_annotation(POLICY, advice.target).with_annotation(names.POLICY_SOURCE_ANNOTATION, None)]


def on_facts(**fields: Any) -> Followed:
    return lambda case, _: [dataclasses.replace(case, facts=msgspec.structs.replace(case.facts, **fields))]


def in_override(**fields: Any) -> Followed:
    return lambda case, advice: [case.with_override(advice.target, **fields)]


FOLLOWED: dict[AdviceKind, Followed] = {
    AdviceKind.POLICY: with_policy,
    AdviceKind.POLICY_IN_FILE: with_policy,
    AdviceKind.NAMESPACE_DEFAULT: lambda case, _: [case.with_annotation(POLICY, None)],
    AdviceKind.MISTAKES: corrected,
    AdviceKind.FIRST_LIMIT: with_first_limit,
    AdviceKind.LOWER_LIMIT: lambda case, advice: [case.with_annotation(advice.target, str((advice.below or 0) // 2))],
    AdviceKind.LIMIT: limit_is_above,
    AdviceKind.SWAP_RESOURCE: resource_above,
    AdviceKind.POD_MEMORY_LIMIT: in_pod(lambda spec: spec["resources"]["limits"].update(memory=str(PLENTY))),
    AdviceKind.MEMORY_LIMIT: limit_above,
    AdviceKind.MEMORY_LIMIT_OR_REQUEST: limit_above_or_request_below,
    AdviceKind.MEMORY_REQUEST: request_within,
    AdviceKind.MEMORY_REQUEST_IN_NODE: request_within_node,
    AdviceKind.PRIORITY: in_pod(lambda spec: spec.update(priority=1000)),
    AdviceKind.BEHAVIOR: lambda case, advice: [case.with_profile(behavior=Behavior(advice.target))],
    AdviceKind.NEW_PROFILE: lambda case, _: [dataclasses.replace(case, profile=profile())],
    AdviceKind.REQUIREMENTS: lambda case, _: [case.with_profile(require=None)],
    AdviceKind.OVERRIDE_POLICY: in_override(policy=names.Policy.NO_PREFERENCE),
    AdviceKind.OVERRIDE_LIMIT: in_override(limit=PLENTY),
    AdviceKind.BOUND: raised_bound,
    AdviceKind.OVERCOMMIT: lambda case, _: [case.with_profile(overcommit_percent=10_000)],
    AdviceKind.RESERVED: lambda case, _: [case.with_profile(reserved=None)],
    AdviceKind.NODE_SWAP: on_facts(swap_bytes=2**40),
    AdviceKind.SWAP_ON: on_facts(swap_bytes=2**40),
    AdviceKind.CGROUP: on_facts(cgroup_version=2),
    # The cases require nothing but encryption.
    AdviceKind.REQUIREMENT: on_facts(swap_bytes=2**40, devices=[msgspec.structs.replace(DISK, encrypted=True)]),
}
STATED = {AdviceKind.LIMIT, AdviceKind.OVERCOMMIT, AdviceKind.REQUIREMENT}
"""Their words repeat a user's own."""


def followed(case: Case, advice: Advice) -> list[Case]:
    """The case after the advice was followed, in each way that it leaves open."""
    if advice.kind not in STATED:
        assert advice.target in advice.how
        assert all(exact(bound) in advice.how for bound in (advice.above, advice.below) if bound is not None)
    return FOLLOWED[advice.kind](case, advice)


def check(case: Case) -> list[str]:
    """Follow each remedy; the outcomes that were promised."""
    before, now = case.decision(), case.swap()
    outcomes = []
    for change in case.told().changes:
        outcome = change.outcome
        outcomes.append(outcome)
        for after in followed(case, change):
            new = after.decision()
            match outcome:
                case "swap" | "more":
                    assert after.swap() > now, change
                    assert (outcome == "swap") == (now == 0), change
                case "less":
                    assert after.swap() < now, change
                case "no swap":
                    assert new.swap_max == "0", change
                case "limits that hold":
                    assert new.swap_max is not None, change
                case _:  # the obstacle is removed, whatever the next one is
                    assert new.reason is not before.reason, change
    return outcomes


AMOUNTS = st.sampled_from([None, "0", "3000", "64Mi", "1Gi", "2Gi", "99Gi"])
LIMITS = st.sampled_from([None, "0", "3000", "100Mi", "1Gi"])
SIZES = st.sampled_from([0, 5000, 100 * MI, GI, 4 * GI, 2**35])


@st.composite
def resources(draw: st.DrawFn, least: int = 0) -> Json:
    request, limit = draw(AMOUNTS), draw(AMOUNTS)
    if limit is not None and quantity.capped(request or "0") > quantity.capped(limit):
        limit = request  # the API server refuses it otherwise
    made: Json = {"requests": {}, "limits": {}}
    if request is not None:
        made["requests"]["memory"] = request
    if limit is not None:
        made["limits"]["memory"] = limit
    if draw(st.booleans()) or least:
        made["limits"]["cpu"] = "1"
    return made


@st.composite
def cases(draw: st.DrawFn) -> Case:
    containers = []
    for name in ("a", "b"):
        one: Json = {"name": name, "resources": draw(resources())}
        if draw(st.integers(0, 5)) == 0:
            one["resources"]["limits"][RESOURCE] = draw(st.sampled_from(["0", "100Mi"]))
        containers.append(one)
    spec: Json = {
        "nodeName": "batch-1",
        "priority": draw(st.sampled_from([0, 0, 2_000_000_000])),
        "containers": containers[:1],
    }
    match draw(st.integers(0, 3)):
        case 0:
            spec["initContainers"] = containers[1:]
        case 1:
            spec["initContainers"] = [{**containers[1], "restartPolicy": "Always"}]
        case 2:
            spec["containers"] = containers
        case _:
            pass
    if draw(st.integers(0, 5)) == 0:
        spec["resources"] = {"requests": {"memory": "99Gi", "cpu": "1"}, "limits": {"memory": "99Gi", "cpu": "1"}}
        if draw(st.booleans()):
            spec["resources"]["requests"] = {}
    annotations = {
        LIMIT: draw(LIMITS),
        PREFIX + "a": draw(LIMITS),
        POLICY: draw(st.sampled_from([None, None, None, "Disabled", "NoPreference", "Required", "rubbish"])),
        names.POLICY_SOURCE_ANNOTATION: draw(st.sampled_from([None, "namespace"])),
        "kubernetes.io/config.mirror": draw(st.sampled_from([None, None, None, "hash"])),
    }
    if draw(st.integers(0, 9)) == 0:
        annotations[LIMIT] = "lots"
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "report", "controller": True}
    metadata = {
        "name": "report-0",
        "namespace": "batch",
        "uid": "uid-1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": draw(st.sampled_from([[owner], []])),
        "annotations": {key: value for key, value in annotations.items() if value is not None},
    }
    status = {"phase": "Running", "startTime": draw(st.sampled_from(["", "2026-01-01T00:00:00Z"]))}
    overrides = st.builds(
        make_override,
        pods=st.sampled_from([(), POOL]),
        policy=st.sampled_from([None, names.Policy.DISABLED, names.Policy.NO_PREFERENCE]),
        swap_limit=st.none() | SIZES,
    )
    governing = profile(
        draw(st.sampled_from(Behavior)),
        reserved=draw(st.sampled_from([None, "10%", "100%", "1Gi"])),
        max_per_pod=draw(st.none() | SIZES),
        max_per_container=draw(st.none() | SIZES),
        overcommit_percent=draw(st.none() | st.sampled_from([1, 100, 10_000])),
        overrides=tuple(
            msgspec.structs.replace(one, name=f"o{place}")
            for place, one in enumerate(draw(st.lists(overrides, max_size=2)))
        ),
        require=draw(st.sampled_from([None, None, requirements.Require(encrypted=True)])),
    )
    if governing.swap.behavior is Behavior.KUBELET and draw(st.booleans()):
        governing = compiled.BUILT_IN
    facts = state.Facts(
        draw(st.sampled_from([1, 2, 2, 2])), True, draw(SIZES.filter(lambda size: size != 5000)), 8 * GI, devices=[DISK]
    )
    rival = pods.project(
        msgspec.convert(
            {
                "metadata": {"name": "rival", "namespace": "batch", "uid": "rival", "annotations": {LIMIT: "1Gi"}},
                "spec": {"nodeName": "batch-1", "containers": [{"name": "a"}]},
                "status": {"startTime": draw(st.sampled_from(["2020-01-01T00:00:00Z", "2027-01-01T00:00:00Z"]))},
            },
            WirePod,
        )
    )
    return Case(
        {"metadata": metadata, "spec": spec, "status": status}, governing, facts, draw(st.sampled_from([(), (rival,)]))
    )


@settings(max_examples=400)  # of each kind some
@given(cases())
def test_each_remedy_does_what_it_says(case: Case) -> None:
    check(case)


def made(*containers: Json, annotations: Json | None = None, **spec: Any) -> Json:
    metadata = {"name": "report-0", "namespace": "batch", "uid": "uid-1", "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"nodeName": "batch-1", "containers": [*containers], **spec}, "status": {}}


def container(name: str, request: str, limit: str, **more: str) -> Json:
    return {"name": name, "resources": {"requests": {"memory": request}, "limits": {"memory": limit, **more}}}


@pytest.mark.parametrize(
    ("amount", "kind"),
    [
        ("32Mi", AdviceKind.MEMORY_LIMIT_OR_REQUEST),
        ("12000", AdviceKind.MEMORY_LIMIT),  # of half of it the share is less than a page
    ],
)
def test_request_that_equals_its_limit_is_lowered_or_the_limit_raised(amount: str, kind: AdviceKind) -> None:
    case = Case(made(container("app", "1Gi", "2Gi"), container("proxy", amount, amount)), profile(), FACTS)
    told = [change for change in case.told().changes if change.outcome == "more"]
    assert (told[0].kind, told[0].target, told[0].above) == (kind, "proxy", quantity.capped(amount))
    assert "more" in check(case)


def test_request_that_is_missing_below_a_limit_above_the_nodes_memory() -> None:
    assert "swap" in check(Case(made(container("app", "0", "99Gi")), profile(), FACTS))


@pytest.mark.parametrize(
    "case",
    [
        Case(made({"name": "app"}, annotations={POLICY: "Disabled"}), profile(), FACTS),
        Case(made(container("app", "1Gi", "1Gi", cpu="1")), profile(Behavior.NO_SWAP), FACTS),
        Case(made({"name": "app"}, annotations={LIMIT: "0"}), profile(), FACTS),
        Case(made(container("app", "0", "99Gi")), profile(), msgspec.structs.replace(FACTS, swap_bytes=0)),
    ],
)
def test_no_single_change_is_shown_if_it_takes_several(case: Case) -> None:
    assert "swap" not in check(case)


def test_static_pod_gets_no_advice_on_its_priority_class() -> None:
    mirror = {"kubernetes.io/config.mirror": "hash", LIMIT: "1Gi"}
    case = Case(made(container("app", "1Gi", "2Gi"), annotations=mirror), profile(), FACTS)
    assert not [change for change in case.told().changes if change.kind is AdviceKind.PRIORITY]
    assert "swap" in check(case)


def test_nothing_is_promised_on_a_node_without_the_swap_controller() -> None:
    case = Case(made(container("app", "1Gi", "2Gi")), profile(), state.Facts(1, False, GI, GI))
    assert [(change.kind, change.outcome) for change in case.told().changes] == [
        (AdviceKind.CGROUP, "limits that hold")
    ]


def test_every_kind_of_advice_can_be_followed() -> None:
    assert FOLLOWED.keys() == set(AdviceKind)
