from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.policy.observed import resources

Kind = resources.Kind
INIT, SIDECAR, APP, EPHEMERAL = Kind.INIT, Kind.SIDECAR, Kind.APP, Kind.EPHEMERAL


@pytest.mark.parametrize(
    ("amounts", "peak"),
    [
        ([], 0),
        ([(APP, 1), (APP, 2)], 3),
        ([(INIT, 5), (APP, 1), (APP, 2)], 5),
        ([(INIT, 2), (APP, 1), (APP, 2)], 3),
        ([(SIDECAR, 1), (INIT, 5), (APP, 2)], 6),
        ([(INIT, 5), (SIDECAR, 1), (APP, 2)], 5),
        ([(SIDECAR, 1), (INIT, 1), (SIDECAR, 4), (APP, 2)], 7),
        ([(APP, 1), (EPHEMERAL, 9)], 1),
    ],
)
def test_peak(amounts: list[tuple[resources.Kind, int]], peak: int) -> None:
    assert resources.peak(amounts) == peak


STARTING = st.lists(st.tuples(st.sampled_from([INIT, SIDECAR]), st.integers(0, 100)), max_size=6)
RUNNING = st.lists(st.tuples(st.just(APP), st.integers(0, 100)), max_size=4)


@given(STARTING, RUNNING)
def test_peak_is_the_largest_sum_of_what_runs_at_one_time(
    starting: list[tuple[resources.Kind, int]], running: list[tuple[resources.Kind, int]]
) -> None:
    """By brute force: the set of containers that run in each phase."""
    moments = [
        sum(amount for kind, amount in starting[:step] if kind is SIDECAR) + starting[step][1]
        for step in range(len(starting))
    ]
    moments.append(sum(amount for kind, amount in starting if kind is SIDECAR) + sum(amount for _, amount in running))
    assert resources.peak(starting + running) == max(moments)


@given(STARTING, RUNNING)
def test_the_bound_is_the_peak_of_the_worst_order(
    starting: list[tuple[resources.Kind, int]], running: list[tuple[resources.Kind, int]]
) -> None:
    """In it, all sidecars start first."""
    worst = sorted(starting, key=lambda each: each[0] is INIT)
    bound = resources.peak_at_most(starting + running)
    assert bound == resources.peak(worst + running) >= resources.peak(starting + running)
    assert resources.peak_at_most([*starting, *running, (EPHEMERAL, 1000)]) == bound
