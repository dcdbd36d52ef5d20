"""Decoding and encoding of AdmissionReviews."""

from __future__ import annotations

import base64
import contextlib
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies
from swapwarden.policy.admission import answers
from swapwarden.webhook import review

from tests.unit.webhook import reviews

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def test_decodes_what_decisions_need() -> None:
    request = review.decode(
        reviews.raw(reviews.pod({"a": "b"}, init=["setup"], containers=["app", "log"]), dryRun=True)
    )
    assert (request.uid, request.operation) == ("c0ffee00-0000-4000-8000-000000000001", "CREATE")
    assert (request.namespace, request.name, request.dry_run) == ("shop", "web-0", True)
    assert request.object is not None
    assert request.object.annotations == {"a": "b"}
    assert [one.name for _, one in request.object.spec.created()] == ["setup", "app", "log"]


def test_a_pod_that_a_go_client_left_half_empty() -> None:
    request = review.decode(reviews.raw({"metadata": {"generateName": "web-"}, "spec": {"containers": None}}))
    assert request.object is not None
    assert request.object.annotations == {}
    assert list(request.object.spec.created()) == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not an AdmissionReview in JSON"),
        (b"{", "not an AdmissionReview in JSON"),
        (b"\xff\xfe", "not an AdmissionReview in JSON"),
        (b"[]", "not an AdmissionReview in JSON"),
        (b"{}", "not an object without apiVersion and kind"),
        (b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}', "set admissionReviewVersions to"),
        (b'{"apiVersion": "admission.k8s.io/v1", "kind": "Pod"}', "not admission.k8s.io/v1 Pod"),
        (b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}', "no request"),
        (
            b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u"}}',
            "missing required field",
        ),
        (reviews.raw(None), r"\(CREATE\) has no object"),
        (reviews.raw({"metadata": {"annotations": {"a": 1}}}), "annotations"),
        (
            reviews.raw(reviews.pod({}), resource={"group": "apps", "resource": "deployments"}),
            "not for apps/deployments",
        ),
        (reviews.raw(reviews.pod({}), resource={"resource": "nodes"}), "not for nodes: correct the webhook's rules"),
        (reviews.raw(reviews.pod({}), subResource="status"), "not for pods/status"),
    ],
)
def test_what_cannot_be_answered_is_named(body: bytes, says: str) -> None:
    with pytest.raises(review.ReviewError, match=says):
        review.decode(body)


def filled(where: str, element: Callable[[int], str], size: int) -> bytearray:
    """A review of some SIZE in bytes whose pod has as many elements as fit, there."""
    pod: Any = {"metadata": {}, "spec": {}}
    expressions = [{"key": "a", "operator": "In", "values": "HERE"}]
    match where:
        case "annotations":
            pod["metadata"]["annotations"] = "HERE"
        case "terms":
            pod["spec"]["affinity"] = {"nodeAffinity": {PREFERRED: "HERE"}}
        case "values":
            term = {"weight": 1, "preference": {"matchExpressions": expressions}}
            pod["spec"]["affinity"] = {"nodeAffinity": {PREFERRED: [term]}}
        case _:
            pod["spec"][where] = "HERE"
    elements = ",".join(map(element, range(size // len(element(0)))))
    brackets = "{}" if where in {"annotations", "nodeSelector"} else "[]"
    return bytearray(reviews.raw(pod).replace(b'"HERE"', f"{brackets[0]}{elements}{brackets[1]}".encode()))


@pytest.mark.parametrize(
    ("where", "element"),
    [
        ("terms", lambda _: "[[]]"),
        ("terms", lambda _: "1.5"),
        ("terms", lambda _: "{}"),
        ("terms", lambda number: f'"{number}"'),
        ("values", lambda number: f'"{number}"'),
        ("values", lambda number: f'"{number}\\\\"'),
        ("annotations", lambda number: f'"{number}":""'),
        ("annotations", lambda number: f'"{number}" :""'),
        ("annotations", lambda number: f'"{number}"\n:""'),
        ("nodeSelector", lambda number: f'"{number}"\t \r:""'),
        ("tolerations", lambda _: "{}"),
        ("containers", lambda number: f'{{"name":"{number}"}}'),
    ],
)
def test_a_decoded_review_is_bounded(
    where: str, element: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    values, quotes = 2000, 8000
    monkeypatch.setattr(review, "MAX_VALUES", values)
    monkeypatch.setattr(review, "MAX_QUOTES", quotes)
    body = filled(where, element, 500_000)
    tracemalloc.start()
    try:
        with contextlib.suppress(review.ReviewError):
            review.decode(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 300 * values + 60 * quotes


@pytest.mark.parametrize(
    ("where", "element", "size"),
    [
        ("annotations", lambda number: f'"key-{number:06}":"{number:03}"', 3_000_000),
        ("containers", lambda number: f'{{"name":"{number:06}"}}', 3_000_000),
        ("values", lambda number: f'"{number:06}"', 3_000_000),
    ],
)
def test_what_a_pod_can_be_stored_with_is_read(where: str, element: Callable[[int], str], size: int) -> None:
    """More of each than there are bytes for in etcd."""
    assert review.decode(filled(where, element, size)).object is not None


def test_a_deletion_needs_no_object() -> None:
    assert review.decode(reviews.raw(None, reviews.pod({}), operation="DELETE")).object is None


def test_an_allowing_answer_says_no_more_than_it_must() -> None:
    assert json.loads(review.encode(review.Response(uid="u", allowed=True))) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "u", "allowed": True},
    }


def test_a_refusing_answer_carries_a_status() -> None:
    details = review.Details(
        name="web-0", kind="Pod", causes=[answers.StatusCause("FieldValueInvalid", "too big", "spec.x")]
    )
    status = review.Status(message="spec.x: too big", reason="Invalid", code=422, details=details)
    answer = json.loads(review.encode(review.Response(uid="u", allowed=False, status=status)))
    assert answer["response"] == {
        "uid": "u",
        "allowed": False,
        "status": {
            "status": "Failure",
            "message": "spec.x: too big",
            "reason": "Invalid",
            "code": 422,
            "details": {
                "name": "web-0",
                "kind": "Pod",
                "causes": [{"reason": "FieldValueInvalid", "message": "too big", "field": "spec.x"}],
            },
        },
    }


def test_a_patch_travels_as_base64() -> None:
    patch = review.encode_patch([answers.Operation("add", "/a", "b")])
    answer = json.loads(review.encode(review.Response(uid="u", allowed=True, patch=patch, patch_type="JSONPatch")))
    assert json.loads(base64.b64decode(answer["response"]["patch"])) == [{"op": "add", "path": "/a", "value": "b"}]
    assert answer["response"]["patchType"] == "JSONPatch"


@hypothesis.given(strategies.lists(strategies.text(), min_size=1, max_size=4))
def test_a_pointer_leads_back_to_its_keys(keys: list[str]) -> None:
    pointer = answers.pointer(*keys)
    assert [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]] == keys


@hypothesis.given(strategies.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_else(body: bytes) -> None:
    with pytest.raises(review.ReviewError):
        review.decode(body)
