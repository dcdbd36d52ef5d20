"""Shared by the reconcilers of trees, pods and files: waiting keys, the schedule, failures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from swapwarden.agent.host import inotify
from swapwarden.agent.inventory import board
from swapwarden.agent.reconcile import event_horizon, queue, schedule, write_order


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """Plain data. Recording something here is a call down."""

    waiting: queue.Queue
    due: schedule.Schedule[queue.Key]
    order: write_order.WriteOrder
    horizon: event_horizon.EventHorizon
    failures: queue.Failures
    watching: inotify.WatchRegistry
    reports: board.Board
    clock: Callable[[], float]
    """Monotonic seconds."""

    def due_in(self, key: queue.Key, why: schedule.Why, seconds: float) -> None:
        """Have a key due, unless it is already."""
        if (key, why) not in self.due.times:
            self.due.at(key, why, self.clock() + seconds)


def begin(watching: inotify.WatchRegistry, reports: board.Board, clock: Callable[[], float]) -> Work:
    """Nothing waits yet."""
    waiting = queue.Queue()
    due: schedule.Schedule[queue.Key] = schedule.Schedule()
    failures = queue.Failures(due, watching, reports, clock)
    order, horizon = write_order.WriteOrder(waiting), event_horizon.EventHorizon(clock())
    return Work(waiting, due, order, horizon, failures, watching, reports, clock)
