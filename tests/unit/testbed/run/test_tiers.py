from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from testbed import __main__ as command
from testbed.run import tiers
from testbed.run.tiers import Share


def test_counts_what_pytest_reported(tmp_path: Path) -> None:
    report = tmp_path / "unit.xml"
    report.write_text('<testsuites><testsuite tests="10" errors="1" failures="2" skipped="3"/></testsuites>')
    assert tiers.counts(report) == (4, 3, 3)
    assert tiers.counts(tmp_path / "none.xml") == (0, 0, 0)


@pytest.mark.parametrize(
    ("share", "good"),
    [
        (Share("set-up", 1.0), True),
        (Share("set-up", 1.0, status=1), False),
        (Share("unit", 1.0, passed=5), True),
        (Share("unit", 1.0, passed=5, failed=1, status=1), False),
        (Share("e2e", 1.0, skipped=9), False),
    ],
)
def test_a_tier_is_good_when_some_of_it_passed_and_nothing_failed(share: Share, good: bool) -> None:
    assert share.is_good is good


def test_says_what_each_took() -> None:
    shares = [Share("set-up", 60.0), Share("unit", 90.0, 5), Share("e2e", 150.0, 2, 1, 1, status=1)]
    assert [line.split() for line in tiers.table(shares)] == [
        ["minutes", "share", "passed", "failed", "skipped"],
        ["set-up", "1.0", "20%"],
        ["unit", "1.5", "30%", "5", "0", "0"],
        ["e2e", "2.5", "50%", "2", "1", "1", "FAILED,", "exit", "status", "1"],
        ["total", "5.0"],
    ]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[int, int, int]]:
    """Exit status, tests and failures of each later run of pytest."""
    planned: list[tuple[int, int, int]] = []
    with tiers.files_in_memory() as found:
        in_memory = bool(found)

    def run(argv: Sequence[str], environment: Mapping[str, str]) -> int:
        assert ("TMPDIR" in environment) is (any(each.endswith("/unit") for each in argv) and in_memory)
        status, tests, failures = planned.pop(0)
        (report,) = [each.partition("=")[2] for each in argv if each.startswith("--junitxml=")]
        Path(report).write_text(f'<testsuites><testsuite tests="{tests}" failures="{failures}"/></testsuites>')
        assert ("--last-failed" in argv) is report.endswith("-again.xml")
        return status

    monkeypatch.setattr(tiers, "REPORTS", tmp_path)
    monkeypatch.setattr(tiers, "_call", run)
    monkeypatch.setenv("SWAPWARDEN_CACHE", str(tmp_path / "cache"))
    return planned


@pytest.mark.parametrize(
    ("tier", "planned", "passed", "failed", "unsteady", "good"),
    [
        ("e2e", [(0, 9, 0)], 9, 0, 0, True),
        ("e2e", [(1, 9, 2), (0, 2, 0)], 9, 0, 2, True),
        ("e2e", [(1, 9, 2), (1, 2, 1)], 8, 1, 1, False),
        ("e2e", [(1, 9, 2), (2, 0, 0)], 7, 2, 0, False),
        ("e2e", [(1, 9, 2), (0, 1, 0)], 8, 1, 1, False),
        ("e2e", [(1, 9, 3)], 6, 3, 0, False),
        ("e2e", [(2, 9, 1)], 8, 1, 0, False),
        ("unit", [(1, 9, 1)], 8, 1, 0, False),
    ],
)
def test_few_failures_are_run_again_where_the_machine_may_be_why(
    runs: list[tuple[int, int, int]],
    tier: str,
    planned: list[tuple[int, int, int]],
    passed: int,
    failed: int,
    unsteady: int,
    good: bool,
) -> None:
    runs.extend(planned)
    share = tiers.run_tier(tier)
    assert (share.passed, share.failed, share.unsteady, share.is_good) == (passed, failed, unsteady, good)
    assert not runs


def test_files_are_in_memory_where_it_has_room_and_are_gone_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tiers, "MEMORY_BYTES", 1)
    with tiers.files_in_memory(tmp_path) as environment:
        folder = Path(environment["TMPDIR"])
        assert folder.parent == tmp_path
        (folder / "file").touch()
    assert not folder.exists()
    with tiers.files_in_memory(tmp_path / "none") as environment:
        assert environment == {}
    monkeypatch.setattr(tiers, "MEMORY_BYTES", 2**62)
    with tiers.files_in_memory(tmp_path) as environment:
        assert environment == {}


def test_what_held_only_at_the_second_attempt_is_shown() -> None:
    assert tiers.table([Share("e2e", 1.0, 9, unsteady=2)])[1].split()[-2:] == ["UNSTEADY:", "2"]


def test_nothing_took_nothing() -> None:
    assert tiers.table([Share("set-up", 0.0)])[-1].split() == ["total", "0.0"]


def test_every_part_of_a_tier_exists() -> None:
    assert {part for tier in tiers.TIERS.values() for part in tier.parts} <= {*command.PARTS, "e2e"}


def test_a_kill_takes_what_runs_along() -> None:
    code = "from testbed.run import tiers; tiers._call(['sh', '-c', 'echo up; exec sleep 60'])"
    read, write = os.pipe()
    try:
        with subprocess.Popen([sys.executable, "-c", code], stdout=write) as caller:  # noqa: S603 this Python
            os.close(write)
            assert select.select([read], [], [], 30)[0]
            assert os.read(read, 100) == b"up\n"
            caller.kill()
        # Its end of the pipe is closed.
        assert select.select([read], [], [], 30)[0]
        assert os.read(read, 100) == b""
    finally:
        os.close(read)
