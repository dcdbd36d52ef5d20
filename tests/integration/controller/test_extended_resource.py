"""`scheduling.extendedResource`: what nodes offer, what of others in their status, and who may write it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from testbed.product.controller import ACCOUNT, NAMESPACE, Controller
from tests.integration.chart.agents import Agent
from tests.integration.conftest import Eventually, Json
from tests.integration.controller.cluster import FAST, PROFILES, Cluster

RESOURCE = "swapwarden.dev/swap"
OTHERS = {"memory": str(2**32), "cpu": "1", "pods": "100", "example.com/card": "2"}


@pytest.fixture(scope="module")
def allowed(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the rights that come with the chart's value."""
    with cluster.granted("extendedResource=true", "policy-nodes"):
        yield cluster


@pytest.fixture
def controller(allowed: Cluster) -> Iterator[Controller]:
    with Controller(allowed.cp, FAST, "--extended-resource") as running:
        running.leads()
        yield running


@pytest.fixture
def token(allowed: Cluster) -> str:
    return allowed.cp.token(NAMESPACE, ACCOUNT)


def offered(cluster: Cluster, node: str) -> str | None:
    found: str | None = capacity(cluster, node).get(RESOURCE)
    return found


def capacity(cluster: Cluster, node: str) -> dict[str, str]:
    found: dict[str, str] = cluster.cp.get(f"/api/v1/nodes/{node}")["status"]["capacity"]
    return found


def put_capacity(cluster: Cluster, node: str, **amounts: str | None) -> None:
    """Write what a kubelet might."""
    status = {"status": {"capacity": amounts}}
    assert cluster.cp.request("PATCH", f"/api/v1/nodes/{node}/status", status)[0] == 200


def profile(cluster: Cluster, name: str, **bounds: Any) -> None:
    swap = {"behavior": "WorkloadControlled", "reserved": "50%", "workloadControlled": bounds}
    cluster.profile(name, {"group": "one"}, swap=swap, scheduling={"extendedResource": "Enabled"})


def change(cluster: Cluster, name: str, **spec: Any) -> None:
    code, answer = cluster.cp.request("PATCH", f"{PROFILES}/{name}", {"spec": spec})
    assert code == 200, answer


def overcommit(percent: int) -> Json:
    return {"workloadControlled": {"overcommitPercent": percent}}


def asking(cluster: Cluster, node: str, name: str, amount: str) -> Json:
    container = {"name": "app", "image": "none", "resources": {"limits": {RESOURCE: amount}}}
    body = {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container]}}
    made: Json = cluster.cp.create("/api/v1/namespaces/default/pods", body)
    return made


