"""Keys that wait to be reconciled, and those that failed: repairs first, then arrivals, then one sweep in a turn.

A key is a name in a directory, a cgroup, a file, or a task of the whole node.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs, faults, inotify
from swapwarden.agent.inventory import board, records
from swapwarden.agent.reconcile import schedule
from swapwarden.api.violations import ViolationReason
from swapwarden.kube import backoff

RETRY_SECONDS: Final = (2.0, 120.0)
"""First and longest bound of the wait before a key, or a write that the kernel refused, is tried again."""
SOON_SECONDS: Final = (0.01, 5.0)
"""First and longest bound of the wait for a cgroup, or its files, that was only just made and is not ready."""
SOON_ATTEMPTS: Final = 9
"""Tries within some seconds, after which such a cgroup waits for an event or a full comparison, and the lack of such a
file is a failure."""
LOST_SECONDS: Final = 600.0
"""How long the status reports that the kernel dropped events."""


class Child(msgspec.Struct, frozen=True):
    """A name in a cgroup: behind it there may be another thing now, or nothing, than was known."""

    owner: inotify.Watched
    name: str
    listed: bool = False
    """Whether a listing showed it, and no event reported it."""

    def __str__(self) -> str:
        """For logs."""
        return f"{self.owner}/{self.name}"

    @property
    def pod(self) -> object:
        """The group by which keys take turns: a container's pod, or the cgroup itself."""
        return self.owner.pod if isinstance(self.owner, records.Container) else self.owner


class Task(enum.Enum):
    """A task of the whole node, which waits in the queue as keys do."""

    TREE = "tree"
    """Find the cgroup above all pods."""
    UNITS = "units"
    SWEEP = "sweep"
    """End a full comparison."""
    CAUSES = "causes"
    """Find out why values were written over."""
    GUARD = "guard"
    """Sample cgroups that the kernel throttles."""
    RUNTIME = "runtime"
    """Have the container runtime hold what it must."""


Key = Child | Task | records.Level | records.Pod | records.Container | records.ControlFile


def whose(key: Key) -> tuple[str, str]:
    """Return the pod's UID and the container's id for a violation; `kubepods` and nothing if it is above all pods."""
    owner, name = (key.owner, key.name) if isinstance(key, Child) else (key, "")
    match owner:
        case records.Level() if uid := records.pod_uid(name):
            return uid, ""
        case records.Pod():
            return owner.uid, records.container_id(name) or ""
        case records.Container():
            return owner.pod.uid, owner.id
        case records.ControlFile(pod=records.Pod() as pod):
            return pod.uid, owner.container
    return "kubepods", ""


class Priority(enum.StrEnum):
    """In the order of taking. A turn takes one sweep."""

    REPAIR = "repair"
    """Another wrote to a file, or the file is due."""
    ARRIVAL = "arrival"
    """A cgroup may have come or gone, or a state names it."""
    SWEEP = "sweep"
    """Nothing is known to have happened."""


class Mark(msgspec.Struct, frozen=True):
    """Why a key waits, in monotonic seconds."""

    noticed: float
    """When it was first marked."""
    since: float = math.inf
    """Until when events reported everything about it, or since when a file may be wrong; infinite: now."""
    written: bool = False
    """Whether an event reported a write to the file."""
    after: int | None = None
    """Number of the agent's last write before another writer's; None if the event may be of the agent's own."""


