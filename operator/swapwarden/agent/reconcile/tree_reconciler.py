"""Keeps the inventory complete: finds the tree of pods, takes in new cgroups, forgets removed ones, compares all."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from typing import Final

from swapwarden.agent.desired import resolve
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import inventory, layout, records
from swapwarden.agent.ledger import ledger
from swapwarden.agent.reconcile import file_reconciler, pod_reconciler, queue, schedule, work
from swapwarden.api.violations import ViolationReason
from swapwarden.kube import backoff
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

RESYNCS = metrics.counter(
    "swapwarden_agent_resyncs_total", "Full comparisons of all cgroups with their desired values."
)
FIND_SECONDS: Final = (1.0, 10.0)
"""First and longest bound of the wait between searches for the tree of pods while there is none."""


@dataclasses.dataclass(slots=True)
class Comparison:
    """How far a full comparison is. Monotonic seconds."""

    last: float
    """When the last one ended."""
    began: float | None = None
    """When the current one began; None if there is none."""
    finds: bool = False
    """Whether it is the first one after the tree was found."""
    serial: int | None = None
    """The newest mark that must have had its turn before it ends; None while its other keys wait."""


class TreeReconciler:
    """Reconciles levels, names in levels and pods, and the end of a comparison."""

    def __init__(
        self,
        shared: work.Work,
        known: inventory.Inventory,
        book: ledger.Ledger,
        *,
        files: file_reconciler.FileReconciler,
        pods: pod_reconciler.PodReconciler,
    ) -> None:
        self._work = shared
        self._inventory = known
        self._ledger = book
        self._files = files
        self._pods = pods
        self.problem: layout.TreeError | None = None
        """Why no tree was found; None if one was."""
        self._absent = True
        """Whether pods that are found now ran without an agent until now."""
        self._first = not book.initialised
        """Whether pods that are found now were there before any agent."""
        self._waits = backoff.Backoff(*FIND_SECONDS)
        self.comparison = Comparison(shared.clock())

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
                self._first = self._absent = False
                self._work.horizon.caught_up = begun
            self._work.due.at(queue.Task.TREE, schedule.Why.DUE, begun + self._waits.next())
        else:
            self.problem = None
            self._waits.reset()
            self._work.failures.begin_comparison()
            self.comparison = Comparison(self.comparison.last, begun, finds=True)
            self._begin(begun)
            self._work.failures.attempt(
                level, functools.partial(self.enter, level, queue.Mark(begun, self._work.horizon.caught_up))
            )
        self._work.reports.touch()

    def _begin(self, now: float) -> None:
        """Lower the root's limit first; a raise waits until the comparison ends."""
        self._pods.retarget_root()
        root = self._inventory.root
        if root is not None and self._files.may_be_above(root):
            self._files.settle(root, now)
        self._work.waiting.mark(queue.Task.SWEEP, queue.Priority.SWEEP, queue.Mark(now))

    def enter(self, level: records.Level, mark: queue.Mark, *, found: bool = True) -> None:
        """Mark the unknown children of a level. CgroupError if it cannot be read."""
        try:
            names = self._inventory.enter(level)
        except cgroupfs.DeniedError as error:  # it is nobody's but the node's
            raise cgroupfs.CgroupError(str(error)) from None
        for name in names:
            path = cgroupfs.join(level.path, name)
            known = path in self._inventory.pods or path in self._inventory.levels
            if not known and (layout.pod_uid(name) or layout.is_level(name)):
                self._work.waiting.mark(queue.Child(level, name, found), queue.Priority.ARRIVAL, mark)

    def look(self, child: queue.Child, mark: queue.Mark) -> None:
        """Compare a name with the disk."""
        origin = resolve.Origin.PREEXISTING if self._first and child.found else resolve.Origin.APPEARED
        try:
            self._inventory.look(child.owner, child.name, origin, mark.noticed)
        finally:
            self._follow(mark, found=child.found)

    def compare(self, pod: records.Pod, mark: queue.Mark) -> None:
        """Compare a pod and its children with the disk."""
        error: cgroupfs.CgroupError | None = None
        try:
            same = self._inventory.refresh(pod, mark.noticed)
        except cgroupfs.CgroupError as unknown:  # its children are unknown; its own limit holds all the same
            same, error = True, unknown
        finally:
            self._follow(mark)
        if same:
            self._pods.reconcile(pod, mark)
        if error is not None:
            raise error

    def _follow(self, mark: queue.Mark, *, found: bool = False) -> None:
        """Take in new cgroups, and forget removed ones."""
        for what, came, denied in self._inventory.changes():
            match what:
                case records.ControlFile():
                    self._files.drop(what)
                    continue
                case records.Level() if came:
                    self._work.failures.attempt(what, functools.partial(self.enter, what, mark, found=found))
                case records.Container() if came and self._pods.puts_off(what):
                    self._work.watching.release(what)
                case records.Container() if came:
                    self._work.waiting.mark(what, queue.Priority.ARRIVAL, queue.Mark(mark.noticed))
                case records.Pod() if came:
                    # The inventory has it now, so an error is the pod's.
                    late = self._absent and found
                    self._work.failures.attempt(what, functools.partial(self._pods.take_in, what, mark, late=late))
                    if denied:
                        self._work.failures.failed(what, ViolationReason.ACCESS_DENIED, denied)
                case _:
                    self._work.failures.clear(what)
                    for why in schedule.Why:
                        self._work.due.cancel(what, why)
            self._work.reports.touch()

    # Comparisons of all

    def sweep(self, known: float) -> None:
        """Begin a full comparison, or have the current one start over.

        The inventory had all pods that existed at the time `known`.
        """
        RESYNCS.inc()
        now = self._work.clock()
        self._work.watching.retry()
        self._ledger.retry()
        if not self._inventory.is_there():
            self.lose()
            self.find()
            self._work.watching.retried()
            self.comparison.last = now
            return
        self._inventory.prune_levels()
        mark = queue.Mark(now, self._work.horizon.drained)
        self._follow(mark)
        for level in self._inventory.levels.values():
            self._work.waiting.mark(level, queue.Priority.SWEEP, queue.Mark(now, known))
        for pod in self._inventory.pods.values():
            self._work.waiting.mark(pod, queue.Priority.SWEEP, mark)
        self._begin(now)
        # Last: a comparison that never began would keep all others from beginning.
        if self.comparison.began is None:
            self.comparison.began = now
            self._work.failures.begin_comparison()

    def lose(self) -> None:
        """Forget all of the tree."""
        self._inventory.lose()
        self._follow(queue.Mark(self._work.clock()))

    def swept(self, mark: queue.Mark) -> None:
        """End a comparison, once all earlier marks had their turns."""
        current = self.comparison
        if current.serial is None:
            current.serial = self._work.waiting.serial
        finding = any(isinstance(key, queue.Child) and key.found for key in self._work.waiting)
        if finding or self._work.waiting.waits_since(current.serial):  # not yet
            self._work.waiting.mark(queue.Task.SWEEP, queue.Priority.SWEEP, mark)
            return
        current.serial = None
        if not self._work.failures.cut_short and current.began is not None:
            self._absent = self._first = False
            self._work.horizon.caught_up = max(self._work.horizon.caught_up, current.began)
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
            self._pods.retarget_root()
            self._files.settle(root, current.last)
        self._work.waiting.mark(queue.Task.UNITS, queue.Priority.ARRIVAL, queue.Mark(current.last))
        self._work.watching.retried()
        self._work.reports.touch()

    def _forget_gone(self, key: ledger.Key) -> None:
        with contextlib.suppress(cgroupfs.CgroupError):  # it may be there
            if self._inventory.inode(key.path) != key.inode:
                self._ledger.limits.forget(key)
