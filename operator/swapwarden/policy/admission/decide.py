"""Decide on a new pod: a refusal with all errors, or the fields to add.

The decision holds whatever the registration selects: it does not rely on its matchConditions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import msgspec

from swapwarden.api import names
from swapwarden.policy.admission import answers, required_plugins, scheduling, validation
from swapwarden.policy.observed.new_pods import NewPod

MAX_CAUSES = 20
"""Errors in an answer."""
MAX_WARNINGS = 20
"""The API server passes on 4 KiB of them (k/k: staging/src/k8s.io/apiserver/pkg/endpoints/filters/warning.go)."""


class PodAdmission(msgspec.Struct, frozen=True):
    """The decision on a new pod. With any error it is refused."""

    causes: list[answers.StatusCause] = []
    """At most MAX_CAUSES errors."""
    has_more: bool = False
    """Whether there are more errors."""
    warnings: list[str] = []
    operations: list[answers.Operation] = []
    """The fields to add, as a JSON patch."""


def decide(pod: NewPod, default: names.Policy | None = None, *, require_plugin: bool = False) -> PodAdmission:
    """Refuse a new pod with invalid or contradictory annotations, with all errors at once; else complete it.

    A pod without a policy gets the namespace's DEFAULT. The policy's terms for the scheduler are added as a JSON patch;
    with `require_plugin` also that pods without swap need the runtime's plugin.
    Mirror pods are left alone: they exist as files on a node, and a refusal would only hide them.
    """
    if pod.is_mirror:
        return PodAdmission()
    added: dict[str, str] = {}
    if default is not None and names.POLICY_ANNOTATION not in pod.annotations:
        added = {names.POLICY_ANNOTATION: default.value, names.POLICY_SOURCE_ANNOTATION: names.SOURCE_NAMESPACE}
    whole = _annotated(pod, added) if added else pod
    causes = list(itertools.islice(validation.errors(whole), MAX_CAUSES + 1))
    # Also beside errors: a misspelt key may be the worse mistake. The API server passes warnings on with a refusal
    # (k8s.io/apiserver: pkg/admission/plugin/webhook/mutating/dispatcher.go).
    warnings = list(itertools.islice(validation.warnings(whole), MAX_WARNINGS))
    if causes:
        return PodAdmission(causes[:MAX_CAUSES], len(causes) > MAX_CAUSES, warnings)
    operations = [*_annotate(pod, added)]
    operations += scheduling.operations(whole, whole.annotations.get(names.POLICY_ANNOTATION, ""))
    if require_plugin:
        operations += required_plugins.operations(whole)
    return PodAdmission(warnings=warnings, operations=operations)


def _annotated(pod: NewPod, added: Mapping[str, str]) -> NewPod:
    metadata = msgspec.structs.replace(pod.metadata, annotations={**pod.annotations, **added})
    return msgspec.structs.replace(pod, metadata=metadata)


def _annotate(pod: NewPod, added: Mapping[str, str]) -> Iterator[answers.Operation]:
    if added and not pod.annotations:
        yield answers.Operation("add", answers.pointer("metadata", "annotations"), added)
        return
    for key, value in added.items():
        yield answers.Operation("add", answers.pointer("metadata", "annotations", key), value)
