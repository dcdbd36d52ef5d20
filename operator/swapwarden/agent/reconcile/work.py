"""Shared by the reconcilers: waiting keys, the schedule, failures, the state in force."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.host import inotify
from swapwarden.agent.inventory import board
from swapwarden.agent.reconcile import queue, schedule, write_order
from swapwarden.api import names


class InForce(msgspec.Struct):
    """The state in force. Only CgroupReconciler.follow changes it."""

    spec: spec.NodeSpec | None = None
    mode: names.Mode = names.Mode.ENFORCE
    """As resolve.mode_of(spec)."""
    away: float | None = None
    """When the last agent was last seen on the node, in monotonic seconds; None if unknown."""
    kubelet_owns: frozenset[resolve.Owned] = frozenset()
    """The kubelet's own files, by its configuration."""
    guards_others: names.KubeletGuard = names.KubeletGuard.OFF
    """The answer to a memory.high of the kubelet or of another writer, as resolve.guards_others(spec)."""


class Work(msgspec.Struct, frozen=True):
    """Plain data. Recording something here is a call down."""

    waiting: queue.Queue
    due: schedule.Schedule[queue.Key]
    order: write_order.WriteOrder
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
    """Nothing waits yet."""
    waiting = queue.Queue()
    due: schedule.Schedule[queue.Key] = schedule.Schedule()
    failures = queue.Failures(due, watching, reports, clock)
    order, horizon = write_order.WriteOrder(waiting), queue.EventHorizon(clock())
    return Work(waiting, due, order, horizon, failures, watching, reports, clock, InForce(away=away))
