"""The e2e suite on kind, where docker works. Not run by the authors so far: their machines have no docker daemon.

The node shares the kernel and the swap of this machine; testbed.run.e2e.obstacle() says what that asks for.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from deploy.build.image import REFERENCE
from testbed.base import process
from testbed.controlplane import programs
from testbed.run import e2e
from testbed.vm import cluster, nodevm, recorder
from testbed.vm.guestlink import Completed
from testbed.vm.nodevm import Sample
from tests.e2e import provider
from tests.e2e.provider import ProviderError

_CONFIG = """\
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
  - role: control-plane
kubeadmConfigPatches:
  - |
    kind: KubeletConfiguration
    failSwapOn: false
    memorySwap:
      swapBehavior: LimitedSwap
"""
_CREATE_TIMEOUT = 900.0
_COMMAND_TIMEOUT = 300.0
_POLL = 0.5
_MANIFEST = "/etc/kubernetes/manifests/kube-apiserver.yaml"
_PARKED = "/etc/kubernetes/kube-apiserver.yaml"
_LOGS = """
    for unit in kubelet containerd; do
        echo "--- $unit"
        journalctl --no-pager --lines="$0" --unit="$unit"
    done
    for file in /var/log/pods/kube-system_*/*/*.log; do
        echo "--- $file"
        tail -n "$0" "$file"
    done"""


def leftovers(clusters: Iterable[str]) -> list[str]:
    """Those of CLUSTERS that this module made in a process that is gone."""
    made = [(name, re.fullmatch(r"swapwarden-(\d+)", name)) for name in clusters]
    return [name for name, found in made if found and not Path("/proc", found[1]).exists()]


class Kind(provider.ByKubeconfig):
    """A kind cluster of this process's own."""

    name = "kind"
    image = REFERENCE
    owns_swap = False
    outlives_run = False

    def __init__(self, images: Sequence[Path]) -> None:
        self._images = images
        self.busybox = provider.public_busybox()
        self._cluster = f"swapwarden-{os.getpid()}"
        self.node_name = f"{self._cluster}-control-plane"
        self._stack = contextlib.ExitStack()
        folder = tempfile.TemporaryDirectory(prefix=f"swapwarden-kind-{os.getpid()}-")
        self._folder = Path(self._stack.enter_context(folder))
        super().__init__(f"kind-{self._cluster}", self._folder / "kubeconfig")
        self.node = KindNode(self.node_name, self._folder)

    def __enter__(self) -> Self:
        cluster.remove_leftovers()
        config = self._folder / "kind.yaml"
        config.write_text(_CONFIG, encoding="ascii")
        try:
            for name in leftovers(self._kind("get", "clusters").split()):
                self._delete(name)
            self._stack.callback(self._delete, self._cluster)
            self._kind(
                "create",
                "cluster",
                f"--name={self._cluster}",
                f"--image={e2e.kind_image(os.environ)}",
                f"--config={config}",
                f"--kubeconfig={self._kubeconfig}",
                "--wait=5m",
            )
            for archive in self._images:
                self.load_image(archive)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _kind(self, *arguments: str) -> str:
        environment = os.environ | {"KIND_EXPERIMENTAL_PROVIDER": "docker"}
        return process.run([str(programs.kind()), *arguments], timeout=_CREATE_TIMEOUT, env=environment).stdout

    def _delete(self, name: str) -> None:
        self._kind("delete", "cluster", f"--name={name}", f"--kubeconfig={self._kubeconfig}")

    def load_image(self, archive: Path) -> None:
        self._kind("load", "image-archive", str(archive), f"--name={self._cluster}")

    def stop_apiserver(self) -> None:
        # Without its manifest first: the kubelet would start it again.
        crash = f"mv {_MANIFEST} {_PARKED} && pkill -KILL -x kube-apiserver"
        self.node.run(["sh", "-c", crash], timeout=_COMMAND_TIMEOUT)
        self._wait(up=False)

    def start_apiserver(self) -> None:
        self.node.run(["mv", _PARKED, _MANIFEST], timeout=_COMMAND_TIMEOUT)
        self._wait(up=True)

    def _wait(self, *, up: bool) -> None:
        deadline = time.monotonic() + _COMMAND_TIMEOUT
        while self._answers() != up:
            if time.monotonic() > deadline:
                raise ProviderError(
                    f"the API server is {'not up' if up else 'still up'} after {_COMMAND_TIMEOUT:.0f} s"
                )
            time.sleep(_POLL)

    def _answers(self) -> bool:
        try:
            self.kubectl("get", "--raw=/readyz", timeout=15.0)
        except process.ProcessError:
            return False
        return True

    def logs(self, lines: int = 20) -> str:
        return self.node.run(["sh", "-c", _LOGS, str(lines)], timeout=_COMMAND_TIMEOUT, check=False).stdout


class KindNode:
    """kind's node container, by `docker exec`."""

    # As kind names it: https://github.com/kubernetes-sigs/kind sets the kubelet's cgroup root to /kubelet.
    kubepods = Path("/sys/fs/cgroup/kubelet.slice/kubelet-kubepods.slice")

    def __init__(self, container: str, folder: Path) -> None:
        self._container = container
        self._folder = folder
        self._recordings = 0

    def run(self, argv: Sequence[str], *, timeout: float, check: bool = True) -> Completed:
        return self._exec(argv, timeout=timeout, check=check)

    def _exec(self, argv: Sequence[str], *, timeout: float, check: bool, text: str | None = None) -> Completed:
        done: subprocess.CompletedProcess[str] = process.run(
            ["docker", "exec", "--interactive", self._container, *argv], timeout=timeout, check=check, text=text
        )
        return Completed(rc=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def read(self, path: str | Path) -> str:
        done = self.run(["cat", str(path)], timeout=_COMMAND_TIMEOUT, check=False)
        if done.rc != 0:
            raise FileNotFoundError(str(path))
        return done.stdout

    def write(self, path: str | Path, text: str) -> None:
        # dd writes its input in one call.
        self._exec(
            ["dd", f"of={path}", "bs=64k", "iflag=fullblock", "status=none"],
            timeout=_COMMAND_TIMEOUT,
            check=True,
            text=text,
        )

    def restart(self, unit: str) -> None:
        self.run(["systemctl", "restart", unit], timeout=_COMMAND_TIMEOUT)

    def daemon_reload(self) -> None:
        self.run(["systemctl", "daemon-reload"], timeout=_COMMAND_TIMEOUT)

    def reboot(self) -> None:
        process.run(["docker", "restart", self._container], timeout=_COMMAND_TIMEOUT)

    def record(self) -> HostRecording:
        """The recorder runs on this machine, which sees the container's cgroups; the node has no Python."""
        inspected = process.run(["docker", "inspect", "--format={{.State.Pid}}", self._container], timeout=60)
        root = Path("/proc", inspected.stdout.strip(), "root") / self.kubepods.relative_to("/")
        self._recordings += 1
        output = self._folder / f"recording-{self._recordings}.jsonl"
        argv = [sys.executable, "-I", "-S", str(Path(recorder.__file__)), str(root), str(output)]
        running = process.Process("recorder", argv, log=output.with_suffix(".log"))
        deadline = time.monotonic() + _COMMAND_TIMEOUT
        while "recording" not in running.output():
            running.check_alive()
            if time.monotonic() > deadline:
                running.kill()
                raise ProviderError(f"the recorder does not start:\n{running.tail()}")
            time.sleep(_POLL)
        return HostRecording(running, output)


class HostRecording:
    """A recorder at work on this machine."""

    def __init__(self, running: process.Process, output: Path) -> None:
        self._running = running
        self._output = output

    def samples(self, contains: str = "") -> list[Sample]:
        self._running.check_alive()
        found = nodevm.parse_samples(self._output.read_text(encoding="utf-8"))
        return [sample for sample in found if contains in sample.path]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.stop()
