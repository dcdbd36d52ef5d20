"""A real cluster: the control plane on this machine, one node in a VM, both in a network of the testbed's own."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from testbed.base import process, term
from testbed.controlplane import netns, programs, servers
from testbed.controlplane.servers import ControlPlane
from testbed.vm import nodevm
from testbed.vm.nodevm import NodeVM

_READY_TIMEOUT = 600.0
_POLL = 0.2
_FOLDERS = "swapwarden-*-*-*"

Json = Any


def ensure(images: Sequence[Path] = ()) -> None:
    """Prepare a cluster, with IMAGES on its node; host.SetupError if this machine lacks something."""
    netns.ensure()
    for name in programs.KUBE_ON_HOST:
        programs.kube_on_host(name)
    programs.helm()
    nodevm.ensure(images)


def remove_leftovers() -> None:
    """Remove the folders of runs that were killed."""
    for folder in [*Path(tempfile.gettempdir()).glob(_FOLDERS), *nodevm.IN_MEMORY.glob(_FOLDERS)]:
        found = re.fullmatch(r"swapwarden-(?:node|cluster|controlplane|vm|kind)-(\d+)-\w+", folder.name)
        if found and not Path("/proc", found[1]).exists():
            shutil.rmtree(folder, ignore_errors=True)


class Cluster:
    """Starts on entering, with its node Ready, and is removed on leaving. Several may run side by side.

    IMAGES are archives (OCI layout) of the images that pods run; see NodeVM.
    """

    def __init__(self, images: Sequence[Path] = (), *, swap_mib: int = 512, cpus: int = 2) -> None:
        ensure(images)
        self._images = images
        self._size = {"swap_mib": swap_mib, "cpus": cpus}
        self._stack = contextlib.ExitStack()
        self._network: netns.NetworkNamespace
        self._programs: list[process.Process] = []
        self.folder: Path
        self.control_plane: ControlPlane
        self.node: NodeVM

    # --- life cycle ---

    def __enter__(self) -> Self:
        remove_leftovers()
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, stack: contextlib.ExitStack) -> None:
        self.folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix=f"swapwarden-cluster-{os.getpid()}-"))
        )
        self._network = stack.enter_context(netns.NetworkNamespace())
        with term.step("starting the control plane"):
            self.control_plane = stack.enter_context(ControlPlane(self._network, nodevm.HOST))
            self._programs += _managers(stack, self.control_plane, self.folder)
        self.node = stack.enter_context(NodeVM(self._network, self._credentials(), images=self._images, **self._size))
        with term.step("waiting until the node is Ready"):
            self.wait_for(self.node_is_ready, "the node is Ready", _READY_TIMEOUT)

    def _credentials(self) -> dict[str, bytes]:
        url = f"https://{nodevm.HOST}:{self.control_plane.port}"
        certificate, key = self.control_plane.credentials.issue("kubelet", [nodevm.ADDRESS, nodevm.NAME])
        node, proxy = (
            self.control_plane.kubeconfig_as(user, group, server=url)
            for user, group in ((f"system:node:{nodevm.NAME}", "system:nodes"), ("system:kube-proxy", None))
        )
        files = {
            "ca.crt": self.control_plane.ca_file,
            "kubelet.crt": certificate,
            "kubelet.key": key,
            "kubelet.kubeconfig": node,
            "kube-proxy.kubeconfig": proxy,
        }
        return {name: path.read_bytes() for name, path in files.items()}

    # --- use ---

    def kubectl(self, *args: str, text: str | None = None, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator, with TEXT on its stdin; process.ProcessError with its stderr if it fails."""
        return self.control_plane.kubectl(*args, text=text, timeout=timeout)

    def helm(self, *args: str, timeout: float = 900.0) -> subprocess.CompletedProcess[str]:
        """Run helm as administrator, with files of its own; process.ProcessError with its stderr if it fails."""
        folders = {
            f"HELM_{kind}_HOME": str(self.folder / f"helm-{kind.lower()}") for kind in ("CACHE", "CONFIG", "DATA")
        }
        environment = programs.helm_environment() | folders | {"KUBECONFIG": str(self.control_plane.kubeconfig)}
        argv = self.control_plane.command([str(programs.helm()), *args])
        return process.run(argv, timeout=timeout, env=environment)

    def node_is_ready(self) -> bool:
        """Return whether the kubelet reports that its node can run pods."""
        status, node = self.control_plane.request("GET", f"/api/v1/nodes/{nodevm.NAME}")
        conditions = node.get("status", {}).get("conditions", []) if status == 200 else []
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def pod(self, namespace: str, name: str) -> Json:
        """Return a pod as the API server has it."""
        return self.control_plane.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def wait_for(self, holds: Callable[[], object], what: str, timeout: float = _READY_TIMEOUT) -> None:
        """Wait until HOLDS; after TIMEOUT seconds, raise process.ProcessError with WHAT is missing, and the logs."""
        process.until(holds, what, timeout, running=self._programs, said=self.logs, poll=_POLL)

    def logs(self, lines: int = 20) -> str:
        """Return the end of each part's output, and of the node's console."""
        parts = [self.control_plane.servers.logs(lines)]
        parts += [f"  {running.name}:\n{running.tail(lines)}" for running in self._programs]
        for unit in ("kubelet", "containerd"):
            with contextlib.suppress(Exception):
                parts.append(f"  {unit}:\n{process.last_lines(self.node.journal(unit, lines), lines)}")
        return "\n".join([*parts, self.node.console(lines)])


def _managers(stack: contextlib.ExitStack, control_plane: ControlPlane, folder: Path) -> list[process.Process]:
    """Run both until STACK is left, with their logs in FOLDER."""
    manager = [
        f"--service-account-private-key-file={control_plane.credentials.token_key}",
        f"--root-ca-file={control_plane.ca_file}",
        f"--service-cluster-ip-range={servers.SERVICES}",
        "--use-service-account-credentials=true",
    ]
    return [
        stack.enter_context(_program(control_plane, folder, name, given))
        for name, given in zip(programs.KUBE_ON_HOST, (manager, []), strict=True)
    ]


def _program(control_plane: ControlPlane, folder: Path, name: str, options: Sequence[str]) -> process.Process:
    kubeconfig = control_plane.kubeconfig_as(f"system:{name}")
    argv = [str(programs.kube_on_host(name)), "--leader-elect=false", "--bind-address=127.0.0.1", *options]
    # Nobody asks these two for anything through the API server; they would wait for certificates for that.
    argv.append("--authentication-skip-lookup=true")
    argv += [f"--{kind}kubeconfig={kubeconfig}" for kind in ("", "authentication-", "authorization-")]
    return process.Process(name, control_plane.command(argv), log=folder / f"{name}.log")
