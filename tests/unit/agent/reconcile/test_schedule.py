"""The schedule."""

from __future__ import annotations

from swapwarden.agent.reconcile import queue, schedule
from swapwarden.agent.reconcile.schedule import Why

TREE, UNITS = queue.Task.TREE, queue.Task.UNITS


def test_each_due_key_is_yielded_once_and_in_order() -> None:
    due: schedule.Schedule[queue.Key] = schedule.Schedule()
    due.at(TREE, Why.DUE, 3.0)
    due.at(UNITS, Why.DUE, 1.0)
    due.at(UNITS, Why.FAILED, 2.0)
    assert due.next == 1.0
    assert list(due.due(2.0)) == [(UNITS, Why.DUE), (UNITS, Why.FAILED)]
    assert list(due.due(2.0)) == []
    assert (due.next, due.times[TREE, Why.DUE]) == (3.0, 3.0)


def test_a_new_time_takes_the_place_of_the_one_before() -> None:
    due: schedule.Schedule[queue.Key] = schedule.Schedule()
    for when in (1.0, 5.0, 3.0):
        due.at(TREE, Why.DUE, when)
    assert due.next == 3.0
    assert list(due.due(10.0)) == [(TREE, Why.DUE)]
    assert due.next is None


def test_a_cancelled_time_wakes_nobody() -> None:
    due: schedule.Schedule[queue.Key] = schedule.Schedule()
    due.at(TREE, Why.DUE, 1.0)
    due.at(UNITS, Why.DUE, 2.0)
    due.cancel(TREE, Why.DUE)
    due.cancel(TREE, Why.DUE)
    assert due.next == 2.0


def test_times_that_are_changed_in_a_loop_take_no_more_memory() -> None:
    due: schedule.Schedule[queue.Key] = schedule.Schedule()
    for number in range(100_000):
        due.at(TREE, Why.DUE, 3600.0 + number)
    assert len(due._heap) < 100
    assert list(due.due(10.0**6)) == [(TREE, Why.DUE)]
