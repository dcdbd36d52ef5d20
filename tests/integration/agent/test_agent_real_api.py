"""The agent against a real API server: what it writes is accepted, and outages and deletions let nothing go."""

from __future__ import annotations

import json
import pathlib
import uuid
from typing import Any

import pytest
from swapwarden import __main__ as program
from swapwarden.agent.host import systemd_dropins
from swapwarden.api.conditions import DIAGNOSTICS

from testbed.controlplane.servers import ControlPlane
from tests.integration.agent.agent_process import AgentProcess, until
from tests.unit.agent import cgroup_tree, host_tree
from tests.unit.agent.cgroup_tree import CgroupTree, container_id, swap_max, uid, write
from tests.unit.agent.host_tree import HostTree

MIB = 1 << 20
STATES = "/apis/swapwarden.dev/v1alpha1/nodeswapstates"
NAMESPACE = "swapwarden-system"


class Node:
    """A node with a state, and the credentials of its agent's pod."""

    def __init__(self, cluster: ControlPlane, folder: pathlib.Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.tree = CgroupTree(folder)
        self.name = f"agent-{uuid.uuid4().hex[:8]}"
        cluster.create("/api/v1/nodes", {"metadata": {"name": self.name}})
        containers = [{"name": "agent", "image": "none"}]
        spec = {"nodeName": self.name, "serviceAccountName": "swapwarden-agent", "containers": containers}
        cluster.create(f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": self.name}, "spec": spec})
        self.kubeconfig = cluster.kubeconfig_for(cluster.token(NAMESPACE, "swapwarden-agent", pod=self.name), self.name)

    def agent(self, *options: str) -> AgentProcess:
        return AgentProcess(self.folder, self.tree.root, self.tree.proc, self.kubeconfig, *options, node=self.name)

    def put(self, pods: dict[int, Any], **spec: Any) -> int:
        entries = {uid(number): {"reason": "KubeletDecides", **entry} for number, entry in pods.items()}
        body = {"profileRef": {"name": "(built-in)"}, "pods": entries, **spec}
        status, made = self.cluster.request("PATCH", f"{STATES}/{self.name}", {"spec": body})
        if status == 404:
            kind = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapState"}
            made = self.cluster.create(STATES, {**kind, "metadata": {"name": self.name}, "spec": body})
        else:
            assert status == 200, made
        return int(made["metadata"]["generation"])

    @property
    def object(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.get(f"{STATES}/{self.name}")
        return found

    def told(self, kind: str) -> dict[str, Any]:
        conditions = self.object.get("status", {}).get("conditions", [])
        found: dict[str, Any] = next((each for each in conditions if each["type"] == kind), {})
        return found

    def applied(self, generation: int, reason: str = "AsSpecified") -> None:
        def holds() -> bool:
            status = self.object.get("status", {})
            reasons = [each["reason"] for each in status.get("conditions", []) if each["type"] == "Applied"]
            return (status.get("observedGeneration"), reasons) == (generation, [reason])

        until(holds, f"generation {generation} is applied")


@pytest.fixture
def node(ruled: ControlPlane, tmp_path: pathlib.Path) -> Node:
    return Node(ruled, tmp_path)


def test_its_status_is_accepted_and_stays_small(node: Node) -> None:
    pod = node.tree.pod(1)
    app = node.tree.container(pod, "app")
    containers = {"app": {"id": container_id("app")[:13], "swapMax": "4096"}}
    generation = node.put({1: {"swapMax": "0", "containers": containers}}, kubepods={"swapMax": str(64 * MIB)})
    with node.agent() as agent:
        node.applied(generation)
        assert [swap_max(path) for path in (pod, app, node.tree.kubepods)] == ["0", "4096", str(64 * MIB)]
        status = node.object["status"]
        assert status["facts"]["devices"][0]["name"] == "/dev/vda"
        assert {each["type"]: each["status"] for each in status["conditions"]} == {
            "Compatible": "True",
            "Applied": "True",
            "Ready": "True",
            "Degraded": "False",
            "Drifted": "False",
            "SecretsOnDisk": "True",
        }
        agents = [each for each in node.object["metadata"]["managedFields"] if each["manager"] == "swapwarden-agent"]
        assert len(json.dumps(agents)) < 1000
        assert agent.rss < 40 * MIB


def test_it_reports_problems_of_the_kubelet_while_they_last(node: Node) -> None:
    for name, text in host_tree.PROC.items():
        HostTree.file(node.tree.proc / name, text)
    node.tree.container(node.tree.pod(1), "sandbox")
    node.tree.container(node.tree.pod_path(1), "app")
    config = HostTree.file(node.folder / "kubelet.yaml", "kind: KubeletConfiguration\n")
    drop_in = HostTree.file(node.folder / "kubelet.d/10-swap.conf", host_tree.LIMITED)

    def found() -> set[str]:
        conditions = node.object.get("status", {}).get("conditions", [])
        return {each["type"] for each in conditions if each["type"] in DIAGNOSTICS}

    node.put({}, beforePlan="Unmanaged")
    options = (f"--kubelet-config={config}", f"--kubelet-config-dir={drop_in.parent}", "--resync-interval=1")
    with node.agent(*options) as agent:
        until(lambda: found() == {"KubeletSetsNoLimits", "SecretsOnDisk"}, "what is wrong")
        told = node.object["status"]
        assert told["facts"]["kubelet"]["swapBehavior"] == "LimitedSwap"
        worst = [each for each in told["conditions"] if each["type"] in DIAGNOSTICS]
        assert len(json.dumps(worst)) < 2048
        drop_in.write_text("kind: KubeletConfiguration\nevictionHard: {memory.available: 1Gi}\n")
        until(lambda: found() == {"KubeletWillNotStart", "EvictionBeforeSwap", "SecretsOnDisk"}, "other things")
        (before,) = (each["message"] for each in node.object["status"]["conditions"] if "Swap" in each["type"])
        # The kernel uses 4 MiB more: no news, whatever else is.
        more = host_tree.MEMINFO.replace("AnonPages:        786432", "AnonPages:        782336")
        # At once, as the kernel: half a file is no memory, and the next look has nothing to compare with.
        HostTree.file(node.tree.proc / "new", more).replace(node.tree.proc / "meminfo")
        HostTree.file(node.tree.proc / "swaps", f"{cgroup_tree.PROC['swaps']}/dev/vdb\tpartition\t1024\t0\t-3\n")
        until(lambda: len(node.object["status"]["facts"]["devices"]) == 2, "the other thing that changed")
        assert before in {each.get("message") for each in node.object["status"]["conditions"]}
        drop_in.write_text("\x00garbage")
        until(lambda: found() == {"SecretsOnDisk"}, "unknown problems are not reported")
        until(lambda: node.object["status"]["facts"]["kubelet"]["inferred"], "the rest is inferred")
        (node.tree.proc / "swaps").write_text("Filename\tType\tSize\tUsed\tPriority\n")
        until(lambda: found() == set(), "all is well without swap")
        assert "10-swap.conf: it has no kind" in agent.log.read_text()
        assert agent.rss < 40 * MIB


def test_a_state_that_is_deleted_and_recreated(node: Node) -> None:
    pod = node.tree.pod(1)
    with node.agent() as agent:
        agent.wait_ready()
        node.applied(node.put({1: {"swapMax": str(MIB)}}))
        node.applied(node.put({1: {"swapMax": "0"}}))
        assert node.cluster.request("DELETE", f"{STATES}/{node.name}")[0] == 200
        write(pod, "max")
        until(lambda: swap_max(pod) == "0", "the value is kept")
        generation = node.put({1: {"swapMax": str(MIB)}})
        assert generation == 1
        node.applied(generation)
        assert swap_max(pod) == str(MIB)


@pytest.mark.usefixtures("stoppable")
def test_an_api_server_that_stops_and_starts_again(node: Node) -> None:
    pod = node.tree.pod(1)
    generation = node.put({1: {"swapMax": "0"}})
    with node.agent() as first:
        node.applied(generation)
        node.cluster.servers.stop_apiserver()
        write(pod, "max")
        until(lambda: swap_max(pod) == "0", "the value is kept without an API server")
        until((first.state_dir / "state.json").exists, "the state is cached")
        first.kill()
        write(pod, "max")
        with node.agent() as second:
            until(lambda: swap_max(pod) == "0", "the cached state is in force")
            assert second.process.poll() is None
            node.cluster.servers.start_apiserver()
            node.applied(node.put({1: {"swapMax": str(MIB)}}))
            assert swap_max(pod) == str(MIB)


def test_it_may_not_write_another_nodes_state(node: Node) -> None:
    """By its own mistake, were it given another node's name."""
    other = Node(node.cluster, _folder(node.folder))
    other.put({})
    with AgentProcess(node.folder, node.tree.root, node.tree.proc, node.kubeconfig, node=other.name) as agent:
        until(lambda: agent.metric('swapwarden_agent_status_patches_total{result="failed"}') >= 1, "it is refused")
        assert "status" not in other.object or "observedGeneration" not in other.object["status"]
        assert "may only write the NodeSwapState of that node" in agent.log.read_text()


def test_strict_from_its_files_to_the_last_slice(node: Node, tmp_path: pathlib.Path) -> None:
    """The test writes to slices as systemd does."""
    units = tmp_path / "units"
    files = [units / folder / systemd_dropins.FILE for folder in systemd_dropins.folders("kubepods")]
    for file in files:
        file.parent.mkdir(parents=True)

    def reason() -> str:
        return str(node.told("StrictInEffect").get("reason", ""))

    def installer(action: str) -> None:
        assert program.main(["drop-ins", action, f"--drop-in-dir={units}"]) == 0

    older = node.tree.pod(1)
    node.tree.container(older, "older")
    entries: dict[int, Any] = {1: {"swapMax": str(MIB)}, 2: {"swapMax": str(MIB)}}
    installer("install")
    # No full comparison meanwhile: a pod that one finds before the event of its creation may be older than the ledger.
    with node.agent("--drop-in-dir", str(units)) as agent:
        node.applied(node.put(entries))
        until(lambda: reason() == "NotAskedFor", "the profile is at Standard")
        node.applied(node.put(entries, guarantee="Strict"))
        until(lambda: reason() == "AwaitingEvidence", "files are no evidence")
        born = node.tree.pod(2, memory_swap_max="0\n")
        node.tree.container(born, "born")
        until(lambda: reason() == "NotAllPods", "a pod that is born at 0 is")
        assert node.told("StrictInEffect")["status"] == "Unknown"
        until(lambda: "holds 1; for 1 neither" in node.told("StrictInEffect")["message"], "a count is written later")
        assert node.told("StrictInEffect")["message"].endswith(f"the agent alone holds {uid(1)}")
        until(lambda: swap_max(born) == str(MIB), "it is raised")
        agent.kill()
        for pod in (older, born):
            write(pod, "0")  # a daemon-reload, with no agent there
    with node.agent("--drop-in-dir", str(units), "--resync-interval=1"):
        until(lambda: [swap_max(pod) for pod in (older, born)] == [str(MIB)] * 2, "both are raised again")
        until(lambda: reason() == "HeldBySystemd", "the reload covers older pods")
        node.applied(node.put({}, guarantee="Strict", mode="Restore"), "Restored")
        assert [swap_max(pod) for pod in (older, born)] == ["max", "max"]
        assert [file.read_bytes() for file in files] == [systemd_dropins.CONTENT] * 2, "the agent writes none"
        installer("remove")
        until(lambda: reason() == "ReloadNeeded", "systemd has loaded them")
        assert not any(file.exists() for file in files)
        until(lambda: reason() == "ReloadNeeded", "systemd does not know yet")
        assert uid(1) in node.told("StrictInEffect")["message"]
        for pod in (older, born):
            write(pod, "max")  # the reload
        until(lambda: not node.told("StrictInEffect"), "there is nothing left to say")


def _folder(parent: pathlib.Path) -> pathlib.Path:
    made = parent / "other"
    made.mkdir()
    return made


def test_memory_pressure_is_in_the_status_while_it_lasts_and_is_asked_for(node: Node) -> None:
    pod = node.tree.pod(1)
    HostTree.file(pod / "memory.current", f"{100 * MIB}\n")
    HostTree.file(pod / "memory.stat", f"inactive_file {30 * MIB}\nactive_anon {20 * MIB}\n")
    HostTree.file(node.tree.proc / "zoneinfo", host_tree.ZONEINFO)
    HostTree.file(
        node.tree.proc / "meminfo",
        "MemTotal: 4194304 kB\nMemFree: 65536 kB\nActive(file): 0 kB\nInactive(file): 0 kB\nSwapFree: 0 kB\n",
    )
    pressure = {
        "headroom": {"belowBytes": 200 * MIB, "clearBytes": 400 * MIB, "forMilliseconds": 0},
        "stall": {"fullPermille": 400, "overMilliseconds": 10_000},
    }
    node.put({1: {"swapMax": "0"}}, pressure=pressure)

    def reported() -> dict[str, Any]:
        found: dict[str, Any] = node.object.get("status", {}).get("pressure", {})
        return found

    with node.agent():
        until(lambda: reported().get("pods"), "the pod is reported")
        found = reported()
        assert (found["signal"], found["scope"], found["seq"]) == ("Headroom", "Node", 1)
        assert found["pods"] == [{"pod": uid(1), "workingSetBytes": 70 * MIB}]
    with node.agent():
        until(lambda: reported().get("seq") == 2, "the next agent continues the numbers")
        node.put({1: {"swapMax": "0"}}, pressure=None)
        until(lambda: not reported(), "nothing asks for it")
