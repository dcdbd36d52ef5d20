from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.policy.pressure import limits
from swapwarden.policy.pressure.limits import HOUR, PER_CLUSTER, PER_PROFILE, RATE_SECONDS, Evictions, HoldReason

PER_HOUR = 3
LATER = 10 * HOUR
"""A time at which nothing is left of how a term began."""


def evict(one: Evictions, node: str, profile: str, now: float, *, gone: float | None = None) -> None:
    one.begin(node, profile, now, str(now))
    if gone is not None:
        one.end(node, gone)


def test_a_node_settles_until_some_time_after_its_pod_is_gone() -> None:
    one = Evictions(0.0)
    assert not one.is_settling("n", 15.0, LATER)
    evict(one, "n", "p", LATER)
    assert one.is_settling("n", 0.0, LATER)
    assert one.is_settling("n", 15.0, LATER + 2 * HOUR)
    one.end("n", LATER + 2 * HOUR)
    assert one.is_settling("n", 15.0, LATER + 2 * HOUR + 14)
    assert not one.is_settling("n", 15.0, LATER + 2 * HOUR + 15)
    assert not one.is_settling("other", 15.0, LATER)


def test_another_end_of_an_eviction_changes_nothing() -> None:
    one = Evictions(0.0)
    evict(one, "n", "p", LATER, gone=LATER)
    one.end("n", LATER + 10)
    assert not one.is_settling("n", 15.0, LATER + 15)


def test_the_limit_of_a_node_holds_in_any_hour() -> None:
    one = Evictions(0.0)
    for number in range(PER_HOUR):
        assert one.limited("n", "p", PER_HOUR, LATER + 100 * number) is None
        evict(one, "n", "p", LATER + 100 * number, gone=LATER + 100 * number)
    assert one.limited("n", "p", PER_HOUR, LATER + HOUR - 1) is HoldReason.NODE_LIMIT
    assert one.limited("other", "p", PER_HOUR, LATER + HOUR - 1) is None
    assert one.limited("n", "p", PER_HOUR, LATER + HOUR) is None


def test_the_rates_of_a_profile_and_of_the_cluster() -> None:
    one = Evictions(0.0)
    for number in range(PER_PROFILE):
        evict(one, f"n{number}", "p", LATER)
    assert one.limited("n", "p", PER_HOUR, LATER + RATE_SECONDS - 1) is HoldReason.RATE_LIMIT
    assert one.limited("n", "other", PER_HOUR, LATER) is None
    for number in range(PER_PROFILE, PER_CLUSTER):
        evict(one, f"n{number}", f"p{number}", LATER + 1)
    assert one.limited("n", "other", PER_HOUR, LATER + RATE_SECONDS - 1) is HoldReason.RATE_LIMIT
    assert one.limited("n", "other", PER_HOUR, LATER + RATE_SECONDS) is None


def test_an_eviction_that_the_api_server_refused_does_not_count() -> None:
    one = Evictions(0.0)
    evict(one, "n", "p", LATER, gone=LATER)
    evict(one, "n", "p", LATER + RATE_SECONDS)
    one.end("n", LATER + RATE_SECONDS, counts=False)
    assert one.limited("n", "p", 2, LATER + RATE_SECONDS) is None
    assert one.limited("n", "p", 1, LATER + RATE_SECONDS) is HoldReason.NODE_LIMIT
    assert not one.is_settling("n", 15.0, LATER + RATE_SECONDS)


def test_a_new_leader_takes_the_rates_as_used_up_and_lets_each_node_settle() -> None:
    one = Evictions(LATER)
    assert one.limited("n", "p", PER_HOUR, LATER + RATE_SECONDS - 1) is HoldReason.RATE_LIMIT
    assert one.limited("n", "p", PER_HOUR, LATER + RATE_SECONDS) is None
    assert one.is_settling("n", 60.0, LATER + 59)
    assert not one.is_settling("n", 60.0, LATER + 60)


def test_a_nodes_limit_counts_evictions_of_earlier_terms_once_and_for_an_hour() -> None:
    one = Evictions(LATER)
    for _ in range(2):
        one.recall("n", "p", {"old": HOUR, "a": HOUR - 100, "b": 50.0}, LATER)
    assert one.past("n", LATER, ended=True) == ["a", "b"]
    assert one.limited("n", "p", 2, LATER + 99) is HoldReason.NODE_LIMIT
    assert one.limited("n", "p", 2, LATER + 100) is None
    assert one.limited("other", "p", 1, LATER + RATE_SECONDS) is None
    assert not one.is_settling("n", 15.0, LATER + 15)


def test_an_eviction_in_the_future_of_this_clock_counts_as_of_now() -> None:
    one = Evictions(LATER)
    one.recall("n", "p", {"a": -2 * HOUR}, LATER)
    assert one.limited("n", "p", 1, LATER + HOUR - 1) is HoldReason.NODE_LIMIT
    assert one.limited("n", "p", 1, LATER + HOUR) is None


