"""AdmissionReview v1 on the wire, with the fields in use.

Only the fields that a decision needs are decoded: a review carries whole pods, and most fields have no meaning here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from swapwarden.api import names
from swapwarden.policy import pod_annotations

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"


class Owner(msgspec.Struct, frozen=True):
    """An owner reference: the creator of the pod."""

    kind: str = ""
    controller: bool | None = None


class ReviewedMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """metadata of a pod."""

    name: str = ""
    generate_name: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    owner_references: list[Owner] | None = None


class Amounts(msgspec.Struct, frozen=True):
    """Requests or limits of a container or pod: the amount of memory. Files may have a number."""

    memory: str | int | float | None = None


class ReviewedResources(msgspec.Struct, frozen=True):
    """Resources of a container or pod."""

    requests: Amounts | None = None
    limits: Amounts | None = None


class ReviewedContainer(msgspec.Struct, frozen=True, rename="camel"):
    """A container of a pod."""

    name: str = ""
    restart_policy: str | None = None
    resources: ReviewedResources | None = None


class Toleration(msgspec.Struct, frozen=True):
    """A taint that the pod tolerates."""

    key: str = ""
    operator: str = ""
    effect: str = ""


class Expression(msgspec.Struct, frozen=True):
    """core/v1 NodeSelectorRequirement."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class Preference(msgspec.Struct, frozen=True, rename="camel"):
    """core/v1 NodeSelectorTerm."""

    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class PreferredTerm(msgspec.Struct, frozen=True):
    """core/v1 PreferredSchedulingTerm."""

    weight: int = 0
    preference: Preference | None = None


class NodeAffinity(msgspec.Struct, frozen=True, rename="camel"):
    """spec.affinity.nodeAffinity: the preferred terms."""

    preferred_during_scheduling_ignored_during_execution: list[PreferredTerm] | None = None


class Affinity(msgspec.Struct, frozen=True, rename="camel"):
    """spec.affinity."""

    node_affinity: NodeAffinity | None = None


class ReviewedPodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """spec of a pod. A Go client writes an empty list as null."""

    init_containers: list[ReviewedContainer] | None = None
    containers: list[ReviewedContainer] | None = None
    node_name: str = ""
    host_network: bool | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    resources: ReviewedResources | None = None
    overhead: Amounts | None = None


class ReviewedPod(msgspec.Struct, frozen=True):
    """A pod, before or after the change."""

    metadata: ReviewedMetadata = ReviewedMetadata()
    spec: ReviewedPodSpec = ReviewedPodSpec()

    @property
    def annotations(self) -> dict[str, str]:
        """Return metadata.annotations, empty if there are none."""
        return self.metadata.annotations or {}

    @property
    def is_mirror(self) -> bool:
        """Return whether it only mirrors a pod that its kubelet has from a file, and that runs whatever the answer."""
        return names.CONFIG_MIRROR_ANNOTATION in self.annotations

    @property
    def is_of_daemon_set(self) -> bool:
        """Return whether a DaemonSet made it, for one node."""
        return any(owner.kind == "DaemonSet" and owner.controller for owner in self.metadata.owner_references or ())

    @property
    def containers(self) -> list[str]:
        """Return the names of the init containers, then of the others."""
        return [container.name for container in (*(self.spec.init_containers or ()), *(self.spec.containers or ()))]


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
    object: ReviewedPod | None = None


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: Request | None = None


class StatusCause(msgspec.Struct, frozen=True):
    """metav1.StatusCause: one error and its field."""

    reason: str
    message: str
    field: str


class Details(msgspec.Struct, frozen=True):
    """metav1.StatusDetails."""

    name: str
    kind: str
    causes: list[StatusCause]


class Status(msgspec.Struct, frozen=True):
    """metav1.Status: the reason of a refusal."""

    message: str
    reason: str
    code: int
    details: Details
    status: str = "Failure"


class Operation(msgspec.Struct, frozen=True):
    """One operation of a JSON patch (RFC 6902)."""

    op: str
    path: str
    value: Any


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
    found = _NAMESPACE.search(body, 0, _NAMESPACE_WITHIN)
    return found[1].decode("ascii") if found else ""


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
        found = (
            pod_annotations.shown(f"{review.api_version} {review.kind}".strip())
            or "an object without apiVersion and kind"
        )
        raise ReviewError(
            f"this webhook understands {API_VERSION} {KIND}, not {found}: set admissionReviewVersions to [v1]"
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


def encode(response: Response) -> bytes:
    """Return the AdmissionReview that carries the response."""
    return _encoder.encode(_ReviewAnswer(response))


def encode_patch(operations: Iterable[Operation]) -> bytes:
    """Return an encoded JSON patch."""
    return _encoder.encode(list(operations))


@functools.lru_cache(maxsize=64)
def pointer(*keys: str) -> str:
    """Return the JSON pointer (RFC 6901) to a value: `/metadata/annotations/swapwarden.dev~1swap-policy`."""
    return "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in keys)
