"""How the swap of a node is shared out among pods whose limits are more, in all, than their profile lets them have.

Whoever came first keeps what it has: pods are served in the order in which the kubelet took them on, so that one which
comes later, however old, gets what is left.
"""

from __future__ import annotations

from typing import Final

from swapwarden.api import names
from swapwarden.policy.observed import nodes, pods
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits

_NOT_YET: Final = "~"
"""Sorts after every time: the kubelet has not taken the pod on."""


def budget(profile: compiled.Profile, node: nodes.NodeFacts) -> int | None:
    """Bytes that the limits of all pods together may have; None where the profile says nothing of it."""
    if profile.overcommit_percent is None or profile.behavior is not names.Behavior.WORKLOAD_CONTROLLED:
        return None
    return limits.available(profile, node) * profile.overcommit_percent // 100


def rank(row: pods.PodRow) -> tuple[str, str, str]:
    """Pods sort by this in the order in which they are served."""
    return row.started or _NOT_YET, row.created, row.key
