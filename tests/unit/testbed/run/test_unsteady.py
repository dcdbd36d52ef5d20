from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import pytest

from testbed.run import tiers, unsteady
from testbed.run.unsteady import Unsteady

NAME = "tests.e2e.test_x::test_y"


@pytest.fixture(autouse=True)
def cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SWAPWARDEN_CACHE", str(folder))
    return folder


def report(path: Path, **cases: str) -> Path:
    """JUnit's XML: by test, the element that it has; a text without a tag is what it wrote."""
    lines = []
    for name, text in cases.items():
        tag, _, content = text.rpartition(":")
        tag = tag or "system-out"
        lines.append(
            f'<testcase classname="tests.e2e.test_x" name={quoteattr(name)} time="1.5">'
            f"<{tag}>{escape(content)}</{tag}></testcase>"
        )
    failed = sum(text.startswith(("failure:", "error:")) for text in cases.values())
    skipped = sum(text.startswith("skipped:") for text in cases.values())
    counts = f'tests="{len(cases)}" failures="{failed}" skipped="{skipped}"'
    path.write_text(f"<testsuites><testsuite {counts}>{''.join(lines)}</testsuite></testsuites>", encoding="utf-8")
    return path


def test_unsteady_is_what_failed_and_then_passed(tmp_path: Path) -> None:
    first = report(
        tmp_path / "first.xml", a="failure:late & wrong", b="failure:no", c="error:torn", d="fine", e="failure:x"
    )
    again = report(tmp_path / "again.xml", a="in time", b="failure:no", c="fine", e="skipped:later")
    found = unsteady.between(first, again)
    assert [each.name for each in found] == ["tests.e2e.test_x::a", "tests.e2e.test_x::c"]
    assert "late & wrong" in found[0].first
    assert "in time" in found[0].again
    assert unsteady.between(first, tmp_path / "none.xml") == []


def noted(tmp_path: Path, *names: str, tier: str = "e2e") -> list[str]:
    return unsteady.note(tier, [Unsteady(name, "it was late", "it was in time") for name in names], tmp_path / "told")


def test_an_unsteady_test_is_kept_with_both_outputs_date_and_commit(tmp_path: Path, cache_folder: Path) -> None:
    assert noted(tmp_path, NAME) == []
    (line,) = (cache_folder / "unsteady.jsonl").read_text(encoding="utf-8").splitlines()
    kept = json.loads(line)
    assert kept["tests"] == [{"name": NAME, "first": "it was late", "again": "it was in time"}]
    assert kept["tier"] == "e2e"
    assert kept["date"].startswith("20")
    assert kept["commit"]
    told = (tmp_path / "told").read_text(encoding="utf-8")
    for text in (NAME, "it was late", "it was in time", kept["date"], kept["commit"]):
        assert text in told


def test_the_second_time_within_the_last_runs_is_reported(tmp_path: Path) -> None:
    assert noted(tmp_path, NAME) == []
    for _ in range(unsteady.RUNS - 2):
        assert noted(tmp_path) == []
    assert noted(tmp_path, NAME, "other") == [NAME]
    assert (tmp_path / "told").read_text(encoding="utf-8").count(f"{NAME} (e2e) failed") == 2


def test_the_file_for_people_stays_after_steady_runs(tmp_path: Path) -> None:
    noted(tmp_path, NAME)
    before = (tmp_path / "told").read_text(encoding="utf-8")
    for _ in range(unsteady.RUNS + 1):
        noted(tmp_path)
    assert (tmp_path / "told").read_text(encoding="utf-8") == before


