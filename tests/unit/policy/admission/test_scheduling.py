"""Fields that a policy adds to a pod for the scheduler."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies
from swapwarden.api import names
from swapwarden.policy.admission import scheduling
from swapwarden.policy.observed.new_pods import NewPod, NewPodSpec, WirePodMeta
from swapwarden.webhook import review

from tests.unit.webhook import reviews

LABEL = "node.swapwarden.dev/swap"
TOLERATION = {"key": LABEL, "operator": "Exists"}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
OTHER = {"weight": 1, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}}


def placed(policy: str, **spec: Any) -> dict[str, Any]:
    """The spec of a pod after admission."""
    pod = reviews.pod({"swapwarden.dev/swap-policy": policy})
    pod["spec"].update(spec)
    response = review.answer(review.decode(reviews.raw(pod)))
    result: dict[str, Any] = reviews.patched(pod, response)["spec"]
    return result


def preference(operator: str) -> dict[str, Any]:
    expressions = [{"key": LABEL, "operator": operator, "values": ["true"]}]
    return {"weight": 50, "preference": {"matchExpressions": expressions}}


@pytest.mark.parametrize("selector", [None, {}, {"pool": "batch"}])
@pytest.mark.parametrize("tolerations", [None, [], [{"key": LABEL, "operator": "Equal", "value": "x"}]])
def test_required(selector: dict[str, str] | None, tolerations: list[Any] | None) -> None:
    spec = placed("Required", nodeSelector=selector, tolerations=tolerations)
    assert spec["nodeSelector"] == {**(selector or {}), LABEL: "true"}
    assert spec["tolerations"] == [*(tolerations or []), TOLERATION]
    assert "affinity" not in spec


@pytest.mark.parametrize(
    ("affinity", "before"),
    [
        (None, None),
        ({}, None),
        ({"nodeAffinity": None}, None),
        ({"nodeAffinity": {}}, None),
        ({"nodeAffinity": {PREFERRED: []}}, []),
        ({"nodeAffinity": {PREFERRED: [OTHER]}}, [OTHER]),
        ({"podAffinity": {"x": []}, "nodeAffinity": {"required": {"y": 1}, PREFERRED: [OTHER, OTHER]}}, [OTHER, OTHER]),
    ],
)
@pytest.mark.parametrize(("policy", "operator"), [("Preferred", "In"), ("Avoid", "NotIn")])
def test_a_preference(policy: str, operator: str, affinity: Any, before: list[Any] | None) -> None:
    spec = placed(policy, affinity=affinity)
    assert spec["affinity"]["nodeAffinity"][PREFERRED] == [*(before or []), preference(operator)]
    for kind, value in (affinity or {}).items():
        if kind != "nodeAffinity":
            assert spec["affinity"][kind] == value
        else:
            assert {**(value or {}), PREFERRED: None} == {**spec["affinity"][kind], PREFERRED: None}
    assert spec.get("tolerations") == ([TOLERATION] if policy == "Preferred" else None)
    assert "nodeSelector" not in spec


@pytest.mark.parametrize("policy", ["Disabled", "NoPreference"])
def test_policies_about_swap_alone_place_nothing(policy: str) -> None:
    assert placed(policy) == reviews.pod({})["spec"]


@pytest.mark.parametrize("policy", ["Required", "Preferred", "Avoid"])
def test_nothing_is_added_to_a_pod_whose_node_is_chosen(policy: str) -> None:
    assert placed(policy, nodeName="n") == {**reviews.pod({})["spec"], "nodeName": "n"}


@pytest.mark.parametrize("toleration", [TOLERATION, {"operator": "Exists"}, {**TOLERATION, "effect": ""}])
def test_an_existing_toleration_is_enough(toleration: dict[str, str]) -> None:
    assert placed("Required", tolerations=[toleration])["tolerations"] == [toleration]


@pytest.mark.parametrize("toleration", [{**TOLERATION, "effect": "NoSchedule"}, {"key": "a", "operator": "Exists"}])
def test_a_toleration_of_something_else_is_not(toleration: dict[str, str]) -> None:
    assert placed("Required", tolerations=[toleration])["tolerations"] == [toleration, TOLERATION]


def test_what_contradicts_required() -> None:
    for selector, found in (({LABEL: "false"}, "false"), ({LABEL: "true"}, None), ({}, None), (None, None)):
        assert scheduling.contradicts(NewPod(WirePodMeta(), NewPodSpec(node_selector=selector))) == found


TEXT = strategies.text("ab./-", max_size=4)
EXPRESSIONS = strategies.lists(
    strategies.fixed_dictionaries(
        {
            "key": strategies.one_of(TEXT, strategies.just(LABEL)),
            "operator": strategies.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt"]),
            "values": strategies.lists(strategies.sampled_from(["true", "false", "1"]), max_size=2),
        }
    ),
    max_size=2,
)
TERMS = strategies.one_of(
    strategies.fixed_dictionaries(
        {
            "weight": strategies.integers(1, 100),
            "preference": strategies.fixed_dictionaries({"matchExpressions": EXPRESSIONS}),
        }
    ),
    strategies.sampled_from([preference("In"), preference("NotIn"), {}]),
)


def maybe(values: strategies.SearchStrategy[Any]) -> strategies.SearchStrategy[Any]:
    return strategies.one_of(strategies.none(), values)


SPECS = strategies.fixed_dictionaries(
    {},
    optional={
        "nodeName": strategies.sampled_from(["", "n"]),
        "nodeSelector": maybe(
            strategies.dictionaries(
                strategies.one_of(TEXT, strategies.just(LABEL)), strategies.sampled_from(["true", "false"]), max_size=3
            )
        ),
        "tolerations": maybe(
            strategies.lists(
                strategies.fixed_dictionaries(
                    {},
                    optional={
                        "key": strategies.sampled_from(["", LABEL, "a"]),
                        "operator": strategies.sampled_from(["", "Exists", "Equal"]),
                        "effect": strategies.sampled_from(["", "NoSchedule"]),
                    },
                ),
                max_size=3,
            )
        ),
        "affinity": maybe(
            strategies.fixed_dictionaries(
                {},
                optional={
                    "podAffinity": maybe(strategies.just({"a": []})),
                    "nodeAffinity": maybe(
                        strategies.fixed_dictionaries(
                            {},
                            optional={
                                PREFERRED: maybe(strategies.lists(TERMS, max_size=3)),
                                "required": strategies.just({"nodeSelectorTerms": [{}]}),
                            },
                        )
                    ),
                },
            )
        ),
    },
)


def without_ours(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec, without all that a policy may add, and without empty fields."""
    left: dict[str, Any] = json.loads(json.dumps(spec))
    left["nodeSelector"] = {key: value for key, value in (left.get("nodeSelector") or {}).items() if key != LABEL}
    left["tolerations"] = [one for one in left.get("tolerations") or [] if one != TOLERATION]
    affinity = left["affinity"] = left.get("affinity") or {}
    of_node = affinity["nodeAffinity"] = affinity.get("nodeAffinity") or {}
    ours = [preference("In"), preference("NotIn")]
    of_node[PREFERRED] = [one for one in of_node.get(PREFERRED) or [] if one not in ours]
    return left


