"""The order of the queue."""

from __future__ import annotations

import itertools
import math

import pytest
from swapwarden.agent.desired import resolve
from swapwarden.agent.inventory import records
from swapwarden.agent.reconcile import queue
from swapwarden.agent.reconcile.queue import Mark, Priority


def pod(number: int) -> records.Pod:
    return records.Pod(f"kubepods/pod{number}", f"uid-{number}", number, resolve.Origin.APPEARED, 0.0)


def drained(waiting: queue.Queue, priority: Priority) -> list[queue.Key]:
    return [key for key, _ in iter(lambda: waiting.take(priority), None)]


def test_a_pod_with_many_containers_delays_the_repair_of_another_pod_by_one() -> None:
    waiting, busy, other = queue.Queue(), pod(1), pod(2)
    files = [records.ControlFile(f"{busy.path}/{number}", number, busy, f"{number}") for number in range(500)]
    for file in files:
        waiting.mark(file, Priority.REPAIR, Mark(0.0))
    waiting.mark(other.file, Priority.REPAIR, Mark(0.0))
    assert drained(waiting, Priority.REPAIR) == [files[0], other.file, *files[1:]]


def test_a_key_that_is_marked_twice_keeps_its_place_and_the_earlier_times() -> None:
    waiting, first, second = queue.Queue(), pod(1), pod(2)
    waiting.mark(first, Priority.ARRIVAL, Mark(5.0, 4.0))
    waiting.mark(second, Priority.ARRIVAL, Mark(6.0))
    waiting.mark(first, Priority.ARRIVAL, Mark(7.0, 3.0))
    assert waiting.take(Priority.ARRIVAL) == (first, Mark(5.0, 3.0))
    assert waiting.take(Priority.ARRIVAL) == (second, Mark(6.0, math.inf))
    assert waiting.take(Priority.ARRIVAL) is None


@pytest.mark.parametrize(
    "marks", [*itertools.permutations([Mark(5.0, 4.0), Mark(7.0, 3.0, written=True), Mark(6.0, 6.0)])]
)
def test_the_order_of_marks_does_not_count(marks: tuple[Mark, ...]) -> None:
    waiting, one = queue.Queue(), pod(1)
    for mark in marks:
        waiting.mark(one.file, Priority.REPAIR, mark)
    assert waiting.take(Priority.REPAIR) == (one.file, Mark(5.0, 3.0, written=True))


def test_the_queue_answers_whether_older_keys_of_a_group_or_of_all_wait() -> None:
    waiting, first, second = queue.Queue(), pod(1), pod(2)
    waiting.mark(first, Priority.ARRIVAL, Mark(0.0))
    serial = waiting.serial
    waiting.mark(second, Priority.REPAIR, Mark(0.0))
    waiting.mark(first, Priority.SWEEP, Mark(0.0))
    assert waiting.waits_since(serial)
    assert [waiting.group_waits_since(each, serial) for each in (first, second)] == [True, False]
    waiting.take(Priority.ARRIVAL)
    assert not waiting.waits_since(serial), "later keys and sweeps do not count"
    assert waiting.waits_since(waiting.serial)
    assert not waiting.group_waits_since(first, waiting.serial)


def test_a_failure_is_reported_as_of_the_pod_and_container_that_it_is_about() -> None:
    one = pod(1)
    container = records.Container(f"{one.path}/c", one, "c", 0.0)
    level = records.Level("kubepods", 1)
    name = "kubepods-pod12345678_1234_1234_1234_123456789012.slice"
    for key, whose in (
        (one, (one.uid, "")),
        (container, (one.uid, "c")),
        (records.ControlFile(f"{one.path}/c", 1, one, "c"), (one.uid, "c")),
        (records.ControlFile("kubepods", 1, None), ("kubepods", "")),
        (queue.Child(container, "container"), (one.uid, "c")),
        (queue.Child(level, name), ("12345678-1234-1234-1234-123456789012", "")),
        (queue.Child(level, "burstable"), ("kubepods", "")),
        (level, ("kubepods", "")),
        (queue.Task.UNITS, ("kubepods", "")),
    ):
        assert queue.whose(key) == whose


def test_each_group_has_a_turn_before_any_has_its_second() -> None:
    waiting, pods = queue.Queue(), [pod(number) for number in range(3)]
    for each, number in itertools.product(pods, range(2)):
        waiting.mark(queue.Child(each, f"{number}"), Priority.ARRIVAL, Mark(0.0))
    assert [(key.owner, key.name) for key in drained(waiting, Priority.ARRIVAL) if isinstance(key, queue.Child)] == [
        (each, f"{number}") for number, each in itertools.product(range(2), pods)
    ]


def test_a_removed_key_waits_no_more() -> None:
    waiting = queue.Queue()
    file, other = records.ControlFile("a", 1, None), records.ControlFile("b", 2, None)
    for each in (file, other):
        waiting.mark(each, queue.Priority.REPAIR, queue.Mark(1.0))
        waiting.mark(each, queue.Priority.SWEEP, queue.Mark(1.0))
    waiting.discard(file)
    assert (list(waiting), waiting.count) == ([other, other], 2)
    assert waiting.take(queue.Priority.REPAIR) == (other, queue.Mark(1.0))
    assert not waiting.waits_since(waiting.serial)


def test_pods_are_known_up_to_the_last_read_of_events_that_reported_all() -> None:
    horizon = queue.EventHorizon(1.0)
    horizon.read(5.0, 3, finds=False)
    assert (horizon.drained, horizon.writes, horizon.caught_up) == (5.0, 3, 1.0)
    horizon.read(7.0, 3, finds=True)
    horizon.catch_up(6.0)
    assert (horizon.drained, horizon.caught_up) == (7.0, 7.0)
