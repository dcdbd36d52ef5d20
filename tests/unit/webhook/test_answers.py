"""Decisions of the webhook."""

from __future__ import annotations

import difflib
import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies
from swapwarden.api import names
from swapwarden.policy.admission import decide, pod_annotations, validation
from swapwarden.policy.observed.new_pods import NewPod, NewPodSpec, WireContainer, WirePodMeta
from swapwarden.webhook import review

from tests.unit.webhook import reviews

POLICY = "swapwarden.dev/swap-policy"
SOURCE = "swapwarden.dev/policy-source"
LIMIT = "swapwarden.dev/swap-limit"
APP_LIMIT = "swap-limit.swapwarden.dev/app"
SWAP = "node.swapwarden.dev/swap"
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


# --- values ---


@pytest.mark.parametrize("policy", list(names.Policy))
def test_policies_that_are_understood(policy: names.Policy) -> None:
    response = review.answer(reviews.create({POLICY: policy.value}))
    assert (response.uid, response.allowed) == ("c0ffee00-0000-4000-8000-000000000001", True)
    assert (response.status, response.warnings) == (None, [])


@pytest.mark.parametrize(
    ("value", "meant"), [("disabled", "Disabled"), ("Disabled ", "Disabled"), ("", None), ("true", None)]
)
def test_an_unknown_policy_is_refused_with_key_value_and_accepted_values(value: str, meant: str | None) -> None:
    status = refused(review.answer(reviews.create({POLICY: value})))
    assert (status.code, status.reason, status.status) == (422, "Invalid", "Failure")
    assert status.message == (
        f'metadata.annotations[swapwarden.dev/swap-policy]: Unsupported value: "{value}": '
        'supported values: "Avoid", "Disabled", "NoPreference", "Preferred", "Required"'
        + (f'; did you mean "{meant}"?' if meant else "")
    )
    (cause,) = status.details.causes
    assert cause.reason == "FieldValueNotSupported"
    assert cause.field == "metadata.annotations[swapwarden.dev/swap-policy]"
    assert status.details.name == "web-0"
    assert status.details.kind == "Pod"


@pytest.mark.parametrize("value", ["0", "1", "512Mi", "2Gi", "1G"])
@pytest.mark.parametrize("key", [LIMIT, APP_LIMIT])
def test_limits_that_are_quantities(key: str, value: str) -> None:
    assert review.answer(reviews.create({key: value})).allowed


@pytest.mark.parametrize("value", ["", "-1", "1 Gi", "lots", "1Gb", "max"])
@pytest.mark.parametrize("key", [LIMIT, APP_LIMIT])
def test_limits_that_are_none_are_refused(key: str, value: str) -> None:
    status = refused(review.answer(reviews.create({key: value})))
    (cause,) = status.details.causes
    assert (cause.reason, cause.field) == ("FieldValueInvalid", f"metadata.annotations[{key}]")
    assert cause.message.startswith(f"Invalid value: {json.dumps(value)}: ")
    assert "did you mean" in cause.message or "write for example 512Mi" in cause.message


def test_a_limit_for_a_container_that_is_not_there() -> None:
    request = reviews.create(
        {"swap-limit.swapwarden.dev/ap": "1Gi", "swap-limit.swapwarden.dev/setup": "1Gi", APP_LIMIT: "1Gi"},
        init=["setup"],
    )
    status = refused(review.answer(request))
    (cause,) = status.details.causes
    assert cause.field == "metadata.annotations[swap-limit.swapwarden.dev/ap]"
    expected = f'Invalid value: "ap": {pod_annotations.NO_CONTAINER}; it has: "setup", "app"; did you mean "app"?'
    assert cause.message == expected


def test_all_errors_come_at_once_in_a_stable_order() -> None:
    wrong = {LIMIT: "x", POLICY: "y", "swap-limit.swapwarden.dev/z": "-1", SOURCE: "me"}
    response = review.answer(reviews.create(wrong))
    assert fields(response) == [
        "metadata.annotations[swap-limit.swapwarden.dev/z]",
        "metadata.annotations[swap-limit.swapwarden.dev/z]",
        f"metadata.annotations[{SOURCE}]",
        f"metadata.annotations[{LIMIT}]",
        f"metadata.annotations[{POLICY}]",
    ]
    message = refused(response).message
    assert all(f"{cause.field}: {cause.message}" in message for cause in refused(response).details.causes)


