"""Choose the cluster that the e2e suite runs on, for its set-up and its tests.

$E2E_PROVIDER names `kind`, `node-vm` or `existing`. If it is unset: kind if that works, else the node VM.
"""

import json
import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from testbed.base import host, process, term
from testbed.controlplane import programs

KIND, NODE_VM, EXISTING = "kind", "node-vm", "existing"
PARTS = {
    KIND: ("kubectl", "helm"),
    NODE_VM: ("controlplane", "helm", "cluster"),
    EXISTING: ("kubectl", "helm"),
}
"""Each provider, and the parts of the testbed that it needs."""
KIND_IMAGE = "kindest/node:v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5"
"""The node of kind: the default of programs.KIND_VERSION itself (kind: pkg/apis/config/defaults/image.go)."""

_NEEDED = {
    "E2E_CONTEXT": "which context of the kubeconfig to use",
    "E2E_IMAGE": "which image to install, by a name under which the cluster's nodes can pull it",
}
_DOCKER_TIMEOUT = 20.0
_PULL_TIMEOUT = 900.0


def kind_image(environment: Mapping[str, str]) -> str:
    """The image of the node in kind; $E2E_KIND_IMAGE, whose kubelet should be 1.34 or newer, where swap is stable."""
    return environment.get("E2E_KIND_IMAGE") or KIND_IMAGE


def obstacle(docker: Mapping[str, Any], *, hostname: str, kernel: str, swaps: str, is_root: bool) -> str:
    """Return why kind is of no use on this machine, by `docker info` and the machine itself; empty if it is of use.

    The recorder reads the node's cgroups from outside, and the node has this machine's swap.
    """
    fulfilled = {
        "no docker daemon answers": docker.get("ServerVersion") and not docker.get("ServerErrors"),
        f"the docker daemon is not on this machine but on {docker.get('Name')}": docker.get("Name") == hostname
        and docker.get("KernelVersion") == kernel,
        "the docker daemon runs rootless": "name=rootless" not in (docker.get("SecurityOptions") or ()),
        "docker has no cgroup v2": docker.get("CgroupVersion") == "2",
        "its node would have this machine's swap, and there is none": re.search(r"^/", swaps, re.MULTILINE),
        "its node's cgroups are recorded from outside, and this is not root": is_root,
    }
    return next((why for why, holds in fulfilled.items() if not holds), "")


def kind_obstacle() -> str:
    """Return why kind cannot run here; if it can, return an empty text and have kind and its node's image here."""
    found = obstacle(
        _docker_info(),
        hostname=socket.gethostname(),
        kernel=os.uname().release,
        swaps=Path("/proc/swaps").read_text(encoding="ascii"),
        is_root=host.is_root(),
    )
    if found:
        return found
    try:
        programs.kind()
        image = kind_image(os.environ)
        if process.run(["docker", "image", "inspect", image], timeout=_DOCKER_TIMEOUT, check=False).returncode != 0:
            with term.step(f"docker pull {image}"):
                process.run(["docker", "pull", "-q", image], timeout=_PULL_TIMEOUT)
    except (host.SetupError, process.ProcessError) as error:
        return str(error)
    return ""


def _docker_info() -> dict[str, Any]:
    """Return the output of `docker info`; nothing if there is no docker daemon."""
    try:
        said = process.run(["docker", "info", "--format={{json .}}"], timeout=_DOCKER_TIMEOUT, check=False).stdout
        found = json.loads(said)
    except (process.ProcessError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def choose(environment: Mapping[str, str], why_not_kind: Callable[[], str] = kind_obstacle) -> str:
    """Return the provider's name; host.SetupError if it is unknown or lacks something."""
    name = environment.get("E2E_PROVIDER", "")
    host.need(
        not name or name in PARTS, f"E2E_PROVIDER={name}: there is no such provider", f"use one of {', '.join(PARTS)}"
    )
    if name == EXISTING:
        for variable, what in _NEEDED.items():
            host.need(environment.get(variable), f"E2E_PROVIDER=existing needs {variable}", f"it must name {what}")
    if name in {NODE_VM, EXISTING}:
        return name
    if not (why := why_not_kind()):
        return KIND
    host.need(not name, f"E2E_PROVIDER=kind: {why}", "use E2E_PROVIDER=node-vm, or see to that")
    term.say(f"the e2e tests run on the node VM; not on kind, as {why}")
    return NODE_VM
