"""The node stand-in on real cgroups: limits that the kernel holds, and OOM kills that reach the pod's status."""

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.controlplane.servers import ControlPlane
from testbed.standin import start
from testbed.vm.kernelvm import CGROUPS, KernelVM

PATIENCE = 120.0
NAMINGS = {
    "systemd": ("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice", "cri-containerd-{}.scope"),
    "cgroupfs": ("kubepods/burstable/pod{}", "{}"),
}


@pytest.fixture(params=sorted(NAMINGS))
def naming(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root() -> Path:
    return CGROUPS / f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def node(
    control_plane: ControlPlane, kernel_vm: KernelVM, fresh_namespace: str, root: Path, naming: str
) -> Iterator[str]:
    name = f"node-{fresh_namespace}"
    with start.in_vm(control_plane, kernel_vm, name, root, ["--naming", naming]):
        yield name
    assert not kernel_vm.exists(root)


def until(read: Callable[[], dict[str, Any]], condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE
    while not condition(found := read()):
        assert time.monotonic() < deadline, f"never came true: {found['status']}"
        time.sleep(0.1)
    return found


def test_a_pod_lives_and_is_killed_for_want_of_memory(
    control_plane: ControlPlane, kernel_vm: KernelVM, fresh_namespace: str, root: Path, node: str, naming: str
) -> None:
    registered = control_plane.get(f"/api/v1/nodes/{node}")["status"]
    assert registered["nodeInfo"]["swap"]["capacity"] == 536866816
    resources = {"requests": {"memory": "16Mi"}, "limits": {"memory": "32Mi"}}
    containers = [{"name": "main", "image": "none", "resources": resources}]
    pods = f"/api/v1/namespaces/{fresh_namespace}/pods"
    annotations = {"testbed/hog": "48"}
    spec = {"nodeName": node, "containers": containers, "restartPolicy": "Never"}
    made = control_plane.create(pods, {"metadata": {"name": "hog", "annotations": annotations}, "spec": spec})
    pod_name, scope_name = NAMINGS[naming]
    uid = made["metadata"]["uid"]
    folder = root / pod_name.format(uid.replace("-", "_") if naming == "systemd" else uid)
    # The kubelet of a node without LimitedSwap forbids swap, so a hog above its limit dies.
    ended = until(lambda: control_plane.get(f"{pods}/hog"), lambda pod: pod["status"]["phase"] == "Failed")
    state = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["reason"], state["exitCode"]) == ("OOMKilled", 137)
    kernel_vm.wait_for(folder.parent / "cgroup.events", lambda text: "populated 0" in text, PATIENCE)

    control_plane.create(pods, {"metadata": {"name": "calm"}, "spec": spec})
    calm = until(lambda: control_plane.get(f"{pods}/calm"), lambda pod: pod["status"]["phase"] == "Running")
    uid = calm["metadata"]["uid"]
    folder = root / pod_name.format(uid.replace("-", "_") if naming == "systemd" else uid)
    identifier = calm["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    assert kernel_vm.read(folder / "memory.swap.max") == "max\n"
    assert kernel_vm.read(folder / scope_name.format(identifier) / "memory.swap.max") == "0\n"
    assert kernel_vm.read(folder / scope_name.format(identifier) / "memory.max") == f"{32 << 20}\n"
    assert control_plane.request("DELETE", f"{pods}/calm")[0] == 200
    until(lambda: {"status": control_plane.request("GET", f"{pods}/calm")[0]}, lambda answer: answer["status"] == 404)
    assert not kernel_vm.exists(folder)
