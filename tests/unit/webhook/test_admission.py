"""What the webhook decides."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies
from swapwarden.api import names
from swapwarden.webhook import admission, review

from tests.unit.webhook import reviews

POLICY = "swapwarden.dev/swap-policy"
SOURCE = "swapwarden.dev/policy-source"
LIMIT = "swapwarden.dev/swap-limit"
APP_LIMIT = "swap-limit.swapwarden.dev/app"
MIRROR = {"kubernetes.io/config.mirror": "0123", "kubernetes.io/config.hash": "0123"}

KEYS = strategies.one_of(
    strategies.sampled_from([POLICY, SOURCE, LIMIT, APP_LIMIT, "example.com/a~b", "~1", "swap-limit.swapwarden.dev/"]),
    strategies.text(max_size=20),
)
VALUES = strategies.one_of(
    strategies.sampled_from(["Disabled", "NoPreference", "Required", "", "1Gi", "namespace"]),
    strategies.text(max_size=20),
)
ANNOTATIONS = strategies.one_of(strategies.none(), strategies.dictionaries(KEYS, VALUES, max_size=6))


def refused(response: review.Response) -> review.Status:
    assert not response.allowed
    assert response.status is not None
    return response.status


def fields(response: review.Response) -> list[str]:
    return [cause.field for cause in refused(response).details.causes]


def patched(pod: dict[str, Any], response: review.Response) -> dict[str, Any]:
    """Apply the response's JSON patch as RFC 6902 says, as far as it uses it."""
    assert response.allowed
    result: dict[str, Any] = json.loads(json.dumps(pod))
    for operation in json.loads(response.patch or b"[]"):
        *path, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        target = result
        for key in path:
            target = target[key]
        assert operation["op"] == "add"
        target[last] = operation["value"]
    return result


# --- values ---


@pytest.mark.parametrize("policy", list(names.Policy))
def test_policies_that_are_understood(policy: names.Policy) -> None:
    response = admission.validate(reviews.create({POLICY: policy.value}))
    assert response == review.Response(uid="c0ffee00-0000-4000-8000-000000000001", allowed=True)


@pytest.mark.parametrize("value", ["Required", "Preferred", "Avoid", "disabled", "Disabled ", "", "true"])
def test_a_policy_that_is_not_is_refused_with_key_value_and_what_is_accepted(value: str) -> None:
    status = refused(admission.validate(reviews.create({POLICY: value})))
    assert (status.code, status.reason, status.status) == (422, "Invalid", "Failure")
    assert status.message == (
        f'metadata.annotations[swapwarden.dev/swap-policy]: Unsupported value: "{value}": '
        'supported values: "Disabled", "NoPreference"'
    )
    (cause,) = status.details.causes
    assert cause.reason == "FieldValueNotSupported"
    assert cause.field == "metadata.annotations[swapwarden.dev/swap-policy]"
    assert status.details.name == "web-0"
    assert status.details.kind == "Pod"


@pytest.mark.parametrize("value", ["0", "1", "512Mi", "2Gi", "1G"])
@pytest.mark.parametrize("key", [LIMIT, APP_LIMIT])
def test_limits_that_are_quantities(key: str, value: str) -> None:
    assert admission.validate(reviews.create({key: value})).allowed


@pytest.mark.parametrize("value", ["", "-1", "1 Gi", "lots", "1Gb", "max"])
@pytest.mark.parametrize("key", [LIMIT, APP_LIMIT])
def test_limits_that_are_none_are_refused(key: str, value: str) -> None:
    status = refused(admission.validate(reviews.create({key: value})))
    (cause,) = status.details.causes
    assert (cause.reason, cause.field) == ("FieldValueInvalid", f"metadata.annotations[{key}]")
    assert cause.message.startswith(f"Invalid value: {json.dumps(value)}: ")
    assert "512Mi" in cause.message


def test_a_limit_for_a_container_that_is_not_there() -> None:
    request = reviews.create(
        {"swap-limit.swapwarden.dev/ap": "1Gi", "swap-limit.swapwarden.dev/setup": "1Gi", APP_LIMIT: "1Gi"},
        init=["setup"],
    )
    status = refused(admission.validate(request))
    (cause,) = status.details.causes
    assert cause.field == "metadata.annotations[swap-limit.swapwarden.dev/ap]"
    assert cause.message == 'Invalid value: "ap": the pod has no container of that name; it has: "setup", "app"'


