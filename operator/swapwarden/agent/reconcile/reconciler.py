"""Makes the cgroups of a node's pods hold what the state says, and keeps it so.

Everything here happens in one event loop, without waiting. Sources (inotify, a state, the schedule) mark keys in a
queue. Each turn of the loop takes repairs first, then arrivals for a moment, then one key of a full comparison, the
safety net. So no repair waits for arrivals or for a comparison. Each key has its own turn: an error there is that key's
violation (queue.Failures), and stops no other.

inventory.Inventory keeps the cgroups, resolve answers which value a file must hold, file_reconciler writes it, and
write_order has lowerings come before raises.
"""

from __future__ import annotations

import asyncio
import functools
import math
import pathlib
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from swapwarden.agent.desired import spec
from swapwarden.agent.drift import attribution, systemd_zero
from swapwarden.agent.host import cgroupfs, inotify
from swapwarden.agent.inventory import board, inventory, records
from swapwarden.agent.ledger import ledger
from swapwarden.agent.node import swap_devices
from swapwarden.agent.reconcile import (
    events,
    file_reconciler,
    headroom,
    key_reconciler,
    pod_reconciler,
    queue,
    schedule,
    system_units,
    tree_reconciler,
    unit_io,
    work,
)
from swapwarden.telemetry import metrics

APPLY_SECONDS = metrics.histogram("swapwarden_agent_apply_seconds", "Time to apply a new state to all cgroups.")
SLICE_SECONDS: Final = 0.001
"""How long a turn takes arrivals before it reads new events."""


