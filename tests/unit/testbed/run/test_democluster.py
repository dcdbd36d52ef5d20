"""`make demo-down` ends no other process, and removes what a killed cluster left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.controlplane import netns
from testbed.run import democluster
from testbed.vm import cluster


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(democluster, "FOLDER", tmp_path)
    return tmp_path


def test_what_a_killed_one_left_is_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed = []
    monkeypatch.setattr(netns, "remove_leftovers", lambda: removed.append("networks"))
    monkeypatch.setattr(cluster, "remove_leftovers", lambda: removed.append("folders"))
    (folder / "kubectl").touch()
    (folder / "pid").write_text(str(1 << 30), encoding="ascii")
    democluster.down()
    assert removed == ["networks", "folders"]
    assert list(folder.iterdir()) == []


def test_another_process_with_its_number_is_not_the_cluster(folder: Path) -> None:
    democluster.remember(os.getpid())
    pid, started = (folder / "pid").read_text(encoding="ascii").split()
    assert democluster.holder() == os.getpid()
    (folder / "pid").write_text(f"{pid} {int(started) + 1}", encoding="ascii")
    assert democluster.holder() is None
    (folder / "pid").write_text("", encoding="ascii")
    assert democluster.holder() is None
