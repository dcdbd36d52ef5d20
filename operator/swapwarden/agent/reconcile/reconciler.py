"""Makes the cgroups of a node's pods hold what the state says, and keeps it so.

Everything here happens in one event loop, without waiting. Sources (inotify, a state, the schedule) mark keys in a
queue. Each turn of the loop takes repairs first, then arrivals for a moment, then one key of a full comparison, the
safety net. So no repair waits for arrivals or for a comparison. Each key has its own turn: an error there is that key's
violation (queue.Failures), and stops no other.

inventory.Inventory keeps the cgroups, resolve answers which value a file must hold, file_reconciler writes it, and
work.WriteOrder has lowerings come before raises.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import pathlib
import time
from collections.abc import Callable
from typing import Final

import msgspec

from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.drift import attribution, systemd_zero
from swapwarden.agent.host import cgroupfs, faults, inotify
from swapwarden.agent.inventory import board, inventory, records
from swapwarden.agent.ledger import ledger
from swapwarden.agent.node import swap_devices
from swapwarden.agent.reconcile import (
    cgroup_reconciler,
    container_reconciler,
    file_reconciler,
    guard,
    queue,
    runtime_plugins,
    schedule,
    swap_drain,
    system_units,
    tasks,
    work,
)
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

APPLY_SECONDS = metrics.histogram("swapwarden_agent_apply_seconds", "Time to apply a new state to all cgroups.")
OVERFLOWS = metrics.counter(
    "swapwarden_agent_watch_overflows_total", "Times that inotify lost events, after which all cgroups were compared."
)
SLICE_SECONDS: Final = 0.003
"""How long a turn takes arrivals before the rest of the event loop has its turn."""
LOOK_SECONDS: Final = 0.001
"""How long it takes them before it reads new events: the event loop itself would cost more than most keys."""


class _Applied(msgspec.Struct, frozen=True):
    """A state that is being applied."""

    generation: int
    begun: float
    serial: int
    """The newest mark that must have had its turn."""


class Events:
    """Turns the kernel's events into marks of the queue: which key may be wrong, and since when."""

    def __init__(
        self,
        shared: work.Work,
        known: inventory.Inventory,
        files: file_reconciler.FileReconciler,
        containers: container_reconciler.ContainerReconciler,
        units: system_units.Units,
        *,
        evidence: systemd_zero.Evidence,
    ) -> None:
        self._work = shared
        self._inventory = known
        self._files = files
        self._containers = containers
        self._units = units
        self._evidence = evidence

    def hear(self, *, compares: bool) -> bool:
        """Mark written files, and names that came or were removed. Return whether events were lost.

        | event | key that is marked |
        |---|---|
        | a write to a file | the file, once; if events were lost, as of its last right value |
        | a write to memory.events | none: the guard takes a look |
        | a name came or was removed | the name, or the node's units |
        | the queue overflowed (IN_Q_OVERFLOW) | none: the caller compares everything |

        The kernel reports neither who wrote nor when. A write since the agent's own last write may be that write, so
        reconciling the file reads it first. While a full comparison is due or under way (`compares`), there may be pods
        that no event reports.
        """
        noticed = self._work.clock()
        written = self._files.writes
        touched: dict[records.ControlFile, float] = {}
        lost = False
        # First take all events: systemd writes two or three times in a row, and one repair serves all of these.
        for owner, event in self._work.watching.read():
            if event.mask & inotify.Q_OVERFLOW:
                lost = True
                self._work.horizon.lose(self._work.clock())
            elif isinstance(owner, records.ControlFile):
                lossy = owner.times.right_at < self._work.horizon.lost_until
                touched.setdefault(owner, self._work.horizon.exposed_since(owner, noticed) if lossy else noticed)
            elif isinstance(owner, guard.Guarded):
                self._files.guard.heard(owner)
            elif owner is not None:
                self._mark_name(owner, event, noticed)
        seeks = self._evidence.desired or self._work.reports.drop_ins[board.PODS].held
        for file, since in touched.items():
            # An event before this one may have ended the watch. A container may write to its inner cgroup in a loop.
            if file.watch is not None and not (file.is_inner and self._put_off(file)):
                own = file.times.write_seq > self._work.horizon.writes  # perhaps an event of the agent's own write
                # Evidence for Strict is read now: the repair hides what systemd wrote.
                if not own and (seeks or file.systemd.zero or file.kind == "system"):
                    self._rewritten(file)
                mark = queue.Mark(noticed, since, written=True, after=None if own else file.times.write_seq)
                self._work.waiting.mark(file, queue.Priority.REPAIR, mark)
        if lost:
            self._work.horizon.count_loss(noticed)
            OVERFLOWS.inc()
            log.warning("too many events at once: some were lost, comparing everything")
        # The kernel ends a read early if an event would not fit. Before all are read, a write may still be unknown.
        if self._work.watching.drained:
            finds = not (compares or lost) and self._inventory.root is not None
            self._work.horizon.read(noticed, written, finds=finds)
        return lost

    def _mark_name(self, owner: inotify.Watched, event: inotify.InotifyEvent, noticed: float) -> None:
        """Mark a name that appeared or was removed."""
        mark = queue.Mark(noticed, self._work.horizon.caught_up)
        if not isinstance(owner, records.Level | records.Pod) and self._units.concerns(owner, event):
            self._work.waiting.mark(queue.Task.UNITS, queue.Priority.ARRIVAL, mark)
        if isinstance(owner, records.Container) and event.name != records.INNER:
            if self._containers.put_off(owner):
                self._work.watching.release(owner)
        elif isinstance(owner, records.Level | records.Pod | records.Parent | records.Container):
            self._work.waiting.mark(queue.Child(owner, event.name), queue.Priority.ARRIVAL, mark)

    def _put_off(self, file: records.ControlFile) -> bool:
        """Have a file wait a little if a container writes to its inner cgroup too often; return whether it must."""
        if file.pod is None:
            return False
        container = next((each for each in file.pod.containers.values() if file in each.files), None)
        if container is None or not self._containers.put_off(container):
            return False
        self._work.watching.release(file)
        return True

    def _rewritten(self, file: records.ControlFile) -> None:
        """Note another writer's value: it may say which value systemd holds."""
        try:
            if self._evidence.rewritten(self._inventory.root_path, file):
                self._work.reports.touch()
            elif self._units.rewritten(file):
                self._work.waiting.mark(queue.Task.UNITS, queue.Priority.ARRIVAL, queue.Mark(self._work.clock()))
        except Exception as error:  # noqa: BLE001 the repair matters more than this evidence
            faults.fault(str(file), error)