def test_a_flood_of_errors_is_cut() -> None:
    wrong = {f"swap-limit.swapwarden.dev/c{number}": "1" for number in range(200)}
    status = refused(review.answer(reviews.create(wrong)))
    assert len(status.details.causes) == decide.MAX_CAUSES
    assert status.message.endswith("; and more")


def test_a_flood_of_warnings_is_cut() -> None:
    response = review.answer(reviews.create({f"swapwarden.dev/x{number}": "" for number in range(500)}))
    assert len(response.warnings) == decide.MAX_WARNINGS


def test_many_containers_are_not_all_listed() -> None:
    names_of_many = [f"c{number}" for number in range(100)]
    status = refused(review.answer(reviews.create({APP_LIMIT: "1"}, containers=names_of_many)))
    assert '"c18", "c19" and 80 more' in status.message
    assert '"c20"' not in status.message


def test_a_huge_value_is_cut_in_the_message() -> None:
    assert len(refused(review.answer(reviews.create({POLICY: "x" * 200_000}))).message) < 300


FORGED = 'x"\n{"level":"error"}\x7f\u202e'


@pytest.mark.parametrize("long", ["x" * 2_000_000, FORGED * 5_000])
def test_text_of_any_length_is_shortened_and_escaped_wherever_it_stands(long: str) -> None:
    limit, label = f"swap-limit.swapwarden.dev/{long}", f"swapwarden.dev/{long}"
    pod = reviews.pod({limit: long, POLICY: long, label: long}, containers=[long, f"{long}x"])
    pod["metadata"]["name"] = long
    pod["spec"]["nodeSelector"] = {SWAP: long}
    response = review.answer(review.decode(reviews.raw(pod, name=long)))
    assert len(review.encode(response)) < 8000
    status = refused(response)
    assert len(status.details.name) <= 6 * 260
    assert all(text.isprintable() for text in (status.message, status.details.name, *fields(response)))


@pytest.mark.parametrize("long", ["x" * 2_000_000, FORGED * 5_000])
def test_so_it_is_in_warnings(long: str) -> None:
    pod = reviews.pod({f"swapwarden.dev/{long}": "", f"swap-limit.swapwarden.dev.{long}/a": ""})
    pod["metadata"]["labels"] = {f"swap-limit.swapwarden.dev/{long}": "1"}
    warnings = review.answer(review.decode(reviews.raw(pod))).warnings
    assert len(warnings) >= 2
    assert all(warning.isprintable() and len(warning) < 2000 for warning in warnings)


def test_the_longest_key_of_a_limit_is_shown_whole() -> None:
    key = f"swap-limit.swapwarden.dev/{'x' * 63}"
    assert fields(review.answer(reviews.create({key: "1"}))) == [f"metadata.annotations[{key}]"]


def test_a_pod_with_more_of_our_annotations_than_anybody_needs_is_refused_at_once() -> None:
    many = [f"c{number}" for number in range(validation.MAX_OWN + 1)]
    limits = {f"swap-limit.swapwarden.dev/{name}": "1Gi" for name in many}
    (cause,) = refused(review.answer(reviews.create(limits, containers=many))).details.causes
    assert (cause.reason, cause.field) == ("FieldValueTooMany", "metadata.annotations")
    assert "at most 256" in cause.message
    del limits["swap-limit.swapwarden.dev/c0"]
    assert review.answer(reviews.create(limits, containers=many)).allowed


# --- work ---


