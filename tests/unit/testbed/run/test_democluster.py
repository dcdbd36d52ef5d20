"""`make demo-down` ends no other process, and removes what a killed cluster left."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from testbed.base import process
from testbed.controlplane import netns, programs
from testbed.controlplane.servers import ControlPlane
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
    for name in ("kubectl", "helm", "swapwarden"):
        (folder / name).touch()
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


def test_its_helm_ignores_variables_that_name_another_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Here:
        kubeconfig = tmp_path / "admin.kubeconfig"

        def command(self, argv: Sequence[str]) -> list[str]:
            return list(argv)

    monkeypatch.setattr(programs, "helm", lambda: Path("/usr/bin/env"))
    script = democluster.script(cast("ControlPlane", Here()), "helm")
    variables = {"PATH": "/usr/bin:/bin", "HELM_KUBECONTEXT": "elsewhere", "HELM_CACHE_HOME": "/mine"}
    done = process.run(["/bin/sh", "-c", script], env=variables, timeout=60)
    printed = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert printed["KUBECONFIG"] == str(Here.kubeconfig)
    assert printed["HELM_CACHE_HOME"] == "/mine"
    assert "HELM_KUBECONTEXT" not in printed
