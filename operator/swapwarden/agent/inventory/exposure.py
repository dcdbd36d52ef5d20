"""Counts how often and how long pods were above their value, the swap that they took meanwhile, and the causes."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs
from swapwarden.api import names
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

_CAUSES: Final = [(cause.value,) for cause in names.Cause]

EXPOSURES = metrics.counter(
    "swapwarden_agent_exposures_total",
    "Times that a running pod was found above its limit, by cause (docs/agent.md). The least limit of a container and"
    " all cgroups above it counts.",
    labels=("cause",),
    known=_CAUSES,
)
EXPOSED = metrics.counter(
    "swapwarden_agent_exposed_seconds_total",
    "Time that running pods were above their limit, from detection by an event, or without one from the last correct"
    " reading, to verified repair, by cause.",
    labels=("cause",),
    known=_CAUSES,
)
GROWN = metrics.counter(
    "swapwarden_agent_exposed_swap_bytes_total",
    "Swap that running pods took beyond their limit while they were above it, by cause.",
    labels=("cause",),
    known=_CAUSES,
)
POD_EXPOSURES = metrics.reading(
    "counter",
    "swapwarden_agent_pod_exposures_total",
    "Times that this pod was found above its limit; only for the pods that took the most swap meanwhile.",
    labels=("pod_uid",),
)
POD_EXPOSED = metrics.reading(
    "counter",
    "swapwarden_agent_pod_exposed_seconds_total",
    "Time that this pod was above its limit, counted as in swapwarden_agent_exposed_seconds_total; of the same pods.",
    labels=("pod_uid",),
)
POD_EXPOSED_BY_CAUSE = metrics.reading(
    "counter",
    "swapwarden_agent_pod_exposed_cause_seconds_total",
    "swapwarden_agent_pod_exposed_seconds_total by cause, which is known a second after the repair; for the same pods.",
    labels=("pod_uid", "cause"),
)
POD_GROWN = metrics.reading(
    "counter",
    "swapwarden_agent_pod_exposed_swap_bytes_total",
    "Swap that this pod took beyond its limit while it was above it; of the same pods.",
    labels=("pod_uid",),
)

LOG_LINES: Final = 60
"""Exposures logged one by one in `LOG_SECONDS`."""
LOG_SECONDS: Final = 60.0
TIMES: Final = 8
"""Periods that a pod's tally keeps. Time that an exposure shares with a period before those counts twice."""
RECENT_SECONDS: Final = 600.0
"""How long an exposure stays in the node's status; metrics keep the sum for as long as the pod's cgroup lives."""


class Exposure(msgspec.Struct, frozen=True):
    """One exposure, or the sum of several with one cause."""

    count: int
    milliseconds: float
    grown: int
    """Swap taken beyond the value meanwhile, in bytes."""

    def __add__(self, other: Exposure) -> Exposure:
        """Return the sum."""
        return Exposure(self.count + other.count, self.milliseconds + other.milliseconds, self.grown + other.grown)


NONE: Final = Exposure(0, 0.0, 0)


class LineBudget:
    """Bounds the log to some lines in a minute, with the rest as a sum: a writer in a loop must not fill a disk.

    At level debug, each exposure has its line.
    """

    def __init__(self) -> None:
        self._begun = float("-inf")
        self._count = 0
        self._left_out = NONE

    def take(self, one: Exposure) -> bool:
        """Return whether to log an exposure by itself; else add it to the sum."""
        if log.isEnabledFor(logging.DEBUG):
            return True
        self.flush()
        if self._count < LOG_LINES:
            self._count += 1
            return True
        self._left_out += one
        return False

    def flush(self) -> None:
        """Log the sum of the others once the minute is over."""
        now = time.monotonic()
        if now - self._begun < LOG_SECONDS:
            return
        self._begun, self._count = now, 0
        left, self._left_out = self._left_out, NONE
        if left.count:
            log.info(
                "running pods were above their values more often than is logged; the metrics have all of it",
                extra={"exposures": left.count, "milliseconds": left.milliseconds, "swapBytes": left.grown},
            )


lines = LineBudget()


