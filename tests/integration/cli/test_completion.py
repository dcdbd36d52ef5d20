"""kubectl's own completion, with the plugin on its PATH, against a real API server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.controlplane import assets
from tests.integration.cli.conftest import Cluster, Plugin


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with the two programs that an installation makes."""
    for program, function in (("kubectl-swap", "main"), ("kubectl_complete-swap", "complete")):
        file = tmp_path / program
        code = f"from swapwarden.cli.kubectl import __main__; raise SystemExit(__main__.{function}())"
        file.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
        file.chmod(0o700)
    return f"{tmp_path}:{os.environ['PATH']}"


def kubectl(plugin: Plugin, path: str, *arguments: str) -> list[str]:
    done = subprocess.run(  # noqa: S603 our own words
        [str(assets.ensure().kubectl), *arguments],
        env=os.environ | {"PATH": path, "KUBECONFIG": str(plugin.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


def test_kubectl_completes_commands_and_names(cluster: Cluster, path: str) -> None:
    cluster.node("one")
    cluster.pod("web-1", "one")
    admin = cluster.admin
    assert kubectl(admin, path, "__complete", "swap", "no")[0].startswith("nodes\tShow each node's swap")
    assert kubectl(admin, path, "__complete", "swap", "nodes", cluster.name("one")[:-1]) == [cluster.name("one"), ":4"]
    words = ("__complete", "swap", "top", "pods", "-n", cluster.namespace, "w")
    assert kubectl(admin, path, *words) == ["web-1", ":4"]


def test_kubectl_runs_it(cluster: Cluster, path: str) -> None:
    cluster.node("one")
    assert kubectl(cluster.admin, path, "swap", "nodes", cluster.name("one"), "-o", "name") == [
        f"node/{cluster.name('one')}"
    ]
