"""Made files are replaced at once, and only where they differ."""

import multiprocessing
import os
from pathlib import Path

import pytest

from hack.generate import files
from testbed.base import paths


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    (folder := tmp_path / "made").mkdir()
    return folder


def test_what_differs_is_written_and_the_rest_is_left_alone(folder: Path) -> None:
    old, same, new = folder / "old", folder / "same", folder / "below" / "new"
    old.write_text("a")
    same.write_text("b")
    os.utime(same, (1, 1))
    made = {old: "A", same: "b", new: "c"}
    assert files.outdated(made) == sorted([old, new])
    files.write(made)
    assert files.outdated(made) == []
    assert same.stat().st_mtime == 1
    assert [path.read_text() for path in (old, same, new)] == ["A", "b", "c"]


def test_others_in_a_folder_are_removed(folder: Path) -> None:
    for path in (kept := folder / "kept", other := folder / "below" / "other"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    made = files.alone(folder, {kept: "x"})
    assert files.outdated(made) == [other]
    files.write(made)
    assert [path for path in folder.rglob("*") if path.is_file()] == [kept]
    files.write(made)


def test_readers_see_a_whole_file_and_nothing_else(folder: Path) -> None:
    path = folder / "file"
    texts = ["a" * 1_000_000, "b" * 1_000_000]
    files.write({path: texts[0]})
    writers = [multiprocessing.get_context("fork").Process(target=rewrite, args=(path, texts)) for _ in range(2)]
    for each in writers:
        each.start()
    while any(each.is_alive() for each in writers):
        assert path.read_text() in texts
        assert list(folder.iterdir()) == [path]
    assert [each.exitcode for each in writers] == [0, 0]
    assert list(paths.BUILD.iterdir()) == []


def rewrite(path: Path, texts: list[str]) -> None:
    for number in range(100):
        files.write({path: texts[number % 2]})
