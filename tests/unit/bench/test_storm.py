"""Summaries of a recording, and parsing of the command line."""

from __future__ import annotations

import math

import pytest

from bench import storm
from testbed.vm.nodevm import Sample

SHARE = storm.Share(2.0, 0.5)


def seen(*events: tuple[float, int | None, int]) -> list[Sample]:
    """Writes at these seconds: the limit (None: none), and the swap in use."""
    return [Sample(at, "pod", "written", limit, used) for at, limit, used in events]


def test_a_repair_lasts_from_the_foreign_write_to_any_limit() -> None:
    """A draining pod's remaining limit is one, and still above 0."""
    found = storm.exposures(seen((0, 0, 0), (1, None, 0), (1.5, 4096, 4096), (2, None, 8192), (2.25, 0, 8192)), end=9)
    assert found == storm.Exposures(repairs=[0.5, 0.25], above=[1.25], swapped=8192)


def test_several_foreign_writes_before_a_repair_are_one() -> None:
    found = storm.exposures(seen((0, 0, 0), (1, None, 0), (2, None, 0), (3, 0, 0)), end=9)
    assert found == storm.Exposures(repairs=[2], above=[2], swapped=0)


def test_a_limit_without_a_repair_counts_until_the_end() -> None:
    found = storm.exposures(seen((0, 0, 4096), (1, None, 4096), (11, 0, 0)), end=5)
    assert found == storm.Exposures(repairs=[4], above=[4], swapped=0)


def test_all_pods_are_one_row() -> None:
    pods = [storm.Exposures([0.1] * 98 + [0.2], [0.1], 0), storm.Exposures([3.0], [3.0], 4096)]
    row = storm.row("10m", pods, {"reloads": 60, "busy": 1.0}, SHARE)
    assert (row.swapped_pods, row.most_bytes, row.longest_seconds, row.repairs) == (1, 4096, 3.0, 100)
    assert (row.p50, row.p99, row.most) == (0.1, 0.2, 3.0)
    assert row.above_seconds == pytest.approx(3.1)
    assert math.isnan(storm.row("10m", [], {"reloads": 0, "busy": 0.0}, SHARE).p99)
    assert "10m" in storm.table([row])
    assert storm.Share(3.0, 2.0).since(SHARE) == storm.Share(1.0, 1.5)


def test_a_variant_says_what_the_chart_is_given() -> None:
    agent = storm.Variant.parse("100m,guaranteed").values["agent"]
    assert agent["resources"]["limits"]["cpu"] == "100m"
    assert agent["resources"]["limits"] == agent["resources"]["requests"]
    assert "cpu" not in storm.Variant.parse("10m").values["agent"]["resources"]["limits"]
    assert storm.Variant.parse("10m,strict").values["agent"]["dropIns"] == {"mount": True}


@pytest.mark.parametrize("text", ["", "fast", "10m,", "10m,besteffort"])
def test_a_text_that_is_no_variant_is_refused(text: str) -> None:
    with pytest.raises(storm.UsageError):
        storm.Variant.parse(text)
