"""The limit of a pod by each behavior of profiles, from the pod alone: for pods whose node is not known. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits

_NOBODY_ASKS: Final = "no swap: no container has a memory request below its limit"
_ANYWHERE: Final = nodes.NodeFacts(compatible=True, swap_bytes=0, memory_bytes=0)
_OF_THE_POD: Final = frozenset({names.Reason.POLICY_DISABLED, names.Reason.INVALID_POLICY})


class BehaviorLimit(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The limit of a pod by one behavior."""

    behavior: names.Behavior
    text: str
    swap_max: str = ""
    """0, or empty: that depends on the node."""


def refused(row: pods.PodRow) -> names.Reason | None:
    """Return why the pod gets no swap by any behavior; None if the behavior decides."""
    reason = limits.decide(compiled.BUILT_IN.swap, _ANYWHERE, row).reason
    return reason if reason in _OF_THE_POD else None


def each(row: pods.PodRow) -> Iterator[BehaviorLimit]:
    """Yield the limit of the pod by each behavior, as if no annotation of it refused swap."""
    stated = row.limited()
    yield BehaviorLimit(names.Behavior.KUBELET, "what the kubelet gives" + (", at most its limit" if stated else ""))
    yield BehaviorLimit(names.Behavior.NO_SWAP, "no swap", "0")
    if row.critical:
        yield BehaviorLimit(names.Behavior.LIMITED_SWAP, "no swap: a critical pod", "0")
    elif row.qos is not resources.Class.BURSTABLE:
        yield BehaviorLimit(names.Behavior.LIMITED_SWAP, f"no swap: the pod is {row.qos}, not Burstable", "0")
    else:
        asking = [one.name for one in row.containers if one.request and one.request != one.limit]
        text = f"a share, by the memory request of {', '.join(asking)}" if asking else _NOBODY_ASKS
        yield BehaviorLimit(names.Behavior.LIMITED_SWAP, text, "" if asking else "0")
    yield BehaviorLimit(
        names.Behavior.WORKLOAD_CONTROLLED,
        "its own limit, as far as the profile allows" if stated else "no swap: the pod has no limit",
        "" if stated else "0",
    )
