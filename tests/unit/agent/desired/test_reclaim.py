"""Steps to swap: within their bounds whatever the kernel shows, and none while the pod or the node needs memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.desired import reclaim
from swapwarden.api import names, state
from swapwarden.api.names import ReclaimHold

PAGE = 4096
MIB = 1 << 20
GIB = 1 << 30
CONTINUOUS, STARTUP = names.ReclaimMode.CONTINUOUS, names.ReclaimMode.STARTUP
BOUNDS = state.ReclaimSettings(
    max_stall_permille=1, interval_seconds=6, step_percent=1, keep_swap_free_bytes=GIB, writes_per_day_bytes=5 * GIB
)
ROOM: dict[str, Any] = {"swap_free": 4 * GIB, "writes_left": GIB, "pressed": False, "page": PAGE}
IDLE = reclaim.PodSample(100.0, 0, 0, 200 * MIB, 0, GIB, 0)


@dataclasses.dataclass
class Run:
    """A pod over time."""

    pace: reclaim.Pace
    seen: reclaim.PodSample = IDLE

    def look(self, **fields: Any) -> reclaim.Decision:
        room = {key: fields.pop(key) for key in list(fields) if key in ROOM}
        self.seen = msgspec.structs.replace(self.seen, **{"now": max(self.pace.due, self.seen.now + 6), **fields})
        return self.pace.decide(self.seen, BOUNDS, **{**ROOM, **room})


def begun(mode: names.ReclaimMode = CONTINUOUS) -> Run:
    run = Run(reclaim.Pace(mode, IDLE.now))
    assert msgspec.structs.astuple(run.look()) == (0, ReclaimHold.FIRST_LOOK)
    return run


def test_an_idle_pod_has_a_step_of_its_share() -> None:
    size, hold = msgspec.structs.astuple(begun().look())
    assert hold is ReclaimHold.STEP
    assert size == 2 * MIB // PAGE * PAGE


def test_steps_become_smaller_on_the_way_to_the_target() -> None:
    half = begun().look(some=3000)
    assert half.hold is ReclaimHold.STEP
    assert abs(half.size - MIB) <= PAGE
    assert msgspec.structs.astuple(begun().look(some=6000)) == (0, ReclaimHold.STALLED)


def test_refaults_end_steps() -> None:
    pages = 2 * MIB // reclaim.REFAULT_SHARE // PAGE
    assert begun().look(refaults=pages).hold is ReclaimHold.STEP
    assert msgspec.structs.astuple(begun().look(refaults=pages + 1)) == (0, ReclaimHold.REFAULTS)


def test_at_the_target_startup_ends_and_continuous_waits_longer_each_time() -> None:
    startup, continuous = begun(STARTUP), begun()
    startup.look(some=10_000)
    assert startup.pace.done
    waits = []
    for number in range(1, 10):
        continuous.look(some=10**7 * number)
        waits.append(continuous.pace.due - continuous.seen.now)
        assert continuous.look().hold is ReclaimHold.FIRST_LOOK
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert not continuous.pace.done
    size, _ = msgspec.structs.astuple(continuous.look())
    continuous.pace.took(size, size, continuous.seen.now)
    continuous.look(some=10**9)
    assert continuous.pace.due - continuous.seen.now == 60


@pytest.mark.parametrize("mode", [STARTUP, CONTINUOUS])
def test_three_steps_without_gain_end_it(mode: names.ReclaimMode) -> None:
    run = begun(mode)
    for freed in (0, 0, 10 * MIB, 0, 0):
        size, hold = msgspec.structs.astuple(run.look())
        assert hold is ReclaimHold.STEP
        run.pace.took(size, freed, run.seen.now)
    assert (run.pace.done, run.pace.due - run.seen.now) == (False, 6)
    size, _ = msgspec.structs.astuple(run.look())
    run.pace.took(size, size // reclaim.GAIN_SHARE - PAGE, run.seen.now)
    assert run.pace.done == (mode is STARTUP)
    assert run.pace.due - run.seen.now == 60


@pytest.mark.parametrize(
    ("fields", "hold"),
    [
        ({"pressed": True}, ReclaimHold.NODE_PRESSURE),
        ({"swap_free": GIB}, ReclaimHold.SWAP_KEPT),
        ({"swap_free": 0}, ReclaimHold.SWAP_KEPT),
        ({"writes_left": 0}, ReclaimHold.WRITES),
        ({"left": 0}, ReclaimHold.SWAP_LIMIT),
        ({"left": -MIB}, ReclaimHold.SWAP_LIMIT),
        ({"protected": 200 * MIB}, ReclaimHold.PROTECTED),
        ({"protected": 1 << 63}, ReclaimHold.PROTECTED),
        ({"current": 10 * MIB}, ReclaimHold.SMALL),
        ({"some": -1}, ReclaimHold.FIRST_LOOK),
        ({"refaults": -1}, ReclaimHold.FIRST_LOOK),
        ({"now": 100.0}, ReclaimHold.FIRST_LOOK),
        ({"now": 0.0}, ReclaimHold.FIRST_LOOK),
    ],
)
def test_there_is_no_step(fields: dict[str, Any], hold: ReclaimHold) -> None:
    assert msgspec.structs.astuple(begun().look(**fields)) == (0, hold)


def test_startup_ends_if_no_step_can_follow_and_waits_if_one_may() -> None:
    for field, value in (("left", 0), ("current", MIB), ("protected", GIB)):
        run = begun(STARTUP)
        run.look(**{field: value})
        assert run.pace.done
    for room in ({"pressed": True}, {"swap_free": 0}, {"writes_left": 0}):
        run = begun(STARTUP)
        run.look(**room)
        assert not run.pace.done
        assert run.look().hold is ReclaimHold.STEP


sizes = st.integers(0, 1 << 45)


@given(
    st.lists(
        st.tuples(
            st.floats(-1e9, 1e9),
            st.integers(0, 1 << 50),
            st.integers(0, 1 << 40),
            sizes,
            sizes,
            sizes,
            sizes,
            sizes,
            sizes,
        ),
        max_size=12,
    ),
    st.builds(
        state.ReclaimSettings,
        st.integers(1, 100),
        st.integers(2, 600),
        st.integers(1, 10),
        st.integers(0, 1 << 62),
        st.integers(0, 1 << 62),
    ),
    st.sampled_from([CONTINUOUS, STARTUP]),
)
def test_no_step_exceeds_any_bound(
    looks: list[tuple[float, int, int, int, int, int, int, int, int]],
    bounds: state.ReclaimSettings,
    mode: names.ReclaimMode,
) -> None:
    pace = reclaim.Pace(mode, 0.0)
    for now, some, refaults, current, swap, left, protected, swap_free, writes in looks:
        seen = reclaim.PodSample(now, some, refaults, current, swap, left, protected)
        done = pace.done
        size, hold = msgspec.structs.astuple(
            pace.decide(seen, bounds, swap_free=swap_free, writes_left=writes, pressed=False, page=PAGE)
        )
        assert (size > 0) == (hold is ReclaimHold.STEP)
        assert pace.due > now
        if size:
            assert not done
            assert size % PAGE == 0
            most = (current * bounds.step_percent // 100, left, writes, current - protected, reclaim.MAX_STEP_BYTES)
            assert size <= min(*most, swap_free - bounds.keep_swap_free_bytes)
            pace.took(size, current % (size + 1), now)


NODE = reclaim.NodeSample(10.0, 5, 1.0, GIB)


@pytest.mark.parametrize(
    ("before", "pressed"),
    [
        (None, True),
        (msgspec.structs.replace(NODE, now=4.0), False),
        (msgspec.structs.replace(NODE, now=4.0, direct=4), True),
        (msgspec.structs.replace(NODE, now=4.0, direct=6), True),
        (msgspec.structs.replace(NODE, now=4.0, full=1.001), True),
        (NODE, True),
        (msgspec.structs.replace(NODE, now=11.0), True),
    ],
)
def test_a_node_is_calm_only_after_two_looks(before: reclaim.NodeSample | None, *, pressed: bool) -> None:
    assert reclaim.is_pressed(before, NODE) == pressed


def test_a_node_whose_tasks_all_wait_is_pressed() -> None:
    before = msgspec.structs.replace(NODE, now=0.0)
    assert not reclaim.is_pressed(before, msgspec.structs.replace(NODE, full=1.0999))
    assert reclaim.is_pressed(before, msgspec.structs.replace(NODE, full=1.1001))


@given(
    st.lists(st.tuples(st.floats(0, 8 * 3600), st.integers(0, GIB)), min_size=1, max_size=60), st.integers(0, 4 * GIB)
)
def test_no_day_has_more_writes_than_its_bound(asked: list[tuple[float, int]], per_day: int) -> None:
    budget, now, written = reclaim.WriteBudget(), 0.0, []
    for wait, size in asked:
        now += wait
        given_now = min(size, budget.left(now, per_day))
        budget.spend(given_now, now)
        written.append((now, given_now))
        assert sum(amount for when, amount in written if now - when < reclaim.DAY) <= per_day
        assert len(budget.slots) <= reclaim.MAX_SLOTS


def test_a_day_later_all_writes_are_allowed_again() -> None:
    budget = reclaim.WriteBudget()
    budget.spend(MIB, 100.0)
    assert budget.left(100.0 + reclaim.DAY, MIB) == 0
    assert budget.left(100.0 + reclaim.DAY + reclaim.SLOT, MIB) == MIB
