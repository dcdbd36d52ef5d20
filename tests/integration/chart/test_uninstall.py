"""`swapwarden uninstall` with the rights that the chart gives its hook, a real controller, and agents that are none."""

from __future__ import annotations

import concurrent.futures
import sys
from collections.abc import Callable, Iterator

import pytest
from swapwarden.cli import uninstall as uninstall_command

from testbed.base import paths, process
from testbed.controlplane.servers import ControlPlane
from testbed.product import helm, manifests
from testbed.product.controller import Controller
from tests.integration import needs, preloaded
from tests.integration.chart.agents import Agent
from tests.integration.conftest import Eventually, Json
from tests.integration.controller.cluster import FAST, PROFILES, STATES, Cluster

ORDER = f"/api/v1/namespaces/{helm.NAMESPACE}/configmaps/swapwarden-uninstall"
SWAP, NFD = "node.swapwarden.dev/swap", "feature.node.kubernetes.io/memory-swap"
PRESSURE = "node.swapwarden.dev/memory-pressure"


@pytest.fixture(scope="module")
def hook() -> list[Json]:
    documents = manifests.read(helm.render())
    return [
        each for each in documents if (each["metadata"].get("annotations") or {}).get("helm.sh/hook") == "pre-delete"
    ]


@pytest.fixture(scope="module")
def cluster(hook: list[Json]) -> Iterator[Cluster]:
    """A cluster of its own: nodes of other tests would also be restored."""
    with ControlPlane() as running:
        running.apply_crds(paths.CRDS)
        running.apply(*manifests.other_manifests(), manifests.folder() / "uninstall-configmap.yaml")
        running.apply(manifests.written([each for each in hook if each["kind"] != "Job"]))
        running.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        yield Cluster(running)


@pytest.fixture(autouse=True)
def _clean(cluster: Cluster) -> Iterator[None]:
    cluster.cp.apply(manifests.folder() / "uninstall-configmap.yaml")
    yield
    cluster.clear()


@pytest.fixture
def uninstall(cluster: Cluster) -> Callable[..., str]:
    """Run the command as the hook does; what it says."""
    token = cluster.cp.token(helm.NAMESPACE, "swapwarden-uninstall")
    kubeconfig = cluster.cp.kubeconfig_for(token, "uninstall")

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "swapwarden", "uninstall", f"--kubeconfig={kubeconfig}", *options]
        return preloaded.run(command, timeout=120).stdout

    return run


def labels(cluster: Cluster, node: str) -> set[str]:
    found: Json = cluster.cp.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
    return {key for key in found if "swap" in key}


def taints(cluster: Cluster, node: str) -> list[str]:
    found = [each["key"] for each in cluster.cp.get(f"/api/v1/nodes/{node}")["spec"].get("taints", [])]
    return [key for key in found if "swap" in key]


FINALIZER = "swapwarden.dev/release-nodes"


def finalizers(cluster: Cluster) -> list[str]:
    """Of all profiles."""
    return [one for each in cluster.cp.get(PROFILES)["items"] for one in each["metadata"].get("finalizers", [])]