class EventHorizon:
    """Until when events reported everything: so an exposure never begins too late in the report. Monotonic seconds."""

    def __init__(self, now: float) -> None:
        self.drained = now
        """Time until which inotify reported everything about its watches."""
        self.writes = 0
        """How many of the agent's own writes events have reported for certain."""
        self.caught_up = now
        """Time before which all pods that ran are known."""
        self._complete = self.lost_until = records.NEVER
        """Events were lost between these times. Files that were read since are known all the same."""
        self._lossy = False
        """Whether some files were not read since."""
        self._losses = 0
        """How often the kernel dropped events, each time soon after the one before; the last time at `_lost_at`."""
        self._lost_at = records.NEVER
        self.ever_lost = False

    def read(self, noticed: float, writes: int, *, finds: bool) -> None:
        """Note that all events until `noticed` were read, after so many `writes`; `finds`: they reported all pods."""
        self.drained, self.writes = noticed, writes
        if finds:
            self.caught_up = max(self.caught_up, noticed)

    def catch_up(self, time: float) -> None:
        """Note that all pods that ran before this time are known."""
        self.caught_up = max(self.caught_up, time)

    def lose(self, now: float) -> None:
        """Note that the kernel dropped events."""
        if not self._lossy:
            self._complete = self.drained
        self._lossy = True
        self.lost_until = now

    def count_loss(self, noticed: float) -> None:
        """Count one read that reported losses."""
        self._losses = self.losses(noticed) + 1
        self.ever_lost = True
        self._lost_at = noticed

    def losses(self, now: float) -> int:
        """Return how often the kernel dropped events lately."""
        return self._losses if now - self._lost_at < LOST_SECONDS else 0

    def compared(self) -> None:
        """Note that all files were read."""
        self._lossy = False

    def last_right(self, file: records.ControlFile, until: float = math.inf) -> float | None:
        """Return the last moment at which a file is known to have held the agent's value, or None.

        Events have reported all writes `until` then, at most until the last read of events.
        """
        right = file.times.right_at
        if file.watch is not None and file.watch == file.times.right_watch:
            until = min(until, self.drained)
            return max(right, min(until, self._complete) if right < self.lost_until else until)
        return right if right > records.NEVER else None

    def exposed_since(self, file: records.ControlFile, noticed: float) -> float:
        """Return since when a file with an event may be wrong: earlier than the event if others were lost."""
        right = self.last_right(file)
        return noticed if right is None else min(right, noticed)


class Queue:
    """Keys of a group, as of a pod, are taken in the order in which they were marked first; groups take turns."""

    def __init__(self) -> None:
        self._waiting: dict[Priority, dict[object, dict[Key, Mark]]] = {priority: {} for priority in Priority}
        self._serials: dict[tuple[Priority, Key], int] = {}
        """Serial numbers in the order of marking, of all keys but sweeps."""
        self.count = 0
        """How many keys wait."""
        self.serial = 0
        """Serial number of the newest mark."""

    def mark(self, key: Key, priority: Priority, mark: Mark) -> None:
        """Have a key reconciled. One that waits already keeps its place, and the earlier of both times."""
        group = self._waiting[priority].setdefault(getattr(key, "pod", key), {})
        known = group.get(key)
        if known is not None:
            since = min(known.since, mark.since)
            after = known.after if mark.after is None else mark.after
            mark = Mark(min(known.noticed, mark.noticed), since, known.written or mark.written, after)
        else:
            self.count += 1
            if priority is not Priority.SWEEP:
                self.serial += 1
                self._serials[priority, key] = self.serial
        group[key] = mark

    def take(self, *priorities: Priority) -> tuple[Key, Mark] | None:
        """Remove and return the next key of the first of these priorities that has one; None if none waits."""
        for priority in priorities:
            groups = self._waiting[priority]
            if groups:
                name = next(iter(groups))
                group = groups.pop(name)
                key = next(iter(group))
                mark = group.pop(key)
                if group:
                    groups[name] = group
                self._serials.pop((priority, key), None)
                self.count -= 1
                return key, mark
        return None

    def discard(self, key: Key) -> None:
        """Remove a key that is gone."""
        name = getattr(key, "pod", key)
        for priority, groups in self._waiting.items():
            if key in groups.get(name, ()):
                self.count -= 1
                self._serials.pop((priority, key), None)
                del groups[name][key]
                if not groups[name]:
                    del groups[name]

    def waits(self, priority: Priority) -> bool:
        """Return whether a key of this priority waits."""
        return bool(self._waiting[priority])

    def waits_since(self, serial: int) -> bool:
        """Return whether a repair or an arrival still waits that was marked by then."""
        return next(iter(self._serials.values()), math.inf) <= serial

    def group_waits_since(self, name: object, serial: int) -> bool:
        """Return whether a repair or an arrival of this group still waits that was marked by then."""
        for priority in (Priority.REPAIR, Priority.ARRIVAL):
            group = self._waiting[priority].get(name)
            if group and self._serials[priority, next(iter(group))] <= serial:
                return True
        return False

    def clear(self) -> None:
        """Reconcile nothing any more."""
        for groups in self._waiting.values():
            groups.clear()
        self._serials.clear()
        self.count = 0

    def __iter__(self) -> Iterator[Key]:
        """Yield all keys that wait."""
        for groups in self._waiting.values():
            for group in groups.values():
                yield from group

    def __bool__(self) -> bool:
        """Return whether a key waits."""
        return self.count > 0


