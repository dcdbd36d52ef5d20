"""Which of a profile's overrides a pod is subject to: a word for pods that nobody can annotate."""

from __future__ import annotations

from swapwarden.policy.observed import namespaces, pods
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits


class UnknownNamespaceError(Exception):
    """What a pod is subject to depends on labels of its namespace, which is not known."""


def find(profile: compiled.Profile, row: pods.PodRow, known: namespaces.Labels) -> int | None:
    """Place in the profile's list of the first override that selects the pod; None where none can mean anything to it.

    That is so, too, where the pod itself refuses swap: nothing is stricter. UnknownNamespaceError where the labels of
    the pod's namespace would decide.
    """
    if not profile.overrides or (limits.forbids_swap(row.policy) and not row.defaulted):
        return None
    labels = pods.parse_labels(row.labels)
    for place, override in enumerate(profile.overrides):
        if not compiled.selects(override.pods, labels):
            continue
        if not override.namespaces:
            return place
        found = known.get(row.namespace)
        if found is None:
            raise UnknownNamespaceError(row.namespace)
        if compiled.selects(override.namespaces, found):
            return place
    return None
