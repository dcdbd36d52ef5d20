"""How long, how often and to what pods were above their value."""

from __future__ import annotations

import enum
from typing import Final

from swapwarden.telemetry import metrics

EXPOSURES = metrics.counter(
    "swapwarden_agent_exposures_total", "Times a running pod was found above its value, by cause.", labels=("cause",)
)
EXPOSED = metrics.counter(
    "swapwarden_agent_exposed_milliseconds_total",
    "Time that running pods were above their value, from notice to verified repair, by cause.",
    labels=("cause",),
)
POD_EXPOSURES = metrics.counter(
    "swapwarden_agent_pod_exposures_total", "Times this pod was found above its value.", labels=("uid",)
)
POD_EXPOSED = metrics.counter(
    "swapwarden_agent_pod_exposed_milliseconds_total",
    "Time that this pod was above its value, from notice to verified repair.",
    labels=("uid",),
)
POD_GROWN = metrics.counter(
    "swapwarden_agent_pod_exposed_swap_bytes_total",
    "Swap that this pod took beyond its value meanwhile.",
    labels=("uid",),
)

RECENT_SECONDS: Final = 600.0
"""How long an exposure stays in the node's status; metrics keep the sum for as long as the pod's cgroup lives."""


class Cause(enum.StrEnum):
    """What can truly be told of why a pod was above its value."""

    REWRITTEN = "rewritten"
    """Its file held the value and then another one: systemd, or another writer."""
    LATE = "late"
    """It ran before a state said what its value is."""


class Tally:
    """The exposures of one pod. Times are monotonic seconds."""

    __slots__ = ("count", "found", "grown", "last", "milliseconds", "rewritten", "wanted")

    def __init__(self) -> None:
        self.count = 0
        self.milliseconds = 0.0
        self.grown = 0
        self.last = float("-inf")
        self.rewritten = float("-inf")
        self.found = 0
        self.wanted = 0

    def add(self, uid: str, cause: Cause, *, wanted: int, found: int, noticed: float, ended: float, grown: int) -> None:
        """Count one: from `noticed` to `ended` the file held `found` in place of `wanted` (bytes)."""
        milliseconds = max(0.0, ended - noticed) * 1000
        self.count += 1
        self.milliseconds += milliseconds
        self.grown += grown
        self.last, self.found, self.wanted = ended, found, wanted
        if cause is Cause.REWRITTEN:
            self.rewritten = ended
        EXPOSURES.inc(cause.value)
        EXPOSED.inc(cause.value, by=milliseconds)
        POD_EXPOSURES.inc(uid)
        POD_EXPOSED.inc(uid, by=milliseconds)
        POD_GROWN.inc(uid, by=grown)

    def recent(self, now: float) -> bool:
        """Whether there was one lately."""
        return now - self.last < RECENT_SECONDS

    def drifting(self, now: float) -> bool:
        """Whether there was one lately that was another writer's doing."""
        return now - self.rewritten < RECENT_SECONDS


def forget(uid: str) -> None:
    """The pod is gone: drop its series."""
    POD_EXPOSURES.remove(uid)
    POD_EXPOSED.remove(uid)
    POD_GROWN.remove(uid)
