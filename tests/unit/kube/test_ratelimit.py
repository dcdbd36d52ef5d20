from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.kube import ratelimit


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_a_burst_of_one_second_passes_and_the_rest_waits() -> None:
    clock = Clock()
    writes = ratelimit.Throttle(10, clock)
    for _ in range(10):
        assert writes.delay() == 0
        writes.acquire()
    assert writes.delay() == pytest.approx(0.1)
    clock.time += 0.1
    assert writes.delay() == pytest.approx(0)


def test_a_long_rest_makes_no_larger_burst() -> None:
    clock = Clock()
    writes = ratelimit.Throttle(10, clock)
    clock.time += 3600
    for _ in range(10):
        writes.acquire()
    assert writes.delay() > 0


def test_those_that_write_at_the_same_time_are_waited_for_later() -> None:
    clock = Clock()
    writes = ratelimit.Throttle(10, clock)
    for _ in range(17):
        writes.acquire()
    assert writes.delay() == pytest.approx(0.8)


def test_a_pause_holds_for_as_long_as_it_was_asked_for() -> None:
    clock = Clock()
    writes = ratelimit.Throttle(10, clock)
    writes.pause(5)
    writes.pause(1)
    clock.time += 5
    assert 0 < writes.delay() <= 0.1 + 1e-9
    clock.time += 0.1 + 1e-9
    assert writes.delay() == 0


@given(rate=st.floats(1, 1000), steps=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 50)), max_size=50))
def test_there_are_never_more_than_a_burst_and_what_the_time_gives(rate: float, steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    writes = ratelimit.Throttle(rate, clock)
    made, begun = 0, clock.time
    for seconds, wanted in steps:
        clock.time += seconds
        for _ in range(wanted):
            if writes.delay() == 0:
                writes.acquire()
                made += 1
    assert made <= rate + (clock.time - begun) * rate + 1e-6


def test_who_leaves_a_reserve_waits_while_others_need_not() -> None:
    clock = Clock()
    writes = ratelimit.Throttle(100, clock)
    for _ in range(80):
        writes.acquire()
    assert writes.delay() == 0
    assert writes.delay(reserve=0.25) == pytest.approx(0.06)
    clock.time += 0.06
    assert writes.delay(reserve=0.25) == pytest.approx(0)


@given(st.floats(1, 1000), st.floats(0, 1))
def test_who_leaves_a_reserve_has_a_turn_where_nobody_writes(rate: float, reserve: float) -> None:
    clock = Clock()
    writes = ratelimit.Throttle(rate, clock)
    writes.acquire()
    clock.time += 1 + 1e-6
    assert writes.delay(reserve=reserve) == 0


def test_a_bucket() -> None:
    bucket = ratelimit.Bucket(3, 5.0, 100.0)
    assert [bucket.acquire(100.0) for _ in range(5)] == pytest.approx([0, 0, 0, 0.2, 0.4])
    assert bucket.acquire(100.6) == pytest.approx(0.0)
    assert bucket.acquire(100.6) == pytest.approx(0.2)
    assert [bucket.acquire(1000.0) for _ in range(4)] == pytest.approx([0, 0, 0, 0.2]), "it holds no more than that"


def test_each_key_has_a_bucket_of_its_own_and_the_oldest_is_forgotten() -> None:
    buckets = ratelimit.Buckets[str](burst=2, per_second=1.0, most=2)
    assert [buckets.try_acquire("a", 0.0) for _ in range(3)] == [True, True, False]
    assert buckets.try_acquire("b", 0.0), "another one's burst is its own"
    assert not buckets.try_acquire("a", 0.5)
    assert buckets.try_acquire("a", 1.0)
    buckets.try_acquire("c", 1.0)
    assert [buckets.try_acquire("b", 1.0) for _ in range(3)] == [True, True, False], "it was forgotten: a new burst"