def test_the_file_for_people_has_earlier_runs_after_the_newest(tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        noted(tmp_path, name)
    told = (tmp_path / "told").read_text(encoding="utf-8")
    assert told.index("third (") < told.index("second (") < told.index("first (")


def test_earlier_runs_do_not_count(tmp_path: Path) -> None:
    assert noted(tmp_path, NAME) == []
    for _ in range(unsteady.RUNS - 1):
        assert noted(tmp_path) == []
    assert noted(tmp_path, NAME) == []


def test_tiers_are_counted_each_for_itself(tmp_path: Path) -> None:
    noted(tmp_path, NAME)
    assert noted(tmp_path, NAME, tier="kernel") == []
    for _ in range(unsteady.RUNS):
        noted(tmp_path, tier="kernel")
    assert noted(tmp_path, NAME) == [NAME]


def test_history_stays_small_and_survives_invalid_lines(tmp_path: Path, cache_folder: Path) -> None:
    noted(tmp_path, NAME)
    path = cache_folder / "unsteady.jsonl"
    path.write_text(
        '\n{}\n[1]\nnull\n{"tests": 5}\n\x00\n' + path.read_text(encoding="utf-8") + '{"tier": "e2', encoding="utf-8"
    )
    assert noted(tmp_path, NAME) == [NAME]
    for _ in range(300):
        noted(tmp_path)
    assert len(path.read_text(encoding="utf-8").splitlines()) < 200


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[int, dict[str, str]]]:
    """Exit status and tests of each later run of pytest."""
    planned: list[tuple[int, dict[str, str]]] = []

    def run(argv: Sequence[str], _: Mapping[str, str]) -> int:
        (path,) = [Path(each.partition("=")[2]) for each in argv if each.startswith("--junitxml=")]
        status, cases = planned.pop(0)
        if cases:
            report(path, **cases)
        return status

    monkeypatch.setattr(tiers, "REPORTS", tmp_path)
    monkeypatch.setattr(tiers, "_call", run)
    return planned


UNSTEADY = [(1, {"test_y": "failure:it was late", "test_z": "fine"}), (0, {"test_y": "it was in time"})]


def test_a_tier_fails_where_a_test_is_unsteady_again(
    runs: list[tuple[int, dict[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    runs.extend(2 * UNSTEADY)
    first, second = tiers.run_tier("kernel"), tiers.run_tier("kernel")
    assert (first.is_good, first.unsteady, first.again) == (True, 1, ())
    assert (second.is_good, second.unsteady, second.again) == (False, 1, (NAME,))
    assert "FAILED" in tiers.table([second])[1]
    told = capsys.readouterr().err
    assert NAME in told
    assert "it was late" in told
    assert "it was in time" in told


@pytest.mark.parametrize(
    "without_tests",
    [
        [(2, {"test_y": "error:it cannot be imported"})],
        [(3, {})],
        [(-9, {})],
        [(5, {})],
        [(0, {"test_y": "skipped:no machine", "test_z": "skipped:no machine"})],
        [(1, dict.fromkeys(("test_x", "test_y", "test_z"), "error:no machine"))],
        [(1, {"test_y": "error:no machine"}), (1, {"test_y": "error:no machine"})],
        [(1, {"test_y": "failure:it was late", "test_z": "fine"}), (2, {})],
    ],
)
def test_runs_that_show_no_unsteady_test_push_none_out_of_the_history(
    runs: list[tuple[int, dict[str, str]]], without_tests: list[tuple[int, dict[str, str]]]
) -> None:
    runs.extend(UNSTEADY)
    tiers.run_tier("kernel")
    for _ in range(unsteady.RUNS):
        runs.extend(without_tests)
        assert not tiers.run_tier("kernel").is_good
    runs.extend(UNSTEADY)
    assert tiers.run_tier("kernel").again == (NAME,)
    assert not runs


@pytest.mark.parametrize(
    "whole",
    [
        [(0, {"test_y": "fine", "test_z": "skipped:not here"})],
        [(1, {"test_y": "fine", "test_z": "failure:no"}), (1, {"test_z": "failure:no"})],
    ],
)
def test_runs_that_could_have_shown_an_unsteady_test_count(
    runs: list[tuple[int, dict[str, str]]], whole: list[tuple[int, dict[str, str]]]
) -> None:
    runs.extend(UNSTEADY)
    tiers.run_tier("kernel")
    for _ in range(unsteady.RUNS):
        runs.extend(whole)
        tiers.run_tier("kernel")
    runs.extend(UNSTEADY)
    assert tiers.run_tier("kernel").again == ()
