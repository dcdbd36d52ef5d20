"""The recorder on plain folders, which report changes as cgroups do."""

import functools
import io
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.vm import nodevm, recorder
from testbed.vm.nodevm import Sample


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path / "kubepods.slice", "max")


def make(folder: Path, limit: str) -> Path:
    folder.mkdir()
    (folder / "memory.swap.current").write_text("0\n", encoding="ascii")
    (folder / "memory.swap.max").write_text(f"{limit}\n", encoding="ascii")
    return folder


class Watching:
    def __init__(self, root: Path) -> None:
        self._output = io.StringIO()
        self.recorder = recorder.Recorder(root, self._output)
        self.recorder.add(root, "found")

    def seen(self) -> list[tuple[str, str, int | None]]:
        for event in self.recorder.events():
            self.recorder.handle(*event)
        self.recorder.sample()
        samples = nodevm.parse_samples(self._output.getvalue())
        self._output.truncate(0)
        self._output.seek(0)
        return [(sample.path, sample.event, sample.max_bytes) for sample in samples]


def test_existing_cgroups_are_found_with_all_below(root: Path) -> None:
    make(root / "pod", "0")
    make(root / "pod/scope", "4096")
    assert Watching(root).seen() == [(".", "found", None), ("pod", "found", 0), ("pod/scope", "found", 4096)]


def test_a_new_cgroup_and_every_write_to_it_are_recorded_until_its_end(root: Path) -> None:
    watching = Watching(root)
    watching.seen()
    # Moved into place whole, as a cgroup appears with its files.
    pod = make(root.parent / "pod", "max").rename(root / "pod")
    watching.recorder.handle(next(iter(watching.recorder.folders)), recorder.IN_CREATE | recorder.IN_ISDIR, "pod")
    assert watching.seen() == [("pod", "created", None)]
    (pod / "memory.swap.max").write_text("0\n", encoding="ascii")
    assert ("pod", "written", 0) in watching.seen()
    (pod / "memory.swap.current").write_text("4096\n", encoding="ascii")
    assert watching.seen() == [("pod", "used", 0)]
    assert watching.seen() == []
    shutil.rmtree(pod)
    assert watching.seen()[-1] == ("pod", "gone", 0)
    assert len(watching.recorder.files) == 1


def test_lost_events_are_not_passed_over(root: Path) -> None:
    watching = Watching(root)
    with pytest.raises(OverflowError):
        watching.recorder.handle(-1, recorder.IN_Q_OVERFLOW, "")


def test_parse_samples() -> None:
    text = '{"at": 1.5, "path": "pod", "event": "written", "max": "max", "current": "8192"}\n'
    assert nodevm.parse_samples(text) == [
        Sample(at=1.5, path="pod", event="written", max_bytes=None, current_bytes=8192)
    ]


def test_after_moves_on_even_if_each_look_finds_something_new(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", functools.partial(next, itertools.count(1.0)))
    output = io.StringIO()
    recording = recorder.Recorder(root, output)
    recording.add(root, "found")
    seen = []
    for _ in range(3):
        (root / "memory.swap.max").write_text("0\n", encoding="ascii")
        assert recording.follow()
        seen.append(nodevm.parse_samples(output.getvalue())[-1])
    first, second, third = seen
    assert first.at < third.after < second.at


def test_after_stays_while_one_look_does_not_take_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_BUFFER", 300)
    recording = recorder.Recorder(root, io.StringIO())
    recording.add(root, "found")
    for number in range(20):
        make(root / f"pod{number}", "0")
    assert recording.follow()
    assert recording.after == 0.0
    while recording.follow():
        pass
    assert recording.after > 0.0


def test_after_is_a_time_until_which_nothing_else_had_happened(root: Path, tmp_path: Path) -> None:
    """A late read makes a time without a limit no longer."""
    output = tmp_path / "output"
    begun = time.time()
    running = subprocess.Popen(  # noqa: S603 our own program
        [sys.executable, str(Path(recorder.__file__)), str(root), str(output)], stdout=subprocess.PIPE
    )

    def lines() -> list[Sample]:
        return nodevm.parse_samples(output.read_text(encoding="utf-8")) if output.exists() else []

    def until(holds: Callable[[], object]) -> None:
        while not holds():
            assert running.poll() is None
            assert time.time() < begun + 60

    try:
        until(lambda: len(lines()) == 1)
        os.kill(running.pid, signal.SIGSTOP)
        (root / "memory.swap.max").write_text("0\n", encoding="ascii")
        wrote = time.time()
        until(lambda: time.time() > wrote + 0.3)
        os.kill(running.pid, signal.SIGCONT)
        until(lambda: lines()[-1].event == "written")
        written = lines()[-1]
        assert written.max_bytes == 0
        assert begun <= written.after <= wrote < wrote + 0.3 <= written.at
    finally:
        running.terminate()
        running.wait()
        assert running.stdout is not None
        running.stdout.close()
