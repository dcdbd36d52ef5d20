"""The controller's process at a real API server, with its own token and the rights of build/manifests."""

from __future__ import annotations

import pytest

from tests.integration import needs
from tests.integration.conftest import Eventually
from tests.integration.controller.cluster import PROFILES, STATES, Cluster


@pytest.mark.usefixtures("controller")
def test_a_disabled_pod_and_its_neighbour_are_planned(cluster: Cluster, eventually: Eventually) -> None:
    node = cluster.node("n1")
    disabled = cluster.pod("n1", "disabled", {"swapwarden.dev/swap-policy": "Disabled"})
    free = cluster.pod("n1", "free")
    eventually(lambda: cluster.swap_max("n1", disabled) == "0", "the plan")
    eventually(lambda: cluster.swap_max("n1", free) == "max", "the neighbour's plan")
    state = cluster.state("n1")
    assert state["spec"]["profileRef"] == {"name": "(built-in)"}
    assert state["spec"]["epoch"] >= 1
    [owner] = state["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"])
    cluster.cp.request("DELETE", "/api/v1/namespaces/default/pods/free?gracePeriodSeconds=0")
    eventually(lambda: cluster.swap_max("n1", free) is None, "the pod leaves the plan")
    assert "managedFields" not in cluster.state("n1")["metadata"], "field records are larger than the rest"


