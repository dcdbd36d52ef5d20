"""The judge of the promise that a Disabled pod does not swap reports each breach."""

from __future__ import annotations

import json

import pytest
from swapwarden.agent.inventory import exposure
from swapwarden.agent.reconcile import file_reconciler
from swapwarden.telemetry import logs

from testbed.vm.nodevm import Sample
from tests.e2e import cgroups, promise
from tests.e2e.promise import Exposure, Told

UID = "0a1b2c3d-0000-4000-8000-000000000001"
POD = cgroups.slice_of(UID)
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def at(when: float, limit: int | None = 0, used: int = 0, event: str = "written", after: float | None = None) -> Sample:
    """A line of the recorder, which was in time but for AFTER."""
    return Sample(when, f"burstable/{POD}", event, limit, used, when if after is None else after)


def above(*times: tuple[float, float]) -> list[Sample]:
    """A pod that was without a limit at these times, and at 0 otherwise."""
    samples = [at(0.0, event="created")]
    for start, end in times:
        samples += [at(start, None), at(end, 0)]
    return samples


def found(samples: list[Sample], *exposures: Exposure, wrote: tuple[tuple[float, int], ...] = ()) -> list[str]:
    return list(promise.broken(samples, 0.0, Told(exposures, wrote)))


def test_nothing_is_reported_of_a_pod_that_was_never_above_0() -> None:
    assert found(above()) == []


def test_nothing_is_reported_if_all_was_published() -> None:
    assert found(above((1, 1.05), (2, 2.5)), Exposure(1, 1.05), Exposure(2.01, 2.5)) == []


def test_a_time_above_0_without_an_end_is_reported() -> None:
    (only,) = found([*above((1, 1.05)), at(3, None)], Exposure(1, 1.05), Exposure(3, 9, MIB))
    assert only == "above 0 without an end, at 3.000: max"


def test_a_time_above_0_that_nobody_published_is_reported() -> None:
    (only,) = found(above((1, 1.05), (2, 2.05)), Exposure(2, 2.05))
    assert only == "above 0 from 1.000 to 1.050, of which nothing is published"


def test_no_exposure_counts_for_two_times_above_0() -> None:
    (only,) = found(above((1, 1.05), (1.06, 1.1)), Exposure(1, 1.1))
    assert only.startswith("above 0 from 1.060")


def test_a_time_that_nobody_published_is_not_hidden_by_one_that_is_published_for_longer_than_it_was() -> None:
    """A new agent counts from the last sign of life of the previous one."""
    samples = above((100, 105), (120, 120.05))
    (only,) = found(samples, Exposure(89.05, 120.05))
    assert only.startswith("above 0 from 100.000")
    assert found(samples, Exposure(89.05, 120.05), *(Exposure(1 + n, 2 + n) for n in range(50)), Exposure(200, 231))
    assert found(samples, Exposure(100, 105), Exposure(105, 120.05)) == []


def test_a_long_exposure_is_not_hidden_by_short_ones_beside_it() -> None:
    short = [(number, number + 0.05) for number in range(10, 16)]
    (only,) = found(above((1, 6), *short), Exposure(5.9, 6), *(Exposure(*each) for each in short))
    assert only.startswith("above 0 from 1.000 to 6.000, for 5.000 s at least")


def test_nor_by_more_exposures_that_were_published() -> None:
    assert found(above((1, 6)), Exposure(5.9, 6), *(Exposure(10 + number, 13 + number) for number in range(100)))


def test_nor_by_the_time_before_it_that_is_published_of_it() -> None:
    assert found(above((1, 6)), Exposure(-30, 1.2))


def test_a_late_recorder_does_not_make_an_exposure_longer_than_it_surely_was() -> None:
    samples = [at(0.0, event="created"), at(1.0, None), at(3.0, 0, after=1.2)]
    assert found(samples, Exposure(1.03, 1.2)) == []
    assert found(samples, Exposure(1.1, 1.2))


