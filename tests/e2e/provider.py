"""Where the e2e suite runs: one interface, three kinds of cluster. testbed.run.e2e chooses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from deploy.build import image
from hack.docs import commands
from testbed.base import paths, process
from testbed.controlplane import assets, programs
from testbed.run import e2e
from testbed.vm.guestlink import Completed
from testbed.vm.nodevm import Sample


class ProviderError(Exception):
    """A cluster can't be had, or must not be touched: why, and what to do."""


class Recording(AbstractContextManager["Recording"], Protocol):
    """A recorder at work; leaving it ends it."""

    def samples(self, contains: str = "") -> list[Sample]:
        """Return the samples so far of the cgroups with CONTAINS in their path, in the order of their recording."""


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

    def reboot(self) -> None:
        """Reboot the node; its kubelet may not be up yet when this returns."""

    def record(self) -> Recording:
        """Record every memory.swap.max below `kubepods` from now on."""

    @property
    def kubepods(self) -> Path:
        """The cgroup of all pods, for `read` and `write`."""


class Provider(Protocol):
    """A cluster with a kubelet under LimitedSwap. Entering makes or finds it, leaving removes what entering made."""

    name: str
    node_name: str
    # The image to install; the node has it, or can pull it.
    image: str
    # An image with a shell and the usual tools; likewise.
    busybox: str
    # Whether the node's swap is the suite's own: it may be turned off.
    owns_swap: bool
    # Whether the cluster exists after the run: the suite must then remove its objects.
    outlives_run: bool

    @property
    def node(self) -> Node | None:
        """The node's own system, where the suite may do what it likes with it."""

    def kubectl(self, *args: str, text: str | None = None, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator; process.ProcessError with its stderr when it fails."""

    def helm(self, *args: str, timeout: float = 900.0) -> subprocess.CompletedProcess[str]:
        """Run helm as administrator; process.ProcessError with its stderr when it fails."""

    def swap(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run `kubectl swap` as administrator; process.ProcessError with its stderr when it fails."""

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a page's commands as administrator, in this repository; what a terminal shows of it is all in stdout."""

    def get(self, path: str) -> Any:
        """Return the API server's answer for PATH; ProviderError without an object or an answer."""

    def text(self, path: str) -> str:
        """The same, where it is no JSON."""

    def post(self, path: str, body: Any) -> None:
        """Send BODY to PATH; ProviderError with the API server's words when it is refused."""

    def load_image(self, archive: Path) -> None:
        """Have the images of an OCI archive on the node, under the names that it says."""

    def stop_apiserver(self) -> None:
        """End the API server as a crash would; its data stay."""

    def start_apiserver(self) -> None:
        """Bring it back and wait until it is ready."""

    def logs(self, lines: int = 20) -> str:
        """The end of what each part of the cluster wrote."""


PLUGIN_TIMEOUT = 120.0
SHELL_TIMEOUT = 900.0
PLUGIN = str(Path(sys.executable).with_name("kubectl-swap"))


class ByKubeconfig:
    """kubectl and helm with one context of one kubeconfig, and no other."""

    def __init__(self, context: str, kubeconfig: Path) -> None:
        self._context = context
        self._kubeconfig = kubeconfig

    def kubectl(self, *args: str, text: str | None = None, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        options = [f"--kubeconfig={self._kubeconfig}", f"--context={self._context}"]
        return process.run([str(assets.kubectl()), *options, *args], timeout=timeout, text=text)

    def helm(self, *args: str, timeout: float = 900.0) -> subprocess.CompletedProcess[str]:
        options = [f"--kubeconfig={self._kubeconfig}", f"--kube-context={self._context}"]
        argv = [str(programs.helm()), *options, *args]
        return process.run(argv, timeout=timeout, env=programs.helm_environment())

    def swap(self, *args: str) -> subprocess.CompletedProcess[str]:
        options = [f"--kubeconfig={self._kubeconfig}", f"--context={self._context}"]
        return process.run([PLUGIN, *args, *options], timeout=PLUGIN_TIMEOUT)

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as home:
            own = Path(home, "kubeconfig")
            own.write_text(self.kubectl("config", "view", "--minify", "--flatten", "--raw").stdout, encoding="utf-8")
            return shell([], own, script)

    def get(self, path: str) -> Any:
        try:
            return json.loads(self.kubectl("get", f"--raw={path}").stdout)
        except process.ProcessError as error:
            raise ProviderError(str(error)) from error

    def text(self, path: str) -> str:
        try:
            return self.kubectl("get", f"--raw={path}").stdout
        except process.ProcessError as error:
            raise ProviderError(str(error)) from error

    def post(self, path: str, body: Any) -> None:
        try:
            self.kubectl("create", f"--raw={path}", "-f", "-", text=json.dumps(body))
        except process.ProcessError as error:
            raise ProviderError(str(error)) from error


def shell(prefix: Sequence[str], kubeconfig: Path, script: str) -> subprocess.CompletedProcess[str]:
    """As Provider.shell says, for the cluster of KUBECONFIG; the command PREFIX runs others where they reach it."""
    argv = [*prefix, "sh", "-c", f"exec 2>&1\n{script}"]
    environment = commands.environment(kubeconfig, kubeconfig.parent)
    return process.run(argv, timeout=SHELL_TIMEOUT, check=False, cwd=paths.ROOT, env=environment)


def public_busybox() -> str:
    """Busybox for clusters that pull images: $E2E_BUSYBOX where the public one can't be had."""
    return os.environ.get("E2E_BUSYBOX") or "busybox:1.37"


def make() -> AbstractContextManager[Provider]:
    """The provider that the environment asks for; host.SetupError where it can't be had.

    Where the suite makes the cluster, the product's image is built, and on its node from the start.
    """
    name = e2e.choose(os.environ)
    if name == e2e.EXISTING:
        from tests.e2e.provider_existing import Existing

        return Existing(os.environ["E2E_CONTEXT"], os.environ["E2E_IMAGE"], os.environ.get("E2E_KUBECONFIG"))
    images = [image.ensure()]
    if name == e2e.KIND:
        from tests.e2e.provider_kind import Kind

        return Kind(images)
    from tests.e2e.provider_nodevm import NodeVMProvider

    return NodeVMProvider(images)
