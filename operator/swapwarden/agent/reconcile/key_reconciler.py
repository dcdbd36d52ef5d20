"""Reconciles one key that is no file: the one place that knows each kind."""

from __future__ import annotations

import functools

from swapwarden.agent.drift import attribution
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import inventory, records
from swapwarden.agent.reconcile import (
    pod_reconciler,
    queue,
    schedule,
    system_units,
    tree_reconciler,
    work,
)


class KeyReconciler:
    """An error is the key's own: queue.Failures records it, and no other key stops."""

    def __init__(
        self,
        shared: work.Work,
        known: inventory.Inventory,
        tree: tree_reconciler.TreeReconciler,
        pods: pod_reconciler.PodReconciler,
        *,
        units: system_units.Units,
        why: attribution.Attribution,
    ) -> None:
        self._work = shared
        self._inventory = known
        self._tree = tree
        self._pods = pods
        self._units = units
        self._attribution = why

    def reconcile(self, key: queue.Key, mark: queue.Mark, *, compare: bool = False) -> None:
        """Make one key match the state; with `compare` also compare its children with the disk."""
        step = functools.partial(self._step, key, mark, compare=compare)
        if isinstance(key, queue.Task):
            self._work.failures.guard(step)
        else:
            self._work.failures.attempt(key, step, whole=compare or not isinstance(key, records.Pod))

    def _step(self, key: queue.Key, mark: queue.Mark, *, compare: bool) -> None:
        match key:
            case queue.Child():
                self._tree.look(key, mark)
            case records.Level() if self._inventory.levels.get(key.path) is key:
                self._tree.enter(key, mark)
            case records.Pod() if self._inventory.pods.get(key.path) is key:
                (self._tree.compare if compare else self._pods.reconcile)(key, mark)
            case records.Container() if key in key.pod.containers.values():
                self._pods.bring(key, mark)
            case queue.Task.UNITS:
                self.bring_units()
            case queue.Task.SWEEP:
                self._tree.swept(mark)
            case queue.Task.CAUSES:
                self._find_cause()
            case _:
                raise cgroupfs.GoneError(str(key))

    def bring_units(self) -> None:
        """Reconcile the node's units, once there is a state and a tree of pods, whose cgroups are never among them."""
        root = self._inventory.root_path
        if self._pods.spec is None or root is None:
            return
        self._units.bring(self._pods.spec, root, self._work.clock())
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
