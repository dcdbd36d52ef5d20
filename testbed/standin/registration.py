"""The Node object of a node stand-in. Standard library only."""

import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from testbed.standin import nodeapi, pods

Json = dict[str, Any]


def register(access: nodeapi.Access, name: str, given: Iterable[str], memory: int, swap: int) -> None:
    """Create the Node or take it over, with labels (KEY=VALUE), and report that it is ready; sizes in bytes."""
    client = nodeapi.Client(access)
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    labels |= dict(label.split("=", 1) for label in given)
    try:
        client.request("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    except nodeapi.ApiError as error:
        if "already exists" not in str(error):
            raise
        client.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}}, nodeapi.MERGE_PATCH)
    client.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": _status(memory, swap)}, nodeapi.MERGE_PATCH)


def _status(memory: int, swap: int) -> Json:
    capacity = {"cpu": str(os.cpu_count()), "memory": f"{memory // 1024}Ki", "pods": "1000"}
    info: Json = {
        "machineID": "testbed",
        "systemUUID": "testbed",
        "bootID": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        "kernelVersion": platform.release(),
        "osImage": "testbed",
        "containerRuntimeVersion": "containerd://testbed",
        "kubeletVersion": "v1.36.3",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
        # The kubelet leaves it out on a node without swap.
        "swap": {"capacity": swap} if swap else None,
    }
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "node stand-in"}
    ready |= {"lastHeartbeatTime": pods.now(), "lastTransitionTime": pods.now()}
    return {"capacity": capacity, "allocatable": capacity, "nodeInfo": info, "conditions": [ready]}


def meminfo(key: str) -> int:
    """Return a figure of /proc/meminfo, in bytes."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0
