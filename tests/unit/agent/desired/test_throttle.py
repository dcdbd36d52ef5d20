"""The guard of memory.high as a state machine: when it trips, when it arms again, and when it gives up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.desired import throttle
from swapwarden.agent.desired.throttle import Phase, StallCause
from swapwarden.agent.host import cgroupfs

MIB = 1 << 20
PAGE = 4096
PLAN, LIMIT = 60 * MIB, 100 * MIB
TIMES = throttle.GuardTimes(window=10, hold=300)
STUCK = 75 * MIB


class Cgroup:
    """A cgroup in the guard's eyes, sampled as it asks."""

    def __init__(self, limit: int = LIMIT, answer: throttle.Answer = throttle.Answer.RAISE) -> None:
        self.guard = throttle.StallGuard(PLAN, limit, PAGE, answer)
        self.now, self.events, self.some, self.full = 0.0, 0, 0.0, 0.0

    def sample(
        self, seconds: float, current: int = STUCK, *, full: float = 0.8, some: float = 0.0, high: int = 10
    ) -> throttle.Trip | None:
        """Let time go by with these shares of stalls and so many `high` events, then take a sample."""
        self.now += seconds
        self.events += high
        self.full += full * seconds * 1e6
        self.some += max(full, some) * seconds * 1e6
        value = self.guard.value or PLAN
        seen = throttle.StallSample(self.now, self.events, current, value, int(self.some), int(self.full))
        return self.guard.observe(seen, TIMES)

    def run(self, seconds: float, current: int = STUCK, **more: float) -> list[tuple[float, throttle.Trip]]:
        """Sample every two seconds, and return the trips with their times."""
        trips, begun = [], self.now
        while self.now - begun < seconds:
            trip = self.sample(2, current, **more)  # type: ignore[arg-type]  # as they are given
            if trip is not None:
                trips.append((self.now - begun, trip))
        return trips

    def calm(self) -> None:
        """Little is in use until the hold is over and the guard is armed again."""
        for _ in range(500):
            wait = self.guard.next(self.now)
            if wait is None:
                return
            self.sample(wait, PLAN // 2, full=0.0, high=0)


def test_a_stuck_cgroup_is_released_within_a_window_and_two_seconds() -> None:
    cgroup = Cgroup()
    ((after, trip),) = cgroup.run(14)
    assert after <= TIMES.window + throttle.SAMPLE_SECONDS
    assert (trip.cause, trip.phase) == (StallCause.STUCK, Phase.RELEASED)
    assert trip.stalled == pytest.approx(8, abs=2)
    assert cgroup.guard.value == cgroupfs.NO_LIMIT


@pytest.mark.parametrize(
    ("current", "more"),
    [
        (STUCK, {"full": 0.3, "some": 0.7}),
        (STUCK, {"high": 0}),
        (PLAN, {"full": 0.3}),
        (PLAN * 65 // 64, {"full": 0.3, "some": 0.9}),
    ],
    ids=["it gets on", "the kernel does not throttle it", "it is at high", "at high, one task of many stalls"],
)
def test_a_cgroup_that_gets_on_keeps_its_value(current: int, more: dict[str, float]) -> None:
    cgroup = Cgroup()
    assert cgroup.run(600, current, **more) == []
    assert (cgroup.guard.phase, cgroup.guard.value) == (Phase.ARMED, 0)


def test_one_moment_below_the_value_begins_the_window_again() -> None:
    cgroup = Cgroup()
    assert cgroup.run(8) == []
    assert cgroup.sample(2, PLAN, full=0.0) is None
    assert cgroup.run(8) == []
    assert [trip.cause for _, trip in cgroup.run(4)] == [StallCause.STUCK]


def test_some_tasks_that_stall_nearly_always_count_as_stuck() -> None:
    assert [trip.cause for _, trip in Cgroup().run(14, full=0.1, some=0.9)] == [StallCause.STUCK]


def test_thrashing_gets_a_value_halfway_to_the_limit_and_then_none() -> None:
    cgroup = Cgroup()
    (first,) = cgroup.run(34, PLAN)
    assert first[0] >= throttle.THRASH_WINDOWS * TIMES.window
    assert (first[1].cause, cgroup.guard.phase, cgroup.guard.value) == (StallCause.THRASHING, Phase.STEPPED, 80 * MIB)
    assert [trip.phase for _, trip in cgroup.run(34, 80 * MIB)] == [Phase.RELEASED]


def test_without_a_limit_no_value_lies_halfway_to_it() -> None:
    cgroup = Cgroup(cgroupfs.NO_LIMIT)
    assert [trip.phase for _, trip in cgroup.run(34, PLAN)] == [Phase.RELEASED]


def test_a_stepped_cgroup_that_is_stuck_again_is_released() -> None:
    cgroup = Cgroup()
    cgroup.run(34, PLAN)
    assert [trip.phase for _, trip in cgroup.run(14, 90 * MIB)] == [Phase.RELEASED]


def test_it_is_armed_again_after_the_hold_and_a_calm_minute() -> None:
    cgroup = Cgroup()
    cgroup.run(12)
    released = cgroup.now
    cgroup.calm()
    assert cgroup.guard.phase is Phase.ARMED
    assert cgroup.now - released >= TIMES.hold + throttle.CALM_SECONDS - 2 * throttle.CALM_SAMPLE_SECONDS


def test_a_cgroup_that_uses_more_than_its_plan_stays_released() -> None:
    cgroup = Cgroup()
    cgroup.run(12)
    for _ in range(100):
        cgroup.sample(cgroup.guard.next(cgroup.now) or 0, PLAN, full=0.0, high=0)
    assert cgroup.guard.phase is Phase.RELEASED


def test_the_hold_doubles_and_the_third_trip_in_an_hour_latches() -> None:
    cgroup, holds = Cgroup(), []
    for phase in (Phase.RELEASED, Phase.RELEASED, Phase.LATCHED):
        assert [trip.phase for _, trip in cgroup.run(12)] == [phase]
        begun = cgroup.now
        cgroup.calm()
        holds.append(cgroup.now - begun)
    assert holds[1] - holds[0] == pytest.approx(TIMES.hold, abs=2 * throttle.CALM_SAMPLE_SECONDS)
    assert cgroup.guard.next(cgroup.now) is None
    assert (cgroup.guard.phase, cgroup.guard.value) == (Phase.LATCHED, cgroupfs.NO_LIMIT)


def test_trips_more_than_an_hour_ago_do_not_count() -> None:
    cgroup = Cgroup()
    for _ in range(5):
        assert [trip.phase for _, trip in cgroup.run(12)] == [Phase.RELEASED]
        cgroup.calm()
        cgroup.now += throttle.HOUR


@pytest.mark.parametrize("current", [STUCK, PLAN])
def test_a_value_that_stays_is_a_trip_for_as_long_as_the_kernel_throttles(current: int) -> None:
    cgroup = Cgroup(answer=throttle.Answer.REPORT)
    for _ in range(5):
        assert [trip.phase for _, trip in cgroup.run(34, current)] == [Phase.REPORTED]
        for _ in range(60):
            cgroup.sample(cgroup.guard.next(cgroup.now) or 0, current)
            assert (cgroup.guard.phase, cgroup.guard.value) == (Phase.REPORTED, 0)
        cgroup.sample(10, current, high=0)
        assert cgroup.guard.phase is Phase.ARMED


@pytest.mark.parametrize("current", [STUCK, PLAN])
def test_another_writers_value_is_replaced_once_and_for_all(current: int) -> None:
    cgroup = Cgroup(answer=throttle.Answer.REMOVE)
    assert [trip.phase for _, trip in cgroup.run(34, current)] == [Phase.LATCHED]
    assert (cgroup.guard.value, cgroup.guard.next(cgroup.now)) == (cgroupfs.NO_LIMIT, None)


def test_five_trips_within_a_minute_are_a_storm() -> None:
    storm = throttle.Storm()
    for now in (0, 10, 20, 30, 61):
        storm.record(now)
    assert storm.at == float("-inf")
    storm.record(70)
    assert storm.at == 70
    for now in (100, 140, 180, 220):
        storm.record(now)
    assert storm.at == 70


def test_nothing_is_sampled_while_the_kernel_does_not_throttle() -> None:
    cgroup = Cgroup()
    assert cgroup.guard.next(0) is None
    cgroup.sample(2, PLAN, full=0.0)
    assert cgroup.guard.next(cgroup.now) == throttle.SAMPLE_SECONDS
    cgroup.sample(2, PLAN, full=0.0, high=0)
    assert cgroup.guard.next(cgroup.now) is None


@given(
    st.lists(st.tuples(st.floats(0.5, 400), st.integers(0, LIMIT), st.floats(0, 1), st.integers(0, 100)), max_size=40)
)
def test_the_value_is_the_plan_the_step_or_none_and_trips_in_an_hour_are_few(
    looks: list[tuple[float, int, float, int]],
) -> None:
    cgroup, trips = Cgroup(), []
    for seconds, current, full, high in looks:
        if cgroup.sample(seconds, current, full=full, high=high) is not None:
            trips.append(cgroup.now)
        assert cgroup.guard.value in {0, 80 * MIB, cgroupfs.NO_LIMIT}
        assert cgroup.guard.value == 0 or cgroup.guard.value > PLAN
    hours = [sum(begin <= trip <= begin + throttle.HOUR for trip in trips) for begin in trips]
    assert max(hours, default=0) <= throttle.LATCH_TRIPS