def test_the_times_for_the_next_leader_are_of_this_hour_and_of_pods_that_are_gone() -> None:
    one = Evictions(0.0)
    evict(one, "n", "p", LATER, gone=LATER)
    evict(one, "n", "p", LATER + HOUR - 1, gone=LATER + HOUR - 1)
    evict(one, "n", "p", LATER + HOUR)
    evict(one, "other", "p", LATER + HOUR, gone=LATER + HOUR)
    assert one.past("n", LATER + HOUR, ended=True) == [str(LATER + HOUR - 1)]
    assert one.past("n", LATER + HOUR, ended=False) == [str(LATER + HOUR - 1), str(LATER + HOUR)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 1.0, 7.0, 20.0, 600.0]),
        st.sampled_from([f"n{number}" for number in range(12)]),
        st.sampled_from(["end", "refuse", "leave", "fail over"]),
    ),
    max_size=80,
)


def profile_of(node: str) -> str:
    return "p" if int(node[1:]) < 6 else "q"


@given(STEPS)
def test_no_rate_is_exceeded_in_any_window_and_no_node_has_two_victims(steps: list[tuple[float, str, str]]) -> None:
    now, one = 0.0, Evictions(0.0)
    done: list[tuple[float, str]] = []
    under_way: set[str] = set()
    kept: dict[str, list[str]] = {}
    """The times in the nodes' states."""
    for wait, node, then in steps:
        now += wait
        if then == "fail over":
            one = Evictions(now)
            for other, stamps in kept.items():
                one.recall(other, profile_of(other), {stamp: now - float(stamp) for stamp in stamps}, now)
            for other in under_way:  # it has the record
                evict(one, other, profile_of(other), now)
            continue
        if not one.is_settling(node, 15.0, now) and one.limited(node, profile_of(node), PER_HOUR, now) is None:
            assert node not in under_way
            evict(one, node, profile_of(node), now)
            if then == "refuse":
                one.end(node, now, counts=False)
                continue
            done.append((now, node))
            under_way.add(node)
        if then == "end" and node in under_way:
            kept[node] = one.past(node, now, ended=False)
            one.end(node, now)
            under_way.discard(node)
    assert most(done, RATE_SECONDS, lambda _: "cluster") <= PER_CLUSTER
    assert most(done, RATE_SECONDS, lambda each: profile_of(each[1])) <= PER_PROFILE
    assert most(done, HOUR, lambda each: each[1]) <= PER_HOUR


def most(done: list[tuple[float, str]], window: float, group: Callable[[tuple[float, str]], str]) -> int:
    """Return the most evictions of one group in any window."""

    def counts() -> Iterator[int]:
        for first in done:
            yield sum(group(one) == group(first) and 0 <= one[0] - first[0] < window for one in done)

    return max(counts(), default=0)


@pytest.mark.parametrize("ends", [True, False])
def test_past_evictions_do_not_grow_without_bound(*, ends: bool) -> None:
    one, now = Evictions(0.0), LATER
    for number in range(5000):
        node = f"n{number % 7}"
        now += RATE_SECONDS
        if not one.is_settling(node, 0.0, now):
            evict(one, node, "p", now)
        if ends:
            one.end(node, now)
    assert len(one) <= (HOUR / RATE_SECONDS + 1 if ends else 7)


@pytest.mark.parametrize("begins", [0.0, LATER])
def test_a_kubelet_that_acts_counts_for_some_time(begins: float) -> None:
    one = Evictions(0.0)
    assert not one.is_kubelet_evicting("n", 15.0, begins)
    one.kubelet_acts("n", begins - 10)
    one.kubelet_acts("n", begins)
    assert one.is_kubelet_evicting("n", 15.0, begins + 14)
    assert not one.is_kubelet_evicting("n", 15.0, begins + 15)
    assert not one.is_kubelet_evicting("other", 15.0, begins)


def test_past_acts_of_kubelets_do_not_grow_without_bound() -> None:
    one = Evictions(0.0)
    for number in range(3000):
        one.kubelet_acts(f"n{number}", LATER + number * HOUR / 100)
    assert len(one) <= 100


def test_the_rate_of_a_profile_is_the_node_lifecycle_controllers() -> None:
    assert limits.PER_PROFILE / limits.RATE_SECONDS == 0.1


@pytest.mark.parametrize(
    ("pressed", "nodes", "wide"),
    [(2, 2, False), (3, 3, True), (3, 5, True), (3, 6, False), (55, 100, False), (56, 100, True)],
)
def test_pressure_of_most_nodes_is_widespread(pressed: int, nodes: int, wide: bool) -> None:
    assert limits.is_widespread(pressed, nodes) is wide
