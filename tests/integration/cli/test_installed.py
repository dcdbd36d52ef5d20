"""`pip install 'swapwarden[kubectl]'` in a virtual environment: its dependencies, and that they are enough."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from swapwarden.cli.kubectl import main

from testbed.base import host, process
from testbed.controlplane import assets
from tests.integration.cli.conftest import Cluster

ROOT = Path(__file__).parents[3]
OF_THE_OPERATOR = {"cryptography", "kopf", "prometheus-client", "uvloop"}
"""aiohttp is not among them: the official client of newer versions brings it along."""
BUILD_SECONDS, INSTALL_SECONDS, RUN_SECONDS = 120.0, 300.0, 60.0

METADATA = """
import importlib.metadata, json, swapwarden
print(json.dumps({
    "file": swapwarden.__file__,
    "installed": {each.name: each.requires or [] for each in importlib.metadata.distributions()},
}))
"""


@dataclasses.dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    def __call__(
        self, program: str, *arguments: str, status: int = 0, kubeconfig: str = "/nonexistent"
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of it, as somebody who has nothing else of Python."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        done = process.run(
            [program if program.startswith("/") else str(self.folder / "bin" / program), *arguments],
            timeout=RUN_SECONDS,
            check=False,
            cwd=self.folder,
            env={**own, "PATH": path, "KUBECONFIG": kubeconfig},
        )
        assert done.returncode == status, done.stderr
        return done


def uv(*arguments: str, timeout: float) -> None:
    """Run uv, without the network where its cache has all that it needs."""
    program = host.uv()
    assert program is not None, "there is no uv: make venv brings one"
    command = [str(program), *arguments, "-q"]
    environment = os.environ | {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    if process.run([*command, "--offline"], timeout=timeout, check=False, env=environment).returncode:
        process.run(command, timeout=timeout, env=environment)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """One with the package and its extra `kubectl`, in the versions that are locked."""
    folder = tmp_path_factory.mktemp("alone")
    python = ("--python", sys.executable)
    constraints = ("--build-constraints", str(ROOT / "deploy/image/build-system.txt"))
    uv("build", "--wheel", "--out-dir", str(folder), *constraints, *python, str(ROOT), timeout=BUILD_SECONDS)
    (wheel,) = folder.glob("*.whl")
    made = Environment(folder / "venv")
    uv("venv", *python, str(made.folder), timeout=BUILD_SECONDS)
    into = ("--python", str(made.folder / "bin/python"), "-c", str(ROOT / "locks/dev.txt"))
    uv("pip", "install", *into, f"swapwarden[kubectl] @ {wheel.as_uri()}", timeout=INSTALL_SECONDS)
    return made


def test_installed_dependencies(alone: Environment) -> None:
    told = json.loads(alone("python", "-c", METADATA).stdout)
    assert Path(told["file"]).is_relative_to(alone.folder)
    requirements = {_normal(name): requires for name, requires in told["installed"].items()}
    assert {"swapwarden", "click", "kubernetes"} <= requirements.keys()
    assert not OF_THE_OPERATOR & requirements.keys()
    wanting = [
        name
        for name, requires in requirements.items()
        for one in requires
        if re.match(r"aiohttp\b(?!-)", one) and "extra ==" not in one
    ]
    assert set(wanting) <= {"kubernetes", "aiohttp-retry"}


def test_it_knows_the_kinds_of_its_version(alone: Environment) -> None:
    found = "from swapwarden.cli.kubectl.check import installation as found"
    code = f"{found}; print(*(o['metadata']['name'] for o in found.own_definitions()))"
    assert alone("python", "-c", code).stdout.split() == sorted(path.stem for path in (ROOT / "crds").iterdir())


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_it_says_what_it_can_do(alone: Environment) -> None:
    told = alone("kubectl-swap", "--help").stdout
    assert all(re.search(rf"^  {name} ", told, re.MULTILINE) for name in main.COMMANDS)
    for name in main.COMMANDS:
        assert alone("kubectl-swap", name, "--help").stdout.startswith(f"Usage: kubectl swap {name} ")


def test_manifests_without_a_cluster(alone: Environment) -> None:
    done = alone("kubectl-swap", "check", "-f", str(ROOT / "docs/examples/mistakes"), "--offline", status=1)
    assert done.stdout.startswith("1 error, 1 warning.\n")
    assert 'did you mean "Disabled"?' in done.stdout
    assert done.stderr == ""


def test_a_cluster(cluster: Cluster, alone: Environment) -> None:
    cluster.node("one", swap=1 << 30)
    cluster.pod("web", "one")
    name, kubectl = cluster.name("one"), str(assets.ensure().kubectl)
    known = str(cluster.admin.kubeconfig)
    assert alone(kubectl, "swap", "nodes", name, "-o", "name", kubeconfig=known).stdout == f"node/{name}\n"
    completed = alone(kubectl, "__complete", "swap", "nodes", name[:-1], kubeconfig=known).stdout
    assert completed.splitlines()[0] == name
    explained = json.loads(
        alone("kubectl-swap", "explain", "web", "-n", cluster.namespace, "-o", "json", kubeconfig=known).stdout
    )
    assert (explained["name"], explained["profile"]["name"]) == ("web", "(built-in)")
    profile = str(ROOT / "docs/examples/profile.yaml")
    simulated = json.loads(
        alone("kubectl-swap", "simulate", "-f", profile, "--all", "-o", "json", kubeconfig=known).stdout
    )
    assert "web" in [each["name"] for each in simulated["pods"] if each["namespace"] == cluster.namespace]
