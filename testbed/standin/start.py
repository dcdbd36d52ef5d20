"""Start node stand-ins (testbed.standin.node): on a plain folder here, or on the real cgroups of the kernel VM."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path

from testbed.base import paths, process
from testbed.controlplane.servers import ControlPlane, ControlPlaneError
from testbed.vm.kernelvm import CGROUPS, GuestProcess, KernelVM

NAMESPACE = "testbed"
ACCOUNT = "node"
_READY_TIMEOUT = 60.0
_VM_READY_TIMEOUT = 180.0
_STOP_TIMEOUT = 120.0
_RULES = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["create", "get", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status", "pods/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]},
]


def token(control_plane: ControlPlane) -> str:
    """Return the token of the stand-ins' service account, which is made with its rights if it does not exist."""
    metadata = {"name": f"testbed-{ACCOUNT}"}
    role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"testbed-{ACCOUNT}"}
    subject = {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": ACCOUNT}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    for path, body in (
        ("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}),
        (f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": ACCOUNT}}),
        (f"{rbac}/clusterroles", {"metadata": metadata, "rules": _RULES}),
        (f"{rbac}/clusterrolebindings", {"metadata": metadata, "roleRef": role_ref, "subjects": [subject]}),
    ):
        status, answer = control_plane.request("POST", path, body)
        if status not in {HTTPStatus.CREATED, HTTPStatus.CONFLICT}:
            raise ControlPlaneError(f"POST {path}: HTTP {status}: {answer}")
    return control_plane.token(NAMESPACE, ACCOUNT, seconds=24 * 3600)


def _command(control_plane: ControlPlane, files: Path, name: str, root: Path, server: str) -> list[str]:
    """Return the stand-in's command line; its credentials are written to files in FILES."""
    files.mkdir(parents=True, exist_ok=True)
    secret = files / "token"
    secret.touch(mode=0o600)
    secret.write_text(token(control_plane), encoding="ascii")
    shutil.copy2(control_plane.ca_file, files / "ca.crt")
    argv = [sys.executable, "-S", "-m", "testbed.standin.node", "--name", name, "--root", str(root), "--server", server]
    argv += ["--ca-file", str(files / "ca.crt"), "--token-file", str(secret)]
    return [*argv, "--once-ready-file", str(files / "ready")]


@contextlib.contextmanager
def on_host(
    control_plane: ControlPlane, folder: Path, name: str, options: Sequence[str] = ()
) -> Iterator[process.Process]:
    """A stand-in whose cgroups are plain folders below FOLDER/cgroup. OPTIONS are passed to the node."""
    root = folder / "cgroup"
    root.mkdir(parents=True)
    argv = _command(control_plane, folder / "node", name, root, control_plane.url)
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT)}
    log = folder / "node.log"
    with process.Process(f"node {name}", [*argv, *options], log=log, env=environment) as running:
        ready = (folder / "node" / "ready").exists
        process.until(ready, f"{name} is ready", _READY_TIMEOUT, running=[running], said=running.tail, poll=0.02)
        yield running


@contextlib.contextmanager
def in_vm(
    control_plane: ControlPlane, vm: KernelVM, name: str, root: Path = CGROUPS, options: Sequence[str] = ()
) -> Iterator[GuestProcess]:
    """A stand-in on the VM's real cgroups, below ROOT, which is made if absent and then removed at the end."""
    own = not vm.exists(root)
    vm.mkdir(root)
    files = vm.shared / f"node-{name}"
    argv = _command(control_plane, files, name, root, control_plane.guest_url)
    running = vm.spawn([*argv, *options], env={"PYTHONPATH": str(paths.ROOT)}, log=f"node-{name}")
    try:
        ready = (files / "ready").exists
        process.until(ready, f"{name} is ready", _VM_READY_TIMEOUT, running=[running], said=running.tail, poll=0.2)
        yield running
    finally:
        running.stop(_STOP_TIMEOUT)
        shutil.rmtree(files, ignore_errors=True)
        if own:
            vm.rmdir(root)
