"""How long, how often and to what pods were above their value, and why."""

from __future__ import annotations

import datetime
import logging
import time
from typing import Final

import msgspec

from swapwarden.agent import limits
from swapwarden.api import names
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

EXPOSURES = metrics.counter(
    "swapwarden_agent_exposures_total",
    "Times that a running pod was found above its limit, by cause (docs/agent.md).",
    labels=("cause",),
)
EXPOSED = metrics.counter(
    "swapwarden_agent_exposed_seconds_total",
    "Time that running pods were above their limit, from notice to verified repair, by cause.",
    labels=("cause",),
)
GROWN = metrics.counter(
    "swapwarden_agent_exposed_swap_bytes_total",
    "Swap that running pods took beyond their limit while they were above it, by cause.",
    labels=("cause",),
)
POD_EXPOSURES = metrics.counter(
    "swapwarden_agent_pod_exposures_total",
    "Times that this pod was found above its limit; only pods that were, until they are gone.",
    labels=("pod_uid",),
)
POD_EXPOSED = metrics.counter(
    "swapwarden_agent_pod_exposed_seconds_total",
    "Time that this pod was above its limit, from notice to verified repair; only pods that were.",
    labels=("pod_uid",),
)
POD_GROWN = metrics.counter(
    "swapwarden_agent_pod_exposed_swap_bytes_total",
    "Swap that this pod took beyond its limit while it was above it; only pods that were.",
    labels=("pod_uid",),
)

RECENT_SECONDS: Final = 600.0
"""How long an exposure stays in the node's status; metrics keep the sum for as long as the pod's cgroup lives."""


class Exposure(msgspec.Struct, frozen=True):
    """One time, or several with one cause, that a pod was above its value."""

    count: int
    milliseconds: float
    grown: int
    """Swap taken beyond the value meanwhile, in bytes."""

    def __add__(self, other: Exposure) -> Exposure:
        """Both together."""
        return Exposure(self.count + other.count, self.milliseconds + other.milliseconds, self.grown + other.grown)


NONE: Final = Exposure(0, 0.0, 0)


class Tally:
    """The exposures of one pod. Times are monotonic seconds, but for `since`."""

    __slots__ = ("_causes", "count", "found", "grown", "last", "milliseconds", "rewritten", "since", "told", "wanted")

    def __init__(self) -> None:
        self.since = time.time()
        """Seconds of the node's clock when the sums began: its cgroup was made, or the agent started."""
        self.told = 0
        """Of `grown`, so much has stood in a status that was written."""
        self.count = 0
        self.milliseconds = 0.0
        self.grown = 0
        self.last = float("-inf")
        self.rewritten = float("-inf")
        self.found = 0
        self.wanted = 0
        self._causes: dict[names.Cause, float] | None = None

    def add(self, uid: str, one: Exposure, *, wanted: int, found: int, ended: float, rewritten: bool) -> None:
        """Count one that `ended`: the file held `found` in place of `wanted` (bytes). Its cause is told later.

        `rewritten`: the file held the value before.
        """
        self.count += one.count
        self.milliseconds += one.milliseconds
        self.grown += one.grown
        self.last, self.found, self.wanted = ended, found, wanted
        if rewritten:
            self.rewritten = ended
        POD_EXPOSURES.inc(uid)
        POD_EXPOSED.inc(uid, by=one.milliseconds / 1000)
        POD_GROWN.inc(uid, by=one.grown)
        self._log(uid, one)

    def _log(self, uid: str, one: Exposure) -> None:
        """Each one by itself, for the status has sums; those with which no harm came only where one looks for them."""
        level = logging.INFO if one.grown else logging.DEBUG
        if log.isEnabledFor(level):
            until = time.time()
            log.log(
                level,
                "a running pod was above its value",
                extra={
                    "uid": uid,
                    "from": moment(until - one.milliseconds / 1000),
                    "until": moment(until),
                    "wanted": limits.render(self.wanted),
                    "found": limits.render(self.found),
                    "swapBytes": one.grown,
                },
            )

    def attribute(self, cause: names.Cause, some: Exposure) -> None:
        """The cause of exposures that were added."""
        causes = self._causes = self._causes or {}
        causes[cause] = causes.get(cause, 0.0) + some.milliseconds
        EXPOSURES.inc(cause.value, by=some.count)
        EXPOSED.inc(cause.value, by=some.milliseconds / 1000)
        GROWN.inc(cause.value, by=some.grown)

    @property
    def causes(self) -> list[names.Cause]:
        """The longest first."""
        causes = self._causes or {}
        return sorted(causes, key=lambda cause: -causes[cause])

    def recent(self, now: float) -> bool:
        """Whether there was one lately."""
        return now - self.last < RECENT_SECONDS

    @property
    def untold(self) -> bool:
        """Whether it took swap that no status has told of."""
        return self.grown > self.told

    def drifting(self, now: float) -> bool:
        """Whether there was one lately that was another writer's doing."""
        return now - self.rewritten < RECENT_SECONDS


def moment(seconds: float) -> str:
    """A time of the node's clock as metav1.MicroTime has it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def forget(uid: str) -> None:
    """The pod is gone: drop its series."""
    POD_EXPOSURES.remove(uid)
    POD_EXPOSED.remove(uid)
    POD_GROWN.remove(uid)
