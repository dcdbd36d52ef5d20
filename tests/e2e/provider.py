"""Where the e2e suite runs: one interface, three kinds of cluster.

$E2E_PROVIDER chooses: `kind`, `node-vm`, or `existing` with $E2E_CONTEXT. Unset, it is kind where docker works, and the
node VM elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from testbed import assets, process, programs
from testbed.guestlink import Completed
from testbed.nodevm import Sample

PROVIDERS = ("kind", "node-vm", "existing")
_DOCKER_TIMEOUT = 20.0


class ProviderError(Exception):
    """A cluster can't be had, or must not be touched: why, and what to do."""


class Recording(AbstractContextManager["Recording"], Protocol):
    """A recorder at work; leaving it ends it."""

    def samples(self, contains: str = "") -> list[Sample]:
        """What was seen so far of the cgroups whose path has CONTAINS in it, in the order in which it was seen."""


class Node(Protocol):
    """A node that the suite can do anything to."""

    def run(self, argv: Sequence[str], *, timeout: float, check: bool = True) -> Completed:
        """Run a program on the node to its end."""

    def read(self, path: str | Path) -> str:
        """The content of a file of the node; FileNotFoundError."""

    def write(self, path: str | Path, text: str) -> None:
        """Write a file of the node in one write call."""

    def restart(self, unit: str) -> None:
        """Restart `kubelet` or `containerd`."""

    def daemon_reload(self) -> None:
        """Have systemd read its units again."""

    def record(self) -> Recording:
        """Record every memory.swap.max below `kubepods` from now on."""

    @property
    def kubepods(self) -> Path:
        """The cgroup of all pods, for `read` and `write`."""


class Provider(Protocol):
    """A cluster with a kubelet under LimitedSwap. Entering makes or finds it, leaving removes what entering made."""

    name: str
    node_name: str
    # An image with a shell and the usual tools, which is on the node already.
    busybox: str

    @property
    def node(self) -> Node | None:
        """The node's own system, where the suite may do what it likes with it."""

    def kubectl(self, *args: str, text: str | None = None, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator; process.ProcessError with its stderr when it fails."""

    def helm(self, *args: str, timeout: float = 900.0) -> subprocess.CompletedProcess[str]:
        """Run helm as administrator; process.ProcessError with its stderr when it fails."""

    def get(self, path: str) -> Any:
        """What the API server has at PATH; ProviderError when there is nothing, or no answer."""

    def load_image(self, archive: Path) -> None:
        """Have the images of an OCI archive on the node, under the names that it says."""

    def stop_apiserver(self) -> None:
        """End the API server as a crash would; its data stay."""

    def start_apiserver(self) -> None:
        """Bring it back and wait until it is ready."""

    def logs(self, lines: int = 20) -> str:
        """The end of what each part of the cluster wrote."""


class ByKubeconfig:
    """kubectl and helm with one context of one kubeconfig, and no other."""

    def __init__(self, context: str, kubeconfig: Path) -> None:
        self._context = context
        self._kubeconfig = kubeconfig

    def kubectl(self, *args: str, text: str | None = None, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        options = [f"--kubeconfig={self._kubeconfig}", f"--context={self._context}"]
        return process.run([str(assets.ensure().kubectl), *options, *args], timeout=timeout, text=text)

    def helm(self, *args: str, timeout: float = 900.0) -> subprocess.CompletedProcess[str]:
        options = [f"--kubeconfig={self._kubeconfig}", f"--kube-context={self._context}"]
        return process.run([str(programs.helm()), *options, *args], timeout=timeout)

    def get(self, path: str) -> Any:
        try:
            return json.loads(self.kubectl("get", f"--raw={path}").stdout)
        except process.ProcessError as error:
            raise ProviderError(str(error)) from error


def docker_works() -> bool:
    """Whether there is a docker daemon, and not only its client."""
    try:
        return process.run(["docker", "info"], timeout=_DOCKER_TIMEOUT, check=False).returncode == 0
    except process.ProcessError:
        return False


def choose(environment: dict[str, str], has_docker: Callable[[], bool] = docker_works) -> str:
    """The provider's name; ProviderError for one that there is not, or that lacks what it needs."""
    name = environment.get("E2E_PROVIDER", "")
    if not name:
        return "kind" if has_docker() else "node-vm"
    if name not in PROVIDERS:
        raise ProviderError(f"E2E_PROVIDER={name}: there is no such provider; use one of {', '.join(PROVIDERS)}")
    if name == "existing" and not environment.get("E2E_CONTEXT"):
        raise ProviderError("E2E_PROVIDER=existing: say with E2E_CONTEXT which context of the kubeconfig to use")
    return name


def make(images: Sequence[Path] = ()) -> AbstractContextManager[Provider]:
    """The provider that the environment asks for; the images of the archives IMAGES are on its node from the start.

    A cluster that is there already gets none: its nodes have to find them in a registry.
    """
    environment = dict(os.environ)
    name = choose(environment)
    if name == "existing":
        from tests.e2e.provider_existing import Existing

        return Existing(environment["E2E_CONTEXT"], environment.get("E2E_KUBECONFIG"))
    if name == "kind":
        from tests.e2e.provider_kind import Kind

        return Kind(images)
    from tests.e2e.provider_nodevm import NodeVMProvider

    return NodeVMProvider(images)