@needs.NODES_TELL_SWAP
@pytest.mark.usefixtures("controller")
def test_labels_say_where_swap_is(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("with")
    cluster.node("without", swap=0)

    def labels(node: str) -> dict[str, str]:
        found: dict[str, str] = cluster.cp.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
        return found

    own = {
        "feature.node.kubernetes.io/memory-swap": "true",
        "node.swapwarden.dev/swap": "true",
        "node.swapwarden.dev/swap-behavior": "Kubelet",
    }
    eventually(lambda: labels("with") == {"group": "with", **own}, "labels")
    eventually(lambda: cluster.state("without"), "the other node is planned")
    assert labels("without") == {"group": "without"}


@pytest.mark.usefixtures("controller")
def test_the_agents_word_is_enough_where_the_node_says_nothing_of_its_swap(
    cluster: Cluster, eventually: Eventually
) -> None:
    cluster.node("n0", swap=0)
    pod = cluster.pod("n0", "app", memory="1Gi")
    cluster.profile("p0", {"group": "n0"}, swap={"behavior": "LimitedSwap", "reserved": "50%"})
    eventually(lambda: cluster.swap_max("n0", pod) == "0", "unknown swap is not given")
    cluster.report("n0")
    eventually(lambda: cluster.swap_max("n0", pod) == str(2**27), "the plan")
    own = ("node.swapwarden.dev/swap", "true")
    eventually(lambda: own in cluster.cp.get("/api/v1/nodes/n0")["metadata"]["labels"].items(), "the label")


@needs.NODES_TELL_SWAP
@pytest.mark.usefixtures("controller")
def test_a_profile_is_followed_and_reports(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n2")
    pod = cluster.pod("n2", "app", memory="1Gi")
    limit = {"behavior": "LimitedSwap", "reserved": "50%"}
    cluster.profile("p2", {"group": "n2"}, swap=limit)
    eventually(lambda: cluster.spec("n2").get("kubepods") == {"swapMax": str(2**29)}, "the reserve")
    assert cluster.swap_max("n2", pod) == str(2**27)
    eventually(lambda: cluster.conditions("p2").get("Ready") == ("False", "NoAgent"), "the profile waits")
    cluster.report("n2")
    eventually(lambda: cluster.conditions("p2").get("Ready") == ("True", "Applied"), "the profile is ready")
    status = cluster.cp.get(f"{PROFILES}/p2")["status"]
    counts = {kind: count for kind, count in status["nodes"].items() if count}
    assert counts == {"matched": 1, "updated": 1, "applied": 1}
    assert (status["observedGeneration"], status["appliedGeneration"]) == (1, 1)
    cluster.cp.request("PATCH", f"{PROFILES}/p2", {"spec": {"swap": {"behavior": "NoSwap"}}})
    eventually(lambda: "preview" in cluster.spec("n2"), "the agent is asked what the change takes")
    cluster.report("n2")
    eventually(lambda: cluster.swap_max("n2", pod) == "0", "the change is followed")
    eventually(lambda: cluster.conditions("p2").get("Ready") == ("False", "Applying"), "and must be applied again")
    cluster.cp.request("DELETE", f"{PROFILES}/p2")
    eventually(lambda: cluster.swap_max("n2", pod) == "max", "the built-in profile governs again")
    assert cluster.spec("n2")["profileRef"] == {"name": "(built-in)"}
    assert "kubepods" not in cluster.spec("n2")


@pytest.mark.usefixtures("controller")
def test_both_profiles_report_a_conflict(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n3")
    # By name the younger one would come first.
    older = cluster.profile("z-older", {"group": "n3"})["metadata"]["creationTimestamp"]
    eventually(lambda: cluster.now() > older, "another second: a creationTimestamp has no fractions")
    cluster.profile("a-younger", {"group": "n3"}, swap={"behavior": "NoSwap"})
    for name in ("z-older", "a-younger"):
        eventually(lambda name=name: cluster.conditions(name).get("Conflicted") == ("True", "SamePriority"), name)  # type: ignore[misc]  # mypy cannot type a default of a lambda
    eventually(lambda: cluster.spec("n3").get("profileRef", {}).get("name") == "z-older", "the older one governs")
    cluster.cp.request("PATCH", f"{PROFILES}/a-younger", {"spec": {"priority": 200}})
    eventually(lambda: cluster.spec("n3").get("profileRef", {}).get("name") == "a-younger", "priority decides")
    eventually(lambda: cluster.conditions("z-older").get("Conflicted") == ("False", "NoConflict"), "no conflict")


@pytest.mark.usefixtures("controller")
def test_a_deleted_or_altered_state_is_put_right(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n4")
    pod = cluster.pod("n4", "app", {"swapwarden.dev/swap-policy": "Disabled"})
    eventually(lambda: cluster.swap_max("n4", pod) == "0", "the plan")
    cluster.cp.request("DELETE", f"{STATES}/n4")
    eventually(lambda: cluster.swap_max("n4", pod) == "0", "the state is recreated")
    other = {"spec": {"pods": {pod["metadata"]["uid"]: {"swapMax": "max"}, "00000000-aaaa": {"reason": "LimitedSwap"}}}}
    assert cluster.cp.request("PATCH", f"{STATES}/n4", other)[0] == 200
    eventually(lambda: cluster.swap_max("n4", pod) == "0", "the value is put right")
    eventually(lambda: "00000000-aaaa" not in cluster.spec("n4")["pods"], "the unplanned pod is removed")


@pytest.mark.usefixtures("controller")
def test_nothing_is_written_without_a_difference(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n5")
    pod = cluster.pod("n5", "app")
    eventually(lambda: cluster.swap_max("n5", pod) == "max", "the plan")
    before = cluster.state("n5")["metadata"]["resourceVersion"]
    for number in range(5):
        cluster.cp.request("PATCH", "/api/v1/namespaces/default/pods/app", {"metadata": {"labels": {"x": str(number)}}})
    marker = cluster.pod("n5", "marker")
    eventually(lambda: cluster.swap_max("n5", marker) == "max", "the marker is planned")
    assert int(cluster.state("n5")["metadata"]["generation"]) <= 3
    assert cluster.state("n5")["metadata"]["resourceVersion"] != before


@pytest.mark.usefixtures("controller")
def test_owners_of_pods_have_notices_about_settings_without_effect(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n6")
    cluster.profile("p6", {"group": "n6"}, swap={"behavior": "NoSwap"})
    cluster.pod("n6", "limited", {"swapwarden.dev/swap-limit": "1Gi"})

    def reasons() -> list[str]:
        items = cluster.cp.get("/api/v1/namespaces/default/events")["items"]
        return [one["reason"] for one in items if one["involvedObject"].get("name") == "limited"]

    eventually(lambda: reasons() == ["ProfileNoSwap"], "the event")