def test_samples_of_swap_in_use_make_an_exposure_no_shorter() -> None:
    samples = [at(0.0, event="created"), at(1.0, None)]
    samples += [at(1 + number / 2, None, number, "used", after=0.9 + number / 2) for number in range(1, 10)]
    (only,) = found([*samples, at(6.0, 0, 9)], Exposure(5.9, 6.0, 9))
    assert "for 5.000 s at least" in only


def test_a_recorder_that_was_late_to_hear_of_its_begin_still_knows_whose_exposure_it_is() -> None:
    samples = [at(0.0, event="created"), at(2.0, None, after=1.0), at(2.01, 0, after=2.0)]
    assert found(samples, Exposure(1.0, 1.5)) == []
    assert found(samples, Exposure(0.2, 0.9))


def test_an_agent_that_logs_late_is_not_blamed_for_the_next_exposure() -> None:
    assert found(above((1, 1.05), (1.2, 1.25)), Exposure(1.01, 1.22), Exposure(1.21, 1.3)) == []


def test_the_time_that_an_agent_needs_to_notice_is_no_breach_and_more_is() -> None:
    assert found(above((1, 1.003)), Exposure(1.002, 1.003)) == []
    (only,) = found(above((1, 1.1)), Exposure(1.099, 1.1))
    assert only.startswith("above 0 from 1.000 to 1.100, for 0.100 s at least")


def test_many_exposures_of_one_time_above_0_leave_out_the_time_to_notice_once() -> None:
    assert found(above((1, 6)), *(Exposure(2 + number / 100, 2.001 + number / 100) for number in range(100)))


def test_what_the_recorder_took_for_one_time_may_be_two_exposures() -> None:
    samples = above((1, 1.05), (1.06, 1.6))
    assert found(samples, Exposure(1, 1.05), Exposure(1.06, 1.065), Exposure(1.09, 1.6)) == []


def test_time_at_a_limit_that_no_agent_gave_counts_as_time_without_one() -> None:
    samples = [at(0.0, event="created"), at(1, GIB), at(6, 0)]
    (only,) = found(samples, Exposure(5.9, 6))
    assert "for 5.000 s at least" in only
    assert found(samples)
    assert found(samples, Exposure(1.01, 6)) == []


@pytest.mark.parametrize("limit", [GIB, None])
def test_swap_taken_in_an_exposure_is_compared_with_the_published_figure(limit: int | None) -> None:
    samples = [at(0.0, event="created"), at(1, limit), at(3, limit, 20 * MIB, "used"), at(6, 0, 60 * MIB)]
    (only,) = found(samples, Exposure(1.01, 6, 0))
    assert only.startswith("above 0 from 1.000 to 6.000: 62914560 bytes went to swap, of which 0")
    assert found(samples, Exposure(1.01, 6, 60 * MIB - 4096), Exposure(20, 21, 60 * MIB))
    assert found(samples, Exposure(1.01, 6, 60 * MIB)) == []


def test_what_came_back_before_an_agent_looked_it_cannot_publish() -> None:
    """Nobody ran, or got the CPU; the pod itself touches its pages."""
    peak = [at(0.0, event="created"), at(1, None), at(2, None, 3 * MIB, "used"), at(3, None, 2 * MIB, "used")]
    for end in (at(4, 0, 2 * MIB), at(4, 2 * MIB + 8192, 2 * MIB)):
        samples = [*peak, end, at(5, 0)]
        wrote = ((4.0, end.max_bytes),) if end.max_bytes else ()
        assert found(samples, Exposure(1, 4, 2 * MIB), wrote=wrote) == []
        assert found(samples, Exposure(1, 4, 2 * MIB - 4096), wrote=wrote)
    # Where an agent looks at once, nothing has come back.
    assert found(
        [at(0.0, event="created"), at(1, None), at(1.01, None, 3 * MIB, "used"), at(1.02, 0)], Exposure(1, 1.02)
    )


