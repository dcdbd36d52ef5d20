"""The guard's decisions about one cgroup's memory.high. Pure.

At memory.high the kernel has a task reclaim and then sleep, again and again (mem_cgroup_handle_over_high in the
kernel's mm/memcontrol.c). A cgroup in which nothing can be reclaimed thus stands still for minutes or hours without
being killed. The kernel's documentation asks for a process that watches it: this is it.
"""

from __future__ import annotations

import collections
import enum
from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs

SAMPLE_SECONDS: Final = 2.0
"""Seconds between samples while the kernel throttles."""
CALM_SAMPLE_SECONDS: Final = 10.0
"""Seconds between samples of a released cgroup once its hold is over."""
FULL_SHARE: Final = 0.4
"""Share of the time in which all tasks stalled, from which on a cgroup counts as stuck."""
SOME_SHARE: Final = 0.8
"""Share of the window in which at least one task stalled, from which on the cgroup counts as stuck."""
THRASH_WINDOWS: Final = 3
CALM_SECONDS: Final = 60.0
CALM_SHARE: Final = 0.9
"""A cgroup that uses less than this share of its planned value for CALM_SECONDS gets it back: that reclaims nothing."""
HOUR: Final = 3600.0
LATCH_TRIPS: Final = 3
"""Trips in an hour after which a cgroup keeps no memory.high."""
STORM_TRIPS: Final = 5
STORM_SECONDS: Final = 60.0
"""The time in which so many trips on a node have a common cause."""


class Phase(enum.Enum):
    """How a cgroup's memory.high stands."""

    ARMED = "Armed"
    """The file has the planned value."""
    STEPPED = "Stepped"
    """The file has a value halfway to the limit."""
    RELEASED = "Released"
    """The file has no limit."""
    LATCHED = "Latched"
    """The file has no limit until the plan or the cgroup changes."""
    REPORTED = "Reported"
    """The file has the planned value, and the cgroup stands still there."""


class Answer(enum.Enum):
    """The guard's answer to a standstill."""

    RAISE = enum.auto()
    """Raise the value, and take that back when little is in use."""
    REMOVE = enum.auto()
    """Remove another writer's limit (write max) until that writer sets a new one."""
    REPORT = enum.auto()
    """Write nothing."""


class StallCause(enum.StrEnum):
    """Why the guard raised a value."""

    STUCK = "Stuck"
    """More is in use than memory.high, and the kernel finds nothing to reclaim."""
    THRASHING = "Thrashing"
    """The kernel reclaims as fast as the cgroup takes memory, and its tasks wait for that."""


class GuardTimes(msgspec.Struct, frozen=True):
    """Seconds."""

    window: float = 10.0
    hold: float = 300.0


class StallSample(msgspec.Struct, frozen=True):
    """One look at a cgroup."""

    now: float
    """Monotonic seconds."""
    events: int
    """How often the kernel throttled: `high` in memory.events."""
    current: int
    """Bytes."""
    high: int
    """Bytes."""
    some: int
    """Microseconds in which some task stalled: memory.pressure."""
    full: int


class Trip(msgspec.Struct, frozen=True):
    """The guard raised a value."""

    cause: StallCause
    phase: Phase
    stalled: float
    """Seconds in which tasks stalled during the window."""


class Storm:
    """Trips of all cgroups of a node."""

    def __init__(self) -> None:
        self._trips: collections.deque[float] = collections.deque(maxlen=STORM_TRIPS)
        self.at = float("-inf")
        """When there last were so many within a short time, in monotonic seconds."""

    def record(self, now: float) -> None:
        """Take a trip."""
        self._trips.append(now)
        if len(self._trips) == STORM_TRIPS and now - self._trips[0] <= STORM_SECONDS:
            self.at = now


