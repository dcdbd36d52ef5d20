"""The judge of the promise that a Disabled pod does not swap: what would break the promise is told."""

from __future__ import annotations

import pytest

from testbed.nodevm import Sample
from tests.e2e import cgroups, promise
from tests.e2e.release import Exposed

POD = "pod1.slice"
MIB = 1 << 20


def at(when: float, limit: int | None = 0, used: int = 0, event: str = "written", after: float | None = None) -> Sample:
    """A line of the recorder, which was in time but for AFTER."""
    return Sample(when, f"burstable/{POD}", event, limit, used, when if after is None else after)


def exposed(*windows: tuple[float, float]) -> list[Sample]:
    """A pod that was without a limit at these times, and at 0 otherwise."""
    samples = [at(0.0, event="created")]
    for start, end in windows:
        samples += [at(start, None), at(end, 0)]
    return samples


def told(samples: list[Sample], published: Exposed, alone_since: float | None = None) -> list[str]:
    return list(promise.broken(cgroups.windows(samples, POD, 0.0), samples, published, alone_since))


def test_nothing_is_told_of_a_pod_that_was_never_above_0() -> None:
    assert told(exposed(), Exposed()) == []


def test_nothing_is_told_where_all_was_published() -> None:
    assert told(exposed((1, 1.05), (2, 2.5)), Exposed(2, 0.6, 0)) == []


def test_a_time_above_0_without_an_end_is_told() -> None:
    assert told([*exposed((1, 1.05)), at(3, None)], Exposed(9, 100.0, MIB)) == [
        "above 0 without an end: at 3.000 and still is: max"
    ]


def test_a_time_above_0_that_nobody_published_is_told() -> None:
    (only,) = told(exposed((1, 1.05), (2, 2.05)), Exposed(1, 10.0))
    assert only == "2 times above 0, of which 1 are published"


def test_a_long_exposure_is_not_hidden_by_short_ones_beside_it() -> None:
    short = [(number, number + 0.05) for number in range(10, 16)]
    (only,) = told(exposed((1, 6), *short), Exposed(7, 0.3))
    assert only.startswith("without any limit for 4.9")


def test_nor_by_more_exposures_that_were_published() -> None:
    assert told(exposed((1, 6)), Exposed(100, 0.3))


def test_a_late_recorder_does_not_make_an_exposure_longer_than_it_surely_was() -> None:
    samples = [at(0.0, event="created"), at(1.0, None), at(3.0, 0, after=1.1)]
    assert told(samples, Exposed(1, 0.2)) == []
    assert told(samples, Exposed(1, 0.05))


def test_a_limit_that_drains_is_no_time_without_one() -> None:
    samples = [at(0.0, event="created"), at(1.0, None), at(1.1, 8 * MIB, MIB), at(9.0, 0)]
    assert told(samples, Exposed(1, 0.2, MIB)) == []


@pytest.mark.parametrize("count", [1, 5])
def test_swap_that_comes_into_use_after_an_exposure_is_told(count: int) -> None:
    samples = [*exposed((1, 1.05)), at(10, 0, 0, "used"), at(11, 0, 4096, "used")]
    assert told(samples, Exposed(count, 0.1, 0))


def test_swap_that_comes_into_use_before_the_first_exposure_is_told() -> None:
    samples = [at(0.0, event="created"), at(1, 0, 4096, "used"), at(5, None, 4096), at(5.05, 0, 4096)]
    assert told(samples, Exposed(2, 0.1, 0))


def test_swap_that_was_taken_in_an_exposure_and_stays_in_use_is_not_told() -> None:
    samples = [*exposed((1, 1.05))[:2], at(1.05, 0, MIB), at(2, 0, MIB - 4096, "used"), at(3, 0, 0, "used")]
    assert told(samples, Exposed(1, 0.1, MIB)) == []


def test_an_exposure_that_the_recorder_missed_explains_what_was_published_of_it_and_no_more() -> None:
    samples = [at(0.0, event="created"), at(1, 0, 4096, "used")]
    assert told(samples, Exposed(1, 0.001, 4096)) == []
    assert told(samples, Exposed(1, 0.001, 0))
    assert told(samples, Exposed(0, 0.0, 4096))
    more = [*samples, at(5, 0, 3 * 4096, "used")]
    assert told(more, Exposed(1, 0.001, 4096))


def test_while_no_agent_runs_nobody_publishes_how_long_it_lasted_but_that_it_was() -> None:
    samples = exposed((1, 1.05), (10, 15))
    assert told(samples, Exposed(2, 0.1), alone_since=9.0) == []
    assert told(samples, Exposed(1, 0.1), alone_since=9.0)
    assert told(samples, Exposed(2, 0.1), alone_since=20.0)


def test_the_time_that_an_agent_needs_to_notice_is_no_breach_and_more_is() -> None:
    assert list(told(exposed((1, 1.003)), Exposed(1, 0.001))) == []
    (only,) = told(exposed((1, 1.1)), Exposed(1, 0.001))
    assert only.startswith("without any limit for 0.0")