class Failure(msgspec.Struct, frozen=True):
    """Why one key could not be reconciled."""

    reason: ViolationReason | None
    """The violation's reason; None if the failure is normal for a moment."""
    message: str
    backoff: backoff.Backoff


class Failures:
    """Each key's failure is its own, with a reason, a next try and a violation."""

    def __init__(
        self,
        due: schedule.Schedule[Key],
        watching: inotify.WatchRegistry,
        reports: board.Board,
        clock: Callable[[], float],
    ) -> None:
        self._schedule = due
        self._watches = watching
        self._reports = reports
        self._clock = clock
        self.of: dict[Key, Failure] = {}
        self.cut_short = False
        """Whether something of the tree could not be read for reasons that are not one cgroup's."""

    def guard(self, *steps: Callable[[], None]) -> None:
        """Run steps that are no key's. A mistake in one must not end the agent: all is compared a little later."""
        for step in steps:
            try:
                step()
            except cgroupfs.CgroupError as error:
                self.unreadable(error)
            except Exception as error:  # noqa: BLE001 the last resort
                self._watches.degrade(inotify.Degraded.FAULT, faults.fault("the event loop", error))
                self._reports.touch()

    def attempt(self, key: Key, step: Callable[[], None], *, whole: bool = True) -> None:
        """Run a step of reconciling a key. An error is this key's violation, and the key is retried.

        A step that is not the `whole` leaves earlier failures of the key.
        """
        try:
            step()
        except cgroupfs.TransientError as error:
            self.failed(key, None, str(error))
        except cgroupfs.DeniedError as error:
            self.failed(key, ViolationReason.ACCESS_DENIED, str(error))
        except cgroupfs.GoneError:  # an event follows
            self.clear(key)
        except cgroupfs.CgroupError as error:
            self.unreadable(error)
            self.failed(key, ViolationReason.UNREADABLE, str(error))
        except Exception as error:  # noqa: BLE001 a mistake in one key must not stop the others
            self.failed(key, ViolationReason.INTERNAL_ERROR, faults.fault(str(key), error))
        else:
            if whole:
                self.clear(key)

    def failed(self, key: Key, reason: ViolationReason | None, message: str) -> None:
        """Note a failure, and try the key again later."""
        before = self.of.get(key)
        if before is None or (before.reason is None) != (reason is None):
            self.clear(key)
            before = Failure(None, "", backoff.Backoff(*(SOON_SECONDS if reason is None else RETRY_SECONDS)))
        if reason is not None and before.reason is None:
            faults.warn("cannot reconcile a cgroup; trying again", str(key), message)
        self.of[key] = now = Failure(reason, message, before.backoff)
        if now != before:
            self._reports.touch()
        if (key, schedule.Why.FAILED) not in self._schedule.times and (
            reason is not None or now.backoff.failures < SOON_ATTEMPTS
        ):
            self._schedule.at(key, schedule.Why.FAILED, self._clock() + now.backoff.next())

    def clear(self, key: Key) -> None:
        """Forget the failure of a key that was reconciled, or is gone."""
        failure = self.of.pop(key, None)
        if failure is not None:
            self._schedule.cancel(key, schedule.Why.FAILED)
            if failure.reason is not None:
                self._reports.touch()

    def begin_comparison(self) -> None:
        """Forget that the tree could not be read whole: a comparison of all begins."""
        self.cut_short = False

    def unreadable(self, error: cgroupfs.CgroupError) -> None:
        """Note that the tree of pods cannot be read whole: events do not suffice until all is compared."""
        self.cut_short = True
        self._watches.degrade(inotify.Degraded.UNREADABLE, f"the tree of pods cannot be read whole ({error})")
        self._reports.touch()