class StallGuard:
    """The guard of one cgroup with one planned value."""

    def __init__(self, plan: int, limit: int, page: int, answer: Answer = Answer.RAISE) -> None:
        """`plan` is the planned memory.high, `limit` is memory.max; bytes."""
        self.plan = plan
        self.answer = answer
        self._step = cgroupfs.NO_LIMIT if limit >= cgroupfs.NO_LIMIT else (plan + limit) // 2 // page * page
        self.phase = Phase.ARMED
        self.samples: collections.deque[StallSample] = collections.deque()
        self._thrashes: float | None = None
        """When the window began since which the cgroup thrashes."""
        self._trips: collections.deque[float] = collections.deque(maxlen=LATCH_TRIPS)
        self._events = 0
        """`high` of memory.events at the last sample."""
        self._until = 0.0
        """When the hold is over."""
        self._calm: float | None = None
        """Since when little is in use."""

    @property
    def value(self) -> int:
        """The least that memory.high must hold, in bytes; 0: as planned."""
        match self.phase:
            case Phase.ARMED | Phase.REPORTED:
                return 0
            case Phase.STEPPED:
                return self._step
            case _:
                return cgroupfs.NO_LIMIT

    def next(self, now: float) -> float | None:
        """Return the seconds until the next sample; None if only an event of the kernel calls for one."""
        throttled = len(self.samples) > 1 and self.samples[-1].events > self.samples[0].events
        match self.phase:
            case Phase.LATCHED:
                return None
            case Phase.RELEASED | Phase.REPORTED:
                return max(self._until - now, CALM_SAMPLE_SECONDS)
            case Phase.STEPPED:
                return SAMPLE_SECONDS if throttled else max(self._until - now, CALM_SAMPLE_SECONDS)
            case Phase.ARMED:
                return SAMPLE_SECONDS if throttled or len(self.samples) == 1 else None

    def observe(self, sample: StallSample, settings: GuardTimes) -> Trip | None:
        """Take a sample. Return a trip if the value must be raised; `phase` may also become Armed again."""
        self.samples.append(sample)
        while len(self.samples) > 2 and sample.now - self.samples[1].now >= settings.window:
            self.samples.popleft()
        if self.phase in {Phase.RELEASED, Phase.STEPPED} and self._rearm(sample):
            return None
        if self.phase is Phase.REPORTED and sample.now >= self._until and sample.events <= self._events:
            self.phase = Phase.ARMED  # it gets on
        self._events = sample.events
        if self.phase in {Phase.RELEASED, Phase.LATCHED, Phase.REPORTED}:
            self.samples.clear()
            return None
        cause = self._cause(settings)
        return None if cause is None else self._trip(cause, sample.now, settings)

    def quiet(self) -> None:
        """Forget the samples: the kernel has not throttled since the last one."""
        self.samples.clear()
        self._thrashes = None

    def _cause(self, settings: GuardTimes) -> StallCause | None:
        first, last = self.samples[0], self.samples[-1]
        lasted = last.now - first.now
        if lasted < settings.window:
            return None
        full, some = ((end - begin) / 1e6 / lasted for begin, end in ((first.full, last.full), (first.some, last.some)))
        throttled = last.events > first.events
        # 65/64: a task may charge 64 pages before it is throttled.
        over = all(each.current > each.high * 65 // 64 for each in self.samples)
        if throttled and over and (full >= FULL_SHARE or some >= SOME_SHARE):
            return StallCause.STUCK
        if not throttled or over or full < FULL_SHARE:
            self._thrashes = None
        elif self._thrashes is None:
            self._thrashes = first.now
        elif last.now - self._thrashes >= THRASH_WINDOWS * settings.window:
            return StallCause.THRASHING
        return None

    def _trip(self, cause: StallCause, now: float, settings: GuardTimes) -> Trip:
        stalled = (self.samples[-1].some - self.samples[0].some) / 1e6
        while self._trips and now - self._trips[0] > HOUR:
            self._trips.popleft()
        self._trips.append(now)
        if self.answer is Answer.REPORT:
            self.phase = Phase.REPORTED
        elif self.answer is Answer.REMOVE or len(self._trips) >= LATCH_TRIPS:
            self.phase = Phase.LATCHED
        elif cause is StallCause.THRASHING and self.phase is Phase.ARMED and self._step < cgroupfs.NO_LIMIT:
            self.phase = Phase.STEPPED
        else:
            self.phase = Phase.RELEASED
        self._until = now + min(HOUR, settings.hold * 2 ** (len(self._trips) - 1))
        self._calm = None
        self.quiet()
        return Trip(cause, self.phase, stalled)

    def _rearm(self, sample: StallSample) -> bool:
        if sample.now < self._until or sample.current >= CALM_SHARE * self.plan:
            self._calm = None
        elif self._calm is None:
            self._calm = sample.now
        elif sample.now - self._calm >= CALM_SECONDS:
            self.phase, self._calm = Phase.ARMED, None
            self.quiet()
            return True
        return False
