"""The conditions of pods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

_BY_KUBELET: Final = ("DisruptionTarget", "True", "TerminationByKubelet")
_FOR_MEMORY: Final = "The node was low on resource: memory"
"""The begin of the message (k/k: pkg/kubelet/eviction/helpers.go). With another, it evicts a pod that exceeds its own
limit of a disk: a tenant could have that at any time."""


class WirePodCondition(msgspec.Struct, frozen=True):
    """A condition of a pod: the fields that are read."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


def is_evicted(conditions: Iterable[WirePodCondition]) -> bool:
    """Return whether the kubelet evicted the pod for want of memory of the node.

    It says so once the pod has ended, and not before (k/k: pkg/kubelet/status/status_manager.go).
    """
    return any(
        (each.type, each.status, each.reason) == _BY_KUBELET and each.message.startswith(_FOR_MEMORY)
        for each in conditions
    )