class Overlap(msgspec.Struct, eq=False):
    """The last periods in which a pod was above at least one of its limits. Times are monotonic seconds."""

    times: tuple[tuple[float, float], ...] = ()
    """Begin and end of the last periods; overlapping exposures are one period."""
    last: float = float("-inf")
    """When the last exposure ended."""
    own: int = 0
    """Bytes taken beyond the pod's own limit in the last period."""
    below: int = 0
    """Bytes taken beyond the limits of its containers in the last period."""

    def taken(self, grown: int, *, own: bool, begins: bool) -> int:
        """Return the part of the bytes taken beyond one limit that is not counted yet; `begins`: in a new period.

        A container's swap is also its pod's: if both were above their limits at once, it counts once. `own`: the limit
        is the pod's.
        """
        if begins:
            self.own = self.below = 0
        before = max(self.own, self.below)
        if own:
            self.own += grown
        else:
            self.below += grown
        return max(self.own, self.below) - before

    def lasted(self, since: float, ended: float) -> float:
        """Return the seconds from `since` to `ended` without those that count already for another limit of the pod.

        An exposure that is found late may have begun before others that are over: only the overlap is left out.
        """
        times, begun, seconds = list(self.times), since, ended - since
        while times and times[-1][1] >= since:
            first, last = times.pop()
            seconds -= last - max(first, since)
            begun = min(begun, first)
        self.times, self.last = (*times, (begun, ended))[-TIMES:], ended
        return max(0.0, seconds)


class Tally(msgspec.Struct, eq=False):
    """The exposures of one pod. Times are monotonic seconds, except `created`, in seconds since 1970."""

    created: float = msgspec.field(default_factory=time.time)
    """The node's time when the sums began: its cgroup was made, or the agent started."""
    since: str = ""
    """`created` as a metav1.MicroTime, from the first exposure on; empty before."""
    reported: int = 0
    """The part of `attributed` that a written status has reported."""
    count: int = 0
    milliseconds: float = 0.0
    grown: int = 0
    attributed: int = 0
    """The part of `grown` with a known cause."""
    overlap: Overlap = msgspec.field(default_factory=Overlap)
    rewritten: float = float("-inf")
    """When the last one ended that another writer caused."""
    observed: int = 0
    """Bytes that the file held at the last exposure."""
    desired: int = 0
    """Bytes that it must have held at most."""
    milliseconds_of: Mapping[names.Cause, float] = msgspec.field(default_factory=dict)

    def add(
        self, uid: str, one: Exposure, *, desired: int, observed: int, ended: float, until: float, rewritten: bool
    ) -> None:
        """Count an exposure that `ended`: the file held `observed` bytes, not `desired` ones. Its cause follows later.

        `until` is the same moment in seconds since 1970: on a busy CPU the log line may be late. `rewritten`: the file
        held the value before.
        """
        self.count += one.count
        self.milliseconds += one.milliseconds
        self.grown += one.grown
        self.since = self.since or moment(self.created)
        self.observed, self.desired = observed, desired
        if rewritten:
            self.rewritten = ended
        self._log(uid, one, until)

    def _log(self, uid: str, one: Exposure, until: float) -> None:
        """Log an exposure by itself, since the status has only sums; one without swap taken only at level debug."""
        level = logging.INFO if one.grown else logging.DEBUG
        if log.isEnabledFor(level) and lines.take(one):
            log.log(
                level,
                "a running pod was above its value",
                extra={
                    "uid": uid,
                    "from": moment(until - one.milliseconds / 1000),
                    "until": moment(until),
                    "desired": cgroupfs.render(self.desired),
                    "observed": cgroupfs.render(self.observed),
                    "swapBytes": one.grown,
                },
            )

    def attribute(self, cause: names.Cause, some: Exposure) -> None:
        """Count the cause of exposures that were added."""
        before = self.milliseconds_of
        self.milliseconds_of = {**before, cause: before.get(cause, 0.0) + some.milliseconds}
        self.attributed += some.grown
        EXPOSURES.inc(cause.value, by=some.count)
        EXPOSED.inc(cause.value, by=some.milliseconds / 1000)
        GROWN.inc(cause.value, by=some.grown)


def moment(seconds: float) -> str:
    """Return a time of the node's clock as a metav1.MicroTime."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="microseconds")[:-6] + "Z"
