from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.kube import backoff, errors


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are as long as they may be."""
    monkeypatch.setattr(backoff, "between", lambda _, longest: longest)


@pytest.mark.usefixtures("bounds")
def test_the_bound_doubles_up_to_the_longest() -> None:
    made = backoff.Backoff(0.5, 5.0)
    assert [made.next() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert made.failures == 6


@pytest.mark.usefixtures("bounds")
def test_a_success_begins_again() -> None:
    made = backoff.Backoff(0.5, 5.0)
    made.next()
    made.next()
    made.reset()
    assert made.failures == 0
    assert made.next() == 0.5


@pytest.mark.usefixtures("bounds")
def test_years_of_failures_overflow_nothing() -> None:
    made = backoff.Backoff(0.5, 60.0)
    made.failures = 10**9
    assert made.next() == 60.0


@given(first=st.floats(0, 10), longest=st.floats(0, 100), failures=st.integers(0, 100))
def test_waits_lie_between_nothing_and_the_bound(first: float, longest: float, failures: int) -> None:
    made = backoff.Backoff(first, longest)
    made.failures = failures
    assert 0 <= made.next() <= min(longest, first * 2.0**failures)
    assert made.failures == failures + 1


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (errors.ApiError(429, "TooManyRequests", "later", retry_after=7.0), 7.0),
        (errors.ApiError(503, "", "later", retry_after=0.1), 0.5),
        (errors.ApiError(500, "", "broken"), 0.5),
        (errors.Unreachable("no route"), 0.5),
        (ValueError("not of the API server"), 0.5),
    ],
    ids=str,
)
def test_the_wait_after_an_error_is_no_shorter_than_the_server_asks_for(error: Exception, wait: float) -> None:
    made = backoff.Backoff(0.5, 5.0)
    assert made.after(error) == wait
    assert made.failures == 1


def test_two_loops_do_not_come_back_together() -> None:
    waits = {backoff.Backoff(1.0, 1.0).next() for _ in range(100)}
    assert len(waits) > 90
    assert min(waits) < 0.25
    assert max(waits) > 0.75
