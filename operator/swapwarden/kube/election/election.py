"""The decisions of a leader election over a coordination.k8s.io/v1 Lease: no clock, no API server.

The Lease is read and written as client-go's tools/leaderelection does, so that it looks familiar. Where the two
differ, this one is more careful:

- A leader counts its time on CLOCK_BOOTTIME, which continues while the machine sleeps, and from before it sent the
  renewal; client-go counts from after the answer.
- A Lease in our name that this process did not write belongs to another holder until it expires: to a container before
  a restart, or to another instance that was given the same name.
- When the Lease is deleted, the holder makes it again. Others wait for a whole duration first: there may be a holder
  whom they have not seen. An instance that has just started and never saw a Lease makes it at once, or each
  installation would begin with a wait. Then, and where a Lease is deleted twice within seconds, two may lead until the
  first one's next renewal.

The official Python client's leaderelection does none of this, counts on the time of day, and its import takes 43 MB.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

MARGIN: Final = 0.05
"""The share of the renew deadline at which a leader stops, so that it has reported its end by the deadline."""
JITTER: Final = (0.8, 1.2)
"""Random factors for the retry period of instances that do not lead."""

MAX_TRANSITIONS: Final = 2**31 - 1
"""The largest number that a Lease can hold."""

NOT_RENEWED: Final = "the Lease was not renewed for {:g} s"
TAKEN: Final = "the Lease went to {}"

_NEVER: Final = float("-inf")


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    """A Lease's spec. Times are texts: they are only compared with themselves."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True):
    """A Lease as the API server returned it."""

    metadata: dict[str, Any]
    spec: Spec = Spec()


@dataclasses.dataclass(frozen=True)
class Timing:
    """All in seconds; ValueError if they do not fit together."""

    lease_duration: float
    """How long other instances wait for a silent holder."""
    renew_deadline: float
    """How long a holder leads without a renewal. Its last requests have the rest of the duration to arrive."""
    retry_period: float
    """The time between two renewals, and between two looks at another instance's Lease."""

    def __post_init__(self) -> None:
        """Refuse values by which two instances could lead, or a leader lose its Lease at the first hitch."""
        if not 0 < self.retry_period < self.renew_deadline < self.lease_duration:
            raise ValueError(
                "of a Lease, the retry period must be above 0 and below the renew deadline, and that below the lease"
                f" duration; they are {self.retry_period:g} s, {self.renew_deadline:g} s and {self.lease_duration:g} s"
            )


@dataclasses.dataclass(frozen=True)
class LeaseTerm:
    """One leadership. The acquire time distinguishes it from all others of the same holder."""

    acquire_time: str
    transitions: int


@dataclasses.dataclass(frozen=True)
class Sleep:
    """Do nothing before this time."""

    until: float


@dataclasses.dataclass(frozen=True)
class Look:
    """Read the Lease, then call observe() or failed()."""


@dataclasses.dataclass(frozen=True)
class WriteLease:
    """Write the Lease for `term`, then call renewed() or failed()."""

    term: LeaseTerm
    over: Lease | None
    """The Lease that must still exist; None if there must be none."""


@dataclasses.dataclass(frozen=True)
class Stop:
    """Stop leading, then call stepped_down()."""

    reason: str


class Observation:
    """An instance's knowledge of the Lease, from its last look."""

    def __init__(self, duration: float) -> None:
        """`duration` in seconds, for a Lease without one."""
        self._default = duration
        self.lease: Lease | None = None
        """The last Lease that this instance observed, even if it was deleted since."""
        self.exists = False
        self.changed_at = _NEVER
        self.deletion_grace_until = _NEVER
        """After a deletion: until then, another instance may hold a Lease that this one never observed."""

    @property
    def holder(self) -> str:
        """The holder in the last observed Lease; empty for none."""
        return (self.lease.spec.holder_identity or "") if self.lease else ""

    @property
    def transitions(self) -> int:
        """The transitions in the last observed Lease."""
        return (self.lease.spec.lease_transitions or 0) if self.lease else 0

    @property
    def duration(self) -> float:
        """How long to wait for a silent holder, in seconds."""
        return (self.lease.spec.lease_duration_seconds if self.lease else 0) or self._default

    def update(self, lease: Lease | None, now: float) -> None:
        """Record the Lease as it is; None if there is none."""
        before = self.lease if self.exists else None
        if before and (lease is None or lease.metadata.get("uid") != before.metadata.get("uid")):
            self.deletion_grace_until = now + max(self.duration, self._default)
        if lease is not None:
            if before is None or lease.spec != before.spec:
                self.changed_at = now
            self.lease = lease
        self.exists = lease is not None


