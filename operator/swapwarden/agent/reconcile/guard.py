"""Watches cgroups with memory.high, and raises it where throttling has become a standstill (desired.throttle decides).

A cgroup costs a watch of its memory.events, and nothing while the kernel does not throttle it. While it does, one
sample is taken every two seconds, and events are not heard: a cgroup can cause any number of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import time

import msgspec

from swapwarden.agent.desired import throttle
from swapwarden.agent.host import cgroupfs, inotify
from swapwarden.agent.inventory import exposure, records
from swapwarden.agent.reconcile import queue, schedule, work
from swapwarden.api import formats, names, state
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

TRIPS = metrics.counter(
    "swapwarden_agent_throttle_trips_total",
    "Times that a pod or container stood still at memory.high, by cause (Stuck, Thrashing) and what the guard made of"
    " it: Stepped (halfway to the limit), Released, Latched (released until the plan changes), Reported (nothing).",
    labels=("cause", "phase"),
    known=itertools.product(throttle.StallCause, ("Stepped", "Released", "Latched", "Reported")),
)
STALLED = metrics.counter(
    "swapwarden_agent_throttle_stalled_seconds_total",
    "Time in which tasks of such pods and containers stalled, in the window before the guard acted.",
)
EASED = metrics.gauge(
    "swapwarden_agent_throttle_eased_cgroups", "Cgroups whose memory.high the guard holds above the planned value."
)


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Guarded(inotify.Watched):
    """A cgroup with a planned memory.high."""

    file: records.ControlFile
    throttle: throttle.StallGuard
    events: int
    """`high` of memory.events when last read."""
    some: int | None = None
    """Microseconds of stall at the last sample; None: that was not a moment ago."""
    due: float | None = None
    """When it is sampled next, in monotonic seconds; None: after an event."""


class ThrottleGuard:
    """Raises a memory.high at which a cgroup stands still. Not thread-safe: only the event loop may use it."""

    def __init__(self, shared: work.Work, cgroups: cgroupfs.Cgroups) -> None:
        self._work = shared
        self._fs = cgroups
        self.guarded: dict[records.ControlFile, Guarded] = {}
        self.storm = throttle.Storm()

    def finds(self, path: str) -> bool:
        """Return whether a cgroup has a memory.high of another writer that must be guarded."""
        high = self._fs.number(path, cgroupfs.MEMORY_HIGH)
        return high is not None and high < cgroupfs.NO_LIMIT

    def follow(self, file: records.ControlFile) -> None:
        """Guard a memory.high that was reconciled; end that if it throttles no more."""
        plan, known, foreign = file.desired.value, self.guarded.get(file), self._foreign(file)
        if foreign:
            plan = foreign
            remove = self._work.in_force.guards_others is names.KubeletGuard.RELEASE
            answer = throttle.Answer.REMOVE if remove else throttle.Answer.REPORT
        else:
            raises = self._asked.action is names.GuardAction.RELEASE
            answer = throttle.Answer.RAISE if raises else throttle.Answer.REPORT
        if not isinstance(plan, int) or plan >= cgroupfs.NO_LIMIT or (file.status.foreign and not foreign):
            self.drop(file)
            file.throttling = records.NOT_THROTTLED
        elif known is None or (known.throttle.plan, known.throttle.answer) != (plan, answer):
            self.drop(file)
            since = file.throttling.since or formats.rfc3339(time.time())
            file.throttling = msgspec.structs.replace(file.throttling, since=since, foreign=foreign)
            limit = cgroupfs.NO_LIMIT
            with contextlib.suppress(cgroupfs.CgroupError):  # then no value lies between plan and limit
                limit = self._fs.read(cgroupfs.join(file.path, cgroupfs.MEMORY_MAX))
            guarded = Guarded(file, throttle.StallGuard(plan, limit, self._fs.page, answer), self._events(file))
            self.guarded[file] = guarded
            self._watch(guarded)

    def drop(self, file: records.ControlFile) -> None:
        """Guard a file no longer."""
        known = self.guarded.pop(file, None)
        if known is not None:
            self._work.watching.release(known)
            self._ease(file, None)

    def heard(self, guarded: Guarded) -> None:
        """Take an event of memory.events."""
        if self.guarded.get(guarded.file) is guarded and guarded.due is None:
            self._work.watching.release(guarded)
            self._look(guarded, heard=True)
            self._arm()

    def run(self) -> None:
        """Sample the cgroups that are due."""
        now = self._work.clock()
        for guarded in [each for each in self.guarded.values() if each.due is not None and each.due <= now]:
            guarded.due = None
            self._look(guarded, heard=False)
        self._arm()

    def disarm(self) -> None:
        """End all throttling but that of others: nobody watches from now on. The next agent plans the values again."""
        for guarded in [each for each in self.guarded.values() if not each.file.throttling.foreign]:
            with contextlib.suppress(cgroupfs.CgroupError):  # the cgroup is gone, or keeps its throttling
                self._fs.write(guarded.file.name, cgroupfs.NO_LIMIT)

    def _arm(self) -> None:
        times = [each.due for each in self.guarded.values() if each.due is not None]
        if times:
            self._work.due_by(queue.Task.GUARD, schedule.Why.DUE, min(times))

    def _look(self, guarded: Guarded, *, heard: bool) -> None:
        now, armed = self._work.clock(), guarded.throttle.phase is throttle.Phase.ARMED
        try:
            sample = self._sample(guarded.file, now)
        except (cgroupfs.CgroupError, ValueError):  # the cgroup is gone, or the kernel has no pressure files
            guarded.due = None if armed else now + throttle.CALM_SAMPLE_SECONDS
            return
        before = guarded.events
        self._count(guarded, sample)
        if armed and sample.events <= before and not guarded.throttle.samples:
            # It was another event, such as one of its limit. A cgroup can cause any number: they are heard rarely.
            if heard:
                guarded.due = now + throttle.SAMPLE_SECONDS
            else:
                self._watch(guarded)
            return
        settings = throttle.GuardTimes(self._asked.window_seconds, self._asked.hold_seconds)
        trip, why = guarded.throttle.observe(sample, settings), guarded.file.throttling.why
        if trip is not None:
            self._report(guarded.file, trip)
            why = f"{trip.cause} at memory.high: tasks stalled for {trip.stalled:.0f} s; now {trip.phase.value}"
        self._ease(guarded.file, guarded.throttle, why)
        wait = guarded.throttle.next(now)
        if wait is not None:
            guarded.due = now + wait
        elif guarded.throttle.phase is throttle.Phase.ARMED:
            guarded.throttle.quiet()
            self._watch(guarded)

    def _watch(self, guarded: Guarded) -> None:
        guarded.some = None
        path = self._fs.absolute(guarded.file.path, cgroupfs.MEMORY_EVENTS)
        self._work.watching.watch(guarded, path, inotify.CONTENT)
        if self._events(guarded.file) > guarded.events:  # before the watch
            guarded.due = self._work.clock() + throttle.SAMPLE_SECONDS
            self._work.watching.release(guarded)
            self._arm()

    def _count(self, guarded: Guarded, sample: throttle.StallSample) -> None:
        """Add up what the kernel throttled since the last look, and the stall if that was a sample."""
        more, known = sample.events - guarded.events, guarded.file.throttling
        if more > 0:
            stalled = 0 if guarded.some is None else max(0, sample.some - guarded.some) / 1e6
            if sample.now - known.last >= exposure.RECENT_SECONDS:
                self._work.reports.touch()
            guarded.file.throttling = msgspec.structs.replace(
                known, events=known.events + more, seconds=known.seconds + stalled, last=sample.now
            )
        guarded.events, guarded.some = sample.events, sample.some

    def _ease(self, file: records.ControlFile, guard: throttle.StallGuard | None, why: str = "") -> None:
        """Have the file raised as far as a guard has decided, and the standstill reported; None: not any more."""
        least = 0 if guard is None else guard.value
        phase = guard.phase.value if guard is not None and least else ""
        why = why if guard is not None and guard.phase is not throttle.Phase.ARMED else ""
        before, file.throttling = (
            file.throttling,
            msgspec.structs.replace(file.throttling, least=least, phase=phase, why=why),
        )
        if before.least != least:
            self._work.waiting.mark(file, queue.Priority.REPAIR, queue.Mark(self._work.clock()))
            EASED.set(sum(each.throttling.least > 0 for each in self.guarded))
        if before != file.throttling:
            self._work.reports.touch()

    def _foreign(self, file: records.ControlFile) -> int:
        """Return the value of another writer that throttles a file's cgroup, or did so until the guard replaced it.

        It is 0 without one, or if nobody asks for a guard of it.
        """
        held, known = file.status.observed, file.throttling
        if self._work.in_force.guards_others is names.KubeletGuard.OFF or file.pod is None or not file.spec.reclaims:
            return 0
        if known.foreign and known.least and held >= cgroupfs.NO_LIMIT:
            return known.foreign
        theirs = file.status.foreign or not isinstance(file.desired.value, int)
        return held if theirs and 0 < held < cgroupfs.NO_LIMIT and held != file.last_applied else 0

    def _report(self, file: records.ControlFile, trip: throttle.Trip) -> None:
        file.throttling = msgspec.structs.replace(file.throttling, trips=file.throttling.trips + 1)
        self._work.reports.touch()
        self.storm.record(self._work.clock())
        TRIPS.inc(trip.cause.value, trip.phase.value)
        STALLED.inc(by=max(0.0, trip.stalled))
        log.warning(
            "a cgroup stands still at memory.high",
            extra={
                "cgroup": f"/{file.path}",
                "cause": trip.cause.value,
                "guard": trip.phase.value,
                "stalledSeconds": round(trip.stalled, 1),
            },
        )

    @property
    def _asked(self) -> state.GuardSettings:
        current = self._work.in_force.spec
        return state.GuardSettings() if current is None else current.guard

    def _events(self, file: records.ControlFile) -> int:
        return cgroupfs.if_any(self._fs.counts, file.path, cgroupfs.MEMORY_EVENTS).get("high", 0)

    def _sample(self, file: records.ControlFile, now: float) -> throttle.StallSample:
        """Read one sample. CgroupError; ValueError if the kernel accounts no pressure."""
        totals = self._fs.pressure(file.path, "memory")
        if len(totals) < len(("some", "full")):
            raise ValueError("no pressure")
        return throttle.StallSample(
            now,
            self._fs.counts(file.path, cgroupfs.MEMORY_EVENTS).get("high", 0),
            self._fs.read(cgroupfs.join(file.path, cgroupfs.MEMORY_CURRENT)),
            self._fs.read(cgroupfs.join(file.path, cgroupfs.MEMORY_HIGH)),
            totals["some"],
            totals["full"],
        )
