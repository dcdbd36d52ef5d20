"""Share out a node's swap among pods whose limits exceed, in total, the bound of their profile.

Earlier pods keep their share: pods are served in the order in which the kubelet accepted them, so that a later one,
however old, gets the rest.
"""

from __future__ import annotations

from typing import Final

from swapwarden.api import names
from swapwarden.policy.observed import nodes, pods
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits

_NOT_YET: Final = "~"
"""Sorts after every time: the kubelet has not accepted the pod."""


def budget(profile: compiled.Profile, node: nodes.NodeFacts) -> int | None:
    """Return the bytes that the limits of all pods together may have; None if the profile has no bound."""
    if profile.overcommit_percent is None or profile.behavior is not names.Behavior.WORKLOAD_CONTROLLED:
        return None
    return limits.available(profile, node) * profile.overcommit_percent // 100


def rank(row: pods.PodRow) -> tuple[str, str, str]:
    """Return a key that sorts pods in the order in which they are served."""
    return row.started or _NOT_YET, row.created, row.key
