"""Answer for a new pod: a refusal with all errors, or the fields to add.

Pure functions from a request to a response. They hold whatever the registration selects: they do not rely on its
matchConditions. Policies inside the API server keep annotations unchanged after creation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import msgspec

from swapwarden.api import names
from swapwarden.policy import pod_annotations
from swapwarden.webhook import required_plugins, review, scheduling, validation

MAX_CAUSES = 20
"""Errors in an answer."""
MAX_WARNINGS = 20
"""The API server passes on 4 KiB of them (k/k: staging/src/k8s.io/apiserver/pkg/endpoints/filters/warning.go)."""
_UNPROCESSABLE = 422


def admit(
    request: review.Request, default: names.Policy | None = None, *, require_plugin: bool = False
) -> review.Response:
    """Refuse a new pod with invalid or contradictory annotations, with all errors at once; else complete it.

    A pod without a policy gets the namespace's DEFAULT. The policy's terms for the scheduler are added as a JSON patch;
    with `require_plugin` also that pods without swap need the runtime's plugin.
    Mirror pods are left alone: they exist as files on a node, and a refusal would only hide them.
    """
    pod = request.object
    if request.operation != "CREATE" or pod is None or pod.is_mirror:
        return review.Response(uid=request.uid, allowed=True)
    added: dict[str, str] = {}
    if default is not None and names.POLICY_ANNOTATION not in pod.annotations:
        added = {names.POLICY_ANNOTATION: default.value, names.POLICY_SOURCE_ANNOTATION: names.SOURCE_NAMESPACE}
    whole = _annotated(pod, added) if added else pod
    causes = list(itertools.islice(validation.errors(whole), MAX_CAUSES + 1))
    # Also beside errors: a misspelt key may be the worse mistake. The API server passes warnings on with a refusal
    # (k8s.io/apiserver: pkg/admission/plugin/webhook/mutating/dispatcher.go).
    warnings = list(itertools.islice(validation.warnings(whole), MAX_WARNINGS))
    if causes:
        refusal = _refusal(request, pod, causes)
        return review.Response(uid=request.uid, allowed=False, status=refusal, warnings=warnings)
    operations = [*_annotate(pod, added)]
    operations += scheduling.operations(whole, whole.annotations.get(names.POLICY_ANNOTATION, ""))
    if require_plugin:
        operations += required_plugins.operations(whole)
    if not operations:
        return review.Response(uid=request.uid, allowed=True, warnings=warnings)
    patch = review.encode_patch(operations)
    return review.Response(uid=request.uid, allowed=True, warnings=warnings, patch=patch, patch_type="JSONPatch")


def _annotated(pod: review.ReviewedPod, added: Mapping[str, str]) -> review.ReviewedPod:
    metadata = msgspec.structs.replace(pod.metadata, annotations={**pod.annotations, **added})
    return msgspec.structs.replace(pod, metadata=metadata)


def _annotate(pod: review.ReviewedPod, added: Mapping[str, str]) -> Iterator[review.Operation]:
    if added and pod.metadata.annotations is None:
        yield review.Operation("add", review.pointer("metadata", "annotations"), added)
        return
    for key, value in added.items():
        yield review.Operation("add", review.pointer("metadata", "annotations", key), value)


def _refusal(request: review.Request, pod: review.ReviewedPod, causes: list[review.StatusCause]) -> review.Status:
    shown = causes[:MAX_CAUSES]
    message = "; ".join(f"{cause.field}: {cause.message}" for cause in shown)
    if len(causes) > len(shown):
        message += "; and more"
    name = request.name or pod.metadata.name or pod.metadata.generate_name
    return review.Status(
        message=message,
        reason="Invalid",
        code=_UNPROCESSABLE,
        details=review.Details(name=pod_annotations.shown(name, pod_annotations.MAX_NAME), kind="Pod", causes=shown),
    )