class NodeReconciler:
    """The agent's state machine. Not thread-safe: everything runs in the event loop of `start`."""

    def __init__(
        self,
        cgroups: cgroupfs.Cgroups,
        book: ledger.Ledger,
        reports: board.Board,
        *,
        proc: pathlib.Path,
        own_uid: str = "",
        anchor: str = "",
        away: float | None = None,
        nri_dir: pathlib.Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`away` is when the last agent was last seen on the node, in monotonic seconds; None if unknown.

        `nri_dir` is the folder with the link to plugins of the container runtime; None: none are expected.
        """
        watching = inotify.WatchRegistry(readable=self.catch_up)
        self.work = shared = work.begin(watching, reports, clock, away=away)
        self.inventory = known = inventory.Inventory(cgroups, watching, own_uid=own_uid, anchor=anchor)
        if away is not None and not book.initialised:
            book.mark_incomplete()
        self._attribution = why = attribution.Attribution(cgroups, book, clock=clock)
        self._evidence = evidence = systemd_zero.Evidence(cgroups, book, reports, clock)
        space = swap_drain.Headroom(cgroups, proc)
        stalls = guard.ThrottleGuard(shared, cgroups)
        self._files = files = file_reconciler.FileReconciler(
            shared, cgroups, book, space, stalls, why=why, own_uid=own_uid
        )
        io = system_units.UnitIoReconciler(cgroups, book.settings)
        self._units = units = system_units.Units(cgroups, book, watching, files, io, reports=reports)
        containers = container_reconciler.ContainerReconciler(shared, known, book, files, why)
        self._cgroups = cgroup_reconciler.CgroupReconciler(
            shared, known, book, files, containers, why=why, evidence=evidence
        )
        runtime = None
        if nri_dir is not None:
            runtime = runtime_plugins.RuntimePlugins(
                shared, known, book, why, nri_dir, cgroups=cgroups, readable=self.catch_up
            )
        self.tasks = tasks.NodeTasks(
            shared, known, book, files=files, cgroups=self._cgroups, units=units, why=why, runtime=runtime
        )
        self._events = Events(shared, known, files, containers, units, evidence=evidence)
        self.alarm = schedule.Alarm(self.wake)
        self._applied: _Applied | None = None
        self._generation = 0

    # For the rest of the agent

    @property
    def root(self) -> str | None:
        """The cgroup above all pods, once found."""
        return self.inventory.root_path

    @property
    def progress(self) -> board.ReconcileProgress:
        """Reconciling as the report needs it, beside the records of pods and files."""
        failures = (
            board.KeyFailure(*queue.whose(key), failure.reason, failure.message)
            for key, failure in self.work.failures.of.items()
            if failure.reason is not None
        )
        units, runtime = self._units, self.tasks.runtime
        return board.ReconcileProgress(
            spec=self.work.in_force.spec,
            watches=len(self.work.watching.owners),
            problem=self.tasks.problem,
            degraded=self.work.watching.degraded,
            generation=self._generation,
            lost=self.work.horizon.losses(self.work.clock()) if self.work.horizon.ever_lost else 0,
            failures=tuple(failures),
            others=self._attribution.describe_others() if self._attribution.others else "",
            settings=tuple(units.shortfalls()) if units.concerned else None,
            # While an order to restore is under way, at least one value is not restored.
            to_restore=(units.to_restore if units.concerned or units.io.to_restore else 0)
            + (self._applied is not None)
            + (0 if runtime is None else runtime.holds.to_restore),
            runtime=None if runtime is None else runtime.status,
            memory=board.MemoryQoSStatus(self.work.in_force.kubelet_owns, self._files.guard.storm.at),
        )

    @property
    def evidence(self) -> systemd_zero.ZeroEvidence:
        """Evidence that systemd holds pods at 0, for guarantee Strict."""
        return self._evidence.view(self.root, self.inventory.pods.values())

    def start(self, cached: spec.NodeSpec | None) -> None:
        """Begin, with the state of an earlier run in force, if there is one. Call it in the running event loop."""
        self.alarm.on = True
        self._generation = 0 if cached is None else cached.generation
        self._cgroups.follow(cached)
        self.work.watching.open()
        asyncio.get_running_loop().add_reader(self._files.pending.fileno(), self._writes_ended)
        self.work.failures.guard(self.tasks.find)
        while self.work.waiting:
            self.work.failures.guard(functools.partial(self.turn, looks=False))
        if self.tasks.runtime is not None:
            self.work.failures.guard(self.tasks.runtime.open)
        self._arm()

    def close(self) -> None:
        """End; files keep their values, except memory.high: nobody guards it now."""
        self._files.guard.disarm()
        self.work.waiting.clear()
        self.work.due.clear()
        self.alarm.set(None, 0)
        if self.alarm.on:
            asyncio.get_running_loop().remove_reader(self._files.pending.fileno())
        self._files.pending.close()
        if self.tasks.runtime is not None:
            self.tasks.runtime.close()
        self.work.watching.close()

    def _writes_ended(self) -> None:
        """Reconcile what a thread wrote: it is read back as any other."""
        for file in self._files.pending.ended():
            self.work.waiting.mark(file, queue.Priority.REPAIR, queue.Mark(self.work.clock()))
        self.work.failures.guard(self.turn)
        self._arm()

    def set_desired(self, new: spec.NodeSpec) -> None:
        """Put a state in force: mark all that differs from the last one; turns reconcile it."""
        begun = self.work.clock()
        self.work.failures.guard(self._hear)  # values written until now replaced the old state's
        self.work.failures.guard(self._repair, functools.partial(self._cgroups.apply, new))
        if self.tasks.runtime is not None:
            self.work.failures.guard(self.tasks.runtime.follow)
        self._applied = _Applied(new.generation, begun, self.work.waiting.serial)
        self.work.reports.busy = True
        self._arm()

    def look(self, disks: swap_devices.Disks, owns: frozenset[resolve.Owned] = frozenset()) -> None:
        """Take the disks that the node swaps to, and the files that its kubelet owns, which may have changed."""
        if disks != self._units.io.disks:
            self._units.io.disks = disks
            self.work.failures.guard(self.tasks.reconcile_units)
            self._arm()
        if owns != self.work.in_force.kubelet_owns:
            self.work.in_force.kubelet_owns = owns
            if self.inventory.root is not None:
                self.resync()

    def catch_up(self) -> None:
        """Read and reconcile all events until now. The loop does so anyway; a caller then knows that none is left."""
        self.work.failures.guard(self._hear, self.turn)
        self._arm()

    def resync(self) -> None:
        """Compare all cgroups with the state and with the disk: pod by pod, in turns of the event loop."""
        self.work.failures.guard(self._resync)
        self._arm()

    def _resync(self) -> None:
        known = self.work.horizon.caught_up
        self._hear()  # events until now make no finds
        self._repair()
        self.tasks.sweep(known)

    # Turns of the event loop

    def _hear(self) -> None:
        """Mark keys by inotify's events, and by what plugins of the container runtime report."""
        compares = bool(self.work.watching.degraded) or self.tasks.comparison.began is not None
        if self._events.hear(compares=compares):
            self.work.failures.guard(lambda: self.tasks.sweep(self.work.horizon.caught_up))
        if self.tasks.runtime is not None:
            self.work.failures.guard(self.tasks.runtime.hear)

    def _reconcile(self, *priorities: queue.Priority) -> queue.Key | None:
        """Reconcile the next key of these priorities and return it; None if none waits."""
        taken = self.work.waiting.take(*priorities)
        if taken is None:
            return None
        key, mark = taken
        if isinstance(key, records.ControlFile):
            self._reconcile_file(key, mark)
        elif isinstance(key, queue.Task):
            self.tasks.run(key, mark)
        else:
            self._cgroups.reconcile(key, mark, compare=queue.Priority.SWEEP in priorities)
        if self.work.order.raises:
            for file, waited in self.work.order.released(getattr(key, "pod", key)):
                self.work.waiting.mark(file, queue.Priority.REPAIR, waited)
        return key

    def _reconcile_file(self, file: records.ControlFile, mark: queue.Mark) -> None:
        if mark.since <= mark.noticed:
            self._files.reconcile(file, mark.noticed, since=mark.since, written=mark.written, after=mark.after)
        elif file.pod is None or self.inventory.pods.get(file.pod.path) is file.pod:  # no event reported it
            self._cgroups.find_evidence(file)
            self._files.reconcile(file, mark.noticed, since=self.work.horizon.last_right(file))
        if file.pod is not None and not file.pod.enforced:
            self._cgroups.time_enforcement(file.pod)

    def _repair(self) -> None:
        """Reconcile all repairs."""
        while self.work.waiting.count and self._reconcile(queue.Priority.REPAIR) is not None:
            pass

    def turn(self, *, looks: bool = True) -> None:
        """Reconcile all repairs and some other keys; it `looks` for new events meanwhile. The rest has other turns."""
        self._repair()
        begun = looked = self.work.clock()
        while self.work.waiting.count and self._reconcile(queue.Priority.ARRIVAL) is not None:
            self._repair()
            now = self.work.clock()
            if now - begun >= SLICE_SECONDS:
                break
            if looks and now - looked >= LOOK_SECONDS:
                self.work.failures.guard(self._hear, self._repair, self.tasks.answer_plugins)
                looked = self.work.clock()
        if self.work.waiting.count and self._reconcile(queue.Priority.SWEEP) is not None:
            self._repair()
        if self._applied is not None and not self.work.waiting.waits_since(self._applied.serial):
            APPLY_SECONDS.observe(self.work.clock() - self._applied.begun)
            self._generation, self._applied = self._applied.generation, None
            self.work.reports.busy = False
            self.work.reports.touch()
        if self.tasks.runtime is not None:
            self.work.failures.guard(self.tasks.answer_plugins)

    # The schedule

    def wake(self) -> None:
        """Wake up the loop: a key waits, or is due."""
        due = list(self.work.due.due(self.work.clock()))
        if due:
            self.work.failures.guard(self._hear)  # events until now make no finds
        for key, why in due:
            self.work.failures.guard(functools.partial(self._due, key, why))
        self.work.failures.guard(self.turn)
        self._arm()

    def _due(self, key: queue.Key, why: schedule.Why) -> None:
        now = self.work.clock()
        match key, why:
            case queue.Task.TREE, schedule.Why.DUE:
                self.tasks.find()
            case queue.Task.SWEEP, schedule.Why.DUE:
                if self.tasks.comparison.began is None:
                    self.tasks.sweep(self.work.horizon.caught_up)
            case _, schedule.Why.AWAITS:
                self.work.reports.touch()
            case _, schedule.Why.FAILED:
                self.work.waiting.mark(key, queue.Priority.SWEEP, queue.Mark(now, self.work.horizon.drained))
            case _, schedule.Why.RETRY:
                self.work.waiting.mark(key, queue.Priority.REPAIR, queue.Mark(now))
            case _:
                self.work.waiting.mark(key, queue.Priority.ARRIVAL, queue.Mark(now))

    def _arm(self) -> None:
        """Set the one timer: for now if a key waits, else for the first that is due."""
        if not self.alarm.on:
            return
        now = self.work.clock()
        for key, is_due, wait in (
            (queue.Task.CAUSES, self._attribution.noted, attribution.MOMENT_SECONDS),
            (
                queue.Task.SWEEP,
                self.work.watching.degraded and self.tasks.comparison.began is None,
                inotify.POLL_SECONDS,
            ),
            (queue.Task.TREE, self.inventory.root is None, 0.0),
        ):
            if is_due and (key, schedule.Why.DUE) not in self.work.due.times:
                self.work.due.at(key, schedule.Why.DUE, now + wait)
        when = -math.inf if self.work.waiting.count or self._applied is not None else self.work.due.next
        self.alarm.set(when, now)
