"""Start kube-controller-manager and kube-scheduler for a control plane."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from testbed.base import process
from testbed.controlplane import programs, servers
from testbed.controlplane.servers import ControlPlane

CONTROLLER_MANAGER, SCHEDULER = programs.KUBE_ON_HOST


def start(stack: contextlib.ExitStack, control_plane: ControlPlane, folder: Path) -> list[process.Process]:
    """Run both until STACK is left, with their logs in FOLDER."""
    manager = [
        f"--service-account-private-key-file={control_plane.credentials.token_key}",
        f"--root-ca-file={control_plane.ca_file}",
        f"--service-cluster-ip-range={servers.SERVICES}",
        "--use-service-account-credentials=true",
    ]
    return [
        stack.enter_context(_program(control_plane, folder, name, given))
        for name, given in ((CONTROLLER_MANAGER, manager), (SCHEDULER, []))
    ]


def _program(control_plane: ControlPlane, folder: Path, name: str, options: Sequence[str]) -> process.Process:
    kubeconfig = control_plane.kubeconfig_as(f"system:{name}")
    argv = [str(programs.kube_on_host(name)), "--leader-elect=false", "--bind-address=127.0.0.1", *options]
    # Nobody asks these two for anything through the API server; they would wait for certificates for that.
    argv.append("--authentication-skip-lookup=true")
    argv += [f"--{kind}kubeconfig={kubeconfig}" for kind in ("", "authentication-", "authorization-")]
    return process.Process(name, control_plane.command(argv), log=folder / f"{name}.log")
