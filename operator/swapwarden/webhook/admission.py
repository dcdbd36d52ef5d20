"""What the webhook decides about a pod: its default, and whether its annotations may be as they are.

Pure functions from a request to a response. They hold whatever the registration lets through: they do not rely on its
matchConditions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from swapwarden.api import names
from swapwarden.policy import quantity
from swapwarden.webhook import review

SOURCE_NAMESPACE = "namespace"
"""Value of the source annotation: the policy is the namespace's default."""

MAX_CAUSES = 20
_MAX_VALUE = 80

_UNPROCESSABLE = 422

# Reasons of causes, as the API server itself uses them (k8s.io/apimachinery: pkg/util/validation/field/errors.go).
_NOT_SUPPORTED = "FieldValueNotSupported"
_INVALID = "FieldValueInvalid"
_FORBIDDEN = "FieldValueForbidden"

_REMEDY = (
    "change the pod template of the workload that made it (kubectl edit deployment, for example), "
    "or delete the pod and create it anew"
)


def is_own(key: str) -> bool:
    """Whether an annotation's key is one of ours."""
    return key in {
        names.POLICY_ANNOTATION,
        names.LIMIT_ANNOTATION,
        names.POLICY_SOURCE_ANNOTATION,
    } or key.startswith(names.CONTAINER_LIMIT_PREFIX)


def mutate(request: review.Request, default: names.Policy) -> review.Response:
    """Give a new pod without a policy of its own the default of its namespace, as a JSON patch."""
    pod = request.object
    if request.operation != "CREATE" or pod is None or _is_mirror(pod) or names.POLICY_ANNOTATION in pod.annotations:
        return review.Response(uid=request.uid, allowed=True)
    added = {names.POLICY_ANNOTATION: default.value, names.POLICY_SOURCE_ANNOTATION: SOURCE_NAMESPACE}
    if pod.metadata.annotations is None:
        operations = [review.Operation("add", review.pointer("metadata", "annotations"), added)]
    else:
        operations = [
            review.Operation("add", review.pointer("metadata", "annotations", key), value)
            for key, value in added.items()
        ]
    return review.Response(uid=request.uid, allowed=True, patch=review.encode_patch(operations), patch_type="JSONPatch")


def validate(request: review.Request) -> review.Response:
    """Refuse a new pod whose annotations are not understood, and an update that changes them; all errors at once.

    Mirror pods are never refused: their annotations are those of a file on a node; refusing would only hide the pod.
    """
    pod = request.object
    if pod is None or _is_mirror(pod):
        return review.Response(uid=request.uid, allowed=True)
    if request.operation == "CREATE":
        causes = list(_errors(pod))
    elif request.operation == "UPDATE" and request.old_object is not None:
        causes = list(_changes(request.old_object.annotations, pod.annotations))
    else:
        causes = []
    if causes:
        return review.Response(uid=request.uid, allowed=False, status=_refusal(request, pod, causes))
    warnings = list(_warnings(pod.annotations)) if request.operation == "CREATE" else []
    return review.Response(uid=request.uid, allowed=True, warnings=warnings)


def _is_mirror(pod: review.Pod) -> bool:
    return names.CONFIG_MIRROR_ANNOTATION in pod.annotations


def _errors(pod: review.Pod) -> Iterator[review.Cause]:
    for key, value in sorted(pod.annotations.items()):
        if key == names.POLICY_ANNOTATION:
            yield from _supported(key, value, [policy.value for policy in names.Policy])
        elif key == names.POLICY_SOURCE_ANNOTATION:
            yield from _supported(key, value, [SOURCE_NAMESPACE])
        elif key == names.LIMIT_ANNOTATION:
            yield from _quantity(key, value)
        elif key.startswith(names.CONTAINER_LIMIT_PREFIX):
            yield from _container(key, pod.containers)
            yield from _quantity(key, value)


def _supported(key: str, value: str, accepted: Iterable[str]) -> Iterator[review.Cause]:
    values = sorted(accepted)
    if value not in values:
        listed = ", ".join(map(_quoted, values))
        yield review.Cause(_NOT_SUPPORTED, f"Unsupported value: {_quoted(value)}: supported values: {listed}", _at(key))


def _quantity(key: str, value: str) -> Iterator[review.Cause]:
    try:
        quantity.parse(value)
    except quantity.QuantityError as error:
        message = f"Invalid value: {_quoted(value)}: {error}; write for example 512Mi or 2Gi"
        yield review.Cause(_INVALID, message, _at(key))


def _container(key: str, containers: list[str]) -> Iterator[review.Cause]:
    name = key.removeprefix(names.CONTAINER_LIMIT_PREFIX)
    if name not in containers:
        listed = ", ".join(map(_quoted, containers)) or "none"
        message = f"Invalid value: {_quoted(name)}: the pod has no container of that name; it has: {listed}"
        yield review.Cause(_INVALID, message, _at(key))


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[review.Cause]:
    for key in sorted(key for key in before.keys() | now.keys() if is_own(key)):
        old, new = before.get(key), now.get(key)
        if old == new:
            continue
        if old is None:
            what = f"cannot be added (as {_quoted(new or '')})"
        elif new is None:
            what = f"cannot be removed (it is {_quoted(old)})"
        else:
            what = f"cannot be changed from {_quoted(old)} to {_quoted(new)}"
        yield review.Cause(_FORBIDDEN, f"Forbidden: {what} once the pod exists: {_REMEDY}", _at(key))


def _warnings(annotations: Mapping[str, str]) -> Iterator[str]:
    if annotations.get(names.POLICY_ANNOTATION) == names.Policy.DISABLED:
        for key in sorted(annotations):
            if key == names.LIMIT_ANNOTATION or key.startswith(names.CONTAINER_LIMIT_PREFIX):
                yield f"{_at(key)}: no effect, because {names.POLICY_ANNOTATION} is {names.Policy.DISABLED.value}"


def _refusal(request: review.Request, pod: review.Pod, causes: list[review.Cause]) -> review.Status:
    shown = causes[:MAX_CAUSES]
    message = "; ".join(f"{cause.field}: {cause.message}" for cause in shown)
    if len(causes) > len(shown):
        message += f"; and {len(causes) - len(shown)} more"
    name = request.name or pod.metadata.name or pod.metadata.generate_name
    return review.Status(
        message=message,
        reason="Invalid",
        code=_UNPROCESSABLE,
        details=review.Details(name=name, kind="Pod", causes=shown),
    )


def _at(key: str) -> str:
    return f"metadata.annotations[{key}]"


def _quoted(value: str) -> str:
    return json.dumps(value if len(value) <= _MAX_VALUE else f"{value[:_MAX_VALUE]}...", ensure_ascii=False)
