"""The pod that would leave a node under memory pressure, or why none would."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from swapwarden.policy.pressure import ranking
from swapwarden.policy.pressure.ranking import Ranked

WIDESPREAD_PERCENT: Final = 55
WIDESPREAD_LEAST: Final = 3
"""Of more nodes, and of a larger share of a profile's nodes, evictions would move the load and help nobody: both bounds
are the node-lifecycle controller's (--unhealthy-zone-threshold)."""


class HoldReason(enum.StrEnum):
    """Why nothing is evicted."""

    OBSERVE = "Observe"
    """The profile's mode: in another one, the victim would be evicted."""
    STALE = "Stale"
    """The node's agent is not Ready, or has not reported since this instance leads."""
    WIDESPREAD = "Widespread"
    """Most nodes of the profile are under pressure at once."""
    KUBELET_EVICTING = "KubeletEvicting"
    POD_TERMINATING = "PodTerminating"
    """A pod that frees memory is about to end."""
    NO_CANDIDATE = "NoCandidate"
    """All pods are spared."""
    BLOCKED = "Blocked"
    """The API server refuses to evict any of the pods that are not spared."""


class Choice(msgspec.Struct, frozen=True):
    """The decision on one report."""

    hold: HoldReason
    victim: Ranked | None = None
    """The pod that would be evicted; only with OBSERVE."""


def choose(ranked: Sequence[Ranked], memory_bytes: int, blocked: Collection[str], *, fresh: bool, wide: bool) -> Choice:
    """Return the decision on one report of a node.

    `blocked` are UIDs of pods that the API server would not evict now, `fresh` is whether the report counts, and `wide`
    whether is_widespread() holds.
    """
    if not fresh:
        return Choice(HoldReason.STALE)
    if wide:
        return Choice(HoldReason.WIDESPREAD)
    large = [one for one in ranked if one.measured is not None and not ranking.is_small(one, memory_bytes)]
    if any(one.pod.evicted for one in large):
        return Choice(HoldReason.KUBELET_EVICTING)
    if any(one.pod.ending for one in large):
        return Choice(HoldReason.POD_TERMINATING)
    able = [one for one in ranked if one.spared is None]
    if not able:
        return Choice(HoldReason.NO_CANDIDATE)
    victim = next((one for one in able if one.pod.uid not in blocked), None)
    return Choice(HoldReason.BLOCKED) if victim is None else Choice(HoldReason.OBSERVE, victim)


def is_widespread(pressed: int, nodes: int) -> bool:
    """Return whether so many of a profile's nodes are under pressure that evictions would only move the load."""
    return pressed >= WIDESPREAD_LEAST and pressed * 100 > nodes * WIDESPREAD_PERCENT
