"""Whether a pod looks like an admitted one, judged by the pod itself. Pure.

The pod does not show the cause: one that was made with a node, or before the installation, looks like one that
admission is not asked about. A dry run does: kubectl swap check --try-admission.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.cli.kubectl.cluster import workloads
from swapwarden.policy.observed import namespaces
from swapwarden.webhook import review, scheduling, validation

MAX_LISTED: Final = 3
"""Mistakes of one pod; kubectl swap check lists all."""


def default_matters(pod: workloads.DetailedPod) -> bool:
    """Return whether the pod has no policy, so that it should have the default of its namespace."""
    return names.POLICY_ANNOTATION not in pod.metadata.annotations


def missing(pod: workloads.DetailedPod, labels: namespaces.Labels) -> str:
    """Return how the pod differs from an admitted one, and the likely cause; empty if it does not.

    `labels` are those of namespaces by name, as far as they are known.
    """
    found = "; ".join(_missing(pod, labels))
    return f"{found}: {_cause(pod)}" if found else ""


def _missing(pod: workloads.DetailedPod, labels: namespaces.Labels) -> Iterator[str]:
    default = labels.get(pod.metadata.namespace, {}).get(names.DEFAULT_POLICY_LABEL)
    if default_matters(pod) and default in frozenset[str](names.Policy):
        yield f"the default {default} of its namespace is not in the pod"
    seen = msgspec.convert(pod, review.ReviewedPod, from_attributes=True)
    # By now the scheduler has chosen a node, which must not look as if the pod had come with it.
    asked = msgspec.structs.replace(seen, spec=msgspec.structs.replace(seen.spec, node_name=""))
    policy = asked.annotations.get(names.POLICY_ANNOTATION, "")
    lacks = {operation.path.split("/")[2]: None for operation in scheduling.operations(asked, policy)}
    if lacks:
        yield f"its policy {policy} does not place it: it lacks {' and '.join(f'spec.{field}' for field in lacks)}"
    for cause in itertools.islice(validation.errors(asked), MAX_LISTED):
        yield f"admission would refuse it: {cause.field}: {cause.message}"


def _cause(pod: workloads.DetailedPod) -> str:
    space = pod.metadata.namespace
    if pod.is_mirror:
        return "it is a static pod, of which the API server only has a mirror"
    if space in namespaces.UNDEFAULTED:
        return f"pods of namespace {space} start without admission"
    return (
        "it was created with a node, or before Swapwarden was installed, or admission is not asked about"
        f" such pods; kubectl swap check --try-admission -n {space} finds out"
    )
