"""The data that the reconcilers share: waiting keys, the order of writes, due times, failures, the state in force."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.host import inotify
from swapwarden.agent.inventory import board, records
from swapwarden.agent.reconcile import queue, schedule
from swapwarden.api import names
from swapwarden.api.violations import ViolationReason


class WriteOrder:
    """Orders writes: no file is raised while one above or below it must still be lowered.

    A cgroup can use the least of its own limit and of those above it. If one of them were raised before another one is
    lowered, it could for a moment use more than both the old limits and the new ones allow. So a file is lowered at
    once, and raised only after all keys of its pod that waited before it had their turns; the limit of all pods after
    all keys. Keys that arrive later hold up no raise.

    For a protection (cgroup_files.Exposed.BELOW) the reverse is true: it is raised at once, and lowered only after what
    waited before. A protection is as good as the least above it. So it is lowered from the pods up, and that of the
    system's units last. memory.high is raised at once: that lets no cgroup use more than its limits.
    """

    def __init__(self, waiting: queue.Queue) -> None:
        self._waiting = waiting
        self.unlowered: set[records.ControlFile] = set()
        """Files that must be lowered, and still may hold more."""
        self.raises: dict[object, dict[records.ControlFile, tuple[int, queue.Mark]]] = {}
        """Waiting raises by pod: the queue's serial when the wait began, and the file's mark."""
        self.turn: tuple[records.ControlFile, int] | None = None
        """The file that has its turn after a wait, and the serial of when it began; None ends the turn."""

    def lower_first(self, file: records.ControlFile) -> None:
        """Note that a file must be lowered: until `lowered`, those above it are not raised."""
        self.unlowered.add(file)

    def lowered(self, file: records.ControlFile) -> None:
        """Note that a file bars no other any more."""
        self.unlowered.discard(file)

    def is_barred(self, file: records.ControlFile) -> bool:
        """Return whether a file must not be raised yet, because one below it could not be lowered.

        That one could use the raise. So the file waits until the other is lowered, removed, or gets another desired
        value: too little swap breaks no promise, and the status reports the other.
        """
        return any(
            each.spec is file.spec and each.path.startswith(f"{file.path}/") and _bars(each, file)
            for each in self.unlowered
        )

    def begin(self, file: records.ControlFile) -> None:
        """Begin a file's turn. A file that waits already waits for no later key."""
        waiting = self.raises.get(file.pod, {}).get(file)
        if waiting is not None:
            self.turn = file, waiting[0]
            self.drop(file)

    def claim_raise(self, file: records.ControlFile, mark: queue.Mark) -> bool:
        """Return True if the file in turn may be raised; else have it wait with its mark until it is `released`."""
        serial = self._waiting.serial if self.turn is None or self.turn[0] is not file else self.turn[1]
        if not self._waits(file, serial):
            return True
        self.raises.setdefault(file.pod, {})[file] = serial, mark
        return False

    def released(self, group: object) -> Iterator[tuple[records.ControlFile, queue.Mark]]:
        """Yield files that need not wait any more, after a key of this group had its turn."""
        for each in tuple(self.raises) if group is None else (group, None):
            for file, (serial, mark) in list(self.raises.get(each, {}).items()):
                if not self._waits(file, serial):
                    yield file, mark

    def drop(self, file: records.ControlFile) -> None:
        """Forget a file that waits no longer, or is gone."""
        waiting = self.raises.get(file.pod)
        if waiting is not None:
            waiting.pop(file, None)
            if not waiting:
                del self.raises[file.pod]

    def _waits(self, file: records.ControlFile, serial: int) -> bool:
        if file.pod is not None:
            groups = (file.pod, None)
            waits = any(self._waiting.group_waits_since(group, serial) for group in groups)
        else:
            waits = (file.kind == "kubepods" or not file.usage) and self._waiting.waits_since(serial)
        if not file.usage:
            waits = waits or any(_is_before(each, file) for group in self.raises.values() for each in group)
        return waits or self.is_barred(file)


def _is_before(other: records.ControlFile, file: records.ControlFile) -> bool:
    """Return whether another protection is lowered first: that of a cgroup below, and that of pods before a unit's."""
    if other.usage or other.is_units:
        return False
    return file.is_units or (other.spec is file.spec and other.path.startswith(f"{file.path}/"))


def _bars(low: records.ControlFile, high: records.ControlFile) -> bool:
    """Return whether `low` bars a raise of `high`: not if that would keep swap from other pods without need.

    A container is bounded by its pod's own limit, which is not raised. An error of the agent about one pod concerns
    only that pod: it may use its file's value as before, and its violation reports that. A file that the kernel refuses
    to lower bars all above it: no pod causes that, and too little swap breaks no promise.
    """
    return high.pod is low.pod or not (low.is_tenants or low.status.reason is ViolationReason.INTERNAL_ERROR)


class InForce(msgspec.Struct):
    """The state in force. Only CgroupReconciler.follow changes it."""

    spec: spec.NodeSpec | None = None
    mode: names.Mode = names.Mode.ENFORCE
    """The mode in force: resolve.mode_of(spec)."""
    away: float | None = None
    """When the last agent was last seen on the node, in monotonic seconds; None if unknown."""
    kubelet_owns: frozenset[resolve.Owned] = frozenset()
    """The kubelet's own files, by its configuration."""
    guards_others: names.KubeletGuard = names.KubeletGuard.OFF
    """The answer to a memory.high of the kubelet or of another writer, as resolve.guards_others(spec)."""


class Work(msgspec.Struct, frozen=True):
    """The data that reconcilers share. Recording something here is a call down."""

    waiting: queue.Queue
    due: schedule.Schedule[queue.Key]
    order: WriteOrder
    horizon: queue.EventHorizon
    failures: queue.Failures
    watching: inotify.WatchRegistry
    reports: board.Board
    clock: Callable[[], float]
    """Monotonic seconds."""
    in_force: InForce

    def due_in(self, key: queue.Key, why: schedule.Why, seconds: float) -> None:
        """Have a key due, unless it is already."""
        if (key, why) not in self.due.times:
            self.due.at(key, why, self.clock() + seconds)

    def due_by(self, key: queue.Key, why: schedule.Why, when: float) -> None:
        """Have a key due at this time, in monotonic seconds, or earlier if it is already."""
        self.due.at(key, why, min(when, self.due.times.get((key, why), when)))


def begin(
    watching: inotify.WatchRegistry, reports: board.Board, clock: Callable[[], float], *, away: float | None
) -> Work:
    """Return the shared data of a new agent, in which nothing waits yet."""
    waiting = queue.Queue()
    due: schedule.Schedule[queue.Key] = schedule.Schedule()
    failures = queue.Failures(due, watching, reports, clock)
    order, horizon = WriteOrder(waiting), queue.EventHorizon(clock())
    return Work(waiting, due, order, horizon, failures, watching, reports, clock, InForce(away=away))