def test_all_errors_come_at_once_in_a_stable_order() -> None:
    wrong = {LIMIT: "x", POLICY: "y", "swap-limit.swapwarden.dev/z": "-1", SOURCE: "me"}
    response = admission.validate(reviews.create(wrong))
    assert fields(response) == [
        "metadata.annotations[swap-limit.swapwarden.dev/z]",
        "metadata.annotations[swap-limit.swapwarden.dev/z]",
        f"metadata.annotations[{SOURCE}]",
        f"metadata.annotations[{LIMIT}]",
        f"metadata.annotations[{POLICY}]",
    ]
    message = refused(response).message
    assert all(f"{cause.field}: {cause.message}" in message for cause in refused(response).details.causes)


def test_a_flood_of_errors_is_cut_and_counted() -> None:
    wrong = {f"swap-limit.swapwarden.dev/c{number}": "1" for number in range(500)}
    status = refused(admission.validate(reviews.create(wrong)))
    assert len(status.details.causes) == admission.MAX_CAUSES
    assert status.message.endswith(f"; and {500 - admission.MAX_CAUSES} more")


def test_a_huge_value_is_cut_in_the_message() -> None:
    assert len(refused(admission.validate(reviews.create({POLICY: "x" * 200_000}))).message) < 300


def test_the_source_is_not_for_people_to_write() -> None:
    assert admission.validate(reviews.create({SOURCE: "namespace", POLICY: "Disabled"})).allowed
    assert fields(admission.validate(reviews.create({SOURCE: "cluster", POLICY: "Disabled"}))) == [
        f"metadata.annotations[{SOURCE}]"
    ]


def test_other_annotations_are_nobodys_business_here() -> None:
    strange = {"swapwarden.dev/note": "x", "example.com/swap-policy": "y", "swap-limit.swapwarden.dev.example/app": "z"}
    assert admission.validate(reviews.create(strange)).allowed
    assert admission.validate(reviews.create(None)).allowed


def test_a_pod_without_a_name_is_called_by_its_prefix() -> None:
    pod = {"metadata": {"generateName": "web-", "annotations": {POLICY: "x"}}, "spec": {}}
    status = refused(admission.validate(review.decode(reviews.raw(pod, name=""))))
    assert status.details.name == "web-"


def test_a_limit_without_effect_is_allowed_with_a_warning() -> None:
    response = admission.validate(reviews.create({POLICY: "Disabled", LIMIT: "1Gi", APP_LIMIT: "1Gi"}))
    assert response.allowed
    assert response.warnings == [
        f"metadata.annotations[{key}]: no effect, because {POLICY} is Disabled" for key in (APP_LIMIT, LIMIT)
    ]
    assert admission.validate(reviews.create({POLICY: "NoPreference", LIMIT: "1Gi"})).warnings == []


# --- immutability ---


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        ({POLICY: "NoPreference"}, {POLICY: "Disabled"}, 'cannot be changed from "NoPreference" to "Disabled"'),
        ({POLICY: "Disabled"}, {}, 'cannot be removed (it is "Disabled")'),
        ({POLICY: "Disabled"}, None, 'cannot be removed (it is "Disabled")'),
        (None, {POLICY: "Disabled"}, 'cannot be added (as "Disabled")'),
        ({}, {POLICY: ""}, 'cannot be added (as "")'),
        ({LIMIT: "1Gi"}, {LIMIT: "1024Mi"}, 'cannot be changed from "1Gi" to "1024Mi"'),
        ({}, {APP_LIMIT: "1Gi"}, 'cannot be added (as "1Gi")'),
        ({SOURCE: "namespace"}, {}, 'cannot be removed (it is "namespace")'),
    ],
)
def test_our_annotations_cannot_change(before: dict[str, str] | None, now: dict[str, str] | None, says: str) -> None:
    status = refused(admission.validate(reviews.update(before, now)))
    assert (status.code, status.reason) == (422, "Invalid")
    (cause,) = status.details.causes
    assert cause.reason == "FieldValueForbidden"
    assert says in cause.message
    assert "kubectl edit deployment" in cause.message
    assert "delete the pod and create it anew" in cause.message


def test_every_changed_annotation_is_named() -> None:
    response = admission.validate(reviews.update({POLICY: "Disabled", LIMIT: "1"}, {APP_LIMIT: "1", LIMIT: "1"}))
    assert fields(response) == [f"metadata.annotations[{APP_LIMIT}]", f"metadata.annotations[{POLICY}]"]


