"""AdmissionReview v1 on the wire, with the fields in use.

Only the fields that a decision needs are decoded: a review carries whole pods, and most fields have no meaning here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.policy.admission import answers, decide, pod_annotations
from swapwarden.policy.observed.new_pods import NewPod

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
_UNPROCESSABLE: Final = 422


class Resource(msgspec.Struct, frozen=True):
    """The resource of the request, as in the registration's rules."""

    group: str = ""
    version: str = ""
    resource: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """The request that the API server asks about."""

    uid: str
    resource: Resource
    operation: str
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    dry_run: bool | None = None
    object: NewPod | None = None


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: Request | None = None


class Details(msgspec.Struct, frozen=True):
    """metav1.StatusDetails."""

    name: str
    kind: str
    causes: list[answers.StatusCause]


class Status(msgspec.Struct, frozen=True):
    """metav1.Status: the reason of a refusal."""

    message: str
    reason: str
    code: int
    details: Details
    status: str = "Failure"


class Response(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The answer. `patch` holds the encoded JSON patch; on the wire it becomes base64, as the API requires."""

    uid: str
    allowed: bool
    status: Status | None = None
    patch: bytes | None = None
    patch_type: str | None = None
    warnings: list[str] = []


class _ReviewAnswer(msgspec.Struct, frozen=True, rename="camel"):
    response: Response
    api_version: str = API_VERSION
    kind: str = KIND


class ReviewError(ValueError):
    """The body is no AdmissionReview that can be answered; the text has the reason."""


MAX_VALUES: Final = 200_000
"""Limit of fields, or objects in lists, of a review: a million of them take many times their text in memory."""

MAX_QUOTES: Final = 4 * MAX_VALUES
"""Limit of quotes that begin or end strings, keys included."""

_UNCOUNTED_BYTES: Final = 64 * 1024
_NAMESPACE: Final = re.compile(rb'"namespace": ?"([-a-z0-9]{1,63})"')
_NAMESPACE_WITHIN: Final = 8192

_decoder = msgspec.json.Decoder(_Review)
_encoder = msgspec.json.Encoder()


def namespace_in(body: bytes | bytearray) -> str:
    """Return the namespace of an encoded review, read at little cost; empty if it is not at its usual place.

    Go writes it ahead of the object. No string holds such bytes: quotes in strings are escaped.
    """
    match = _NAMESPACE.search(body, 0, _NAMESPACE_WITHIN)
    return match[1].decode("ascii") if match else ""


def decode(body: bytes | bytearray) -> Request:
    """Return the request in an encoded AdmissionReview; ReviewError if there is none for a pod."""
    if len(body) > _UNCOUNTED_BYTES:
        _refuse_many(body)
    try:
        review = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReviewError(f"the body is not an AdmissionReview in JSON: {error}") from error
    except RecursionError as error:
        raise ReviewError("the body is nested too deeply for an AdmissionReview") from error
    if review.api_version != API_VERSION or review.kind != KIND:
        actual = (
            pod_annotations.shown(f"{review.api_version} {review.kind}".strip())
            or "an object without apiVersion and kind"
        )
        raise ReviewError(
            f"this webhook understands {API_VERSION} {KIND}, not {actual}: set admissionReviewVersions to [v1]"
        )
    request = review.request
    if request is None:
        raise ReviewError("the AdmissionReview has no request")
    if request.resource.resource != "pods" or request.resource.group or request.sub_resource:
        raise ReviewError(
            f"this webhook is for pods, without subresources, not for {_name(request)}: correct the webhook's rules"
        )
    if request.object is None and request.operation in {"CREATE", "UPDATE"}:
        raise ReviewError(f"the request ({request.operation}) has no object")
    return request


def _refuse_many(body: bytes | bytearray) -> None:
    """Raise ReviewError if a body may decode to more than the memory limit. All decoded values have these forms."""
    fields = body.count(b'":') + sum(body.count(blank + b":") for blank in (b" ", b"\t", b"\r", b"\n"))
    if max(body.count(b"{"), fields) > MAX_VALUES:
        raise ReviewError(f"the object is too large: it has more than {MAX_VALUES} fields")
    # A quote that begins a string has no backslash before it.
    if body.count(b'"') - body.count(b'\\"') > MAX_QUOTES:
        raise ReviewError(f"the object is too large: it may have more than {MAX_QUOTES // 2} strings")


def _name(request: Request) -> str:
    parts = (request.resource.group, request.resource.resource, request.sub_resource)
    return pod_annotations.shown("/".join(part for part in parts if part))


def answer(request: Request, default: names.Policy | None = None, *, require_plugin: bool = False) -> Response:
    """Answer a request: see `decide.decide` for the pod. Only the creation of pods is judged.

    Policies inside the API server keep annotations unchanged after creation.
    """
    pod = request.object
    if request.operation != "CREATE" or pod is None:
        return Response(uid=request.uid, allowed=True)
    decision = decide.decide(pod, default, require_plugin=require_plugin)
    if decision.causes:
        name = request.name or pod.metadata.name or pod.metadata.generate_name
        refusal = _refusal(name, decision)
        return Response(uid=request.uid, allowed=False, status=refusal, warnings=decision.warnings)
    if not decision.operations:
        return Response(uid=request.uid, allowed=True, warnings=decision.warnings)
    patch = encode_patch(decision.operations)
    return Response(uid=request.uid, allowed=True, warnings=decision.warnings, patch=patch, patch_type="JSONPatch")


def _refusal(name: str, decision: decide.PodAdmission) -> Status:
    message = "; ".join(f"{cause.field}: {cause.message}" for cause in decision.causes)
    if decision.has_more:
        message += "; and more"
    shown = pod_annotations.shown(name, pod_annotations.MAX_NAME)
    return Status(message, "Invalid", _UNPROCESSABLE, Details(shown, "Pod", decision.causes))


def encode(response: Response) -> bytes:
    """Return the AdmissionReview that carries the response."""
    return _encoder.encode(_ReviewAnswer(response))


def encode_patch(operations: Iterable[answers.Operation]) -> bytes:
    """Return an encoded JSON patch."""
    return _encoder.encode(list(operations))
