"""What `make demo-cluster` and `make demo-down` make of a cluster that is coming up, is up, or was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.base import process
from testbed.controlplane import netns
from testbed.run import democluster
from testbed.vm import cluster


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(democluster, "FOLDER", tmp_path)
    monkeypatch.setattr(democluster, "_POLL", 0.0)
    return tmp_path


def play(monkeypatch: pytest.MonkeyPatch, steps: Iterator[int | None]) -> None:
    """Have each question for the cluster's process answered by the next of STEPS."""
    monkeypatch.setattr(democluster, "_holder", lambda: next(steps))


def test_one_that_comes_up_is_followed_until_it_is_ready(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "log").write_text("booting\n", encoding="utf-8")

    def steps() -> Iterator[int]:
        yield 1
        yield 1
        (folder / "log").write_text(f"booting\ntestbed: {democluster._READY}\n", encoding="utf-8")
        yield 1

    play(monkeypatch, steps())
    democluster.up()
    said = capsys.readouterr().err
    places = [said.index(text) for text in ("coming up already", "booting", democluster._READY, "is up, and stays")]
    assert places == sorted(places)


def test_one_that_ends_before_it_is_ready_is_not_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "log").write_text("booting\n", encoding="utf-8")
    play(monkeypatch, iter([1, 1, None]))
    with pytest.raises(process.ProcessError, match="did not come up"):
        democluster.up()


def test_one_that_is_up_is_said_to_be_so_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "log").write_text(f"booting\ntestbed: {democluster._READY}\n", encoding="utf-8")
    play(monkeypatch, iter([1]))
    democluster.up()
    said = capsys.readouterr().err
    assert "is up, and stays" in said
    assert "booting" not in said


def test_what_a_killed_one_left_is_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed = []
    monkeypatch.setattr(netns, "remove_leftovers", lambda: removed.append("networks"))
    monkeypatch.setattr(cluster, "remove_leftovers", lambda: removed.append("folders"))
    (folder / "kubectl").touch()
    (folder / "pid").write_text(str(1 << 30), encoding="ascii")
    democluster.down()
    assert removed == ["networks", "folders"]
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("folder")
def test_process_is_known_from_the_moment_it_is_started() -> None:
    """On a busy machine its command line is empty for a while, and it must not be taken for dead then."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        for _ in range(60):
            with subprocess.Popen(
                [sys.executable, "-S", "-c", "input()", "testbed", "hold"], stdin=subprocess.PIPE
            ) as held:
                democluster._remember(held.pid)
                known = democluster._holder()
                held.kill()
                held.wait()
            assert known == held.pid
            assert democluster._holder() is None
    finally:
        for each in busy:
            each.kill()
            each.wait()


@pytest.mark.usefixtures("folder")
def test_process_that_has_ended_is_not_up_before_it_is_reaped() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as held:
        democluster._remember(held.pid)
        os.waitid(os.P_PID, held.pid, os.WEXITED | os.WNOWAIT)
        assert democluster._holder() is None


def test_another_process_with_its_number_is_not_the_cluster(folder: Path) -> None:
    democluster._remember(os.getpid())
    pid, started = (folder / "pid").read_text(encoding="ascii").split()
    assert democluster._holder() == os.getpid()
    (folder / "pid").write_text(f"{pid} {int(started) + 1}", encoding="ascii")
    assert democluster._holder() is None
    (folder / "pid").write_text("", encoding="ascii")
    assert democluster._holder() is None