OWNERS = strategies.sampled_from([[], [{"kind": "DaemonSet", "controller": True}], [{"kind": "ReplicaSet"}]])
LIMITS = strategies.sampled_from([{}, {"swapwarden.dev/swap-limit": "1Gi"}, {"swap-limit.swapwarden.dev/app": "0"}])


@hypothesis.given(SPECS, strategies.sampled_from(names.Policy), strategies.booleans(), OWNERS, LIMITS)
def test_admission_adds_only_its_own_and_only_once(
    spec: dict[str, Any], policy: names.Policy, given: bool, owners: list[Any], limits: dict[str, str]
) -> None:
    pod = reviews.pod({**limits, **({"swapwarden.dev/swap-policy": policy.value} if given else {})} or None)
    pod["spec"].update(spec)
    pod["metadata"]["ownerReferences"] = owners
    default = None if given else policy
    answer = review.answer(review.decode(reviews.raw(pod)), default)
    hypothesis.assume(answer.allowed)
    once = reviews.patched(pod, answer)
    again = review.answer(review.decode(reviews.raw(once)), default)
    assert again.allowed
    assert again.patch is None
    assert without_ours(once["spec"]) == without_ours(pod["spec"])
    if policy is names.Policy.REQUIRED and not spec.get("nodeName") and not (owners and owners[0].get("controller")):
        own = (spec.get("nodeSelector") or {}).get(LABEL, "true")
        assert own == "true" or not given, "what contradicts a default is nobody's mistake"
        assert once["spec"]["nodeSelector"][LABEL] == own
