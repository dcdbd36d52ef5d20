"""How the swap of a node is shared out among pods whose limits are more, in all, than their profile lets them have.

Whoever came first keeps what it has: pods are served in the order in which the kubelet took them on, so that one which
comes later, however old, gets what is left.
"""

from __future__ import annotations

from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.policy import nodes, pods, profiles, swap

_NOT_YET: Final = "~"
"""Sorts after every time: the kubelet has not taken the pod on."""


def budget(profile: profiles.Profile, node: nodes.NodeFacts) -> int | None:
    """Bytes that the limits of all pods together may have; None where the profile says nothing of it."""
    if profile.overcommit_percent is None or profile.behavior is not names.Behavior.WORKLOAD_CONTROLLED:
        return None
    return swap.available(profile, node) * profile.overcommit_percent // 100


def rank(row: pods.PodRow) -> tuple[str, str, str]:
    """Pods sort by this in the order in which they are served."""
    return row.started or _NOT_YET, row.created, row.key


def cut(decision: swap.PodDecision, left: int, page: int) -> swap.PodDecision:
    """The decision on a pod for which so many bytes are left: the same, or less with the reason OvercommitReached."""
    if decision.swap_max in {None, names.MAX_SWAP} or int(decision.swap_max or 0) <= left:
        return decision
    given = swap.floor_to_page(left, page)
    if given == 0:
        return swap.same(decision, "0", names.Reason.OVERCOMMIT_REACHED)
    containers = tuple(
        one
        if one.swap_max in {None, names.MAX_SWAP} or int(one.swap_max or 0) <= given
        else msgspec.structs.replace(one, swap_max=str(given), reason=names.Reason.OVERCOMMIT_REACHED)
        for one in decision.containers
    )
    return swap.PodDecision(str(given), names.Reason.OVERCOMMIT_REACHED, containers)
