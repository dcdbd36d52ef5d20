from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.controller import throttle


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_a_burst_of_one_second_passes_and_the_rest_waits() -> None:
    clock = Clock()
    writes = throttle.Throttle(10, clock)
    for _ in range(10):
        assert writes.wait() == 0
        writes.spend()
    assert writes.wait() == pytest.approx(0.1)
    clock.time += 0.1
    assert writes.wait() == pytest.approx(0)


def test_what_was_not_used_for_long_is_no_larger_burst() -> None:
    clock = Clock()
    writes = throttle.Throttle(10, clock)
    clock.time += 3600
    for _ in range(10):
        writes.spend()
    assert writes.wait() > 0


def test_those_that_write_at_the_same_time_are_waited_for_later() -> None:
    clock = Clock()
    writes = throttle.Throttle(10, clock)
    for _ in range(17):
        writes.spend()
    assert writes.wait() == pytest.approx(0.8)


def test_a_pause_holds_for_as_long_as_it_was_asked_for() -> None:
    clock = Clock()
    writes = throttle.Throttle(10, clock)
    writes.pause(5)
    writes.pause(1)
    clock.time += 5
    assert 0 < writes.wait() <= 0.1 + 1e-9
    clock.time += 0.1 + 1e-9
    assert writes.wait() == 0


@given(rate=st.floats(1, 1000), steps=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 50)), max_size=50))
def test_there_are_never_more_than_a_burst_and_what_the_time_gives(rate: float, steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    writes = throttle.Throttle(rate, clock)
    made, begun = 0, clock.time
    for seconds, wanted in steps:
        clock.time += seconds
        for _ in range(wanted):
            if writes.wait() == 0:
                writes.spend()
                made += 1
    assert made <= rate + (clock.time - begun) * rate + 1e-6


def test_who_leaves_a_reserve_waits_while_others_need_not() -> None:
    clock = Clock()
    writes = throttle.Throttle(100, clock)
    for _ in range(80):
        writes.spend()
    assert writes.wait() == 0
    assert writes.wait(reserve=0.25) == pytest.approx(0.06)
    clock.time += 0.06
    assert writes.wait(reserve=0.25) == pytest.approx(0)


@given(st.floats(1, 1000), st.floats(0, 1))
def test_who_leaves_a_reserve_has_a_turn_where_nobody_writes(rate: float, reserve: float) -> None:
    clock = Clock()
    writes = throttle.Throttle(rate, clock)
    writes.spend()
    clock.time += 1 + 1e-6
    assert writes.wait(reserve=reserve) == 0