@pytest.mark.parametrize("value", ["Disabled", "from-before-the-webhook-was-there"])
def test_everything_else_can_change_whatever_the_policy(value: str) -> None:
    assert admission.validate(reviews.update({POLICY: value, "a": "1"}, {POLICY: value, "b": "2"})).allowed


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_other_operations_are_allowed(operation: str) -> None:
    request = review.decode(reviews.raw(None, reviews.pod({POLICY: "x"}), operation=operation))
    assert admission.validate(request).allowed
    assert admission.mutate(request, names.Policy.DISABLED).patch is None


# --- mirror pods ---


def test_mirror_pods_are_never_refused_and_never_changed() -> None:
    assert admission.validate(reviews.create({**MIRROR, POLICY: "x", LIMIT: "y"})).allowed
    assert admission.validate(reviews.update({**MIRROR, POLICY: "x"}, {**MIRROR, POLICY: "y"})).allowed
    assert admission.mutate(reviews.create(MIRROR), names.Policy.DISABLED).patch is None


# --- the namespace's default ---


@pytest.mark.parametrize("policy", list(names.Policy))
@pytest.mark.parametrize("annotations", [None, {}, {"example.com/a": "b"}])
def test_a_pod_without_a_policy_gets_the_default(policy: names.Policy, annotations: dict[str, str] | None) -> None:
    response = admission.mutate(reviews.create(annotations), policy)
    assert response.patch_type == "JSONPatch"
    result = patched(reviews.pod(annotations), response)
    assert result["metadata"]["annotations"] == {**(annotations or {}), POLICY: policy.value, SOURCE: "namespace"}


@pytest.mark.parametrize("own", ["NoPreference", "Disabled", "nonsense", ""])
def test_a_pod_with_a_policy_keeps_it(own: str) -> None:
    response = admission.mutate(reviews.create({POLICY: own}), names.Policy.DISABLED)
    assert response.allowed
    assert response.patch is None
    assert response.patch_type is None


def test_an_update_gets_no_default() -> None:
    assert admission.mutate(reviews.update({}, {}), names.Policy.DISABLED).patch is None


@hypothesis.given(ANNOTATIONS, strategies.sampled_from(names.Policy))
def test_the_patch_adds_the_default_and_touches_nothing_else(
    annotations: dict[str, str] | None, policy: names.Policy
) -> None:
    pod = reviews.pod(annotations)
    once = patched(pod, admission.mutate(review.decode(reviews.raw(pod)), policy))
    had = annotations or {}
    added = {} if POLICY in had else {POLICY: policy.value, SOURCE: "namespace"}
    assert once["metadata"].pop("annotations", {}) == {**had, **added}
    pod["metadata"].pop("annotations", None)
    assert once == pod


@hypothesis.given(ANNOTATIONS, strategies.sampled_from(names.Policy))
def test_a_second_call_changes_nothing(annotations: dict[str, str] | None, policy: names.Policy) -> None:
    pod = reviews.pod(annotations)
    once = patched(pod, admission.mutate(review.decode(reviews.raw(pod)), policy))
    assert admission.mutate(review.decode(reviews.raw(once)), policy).patch is None


@hypothesis.given(strategies.dictionaries(strategies.text(max_size=20), VALUES, max_size=4))
def test_what_the_default_gives_is_valid(annotations: dict[str, str]) -> None:
    hypothesis.assume(not any(map(admission.is_own, annotations)))
    pod = patched(reviews.pod(annotations), admission.mutate(reviews.create(annotations), names.Policy.DISABLED))
    assert admission.validate(review.decode(reviews.raw(pod))).allowed


@hypothesis.given(ANNOTATIONS, ANNOTATIONS)
def test_an_update_is_refused_exactly_when_one_of_our_annotations_differs(
    before: dict[str, str] | None, now: dict[str, str] | None
) -> None:
    def own(annotations: dict[str, str] | None) -> dict[str, str]:
        return {key: value for key, value in (annotations or {}).items() if admission.is_own(key)}

    response = admission.validate(reviews.update(before, now))
    assert response.allowed == (own(before) == own(now))


@hypothesis.given(ANNOTATIONS)
def test_a_decision_on_a_creation_depends_on_our_annotations_only(annotations: dict[str, str] | None) -> None:
    own = {key: value for key, value in (annotations or {}).items() if admission.is_own(key)}
    assert admission.validate(reviews.create(annotations)) == admission.validate(reviews.create(own))
