"""Limits of evictions: rates of a node, of a profile and of the cluster, and pressure of most nodes."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec

HOUR: Final = 3600.0
RATE_SECONDS: Final = 20.0
PER_PROFILE: Final = 2
"""The most evictions within RATE_SECONDS: 0.1 a second, as the node-lifecycle controller's --node-eviction-rate."""
PER_CLUSTER: Final = 10
WIDESPREAD_PERCENT: Final = 55
WIDESPREAD_LEAST: Final = 3
"""The number of nodes from which on pressure may be widespread: evictions would move the load and help nobody. This and
the share of a profile's nodes are the node-lifecycle controller's (--unhealthy-zone-threshold)."""


class HoldReason(enum.StrEnum):
    """Why no pod is chosen."""

    STALE = "Stale"
    """The node's agent is not Ready, or has not reported since this instance leads."""
    SETTLING = "Settling"
    """An eviction from the node is under way, or it has yet to show in the node's signals."""
    WIDESPREAD = "Widespread"
    """Most nodes of the profile are under pressure at once."""
    NODE_LIMIT = "NodeLimit"
    """The node had as many evictions within an hour as its profile allows."""
    RATE_LIMIT = "RateLimit"
    """The profile, or the cluster, had as many evictions within seconds as are allowed."""
    KUBELET_EVICTING = "KubeletEvicting"
    """The kubelet evicts pods for want of memory, or did a moment ago."""
    POD_TERMINATING = "PodTerminating"
    """A pod that frees memory is about to end."""
    NO_CANDIDATE = "NoCandidate"
    """All pods are spared."""
    BLOCKED = "Blocked"
    """The API server refuses to evict any of the pods that are not spared."""


Limited = Literal[HoldReason.NODE_LIMIT, HoldReason.RATE_LIMIT]


class _PastEviction(msgspec.Struct):
    at: float
    node: str
    profile: str
    stamp: str
    """The wall-clock time of `at`, by which states name it."""
    gone: float | None = None
    """The time at which the pod was gone; None before."""


class Evictions:
    """The evictions of one term of leadership, and what they still forbid. Times in seconds, of one monotonic clock.

    A new leader does not know what the last one evicted a moment ago. It begins as if the rates of all profiles and
    of the cluster had just been used up. So they hold in any window over both terms, and every node settles.
    A node's limit also counts the evictions of earlier terms, which its state has: to begin as if it had been used up
    would leave nodes to the kernel's OOM killer for an hour.

    The size is bounded: by the evictions that the cluster's rate allows in an hour, those of earlier terms that states
    have, and two for each node.
    """

    def __init__(self, began: float) -> None:
        """`began` is when the term began."""
        self._began = began
        self._log: list[_PastEviction] = []
        # By node, when its kubelet last acted; the oldest first.
        self._kubelets: dict[str, float] = {}

    def __len__(self) -> int:
        """Return the number of evictions that are remembered."""
        return len(self._log) + len(self._kubelets)

    def is_settling(self, node: str, settle: float, now: float) -> bool:
        """Return whether a pod of the node is on its way, or was gone less than `settle` seconds ago.

        The signals lag behind: they are still set when the memory is free.
        """
        last = self._began
        for one in self._of(node):
            if one.gone is None:
                return True
            last = max(last, one.gone)
        return now - last < settle

    def kubelet_acts(self, node: str, now: float) -> None:
        """Take in that the kubelet begins to evict, or evicted a pod.

        It says neither which pod it evicts nor whether it still does.
        """
        self._kubelets.pop(node, None)
        self._kubelets[node] = now
        while now - self._kubelets[first := next(iter(self._kubelets))] >= HOUR:
            del self._kubelets[first]

    def is_kubelet_evicting(self, node: str, settle: float, now: float) -> bool:
        """Return whether the kubelet acted less than `settle` seconds ago."""
        return now - self._kubelets.get(node, -math.inf) < settle

    def limited(self, node: str, profile: str, per_hour: int, now: float) -> Limited | None:
        """Return what forbids another eviction now; `per_hour` is the limit of a node in its profile."""
        if sum(now - one.at < HOUR for one in self._of(node)) >= per_hour:
            return HoldReason.NODE_LIMIT
        if now - self._began < RATE_SECONDS:
            return HoldReason.RATE_LIMIT
        recent = [one.profile for one in self._log if now - one.at < RATE_SECONDS]
        if len(recent) >= PER_CLUSTER or recent.count(profile) >= PER_PROFILE:
            return HoldReason.RATE_LIMIT
        return None

    def begin(self, node: str, profile: str, now: float, stamp: str) -> None:
        """Count an eviction, before the API server is asked for it: it may happen although no answer arrives.

        `stamp` is the wall-clock time.
        """
        self._log = [one for one in self._log if one.gone is None or now - one.gone < HOUR]
        self._log.append(_PastEviction(now, node, profile, stamp))

    def recall(self, node: str, profile: str, past: Mapping[str, float], now: float) -> None:
        """Count the node's evictions of earlier terms: how many seconds ago each was, by its wall-clock time.

        Clocks may differ: one that is yet to come counts as of now.
        """
        known = {one.stamp for one in self._of(node)}
        for stamp, ago in past.items():
            at = now - max(0.0, ago)
            if stamp not in known and now - at < HOUR:
                self._log.append(_PastEviction(at, node, profile, stamp, gone=at))

    def past(self, node: str, now: float, *, ended: bool) -> list[str]:
        """Return the wall-clock times of the node's evictions within an hour; `ended`: without one under way."""
        recent = (one for one in self._of(node) if now - one.at < HOUR)
        return sorted({one.stamp for one in recent if one.gone is not None or not ended})

    def end(self, node: str, now: float, *, counts: bool = True) -> None:
        """Take in that the node's eviction is no longer under way: the pod is gone, or (not `counts`) it stays."""
        if not counts:
            self._log = [one for one in self._log if one.node != node or one.gone is not None]
        for one in self._of(node):
            if one.gone is None:
                one.gone = now

    def _of(self, node: str) -> Iterator[_PastEviction]:
        return (one for one in self._log if one.node == node)


def is_widespread(pressed: int, nodes: int) -> bool:
    """Return whether so many of a profile's nodes are under pressure that evictions would only move the load."""
    return pressed >= WIDESPREAD_LEAST and pressed * 100 > nodes * WIDESPREAD_PERCENT