class Election:
    """Decides what one instance does next.

    All times are seconds on one clock of this machine that never stops or jumps back.
    """

    def __init__(self, identity: str, timing: Timing, jitter: Callable[[], float]) -> None:
        """`jitter` gives the factors that keep instances from acting at the same moment."""
        self._identity = identity
        self.timing: Final = timing
        self._jitter = jitter
        self.leading = False
        self.candidate = True
        """Whether this instance takes a free Lease. An instance that only watches waits for the holder as well."""
        self.valid_until = _NEVER
        """This instance leads before this time."""
        self._term: LeaseTerm | None = None
        # The term that a write in flight may begin or prolong; None once this instance has stepped down.
        self._open: LeaseTerm | None = None
        self.observed: Final = Observation(timing.lease_duration)
        self._fresh = False
        self._due = _NEVER
        # The next look of an instance that does not compete.
        self._watching = _NEVER

    @property
    def tried(self) -> bool:
        """Whether this process has ever tried to take the Lease."""
        return self._term is not None

    @property
    def deadline(self) -> float:
        """When this instance stops leading unless it renews the Lease."""
        return self.valid_until - MARGIN * self.timing.renew_deadline

    def is_mine(self, lease: Lease) -> bool:
        """Return whether this process wrote the Lease."""
        return (
            self._term is not None
            and lease.spec.holder_identity == self._identity
            and lease.spec.acquire_time == self._term.acquire_time
        )

    def free_at(self) -> float:
        """Return the time from which this instance may take the Lease, in seconds of the clock of `now`."""
        seen, grace = self.observed, self.observed.deletion_grace_until
        if seen.lease is None:
            return _NEVER
        if not seen.exists or not seen.holder or self.is_mine(seen.lease):
            return grace
        return max(grace, seen.changed_at + seen.duration)

    def step(self, now: float, stamp: str) -> Step:
        """Return what to do now. `stamp` is the wall clock's time, for human readers."""
        if self.leading and (reason := self._lost(now)):
            return Stop(reason)
        if now < self._due:
            return self._sleep()
        if not self._fresh:
            return Look()
        if not self.leading:
            if not self.candidate or now < self.free_at():
                self._due = self._watching = now + self._pause()
                if self.candidate:
                    self._due = min(self.free_at(), self._due)
                return self._sleep()
            seen = self.observed.lease
            ours = seen is None or self.is_mine(seen)
            self._term = LeaseTerm(stamp, self.observed.transitions + (0 if ours else 1))
        if self._term is None:
            raise AssertionError("a leader has a term")
        self._open = self._term
        return WriteLease(self._term, self.observed.lease if self.observed.exists else None)

    def _sleep(self) -> Sleep:
        if self.leading:
            return Sleep(min(self._due, self.deadline))
        self._fresh = False
        return Sleep(self._due)

    def _lost(self, now: float) -> str:
        if now >= self.deadline:
            return NOT_RENEWED.format(self.timing.renew_deadline)
        seen = self.observed
        if self._fresh and seen.exists and seen.lease and not self.is_mine(seen.lease):
            return TAKEN.format(seen.holder or "nobody")
        return ""

    def _pause(self) -> float:
        return self.timing.retry_period * self._jitter()

    def observe(self, lease: Lease | None, now: float) -> None:
        """Record the Lease as it is; None if there is none. `now` is the time after the answer."""
        self.observed.update(lease, now)
        self._fresh = True

    def renewed(self, write: WriteLease, lease: Lease, sent: float, now: float) -> bool:
        """Record the Lease written by a request sent after `sent`; return whether this instance begins to lead."""
        self.observe(lease, now)
        if write.term is not self._open:
            self._fresh = False
            return False
        valid_until = sent + self.timing.renew_deadline
        self._due = sent + self.timing.retry_period
        if not self.leading and now >= valid_until - MARGIN * self.timing.renew_deadline:
            self._fresh = False
            return False
        self.valid_until = valid_until
        began, self.leading = not self.leading, True
        return began

    def stand(self, now: float, *, candidate: bool) -> None:
        """Compete for a free Lease from now on, or leave it to other instances."""
        # Other waits remain: after a failure, or after stepping down.
        if candidate and self._due == self._watching:
            self._due = now
        self.candidate = candidate

    def failed(self, now: float, wait: float) -> None:
        """Retry after `wait` seconds: a look or a write failed, or its result is unknown."""
        self._fresh = False
        # An instance that stepped down meanwhile waits longer.
        self._due = max(self._due, now + wait)

    def count_from(self, transitions: int) -> None:
        """While this instance leads, raise the Lease's transitions to at least this number at the next renewal."""
        if self.leading and self._term is not None and self._term.transitions < transitions:
            self._term = dataclasses.replace(self._term, transitions=transitions)

    def stepped_down(self, now: float, cooldown: float = 0.0) -> None:
        """Stop leading, and compete again after `cooldown` seconds."""
        self.leading = False
        self.valid_until = _NEVER
        self._open = None
        self._fresh = False
        self._due = now + cooldown + self._pause()

    def cooldown(self) -> float:
        """Return the seconds after stepping down until the Lease has expired for all other instances."""
        return self.timing.lease_duration + self.timing.retry_period

    def timeout(self, now: float) -> float:
        """Return the longest time in seconds for a request: a second attempt must be possible before the deadline."""
        half = self.timing.renew_deadline / 2
        return min(half, self.deadline - now) if self.leading else half

    def spec(self, term: LeaseTerm, stamp: str) -> Spec:
        """Return the spec to write for a term."""
        return Spec(
            holder_identity=self._identity,
            lease_duration_seconds=math.ceil(self.timing.lease_duration),
            acquire_time=term.acquire_time,
            renew_time=stamp,
            lease_transitions=term.transitions,
        )


Step = Sleep | Look | WriteLease | Stop


def released(lease: Lease, stamp: str) -> Spec:
    """Return the spec of a released Lease, as client-go writes it."""
    return Spec(
        holder_identity="",
        lease_duration_seconds=1,
        acquire_time=stamp,
        renew_time=stamp,
        lease_transitions=lease.spec.lease_transitions,
    )