@pytest.mark.usefixtures("controller")
def test_it_appears_with_the_applied_profile_follows_it_and_disappears_with_it(
    allowed: Cluster, eventually: Eventually
) -> None:
    allowed.node("one")
    put_capacity(allowed, "one", **OTHERS)
    profile(allowed, "offering")
    eventually(lambda: allowed.spec("one").get("profileRef", {}).get("name") == "offering", "the plan")
    assert capacity(allowed, "one") == OTHERS, "no agent has applied it yet"
    with Agent(allowed, "one"):
        eventually(lambda: offered(allowed, "one") == str(2**29), "half of the node's swap")
        change(allowed, "offering", swap=overcommit(150))
        eventually(lambda: offered(allowed, "one") == str(2**29 * 3 // 2), "the overcommit counts")
        put_capacity(allowed, "one", **{RESOURCE: "0"})
        eventually(lambda: offered(allowed, "one") == str(2**29 * 3 // 2), "what a kubelet did is undone")
        put_capacity(allowed, "one", **{RESOURCE: None, "example.com/card": "3"})
        eventually(lambda: offered(allowed, "one") == str(2**29 * 3 // 2), "what someone took is back")
        allowed.cp.request("DELETE", f"{PROFILES}/offering")
        eventually(lambda: capacity(allowed, "one") == {**OTHERS, "example.com/card": "3"}, "gone with the profile")


@pytest.mark.usefixtures("controller")
def test_it_follows_the_nodes_swap(allowed: Cluster, eventually: Eventually) -> None:
    allowed.node("one")
    profile(allowed, "offering")
    # An idle process may keep its pages in swap as long as it lives.
    with Agent(allowed, "one", status="False", reason="Draining"):
        eventually(lambda: offered(allowed, "one") == str(2**29), "half of the node's swap")
    for swap, wanted in ((2**31, str(2**30)), (0, None), (2**30, str(2**29))):
        allowed.report("one", swapBytes=swap)
        eventually(lambda wanted=wanted: offered(allowed, "one") == wanted, f"as the node has {swap} of swap")  # type: ignore[misc] # a default has no type


@pytest.mark.usefixtures("controller")
def test_what_a_container_asks_for_is_its_limit_and_stays_covered(allowed: Cluster, eventually: Eventually) -> None:
    allowed.node("one")
    profile(allowed, "offering")
    with Agent(allowed, "one"):
        eventually(lambda: offered(allowed, "one") == str(2**29), "half of the node's swap")
        pod = asking(allowed, "one", "asks", "256Mi")
        eventually(lambda: allowed.swap_max("one", pod) == str(2**28), "its limit")
        change(allowed, "offering", swap=overcommit(25))
        eventually(lambda: offered(allowed, "one") == str(2**28), "no less than the pod asks for")
        allowed.cp.request("DELETE", "/api/v1/namespaces/default/pods/asks?gracePeriodSeconds=0")
        eventually(lambda: offered(allowed, "one") == str(2**27), "now it is what the profile says")


@pytest.mark.usefixtures("allowed")
def test_a_controller_without_the_option_says_so(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    profile(cluster, "offering")
    with Controller(cluster.cp, FAST), Agent(cluster, "one"):
        eventually(lambda: cluster.conditions("offering").get("Ready", ("",))[0] == "True", "the profile is applied")
        assert cluster.conditions("offering")["Degraded"] == ("True", "NoExtendedResource")
        assert offered(cluster, "one") is None


def test_a_profile_of_another_behavior_is_refused(cluster: Cluster) -> None:
    body = {
        "apiVersion": "swapwarden.dev/v1alpha1",
        "kind": "NodeSwapProfile",
        "metadata": {"name": "wrong"},
        "spec": {"nodeSelector": {}, "scheduling": {"extendedResource": "Enabled"}},
    }
    code, answer = cluster.cp.request("POST", PROFILES, body)
    assert code == 422
    assert "spec.scheduling.extendedResource: Invalid value" in answer["message"]
    assert "extendedResource needs swap.behavior WorkloadControlled" in answer["message"]


def refusal(allowed: Cluster, token: str, path: str, body: Json) -> str:
    code, answer = allowed.cp.request("PATCH", path, body, token=token)
    assert code in {403, 422}, answer
    said: str = answer["message"].partition("denied request: ")[2]
    return said


@pytest.mark.parametrize(
    "status",
    [
        {"capacity": {"example.com/card": "5"}},
        {"capacity": {"example.com/card": None}},
        {"capacity": {"memory": "1Ti", RESOURCE: "5"}},
        {"allocatable": {RESOURCE: "5"}},
        {"allocatable": None},
        {"conditions": [{"type": "Ready", "status": "False"}]},
        {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
        {"phase": "Terminated"},
        {"nodeInfo": {"kubeletVersion": "v0"}},
        {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}},
        {"volumesInUse": ["a"]},
    ],
)
def test_the_right_to_write_the_status_is_for_this_resource_only(allowed: Cluster, token: str, status: Json) -> None:
    allowed.node("one")
    put_capacity(allowed, "one", **{**OTHERS, RESOURCE: "1"})
    before = allowed.cp.get("/api/v1/nodes/one")["status"]
    said = refusal(allowed, token, "/api/v1/nodes/one/status", {"status": status})
    assert said.startswith(f"the controller may only change this resource in the capacity of a node: {RESOURCE}")
    assert allowed.cp.get("/api/v1/nodes/one")["status"] == before


def test_it_writes_this_resource_and_by_this_way_no_labels(allowed: Cluster, token: str) -> None:
    allowed.node("one")
    path = "/api/v1/nodes/one/status"
    said = refusal(allowed, token, path, {"metadata": {"labels": {"group": "other"}}})
    assert said.startswith("the controller may only change these labels of a node")
    said = refusal(allowed, token, path, {"metadata": {"annotations": {"a": "b"}}})
    assert said.startswith("the controller may only change labels and taints of a node")
    for amount in ("5", "0", None):
        body = {"status": {"capacity": {RESOURCE: amount}}}
        code, answer = allowed.cp.request("PATCH", path, body, token=token)
        assert code == 200, answer
        assert offered(allowed, "one") == amount
