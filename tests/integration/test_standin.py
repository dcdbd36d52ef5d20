"""The node stand-in on a plain folder: cgroups, rewrites, status and removal as a node does them."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.base.process import Process
from testbed.controlplane.servers import ControlPlane
from testbed.standin import start
from tests.integration import needs

GIB = 1 << 30
PATIENCE = 30.0
OPTIONS = ["--memory-bytes", str(2 * GIB), "--swap-bytes", str(GIB), "--swap-behavior", "LimitedSwap"]

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def node(control_plane: ControlPlane, fresh_namespace: str, tmp_path: Path) -> Iterator[Process]:
    with start.on_host(control_plane, tmp_path, f"node-{fresh_namespace}", OPTIONS) as running:
        yield running


@pytest.fixture
def make(control_plane: ControlPlane, fresh_namespace: str, node: Process) -> Make:
    """Create a pod on the node and wait until it runs."""

    def create(name: str, resources: dict[str, Any], **more: Any) -> dict[str, Any]:
        containers = [{"name": "main", "image": "none", "resources": resources}]
        spec = {"nodeName": f"node-{fresh_namespace}", "containers": containers, **more}
        pods = f"/api/v1/namespaces/{fresh_namespace}/pods"
        control_plane.create(pods, {"metadata": {"name": name}, "spec": spec})
        found: dict[str, Any] = {}

        def running() -> bool:
            node.check_alive()
            found.update(control_plane.get(f"{pods}/{name}"))
            return bool(found["status"]["phase"] == "Running")

        wait_until(running)
        return found

    return create


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.02)


def memory(request: str, limit: str | None = None) -> dict[str, Any]:
    return {"requests": {"memory": request}} | ({"limits": {"memory": limit}} if limit else {})


def slice_of(tmp_path: Path, pod: dict[str, Any], level: str) -> Path:
    uid = pod["metadata"]["uid"].replace("-", "_")
    return next((tmp_path / "cgroup").rglob(f"kubepods{level}-pod{uid}.slice"))


@needs.NODES_TELL_SWAP
def test_it_registers_a_node_with_its_swap(control_plane: ControlPlane, fresh_namespace: str, node: Process) -> None:
    status = control_plane.get(f"/api/v1/nodes/node-{fresh_namespace}")["status"]
    assert node.poll() is None
    assert status["nodeInfo"]["swap"] == {"capacity": GIB}
    assert status["capacity"]["memory"] == "2Gi"


def test_a_burstable_pod_gets_the_kubelets_cgroups_and_numbers(make: Make, tmp_path: Path) -> None:
    pod = make("burstable", memory("256Mi", "512Mi"))
    assert pod["status"]["qosClass"] == "Burstable"
    folder = slice_of(tmp_path, pod, "-burstable")
    assert folder.parent.name == "kubepods-burstable.slice"
    assert (folder / "memory.swap.max").read_text() == "max\n"
    assert (folder / "memory.max").read_text() == f"{512 << 20}\n"
    identifier = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    assert re.fullmatch("[0-9a-f]{64}", identifier)
    scope = folder / f"cri-containerd-{identifier}.scope"
    assert (scope / "memory.swap.max").read_text() == f"{128 << 20}\n"
    assert len(list(folder.glob("cri-containerd-*.scope"))) == 2, "the sandbox has a scope too"


def test_other_qos_classes_get_no_swap_from_the_kubelet(make: Make, tmp_path: Path) -> None:
    guaranteed = slice_of(
        tmp_path,
        make(
            "guaranteed",
            memory("64Mi", "64Mi")
            | {"requests": {"memory": "64Mi", "cpu": "1m"}, "limits": {"memory": "64Mi", "cpu": "1m"}},
        ),
        "",
    )
    besteffort = slice_of(tmp_path, make("besteffort", {}), "-besteffort")
    assert guaranteed.parent.name == "kubepods.slice"
    limits = [
        file.read_text() for folder in (guaranteed, besteffort) for file in folder.glob("*.scope/memory.swap.max")
    ]
    assert sorted(limits) == ["0\n", "0\n", "max\n", "max\n"], "two containers at 0, two sandboxes at max"


def test_systemds_rewriting_undoes_external_writes(make: Make, tmp_path: Path, node: Process) -> None:
    folder = slice_of(tmp_path, make("rewritten", memory("64Mi")), "-burstable")
    (folder / "memory.swap.max").write_text("0")
    node.send_signal(signal.SIGUSR1)
    wait_until(lambda: (folder / "memory.swap.max").read_text() == "max\n")


@needs.RESIZES
def test_a_resize_reaches_cgroup_and_status(
    make: Make, control_plane: ControlPlane, fresh_namespace: str, tmp_path: Path
) -> None:
    pod = make("resized", memory("64Mi", "128Mi"))
    folder = slice_of(tmp_path, pod, "-burstable")
    (folder / "memory.swap.max").write_text("0")
    path = f"/api/v1/namespaces/{fresh_namespace}/pods/resized"
    change = {"spec": {"containers": [{"name": "main", "resources": memory("64Mi", "256Mi")}]}}
    kind = "application/strategic-merge-patch+json"
    assert control_plane.request("PATCH", f"{path}/resize", change, content_type=kind)[0] == 200

    def in_force() -> bool:
        resources = control_plane.get(path)["status"]["containerStatuses"][0]["resources"]
        return bool(resources["limits"]["memory"] == "256Mi")

    wait_until(in_force)
    assert (folder / "memory.max").read_text() == f"{256 << 20}\n"
    assert (folder / "memory.swap.max").read_text() == "max\n"


def test_init_containers_end_before_the_others_start(make: Make, tmp_path: Path) -> None:
    init = [{"name": "first", "image": "none"}, {"name": "side", "image": "none", "restartPolicy": "Always"}]
    pod = make("with-init", memory("64Mi"), initContainers=init)
    first, side = pod["status"]["initContainerStatuses"]
    assert first["state"]["terminated"]["reason"] == "Completed"
    assert "running" in side["state"]
    assert len(list(slice_of(tmp_path, pod, "-burstable").glob("*.scope"))) == 3


def test_a_deleted_pod_takes_its_cgroup_along(
    make: Make, control_plane: ControlPlane, fresh_namespace: str, tmp_path: Path
) -> None:
    folder = slice_of(tmp_path, make("deleted", memory("64Mi")), "-burstable")
    path = f"/api/v1/namespaces/{fresh_namespace}/pods/deleted"
    assert control_plane.request("DELETE", path)[0] == 200
    wait_until(lambda: control_plane.request("GET", path)[0] == 404)
    assert not folder.exists()


def test_it_outlives_an_outage_and_leaves_nothing_behind(
    stoppable: ControlPlane, fresh_namespace: str, tmp_path: Path
) -> None:
    name = f"outage-{fresh_namespace}"
    with start.on_host(stoppable, tmp_path, name, [*OPTIONS, "--naming", "cgroupfs"]) as node:
        stoppable.servers.stop_apiserver()
        stoppable.servers.start_apiserver()
        spec = {"nodeName": name, "containers": [{"name": "main", "image": "none"}]}
        path = f"/api/v1/namespaces/{fresh_namespace}/pods"
        made = stoppable.create(path, {"metadata": {"name": "late"}, "spec": spec})
        folder = tmp_path / "cgroup/kubepods/besteffort" / f"pod{made['metadata']['uid']}"
        wait_until(folder.is_dir)
        assert node.poll() is None
    assert not (tmp_path / "cgroup/kubepods").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