def test_nothing_of_an_installation_is_left(
    cluster: Cluster, uninstall: Callable[..., str], eventually: Eventually
) -> None:
    cluster.node("one", {"pool": "batch"})
    cluster.pod("one", "quiet", {"swapwarden.dev/swap-policy": "Disabled"})
    tainting: Json = {"swap": {"behavior": "LimitedSwap"}, "scheduling": {"taintEffect": "NoSchedule"}}
    tainting["pressure"] = {"mode": "Observe", "taintEffect": "NoSchedule"}
    cluster.profile("mine", {"pool": "batch"}, **tainting)
    ours = {"app.kubernetes.io/managed-by": "swapwarden-profiles", "app.kubernetes.io/instance": helm.RELEASE}
    body = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapProfile", "spec": {"nodeSelector": {}}}
    cluster.cp.create(PROFILES, {**body, "metadata": {"name": "ours", "labels": ours}})
    with Controller(cluster.cp, FAST) as controller, Agent(cluster, "one") as agent:
        controller.leads()
        eventually(lambda: cluster.spec("one").get("pods") and len(labels(cluster, "one")) == 3, "a plan and labels")
        eventually(lambda: taints(cluster, "one") == [SWAP], "the taint of its profile")
        report = {"seq": 1, "signal": "Headroom", "scope": "Node", "since": "2026-01-01T00:00:00Z"}
        cluster.cp.request("PATCH", f"{STATES}/one/status", {"status": {"pressure": report}})
        eventually(lambda: taints(cluster, "one") == [SWAP, PRESSURE], "the taint of memory pressure")
        eventually(lambda: finalizers(cluster) == [FINALIZER] * 2, "both profiles are held")
        said = uninstall(f"--owner={helm.RELEASE}")
        assert said == f"{uninstall_command.ALL_RESTORED}\n"
        assert agent.modes[-1] == "Restore"
        assert labels(cluster, "one") == set()
        assert taints(cluster, "one") == []
        assert cluster.cp.get(STATES)["items"] == []
        assert [each["metadata"]["name"] for each in cluster.cp.get(PROFILES)["items"]] == ["mine"]
        assert finalizers(cluster) == [], "anybody can delete it"
        # The controller still runs, and leaves it at that: a change of the node is followed by nothing.
        cluster.cp.request("PATCH", "/api/v1/nodes/one", {"metadata": {"labels": {"pool": "other"}}})
        cluster.pod("one", "late")
        uninstall()
        assert cluster.cp.get(STATES)["items"] == []
        assert labels(cluster, "one") == set()
        assert controller.metric("swapwarden_controller_restoring") == 1

        # An upgrade takes the order back.
        cluster.cp.apply(manifests.folder() / "uninstall-configmap.yaml")
        eventually(lambda: cluster.spec("one").get("pods") and labels(cluster, "one"), "enforcement again")


@pytest.fixture
def _offering(cluster: Cluster, hook: list[Json]) -> Iterator[None]:
    """The rights that come with the chart's extendedResource."""
    only = [
        f"--show-only=templates/{name}.yaml"
        for name in ("controller/rbac", "controller/policy-nodes", "uninstall/rbac")
    ]
    cluster.cp.apply(helm.render("--set=extendedResource=true", *only))
    cluster.cp.wait_for_policies()
    yield
    cluster.cp.apply(*manifests.other_manifests())
    cluster.cp.apply(manifests.written([each for each in hook if each["kind"] != "Job"]))
    cluster.cp.wait_for_policies()


@pytest.mark.usefixtures("_offering")
def test_the_extended_resource_is_removed_and_nothing_else_of_the_capacity(
    cluster: Cluster, uninstall: Callable[..., str], eventually: Eventually
) -> None:
    def capacity() -> Json:
        found: Json = cluster.cp.get("/api/v1/nodes/one")["status"]["capacity"]
        return found

    cluster.node("one", {"pool": "batch"})
    before = capacity()
    offering: Json = {"swap": {"behavior": "WorkloadControlled"}, "scheduling": {"extendedResource": "Enabled"}}
    cluster.profile("mine", {"pool": "batch"}, **offering)
    with Controller(cluster.cp, FAST, "--extended-resource") as controller, Agent(cluster, "one"):
        controller.leads()
        eventually(lambda: capacity() == {**before, "swapwarden.dev/swap": str(2**30)}, "what the node offers")
        assert uninstall() == f"{uninstall_command.ALL_RESTORED}\n"
        assert capacity() == before


def test_a_node_that_does_not_answer_is_listed_with_its_remains(
    cluster: Cluster, uninstall: Callable[..., str], eventually: Eventually
) -> None:
    for name in ("alive", "dead", "never"):
        cluster.node(name)
        cluster.pod(name, f"pod-{name}")
    with Controller(cluster.cp, FAST), Agent(cluster, "alive"):
        with Agent(cluster, "dead") as dead:
            eventually(lambda: dead.modes and cluster.spec("dead").get("pods"), "a plan for the node that dies")
        said = uninstall("--timeout=3")
    assert said.splitlines()[1:] == ["  dead: up to 1 pods"]
    assert "have not answered (1)" in said
    assert cluster.cp.get(STATES)["items"] == []