class _Applied(NamedTuple):
    """A state that is being applied."""

    generation: int
    begun: float
    serial: int
    """The newest mark that must have had its turn."""


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`away` is when the last agent was last seen on the node, in monotonic seconds; None if unknown."""
        watching = inotify.WatchRegistry(readable=self.catch_up)
        self.work = shared = work.begin(watching, reports, clock)
        self.inventory = known = inventory.Inventory(cgroups, watching, own_uid=own_uid, anchor=anchor)
        if away is not None and not book.initialised:
            book.mark_incomplete()
        self._attribution = why = attribution.Attribution(cgroups, book, clock=clock)
        evidence = systemd_zero.Evidence(cgroups, book, clock)
        space = headroom.Headroom(cgroups, proc)
        files = file_reconciler.FileReconciler(shared, cgroups, book, space, why=why, own_uid=own_uid)
        io = unit_io.UnitIoReconciler(cgroups, book.settings)
        self._units = units = system_units.Units(cgroups, book, watching, files, io, reports=reports)
        self._pods = pods = pod_reconciler.PodReconciler(
            shared, known, book, files, why=why, evidence=evidence, away=away
        )
        self.tree = tree = tree_reconciler.TreeReconciler(shared, known, book, files=files, pods=pods)
        self._files = files
        self._keys = key_reconciler.KeyReconciler(shared, known, tree, pods, units=units, why=why)
        self._events = events.Events(shared, known, files=files, pods=pods, units=units, evidence=evidence)
        self.alarm = schedule.Alarm(self.wake)
        self._applied: _Applied | None = None
        self._generation = 0

    # For the rest of the agent

    @property
    def root(self) -> str | None:
        """The cgroup above all pods, once found."""
        return self.inventory.root_path

    @property
    def progress(self) -> records.ReconcileProgress:
        """Reconciling as the report needs it, beside the records of pods and files."""
        failures = (
            records.KeyFailure(*queue.whose(key), failure.reason, failure.message)
            for key, failure in self.work.failures.of.items()
            if failure.reason is not None
        )
        units = self._units
        return records.ReconcileProgress(
            spec=self._pods.spec,
            watches=len(self.work.watching.owners),
            problem=self.tree.problem,
            degraded=self.work.watching.degraded,
            generation=self._generation,
            lost=self.work.horizon.losses(self.work.clock()) if self.work.horizon.ever_lost else 0,
            failures=tuple(failures),
            others=self._attribution.others() if self._attribution.found_others else "",
            settings=tuple(units.shortfalls()) if units.concerned else None,
            # While an order to restore is under way, at least one value is not restored.
            to_restore=(units.to_restore if units.concerned or units.io.to_restore else 0)
            + (self._applied is not None),
        )

    @property
    def evidence(self) -> systemd_zero.ZeroEvidence:
        """Evidence that systemd holds pods at 0, for guarantee Strict."""
        return self._pods.evidence.view(self.root, self.inventory.pods.values())

    def start(self, cached: spec.NodeSpec | None) -> None:
        """Begin, with the state of an earlier run in force, if there is one. Call it in the running event loop."""
        self.alarm.on = True
        self._generation = 0 if cached is None else cached.generation
        self._pods.follow(cached)
        self.work.watching.open()
        asyncio.get_running_loop().add_reader(self._files.pending.fileno(), self._writes_ended)
        self.work.failures.guard(self.tree.find)
        while self.work.waiting:
            self.work.failures.guard(self.turn)
        self._arm()

    def close(self) -> None:
        """End; what files hold stays."""
        self.work.waiting.clear()
        self.work.due.clear()
        self.alarm.set(None, 0)
        if self.alarm.on:
            asyncio.get_running_loop().remove_reader(self._files.pending.fileno())
        self._files.pending.close()
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
        self.work.failures.guard(lambda: self._set_desired(new))
        self._applied = _Applied(new.generation, begun, self.work.waiting.serial)
        self.work.reports.busy = True
        self._arm()

    def _set_desired(self, new: spec.NodeSpec) -> None:
        self.work.failures.guard(self._hear)  # values written until now replaced the old state's
        self._repair()
        mark = queue.Mark(self.work.clock())
        old = self._pods.spec
        self.work.failures.guard(lambda: self._pods.follow(new))
        everything = old is None or (old.mode, old.before_plan) != (new.mode, new.before_plan)
        above = everything or old is None or old.kubepods != new.kubepods
        if above and self.inventory.root is not None:
            self._pods.retarget_root()
            self.work.waiting.mark(self.inventory.root, queue.Priority.ARRIVAL, mark)
        for pod in self.inventory.pods.values():
            changed = everything or old is None or old.pods.get(pod.uid) != new.pods.get(pod.uid)
            # A draining file can be lowered as far as the limit above binds it.
            if changed or (above and any(file.status.draining for file in pod.files())):
                self._pods.mark(pod, mark)
        if everything or old is None or old.units != new.units:
            self.work.waiting.mark(queue.Task.UNITS, queue.Priority.ARRIVAL, mark)

    def swap_on(self, disks: swap_devices.Disks) -> None:
        """Take the disks that the node swaps to, which may have changed."""
        if disks != self._units.io.disks:
            self._units.io.disks = disks
            self.work.failures.guard(self._keys.bring_units)
            self._arm()

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
        self.tree.sweep(known)

    # Turns of the event loop

    def _hear(self) -> None:
        """Mark keys by inotify's events."""
        compares = bool(self.work.watching.degraded) or self.tree.comparison.began is not None
        if self._events.hear(compares=compares):
            self.work.failures.guard(lambda: self.tree.sweep(self.work.horizon.caught_up))

    def _reconcile(self, *priorities: queue.Priority) -> queue.Key | None:
        """Reconcile the next key of these priorities and return it; None if none waits."""
        taken = self.work.waiting.take(*priorities)
        if taken is None:
            return None
        key, mark = taken
        if not isinstance(key, records.ControlFile):
            self._keys.reconcile(key, mark, compare=queue.Priority.SWEEP in priorities)
        elif mark.since <= mark.noticed:
            self._files.settle(key, mark.noticed, since=mark.since, written=mark.written)
        elif key.pod is None or self.inventory.pods.get(key.pod.path) is key.pod:  # no event reported it
            self._pods.look(key)
            self._files.settle(key, mark.noticed, since=self.work.horizon.last_right(key))
        if self.work.order.raises:
            for file, waited in self.work.order.released(getattr(key, "pod", key)):
                self.work.waiting.mark(file, queue.Priority.REPAIR, waited)
        return key

    def _repair(self) -> None:
        """Reconcile all repairs."""
        while self.work.waiting.count and self._reconcile(queue.Priority.REPAIR) is not None:
            pass

    def turn(self) -> None:
        """Reconcile all repairs and some other keys; the rest follows after new events."""
        self._repair()
        until = self.work.clock() + SLICE_SECONDS
        while self.work.waiting.count and self._reconcile(queue.Priority.ARRIVAL) is not None:
            self._repair()
            if self.work.clock() >= until:
                break
        if self.work.waiting.count and self._reconcile(queue.Priority.SWEEP) is not None:
            self._repair()
        if self._applied is not None and not self.work.waiting.waits_since(self._applied.serial):
            APPLY_SECONDS.observe(self.work.clock() - self._applied.begun)
            self._generation, self._applied = self._applied.generation, None
            self.work.reports.busy = False
            self.work.reports.touch()

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
                self.tree.find()
            case queue.Task.SWEEP, schedule.Why.DUE:
                if self.tree.comparison.began is None:
                    self.tree.sweep(self.work.horizon.caught_up)
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
        for key, wanted, wait in (
            (queue.Task.CAUSES, self._attribution.noted, attribution.MOMENT_SECONDS),
            (
                queue.Task.SWEEP,
                self.work.watching.degraded and self.tree.comparison.began is None,
                inotify.POLL_SECONDS,
            ),
            (queue.Task.TREE, self.inventory.root is None, 0.0),
        ):
            if wanted and (key, schedule.Why.DUE) not in self.work.due.times:
                self.work.due.at(key, schedule.Why.DUE, now + wait)
        when = -math.inf if self.work.waiting.count or self._applied is not None else self.work.due.next
        self.alarm.set(when, now)
