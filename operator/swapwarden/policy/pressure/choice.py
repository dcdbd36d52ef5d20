"""The pod that leaves a node under memory pressure, or why none does."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import ClassVar, Final, Literal

import msgspec

from swapwarden.policy.pressure import ranking
from swapwarden.policy.pressure.ranking import Ranked

WIDESPREAD_PERCENT: Final = 55
WIDESPREAD_LEAST: Final = 3
"""Of more nodes, and of a larger share of a profile's nodes, evictions would move the load and help nobody: both bounds
are the node-lifecycle controller's (--unhealthy-zone-threshold)."""

OBSERVE: Final = "Observe"
"""In place of a reason to hold: the profile's mode. In mode Enforce, the victim would be evicted."""


class HoldReason(enum.StrEnum):
    """Why no pod is chosen."""

    STALE = "Stale"
    """The node's agent is not Ready, or has not reported since this instance leads."""
    SETTLING = "Settling"
    """An eviction from the node is under way, or it has yet to show in the node's signals."""
    WIDESPREAD = "Widespread"
    """Most nodes of the profile are under pressure at once."""
    NODE_LIMIT = "NodeLimit"
    """As many pods of the node were evicted within an hour as its profile allows."""
    RATE_LIMIT = "RateLimit"
    """As many pods of the profile, or of the cluster, were evicted within seconds as are allowed."""
    KUBELET_EVICTING = "KubeletEvicting"
    """The kubelet evicts pods for want of memory, or did a moment ago."""
    POD_TERMINATING = "PodTerminating"
    """A pod that frees memory is about to end."""
    NO_CANDIDATE = "NoCandidate"
    """All pods are spared."""
    BLOCKED = "Blocked"
    """The API server refuses to evict any of the pods that are not spared."""


Limited = Literal[HoldReason.NODE_LIMIT, HoldReason.RATE_LIMIT]


class NoVictim(msgspec.Struct, frozen=True):
    """No pod is chosen."""

    hold: HoldReason
    victim: ClassVar[None] = None


class WouldEvict(msgspec.Struct, frozen=True):
    """Mode Observe names this pod and leaves it alone."""

    victim: Ranked
    hold: ClassVar[str] = OBSERVE


class Evict(msgspec.Struct, frozen=True):
    """Mode Enforce evicts this pod."""

    victim: Ranked
    hold: ClassVar[None] = None


Choice = NoVictim | WouldEvict | Evict
"""The decision on one report."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a decision besides the pods of the node."""

    fresh: bool
    """Whether the report counts."""
    wide: bool
    """Whether is_widespread() holds."""
    enforce: bool = False
    """Whether the profile has pods evicted. Else there are no past evictions, and the rest is ignored."""
    settling: bool = False
    """Whether an eviction from the node is under way or has yet to show (limits.Evictions)."""
    kubelet: bool = False
    """Whether the kubelet evicts pods of the node (limits.Evictions)."""
    limited: Limited | None = None
    """The limit that forbids another eviction now (limits.Evictions)."""

    def forbids(self) -> HoldReason | None:
        """Return the reason to hold whatever the node's pods are: then nobody needs to read them."""
        if not self.fresh:
            return HoldReason.STALE
        if self.enforce and self.settling:
            return HoldReason.SETTLING
        if self.kubelet:
            return HoldReason.KUBELET_EVICTING
        if self.wide:
            return HoldReason.WIDESPREAD
        return self.limited if self.enforce else None


def choose(
    ranked: Sequence[Ranked],
    memory_bytes: int,
    blocked: Collection[str],
    situation: Situation,
    *,
    patient: bool = True,
) -> Choice:
    """Return the decision on one report of a node.

    `blocked` are UIDs of pods that the API server would not evict now. Unless it is `patient`, it waits for no pod that
    is about to end.
    """
    reason = situation.forbids()
    if reason is None and patient and is_one_ending(ranked, memory_bytes):
        reason = HoldReason.POD_TERMINATING
    if reason is not None:
        return NoVictim(reason)
    able = [one for one in ranked if one.spared is None]
    victim = next((one for one in able if one.pod.uid not in blocked), None)
    if victim is None:
        return NoVictim(HoldReason.BLOCKED if able else HoldReason.NO_CANDIDATE)
    return Evict(victim) if situation.enforce else WouldEvict(victim)


def is_one_ending(ranked: Sequence[Ranked], memory_bytes: int) -> bool:
    """Return whether a pod is about to end whose memory the node would notice.

    Nobody may wait for long: anybody can give a pod years to end, and delete it.
    """
    return any(
        one.pod.ending and one.measured is not None and not ranking.is_small(one, memory_bytes) for one in ranked
    )


def is_widespread(pressed: int, nodes: int) -> bool:
    """Return whether so many of a profile's nodes are under pressure that evictions would only move the load."""
    return pressed >= WIDESPREAD_LEAST and pressed * 100 > nodes * WIDESPREAD_PERCENT
