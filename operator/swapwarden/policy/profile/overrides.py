"""Choose the override of a profile that applies to a pod: for pods that nobody can annotate."""

from __future__ import annotations

from swapwarden.policy.observed import namespaces, pods
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits


class UnknownNamespaceError(Exception):
    """The choice depends on labels of the pod's namespace, which are unknown."""


def can_change(profile: compiled.Profile, row: pods.PodRow) -> bool:
    """Return whether an override could change anything for the pod, if it selects it."""
    if limits.forbids_swap(row.policy) and not row.defaulted:
        return any(override.memory is not None for override in profile.overrides)
    return bool(profile.overrides)


def find(profile: compiled.Profile, row: pods.PodRow, known: namespaces.Labels) -> int | None:
    """Return the index of the first override that selects the pod; None if none can change anything for it.

    A pod that refuses swap itself gets None unless an override is about memory: nothing is stricter.
    UnknownNamespaceError if the labels of the pod's namespace would decide.
    """
    if not can_change(profile, row):
        return None
    labels = pods.parse_labels(row.labels)
    for place, override in enumerate(profile.overrides):
        if not compiled.selects(override.pods, labels):
            continue
        if not override.namespaces:
            return place
        own = known.get(row.namespace)
        if own is None:
            raise UnknownNamespaceError(row.namespace)
        if compiled.selects(override.namespaces, own):
            return place
    return None
