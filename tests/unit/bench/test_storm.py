"""Summaries of a recording, and parsing of the command line."""

from __future__ import annotations

import math

import pytest

from bench import storm, storm_report
from testbed.vm.nodevm import Sample

SHARE = storm_report.Share(2.0, 0.5)
POD, MAIN, SANDBOX = "kubepods-pod1.slice", "kubepods-pod1.slice/main.scope", "kubepods-pod1.slice/pause.scope"
DISABLED = {"main.scope": 0}
SAID = {"reloads": 60, "kills": 0, "reclaims": 600, "busy": 1.0, "oomKills": 0}


def seen(*events: tuple[float, str, int | None, int]) -> list[Sample]:
    """Writes at these seconds: to which cgroup, its limit (None: none), and the swap in use."""
    return [Sample(at, path, "written", limit, used) for at, path, limit, used in events]


def test_a_repair_lasts_from_the_foreign_write_to_any_limit_and_counts_as_above_with_the_containers() -> None:
    """A draining pod's remaining limit is one, and still above 0."""
    samples = seen(
        (0, POD, 0, 0), (0, MAIN, None, 0), (1, POD, None, 0), (1.5, POD, 4096, 0), (2, POD, None, 0), (2.25, POD, 0, 0)
    )
    found = storm_report.exposures(samples, 9, DISABLED)
    assert (found.repairs, found.above, found.below) == ([0.5, 0.25], [1.25], [])


def test_a_pod_is_not_above_its_limit_while_its_containers_hold_it() -> None:
    samples = seen((0, POD, 0, 0), (0, MAIN, 0, 0), (0, SANDBOX, None, 0), (1, POD, None, 0), (3, SANDBOX, None, 4096))
    found = storm_report.exposures(samples, 9, DISABLED)
    assert (found.repairs, found.above, found.swapped, found.sandbox) == ([8], [], 0, 4096)


def test_a_pod_is_below_its_number_while_its_own_cgroup_is() -> None:
    samples = seen((0, POD, 8192, 0), (0, MAIN, 8192, 0), (1, POD, 0, 0), (2, POD, 8192, 0))
    found = storm_report.exposures(samples, 9, {"main.scope": 8192})
    assert (found.above, found.below) == ([], [1])


def test_swap_counts_beyond_earlier_use() -> None:
    samples = seen((0, POD, None, 0), (0, MAIN, None, 4096), (1, MAIN, None, 12288))
    assert storm_report.exposures(samples, 5, DISABLED).swapped == 8192


def test_all_pods_are_one_row() -> None:
    pods = [
        storm_report.Exposures([0.1] * 98 + [0.2], [0.1], [], 0, 0),
        storm_report.Exposures([3.0], [3.0], [], 4096, 8),
    ]
    limited = [storm_report.Exposures([], [0.5], [0.75], 0, 0)]
    row = storm_report.row("10m", pods, limited, SAID, SHARE)
    assert (row.swapped_pods, row.most_bytes, row.longest_seconds, row.repairs) == (1, 4096, 3.0, 100)
    assert (row.p50, row.p99, row.most, row.limited_off, row.sandbox_bytes) == (0.1, 0.2, 3.0, 0.75, 8)
    assert row.above_seconds == pytest.approx(3.1)
    assert math.isnan(storm_report.row("10m", [], [], SAID, SHARE).p99)
    assert "10m" in storm_report.table([row])
    assert storm_report.Share(3.0, 2.0).since(SHARE) == storm_report.Share(1.0, 1.5)


def test_a_variant_says_what_the_chart_is_given() -> None:
    assert storm.Variant.parse("10m").values["agent"]["resources"]["requests"]["cpu"] == "10m"
    assert storm.Variant.parse("10m,strict").values["agent"]["dropIns"] == {"mount": True}
    modes = [storm.Variant.parse(text).values["nri"]["mode"] for text in ("10m,nri", "10m")]
    assert modes == ["auto", "off"]


@pytest.mark.parametrize("text", ["", "fast", "10m,", "10m,besteffort"])
def test_a_text_that_is_no_variant_is_refused(text: str) -> None:
    with pytest.raises(storm.UsageError):
        storm.Variant.parse(text)