def drained(limit: int, used: int = 4 * MIB) -> list[Sample]:
    """A pod that takes swap while it is without a limit, and has this one until what it took is back."""
    return [at(0.0, event="created"), at(1, None), at(1.1, limit, used), at(8.5, limit, 4096, "used"), at(9, 0)]


def test_a_limit_with_which_an_agent_lets_it_drain_is_no_time_above_0() -> None:
    samples = drained(5 * MIB)
    assert found(samples, Exposure(1.01, 1.1, 4 * MIB), wrote=((1.1, 5 * MIB),)) == []
    (only,) = found(samples, Exposure(1.01, 1.1, 4 * MIB))
    assert "for 8.000 s at least" in only


def test_a_drain_limit_is_no_more_than_the_published_figures_explain() -> None:
    assert found(drained(5 * MIB), Exposure(1.01, 1.1, 3 * MIB), wrote=((1.1, 5 * MIB),))
    assert found(drained(GIB), Exposure(1.01, 1.1, 4 * MIB), wrote=((1.1, GIB),))


def test_each_exposure_of_a_draining_pod_is_reported_by_itself() -> None:
    limit = 5 * MIB
    samples = [*drained(limit)[:3], at(50, limit, MIB, "used"), at(60, None, MIB), at(65, limit, 4 * MIB), at(70, 0, 0)]
    wrote = ((1.1, limit), (65.0, limit))
    first = Exposure(1.01, 1.1, 4 * MIB)
    assert found(samples, first, Exposure(60, 65, 3 * MIB), wrote=wrote) == []
    (only,) = found(samples, first, wrote=wrote)
    assert only.startswith("above 0 from 60.000")
    (only,) = found(samples, first, Exposure(64.9, 65, 3 * MIB), wrote=wrote)
    assert "for 5.000 s at least" in only


def test_an_agent_knows_the_swap_of_a_draining_pod_at_its_last_look() -> None:
    limit = 5 * MIB
    samples = [*drained(limit)[:3], at(50, limit, 4 * MIB - 1, "used"), at(55, limit, MIB, "used")]
    again = [at(60, None, MIB), at(65, 0, 4 * MIB - 1), at(66, 0, 0, "used")]
    told = [Exposure(1.01, 1.1, 4 * MIB), Exposure(60, 65, 0)]
    assert found(samples + again, *told, wrote=((1.1, limit),)) == []
    later = [at(each.at + 60, each.max_bytes, each.current_bytes, each.event) for each in again]
    assert found(samples + later, told[0], Exposure(120, 125, 0), wrote=((1.1, limit),))


def test_an_exposure_has_the_observed_time_rather_than_the_possible_one() -> None:
    samples = [at(0.0, event="created", used=4 * MIB), at(1.0, 5 * MIB, 4 * MIB), at(1.02, 0, 4 * MIB)]
    samples += [at(1.03, None, 4 * MIB), at(1.2, 0, 4 * MIB)]
    assert found(samples, Exposure(1.03, 1.2), wrote=((1.0, 5 * MIB),)) == []


def test_of_a_pod_that_drains_an_agent_may_have_seen_more_than_the_recorder() -> None:
    samples = [at(0.0, event="created", used=4 * MIB), at(1, None, 4 * MIB), at(1.05, 0, 4 * MIB + 100 * KIB)]
    assert found(samples, Exposure(1, 1.05, 0)) == []
    assert found([*samples[:2], at(1.05, 0, 5 * MIB)], Exposure(1, 1.05, 0))
    assert found([at(0.0, event="created"), at(1, None), at(1.05, 0, 100 * KIB)], Exposure(1, 1.05, 0))


def test_a_limit_to_drain_with_may_be_all_that_the_recorder_saw_of_an_exposure() -> None:
    samples = [at(0.0, event="created"), at(1.1, 5 * MIB, 4 * MIB, after=1.0), at(9, 0)]
    assert found(samples, Exposure(1.05, 1.1, 4 * MIB), wrote=((1.1, 5 * MIB),)) == []
    assert found(samples, wrote=((1.1, 5 * MIB),))