class Counted(str):
    """A name that counts how often it is compared with another one."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_limit_is_not_looked_for_container_by_container() -> None:
    known = [f"container-{number}" for number in range(250)]
    limits = {f"swap-limit.swapwarden.dev/{name}": "1Gi" for name in known}
    containers = [WireContainer(name=Counted(name)) for name in known * 20]
    pod = NewPod(WirePodMeta(annotations=limits), NewPodSpec(containers=containers))
    Counted.compared = 0
    assert list(validation.errors(pod)) == []
    assert Counted.compared < 3 * len(containers)


def test_the_most_expensive_suggestions_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    real = difflib.SequenceMatcher.ratio

    def ratio(matcher: difflib.SequenceMatcher[str]) -> float:
        looked.append(matcher)
        return real(matcher)

    monkeypatch.setattr(difflib.SequenceMatcher, "ratio", ratio)
    limits = {f"swap-limit.swapwarden.dev/{'ab' * 30}{number:02}": "1" for number in range(21)}
    request = reviews.create(limits, containers=[f"{'ba' * 30}{number:02}" for number in range(63)])
    assert len(fields(review.answer(request))) == decide.MAX_CAUSES
    assert len(looked) < 8


def test_the_source_is_not_for_people_to_write() -> None:
    assert review.answer(reviews.create({SOURCE: "namespace", POLICY: "Disabled"})).allowed
    assert fields(review.answer(reviews.create({SOURCE: "cluster", POLICY: "Disabled"}))) == [
        f"metadata.annotations[{SOURCE}]"
    ]


def test_other_annotations_are_nobodys_business_here() -> None:
    strange = {"swapwarden.dev/note": "x", "example.com/swap-policy": "y", "swap-limit.swapwarden.dev.example/app": "z"}
    assert review.answer(reviews.create(strange)).allowed
    assert review.answer(reviews.create(None)).allowed


def test_a_pod_without_a_name_is_called_by_its_prefix() -> None:
    pod = {"metadata": {"generateName": "web-", "annotations": {POLICY: "x"}}, "spec": {}}
    status = refused(review.answer(review.decode(reviews.raw(pod, name=""))))
    assert status.details.name == "web-"


# --- contradictions ---


def test_no_swap_and_a_limit() -> None:
    wrong = reviews.create({POLICY: "Disabled", LIMIT: "1Gi", APP_LIMIT: "1Gi"})
    assert fields(review.answer(wrong)) == [f"metadata.annotations[{key}]" for key in (APP_LIMIT, LIMIT)]
    assert pod_annotations.DISABLED_HAS_NONE in refused(review.answer(wrong)).message
    assert review.answer(reviews.create({POLICY: "Disabled", LIMIT: "0", APP_LIMIT: "0"})).warnings == []


def test_a_container_with_more_than_its_pod() -> None:
    status = refused(review.answer(reviews.create({LIMIT: "1Gi", APP_LIMIT: "1025Mi"})))
    (cause,) = status.details.causes
    assert cause.message == f'Invalid value: "1025Mi": {pod_annotations.MORE_THAN_POD}, "1Gi"'
    assert cause.field == f"metadata.annotations[{APP_LIMIT}]"
    assert review.answer(reviews.create({LIMIT: "1Gi", APP_LIMIT: "1024Mi"})).allowed


DAEMON = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1", "controller": True}]


def asked(annotations: dict[str, str], **spec: Any) -> review.Request:
    """A request for a pod with more in its spec; `owners` are those of its metadata."""
    pod = reviews.pod(annotations)
    pod["metadata"]["ownerReferences"] = spec.pop("owners", [])
    pod["spec"].update(spec)
    return review.decode(reviews.raw(pod))


def test_required_for_a_pod_of_a_daemon_set() -> None:
    status = refused(review.answer(asked({POLICY: "Required"}, owners=DAEMON)))
    (cause,) = status.details.causes
    assert (cause.reason, cause.field) == ("FieldValueForbidden", f"metadata.annotations[{POLICY}]")
    assert cause.message == pod_annotations.OF_DAEMON_SET
    assert review.answer(asked({POLICY: "Required"}, owners=[{**DAEMON[0], "kind": "ReplicaSet"}])).allowed


def test_required_for_a_pod_that_selects_nodes_without() -> None:
    response = review.answer(asked({POLICY: "Required"}, nodeSelector={SWAP: "false"}))
    assert fields(response) == [f"spec.nodeSelector[{SWAP}]"]


# --- warnings ---


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("swapwarden.dev/swap-polici", '; did you mean "swapwarden.dev/swap-policy"?'),
        ("swap-limits.swapwarden.dev/app", '; did you mean "swap-limit.swapwarden.dev/app"?'),
        ("swapwarden.dev/owner", ""),
    ],
)
def test_a_key_that_is_misspelt(key: str, meant: str) -> None:
    response = review.answer(reviews.create({key: "x"}))
    assert response.allowed
    assert response.warnings == [f"metadata.annotations[{key}]: {pod_annotations.NO_SUCH_KEY}{meant}"]


def test_a_key_that_is_misspelt_beside_an_error() -> None:
    response = review.answer(reviews.create({"swapwarden.dev/swap-polcy": "Disabled", LIMIT: "lots"}))
    assert response.status is not None
    assert response.warnings == review.answer(reviews.create({"swapwarden.dev/swap-polcy": "Disabled"})).warnings


def test_a_policy_as_a_label() -> None:
    pod = reviews.pod(None)
    pod["metadata"]["labels"] = {POLICY: "Disabled", "app": "web"}
    (warning,) = review.answer(review.decode(reviews.raw(pod))).warnings
    assert warning == f"metadata.labels[{POLICY}]: {pod_annotations.AS_LABEL}"


@pytest.mark.parametrize("policy", ["Required", "Preferred", "Avoid"])
def test_placement_of_a_pod_that_has_its_place(policy: str) -> None:
    response = review.answer(asked({POLICY: policy}, nodeName="n"))
    assert response.allowed
    assert response.patch is None
    (warning,) = response.warnings
    assert warning.endswith(f"{policy} {pod_annotations.NOT_PLACED}{pod_annotations.NODE_CHOSEN}")


@pytest.mark.parametrize("policy", ["Preferred", "Avoid"])
def test_placement_of_a_pod_of_a_daemon_set(policy: str) -> None:
    response = review.answer(asked({POLICY: policy}, owners=DAEMON))
    assert response.patch is None
    assert [warning.rpartition(": ")[2] for warning in response.warnings] == [pod_annotations.DAEMON_SET_CHOOSES]


# --- a namespace's default is nobody's mistake ---


def test_a_default_does_not_contradict_a_limit() -> None:
    response = review.answer(reviews.create({LIMIT: "1Gi", APP_LIMIT: "0"}), names.Policy.DISABLED)
    assert response.allowed
    (warning,) = response.warnings
    assert warning == f"metadata.annotations[{LIMIT}]: {pod_annotations.OVERRULED}"


def test_a_default_does_not_stop_a_daemon_set() -> None:
    response = review.answer(asked({}, owners=DAEMON), names.Policy.REQUIRED)
    assert response.allowed
    paths = [operation["path"] for operation in json.loads(response.patch or b"[]")]
    assert all(path.startswith("/metadata/annotations") for path in paths)
    assert len(response.warnings) == 1


# --- other operations ---


# --- mirror pods ---


def test_mirror_pods_are_never_refused_and_never_changed() -> None:
    assert review.answer(reviews.create({**MIRROR, POLICY: "x", LIMIT: "y"})).allowed
    assert review.answer(reviews.update({**MIRROR, POLICY: "x"}, {**MIRROR, POLICY: "y"})).allowed
    assert review.answer(reviews.create(MIRROR), names.Policy.DISABLED).patch is None


# --- the namespace's default ---


@pytest.mark.parametrize("policy", list(names.Policy))
@pytest.mark.parametrize("annotations", [None, {}, {"example.com/a": "b"}])
def test_a_pod_without_a_policy_gets_the_default(policy: names.Policy, annotations: dict[str, str] | None) -> None:
    response = review.answer(reviews.create(annotations), policy)
    assert response.patch_type == "JSONPatch"
    result = reviews.patched(reviews.pod(annotations), response)
    assert result["metadata"]["annotations"] == {**(annotations or {}), POLICY: policy.value, SOURCE: "namespace"}


@pytest.mark.parametrize("own", ["NoPreference", "Disabled"])
def test_a_pod_with_a_policy_keeps_it(own: str) -> None:
    response = review.answer(reviews.create({POLICY: own}), names.Policy.DISABLED)
    assert response.allowed
    assert response.patch is None
    assert response.patch_type is None


def test_an_update_gets_no_default() -> None:
    assert review.answer(reviews.update({}, {}), names.Policy.DISABLED).patch is None


@hypothesis.given(ANNOTATIONS, strategies.sampled_from(names.Policy))
def test_what_admission_made_is_accepted_as_it_is(annotations: dict[str, str] | None, policy: names.Policy) -> None:
    pod = reviews.pod(annotations)
    response = review.answer(review.decode(reviews.raw(pod)), policy)
    hypothesis.assume(response.allowed)
    once = reviews.patched(pod, response)
    had = annotations or {}
    added = {} if POLICY in had else {POLICY: policy.value, SOURCE: "namespace"}
    assert once["metadata"].get("annotations", {}) == {**had, **added}
    again = review.answer(review.decode(reviews.raw(once)), policy)
    assert again.allowed
    assert again.patch is None
