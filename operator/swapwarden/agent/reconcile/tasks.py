"""Runs the tasks of the whole node: the search for its tree of pods, comparisons of all, its units, causes."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from swapwarden.agent.drift import attribution
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import inventory, layout
from swapwarden.agent.ledger import ledger
from swapwarden.agent.reconcile import (
    cgroup_reconciler,
    file_reconciler,
    queue,
    runtime_plugins,
    schedule,
    system_units,
    work,
)
from swapwarden.kube import backoff
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

RESYNCS = metrics.counter(
    "swapwarden_agent_resyncs_total", "Full comparisons of all cgroups with their desired values."
)
FIND_SECONDS: Final = (1.0, 10.0)
"""First and longest bound of the wait between searches for the tree of pods while there is none."""


class Comparison(msgspec.Struct):
    """How far a full comparison is. Monotonic seconds."""

    last: float
    """When the last one ended."""
    began: float | None = None
    """When the current one began; None if there is none."""
    finds: bool = False
    """Whether it is the first one after the tree was found."""
    serial: int | None = None
    """The newest mark that must have had its turn before it ends; None while its other keys wait."""


class NodeTasks:
    """The tasks of the node, one in a turn. A mistake in one must not end the agent."""

    def __init__(
        self,
        shared: work.Work,
        known: inventory.Inventory,
        book: ledger.Ledger,
        *,
        files: file_reconciler.FileReconciler,
        cgroups: cgroup_reconciler.CgroupReconciler,
        units: system_units.Units,
        why: attribution.Attribution,
        runtime: runtime_plugins.RuntimePlugins | None,
    ) -> None:
        self.runtime = runtime
        """The plugins of the container runtime; None without a link to it."""
        self._work = shared
        self._inventory = known
        self._ledger = book
        self._files = files
        self._cgroups = cgroups
        self._units = units
        self._attribution = why
        self.problem: layout.TreeError | None = None
        """Why no tree was found; None if one was."""
        self._waits = backoff.Backoff(*FIND_SECONDS)
        self.comparison = Comparison(shared.clock())

    def run(self, task: queue.Task, mark: queue.Mark) -> None:
        """Run a task that waited."""
        match task:
            case queue.Task.UNITS:
                step: Callable[[], None] = self.reconcile_units
            case queue.Task.SWEEP:
                step = functools.partial(self._swept, mark)
            case queue.Task.CAUSES:
                step = self._find_cause
            case queue.Task.TREE:
                step = self.find
            case queue.Task.GUARD:
                step = self._files.guard.run
            case queue.Task.RUNTIME if self.runtime is not None:
                step = self.runtime.reconcile
            case _:
                return
        self._work.failures.guard(step)

    def answer_plugins(self) -> None:
        """Answer plugins of the container runtime that wait."""
        if self.runtime is not None and self.runtime.waits:
            self.runtime.advance()

    def reconcile_units(self) -> None:
        """Reconcile the node's units, once there is a state and a tree of pods, whose cgroups are never among them."""
        root, state = self._inventory.root_path, self._work.in_force.spec
        if state is None or root is None:
            return
        self._units.reconcile(state, root, self._work.clock())
        if self._units.unfinished:
            self._work.failures.failed(queue.Task.UNITS, None, self._units.unfinished)
        else:
            self._work.failures.clear(queue.Task.UNITS)
        if self._units.io.again is not None:
            self._work.due.at(queue.Task.UNITS, schedule.Why.DUE, self._work.clock() + self._units.io.again)
        else:
            self._work.due.cancel(queue.Task.UNITS, schedule.Why.DUE)
        self._work.reports.touch()

    def _find_cause(self) -> None:
        """Find one cause in a turn."""
        if self._attribution.find(self._inventory.pods.values()):
            self._work.due_in(queue.Task.CAUSES, schedule.Why.DUE, 0)
        else:
            self._work.reports.touch()

    # The tree

    def find(self) -> None:
        """Find the tree of pods and mark its children; retry later if there is none."""
        self._work.due.cancel(queue.Task.TREE, schedule.Why.DUE)
        begun = self._work.clock()
        try:
            level = self._inventory.find()
        except layout.TreeError as problem:
            if self.problem is None or self.problem.reason != problem.reason:
                log.warning("no tree of pods yet: %s", problem)
            self.problem = problem
            if problem.reason == layout.NO_POD_TREE:
                self._cgroups.ran()
                self._work.horizon.catch_up(begun)
            self._work.due.at(queue.Task.TREE, schedule.Why.DUE, begun + self._waits.next())
        else:
            self.problem = None
            self._waits.reset()
            self._work.failures.begin_comparison()
            self.comparison = Comparison(self.comparison.last, begun, finds=True)
            self._begin(begun)
            self._work.failures.attempt(
                level, functools.partial(self._cgroups.enter, level, queue.Mark(begun, self._work.horizon.caught_up))
            )
        self._work.reports.touch()

    def _begin(self, now: float) -> None:
        """Lower the root's limit and raise its protection first; the reverse waits until the comparison ends."""
        self._cgroups.retarget_above()
        for file in list(inventory.above_pods(self._inventory)):
            if self._files.failures.may_break(file):
                self._files.reconcile(file, now)
        self._work.waiting.mark(queue.Task.SWEEP, queue.Priority.SWEEP, queue.Mark(now))

    # Comparisons of all

    def sweep(self, known: float) -> None:
        """Begin a full comparison, or have the current one start over.

        The inventory had all pods that existed at the time `known`.
        """
        RESYNCS.inc()
        now = self._work.clock()
        self._work.watching.retry()
        self._ledger.retry()
        if self.runtime is not None:
            self.runtime.open()
        if not self._inventory.is_there():
            self._inventory.lose()
            self._cgroups.take_changes(queue.Mark(now))
            self.find()
            self._work.watching.retried()
            self.comparison.last = now
            return
        self._inventory.prune_levels()
        mark = queue.Mark(now, self._work.horizon.drained)
        self._cgroups.take_changes(mark)
        for level in self._inventory.levels.values():
            self._work.waiting.mark(level, queue.Priority.SWEEP, queue.Mark(now, known))
        for pod in self._inventory.pods.values():
            self._work.waiting.mark(pod, queue.Priority.SWEEP, mark)
        self._begin(now)
        # Last: a comparison that never began would keep all others from beginning.
        if self.comparison.began is None:
            self.comparison.began = now
            self._work.failures.begin_comparison()

    def _swept(self, mark: queue.Mark) -> None:
        """End a comparison, once all earlier marks had their turns."""
        current = self.comparison
        if current.serial is None:
            current.serial = self._work.waiting.serial
        finding = any(isinstance(key, queue.Child) and key.listed for key in self._work.waiting)
        if finding or self._work.waiting.waits_since(current.serial):  # not yet
            self._work.waiting.mark(queue.Task.SWEEP, queue.Priority.SWEEP, mark)
            return
        current.serial = None
        if not self._work.failures.cut_short and current.began is not None:
            self._cgroups.ran()
            self._work.horizon.catch_up(current.began)
            self._ledger.initialise()
        if self._work.waiting.waits(queue.Priority.SWEEP):  # another comparison began meanwhile
            self._work.waiting.mark(queue.Task.SWEEP, queue.Priority.SWEEP, mark)
        else:
            current.began = None
            self._work.horizon.compared()
        current.last = self._work.clock()
        root = self._inventory.root
        if current.finds and root is not None:
            current.finds = False
            # Only now: from here on, events report new cgroups.
            log.info("found the tree of pods", extra={"root": str(root), "pods": len(self._inventory.pods)})
            for record in self._ledger.limits:
                self._forget_gone(record.key)
        if root is not None:
            self._cgroups.retarget_above()
            for file in list(inventory.above_pods(self._inventory)):
                self._files.reconcile(file, current.last)
        self._work.waiting.mark(queue.Task.UNITS, queue.Priority.ARRIVAL, queue.Mark(current.last))
        self._work.watching.retried()
        self._work.reports.touch()

    def _forget_gone(self, key: ledger.Key) -> None:
        with contextlib.suppress(cgroupfs.CgroupError):  # it may be there
            if self._inventory.inode(key.path) != key.inode:
                self._ledger.limits.forget(key)