@needs.NODES_TELL_SWAP
def test_nothing_is_removed_before_the_controller_knows_even_without_any_agent(
    cluster: Cluster, uninstall: Callable[..., str], eventually: Eventually
) -> None:
    for number in range(3):
        cluster.node(f"node-{number}")
    with Controller(cluster.cp, FAST) as controller:
        eventually(lambda: all(labels(cluster, f"node-{number}") for number in range(3)), "labels")
        assert uninstall() == f"{uninstall_command.ALL_RESTORED}\n"
        # Else it would recreate all of it.
        assert controller.metric("swapwarden_controller_restoring") == 1
    assert cluster.cp.get(STATES)["items"] == []
    assert not any(labels(cluster, f"node-{number}") for number in range(3))


def test_it_ends_in_time_without_a_controller_and_a_second_one_says_the_same(
    cluster: Cluster, uninstall: Callable[..., str], eventually: Eventually
) -> None:
    cluster.node("one")
    cluster.pod("one", "some")
    with Controller(cluster.cp, FAST), Agent(cluster, "one") as agent:
        eventually(lambda: agent.modes and cluster.spec("one").get("pods"), "a plan")
    state = cluster.state("one")
    said = uninstall("--timeout=1")
    assert said.splitlines()[1:] == [f"  one: up to 1 pods; {uninstall_command.NOT_ORDERED}"]
    assert cluster.cp.get(STATES)["items"] == []
    # As if the first one had been interrupted after it had given the order to the nodes.
    metadata = {"name": "one", "ownerReferences": state["metadata"]["ownerReferences"]}
    cluster.cp.create(STATES, {**state, "metadata": metadata, "spec": {**state["spec"], "mode": "Restore", "pods": {}}})
    cluster.cp.request("PATCH", f"{STATES}/one/status", {"status": {"observedGeneration": 7}})
    assert uninstall("--timeout=1").splitlines()[1:] == ["  one: up to 1 pods"]


@needs.NODES_TELL_SWAP
def test_an_order_that_is_taken_back_stops_it_before_anything_is_removed(
    cluster: Cluster, uninstall: Callable[..., str], eventually: Eventually
) -> None:
    cluster.node("one")
    with Controller(cluster.cp, FAST):
        eventually(lambda: labels(cluster, "one"), "labels")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        ended = pool.submit(uninstall, "--timeout=100")
        eventually(lambda: cluster.cp.get(ORDER)["data"]["restore"] == "true", "the order")
        cluster.cp.apply(manifests.folder() / "uninstall-configmap.yaml")
        with pytest.raises(process.ProcessError, match=uninstall_command.WITHDRAWN):
            ended.result(60)
    assert len(cluster.cp.get(STATES)["items"]) == 1
    assert labels(cluster, "one")


