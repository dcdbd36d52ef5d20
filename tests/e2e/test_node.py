"""The suite's own ground: a real kubelet under LimitedSwap, doing what it does without Swapwarden."""

from __future__ import annotations

import pytest
from swapwarden.policy.swap import limits

from hack.docs import commands
from testbed.base import process
from tests.e2e import cgroups
from tests.e2e.cgroups import MIB, PAGE, TIMEOUT
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider, ProviderError

ME = "tests/e2e/test_node.py"
WEB = ["sh", "-c", "mkdir /www && echo hello >/www/index.html && exec httpd -f -p 8080 -h /www"]


def test_the_kubelet_gives_a_burstable_container_its_share_of_the_swap(
    cluster: Provider, node: Node, namespace: Namespace
) -> None:
    request, limit = 256 * MIB, 512 * MIB
    resources = {"requests": {"memory": str(request)}, "limits": {"memory": str(limit)}}
    with node.record() as recording:
        namespace.create_pod("burstable", resources=resources)
        pod = namespace.wait_ready("burstable")
        slice_name = f"pod{pod['metadata']['uid'].replace('-', '_')}.slice"
        container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
        values = [sample.max_bytes for sample in recording.samples(container) if sample.event != "gone"]
        pod_values = {sample.max_bytes for sample in recording.samples(slice_name) if sample.path.endswith(slice_name)}
    memory, total = cgroups.meminfo(node, "MemTotal"), cgroups.meminfo(node, "SwapTotal")
    assert total > 0
    info = cluster.get(f"/api/v1/nodes/{cluster.node_name}")["status"]
    assert info["nodeInfo"]["swap"]["capacity"] == total
    expected = limits.floor_to_page(limits.container_swap(request, limit, memory, total), PAGE)
    assert 0 < expected < total
    scope = cgroups.find(node, f"{container}.scope")
    assert int(node.read(scope / "memory.swap.max")) == expected
    assert node.read(cgroups.find(node, slice_name) / "memory.swap.max") == "max\n"
    # The recorder saw what the files say now, and nothing but `max` at the pod's own level.
    # On the way there the container runtime, or systemd for it, writes 0.
    assert set(values) <= {None, 0, expected}
    assert values[-1] == expected
    assert pod_values == {None}


def test_pods_and_the_api_server_reach_each_other(cluster: Provider, namespace: Namespace, eventually: Wait) -> None:
    namespace.create_pod("web", command=WEB, metadata={"labels": {"app": "web"}})
    namespace.wait_ready("web")
    space = f"--namespace={namespace.name}"
    cluster.kubectl("expose", "pod/web", "--port=80", "--target-port=8080", space)

    def works(*arguments: str) -> bool:
        try:
            return "hello" in cluster.kubectl(*arguments, timeout=TIMEOUT).stdout
        except process.ProcessError:
            return False

    path = f"/api/v1/namespaces/{namespace.name}/services/http:web:80/proxy/"
    eventually(lambda: works("get", f"--raw={path}"), "the API server reaches a pod behind a service")
    shell = ["exec", "web", space, "--", "sh", "-c"]
    # The service's own address, as the pod's programs find it; the variables come from services older than the pod.
    reach = 'nc -w 10 "$KUBERNETES_SERVICE_HOST" "$KUBERNETES_SERVICE_PORT" </dev/null && echo hello'
    eventually(lambda: works(*shell, reach), "a pod reaches the API server by its service")
    address = cluster.get(f"/api/v1/namespaces/{namespace.name}/services/web")["spec"]["clusterIP"]
    eventually(lambda: works(*shell, f"wget -q -O - http://{address}/"), "a pod reaches a pod behind a service")


def test_systemd_puts_a_pods_limit_back_and_the_recorder_sees_it(
    node: Node, namespace: Namespace, eventually: Wait
) -> None:
    namespace.create_pod("victim")
    uid = namespace.wait_ready("victim")["metadata"]["uid"]
    slice_name = f"pod{uid.replace('-', '_')}.slice"
    limit = cgroups.find(node, slice_name) / "memory.swap.max"
    with node.record() as recording:
        node.write(limit, "0")
        node.daemon_reload()

        def seen() -> list[tuple[str, int | None]]:
            samples = [sample for sample in recording.samples(slice_name) if sample.path.endswith(slice_name)]
            return [(sample.event, sample.max_bytes) for sample in samples if sample.event != "used"]

        eventually(lambda: ("written", 0) in seen() and seen()[-1] == ("written", None), "0, and then max again")
        assert seen()[0] == ("found", None)
        namespace.delete_pod("victim")
        eventually(lambda: seen()[-1][0] == "gone", "the cgroup's end")


@pytest.mark.parametrize("unit", ["kubelet", "containerd"])
def test_a_restart_leaves_pods_running(node: Node, namespace: Namespace, eventually: Wait, unit: str) -> None:
    namespace.create_pod("before")
    before = namespace.wait_ready("before")["status"]["containerStatuses"][0]
    node.restart(unit)
    namespace.create_pod("after")
    eventually(lambda: namespace.is_ready("after"), f"pods start after a restart of {unit}")
    eventually(lambda: namespace.is_ready("before"), f"the pod from before the restart of {unit} is Ready")
    after = namespace.pod("before")["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)


@pytest.mark.usefixtures("node")
def test_the_api_server_can_be_away(cluster: Provider, namespace: Namespace, eventually: Wait) -> None:
    namespace.create_pod("running")
    namespace.wait_ready("running")
    cluster.stop_apiserver()
    try:
        with pytest.raises(ProviderError):
            cluster.get("/version")
    finally:
        cluster.start_apiserver()
    namespace.create_pod("later")
    eventually(lambda: namespace.is_ready("later"), "the kubelet works for the API server that came back")


def test_the_check_of_a_node_finds_this_one_compatible(cluster: Provider, node: Node) -> None:
    (block,) = commands.run_by(ME, "docs/node-check.md")
    said = node.run(["sh", "-euc", block.text.replace("IMAGE", cluster.image)], timeout=TIMEOUT).stdout
    assert "Compatible: Swapwarden can hold pods' swap limits on this node." in said