@pytest.mark.parametrize("count", [1, 5])
def test_swap_taken_after_an_exposure_is_reported(count: int) -> None:
    samples = [*above((1, 1.05)), at(1.5, 0, 4096, "used")]
    (only,) = found(samples, *(Exposure(1, 1.05, 4096) for _ in range(count)))
    assert only == "at 1.500 4096 bytes had gone to swap while it was at 0"


def test_swap_taken_before_the_first_exposure_is_reported() -> None:
    samples = [at(0.0, event="created"), at(1, 0, 4096, "used"), at(5, None, 4096), at(5.05, 0, 4096)]
    assert found(samples, Exposure(5, 5.05, 4096), Exposure(7, 7.05, 4096))


def test_swap_taken_in_an_exposure_that_stays_in_use_is_not_reported() -> None:
    samples = [*above((1, 1.05))[:2], at(1.05, 0, MIB), at(2, 0, MIB - 4096, "used"), at(3, 0, 0, "used")]
    assert found(samples, Exposure(1, 1.05, MIB)) == []


def test_swap_that_is_sampled_before_the_recorder_hears_of_the_write_is_of_that_exposure() -> None:
    samples = [at(0.0, event="created"), at(1.0, 0, 4096, "used"), at(1.01, None, 4096, after=0.9), at(1.05, 0, 4096)]
    assert found(samples, Exposure(0.95, 1.05, 4096)) == []
    assert found(samples, Exposure(0.95, 1.05, 0))


def test_an_exposure_that_the_recorder_missed_explains_its_published_figures_and_no_more() -> None:
    samples = [at(0.0, event="created"), at(1, 0, 4096, "used")]
    assert found(samples, Exposure(0.5, 0.501, 4096)) == []
    assert found(samples, Exposure(0.5, 0.501, 0))
    assert found(samples)
    assert found(samples, Exposure(2, 2.001, 4096))
    more = [*samples, at(5, 0, 2 * 4096, "used")]
    assert found(more, Exposure(0.5, 0.501, 4096))
    assert found(more, Exposure(0.5, 1.5, 4096))


def test_time_before_the_first_container_does_not_count() -> None:
    samples = [at(0.0, None, event="created"), at(1, 0), at(2, None), at(5, 0)]
    assert list(promise.broken(samples, 1.5, Told((Exposure(2, 5),)))) == []
    assert list(promise.broken(samples, 6.0, Told())) == []
    assert list(promise.broken(samples, 4.9, Told((Exposure(4.9, 5),)))) == []


def test_the_log_is_read_as_agents_write_it(caplog: pytest.LogCaptureFixture) -> None:
    folder = f"/kubepods.slice/kubepods-{POD}"
    with caplog.at_level("DEBUG", exposure.__name__):
        exposure.Tally().add(
            UID, exposure.Exposure(1, 250.0, 4096), desired=0, observed=MIB, ended=0.0, until=7.5, rewritten=True
        )
        exposure.Tally().add(
            "other", exposure.Exposure(1, 1.0, 0), desired=0, observed=MIB, ended=0.0, until=7.5, rewritten=True
        )
    with caplog.at_level("DEBUG", file_reconciler.__name__):
        for cgroup, value in ((folder, 8192), (folder, 0), (f"{folder}/cri-0.scope", 4096), ("/other", 4096)):
            file_reconciler.log.debug("wrote", extra={"cgroup": cgroup, "found": "max", "wrote": value})
    lines = [json.loads(logs.JsonFormatter().format(record)) for record in caplog.records]
    told = promise.told(lines, UID)
    (one,) = told.exposures
    assert (one.start, one.end, one.bytes) == (7.25, 7.5, 4096)
    ((when, value),) = told.wrote
    assert abs(when - caplog.records[2].created) < 0.002
    assert value == 8192