def test_labels_that_running_pods_select_stay_and_are_listed(
    cluster: Cluster, uninstall: Callable[..., str], eventually: Eventually
) -> None:
    cluster.node("one")
    container = {"name": "app", "image": "none"}
    term = {"matchExpressions": [{"key": NFD, "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    path = "/api/v1/namespaces/default/pods"
    spec = {"nodeName": "one", "containers": [container]}
    with Controller(cluster.cp, FAST), Agent(cluster, "one"):
        eventually(lambda: len(labels(cluster, "one")) == 3, "labels")
        cluster.cp.create(path, {"metadata": {"name": "selects"}, "spec": {**spec, "nodeSelector": {SWAP: "true"}}})
        ended = {**spec, "affinity": {"nodeAffinity": required}}
        cluster.cp.create(path, {"metadata": {"name": "ended"}, "spec": ended})
        cluster.cp.request("PATCH", f"{path}/ended/status", {"status": {"phase": "Succeeded"}})
        said = uninstall()
    assert f"node one keeps the label {SWAP}" in said
    assert "default/selects" in said
    assert "ended" not in said
    assert labels(cluster, "one") == {SWAP}


def test_a_controller_that_starts_meanwhile_enforces_nothing(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    with Agent(cluster, "one") as agent:
        with Controller(cluster.cp, FAST):
            eventually(lambda: agent.modes == ["Enforce"], "a plan")
        cluster.cp.request("PATCH", ORDER, {"data": {"restore": "true"}})
        with Controller(cluster.cp, FAST):
            eventually(lambda: agent.modes[-1] == "Restore", "the order followed")
        assert set(agent.modes) == {"Enforce", "Restore"}
        assert agent.modes.index("Restore") == len(agent.modes) - agent.modes.count("Restore")


def test_the_hooks_rights_over_nodes_are_labels_of_ours(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    token = cluster.cp.token(helm.NAMESPACE, "swapwarden-uninstall")
    path = "/api/v1/nodes/one"
    spec = {"spec": {"unschedulable": True}}
    eventually(lambda: cluster.cp.request("PATCH", path, spec, token=token)[0] == 403, "the policy in force")
    status, answer = cluster.cp.request("PATCH", path, {"metadata": {"labels": {"group": None}}}, token=token)
    assert status == 403
    assert "may only change these labels" in answer["message"]
    assert cluster.cp.request("GET", "/api/v1/secrets", token=token)[0] == 403
    assert cluster.cp.request("PATCH", ORDER.replace("uninstall", "other"), {}, token=token)[0] == 403


def test_the_hooks_right_over_daemonsets_is_to_end_the_plugins(cluster: Cluster) -> None:
    token = cluster.cp.token(helm.NAMESPACE, "swapwarden-uninstall")
    folder = f"/apis/apps/v1/namespaces/{helm.NAMESPACE}/daemonsets"
    for method in ("GET", "DELETE"):
        # It may, and there is none.
        assert cluster.cp.request(method, f"{folder}/swapwarden-nri", token=token)[0] == 404
    for method, path in (("DELETE", f"{folder}/swapwarden-agent?dryRun=All"), ("GET", folder), ("DELETE", folder)):
        assert cluster.cp.request(method, path, token=token)[0] == 403


def test_the_hooks_rights_over_profiles_are_one_finalizer(cluster: Cluster, eventually: Eventually) -> None:
    cluster.profile("held", {"no": "node"})
    token = cluster.cp.token(helm.NAMESPACE, "swapwarden-uninstall")
    path = f"{PROFILES}/held"
    eventually(
        lambda: cluster.cp.request("PATCH", path, {"spec": {"priority": 7}}, token=token)[0] == 403, "the policy"
    )
    for found in ([FINALIZER], None):
        status, answer = cluster.cp.request("PATCH", path, {"metadata": {"finalizers": found}}, token=token)
        assert status == 200, answer
    status, answer = cluster.cp.request("PATCH", path, {"metadata": {"finalizers": ["a.example/b"]}}, token=token)
    assert status == 403
    assert "may only change this finalizer" in answer["message"]


def test_where_nothing_is_installed_it_says_so(cluster: Cluster, uninstall: Callable[..., str]) -> None:
    cluster.cp.kubectl("delete", "-f", str(manifests.folder() / "uninstall-configmap.yaml"))
    with pytest.raises(process.ProcessError, match="--namespace must name the namespace of Swapwarden"):
        uninstall()


def test_the_job_runs_the_tested_command(hook: list[Json]) -> None:
    (job,) = (each for each in hook if each["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == [
        "uninstall",
        f"--namespace={helm.NAMESPACE}",
        f"--owner={helm.RELEASE}",
        "--timeout=120",
        "--nri-daemonset=swapwarden-nri",
    ]
    # Helm waits for 300, and a second pod would begin again.
    assert 120 + 60 <= job["spec"]["activeDeadlineSeconds"] < 300
    assert job["spec"]["backoffLimit"] == 0
    assert pod["serviceAccountName"] == "swapwarden-uninstall"
    assert job["metadata"]["annotations"]["helm.sh/hook-output-log-policy"] == "hook-succeeded,hook-failed"
    weights = {each["kind"]: int(each["metadata"]["annotations"]["helm.sh/hook-weight"]) for each in hook}
    assert max(weights, key=lambda kind: weights[kind]) == "Job"


def test_it_can_be_left_out() -> None:
    assert "pre-delete" not in helm.render("--set=uninstall.restore=false")
