"""`make demo-down` ends no other process, and removes what a killed cluster left."""

from __future__ import annotations

import fcntl
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


def test_a_process_with_its_number_that_does_not_hold_its_lock_is_not_the_cluster(folder: Path) -> None:
    assert democluster.holder() is None
    (folder / "pid").write_text(str(os.getpid()), encoding="ascii")
    with (folder / "pid").open(encoding="ascii") as file:
        assert democluster.holder() is None
        fcntl.flock(file, fcntl.LOCK_EX)
        assert democluster.holder() == os.getpid()
    assert democluster.holder() is None
