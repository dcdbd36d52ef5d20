"""The status and the events of a profile about its nodes, and the part that kubectl shows."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testbed.product.controller import ACCOUNT, NAMESPACE, Controller
from tests.integration.conftest import Eventually
from tests.integration.controller.cluster import FAST, PROFILES, Cluster

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
AGENT = {"app.kubernetes.io/name": "swapwarden", "app.kubernetes.io/component": "agent"}


@pytest.fixture
def controller(cluster: Cluster) -> Iterator[Controller]:
    with Controller(cluster.cp, FAST, "--agent-pods") as running:
        running.leads()
        yield running


@pytest.fixture
def agent(cluster: Cluster) -> Iterator[Callable[..., None]]:
    """Have a node's agent be in a pod that is ready, or is not."""
    made = set()

    def be(node: str, *, ready: bool) -> None:
        if node not in made:
            spec = {"nodeName": node, "containers": [{"name": "agent", "image": "none"}], "serviceAccountName": ACCOUNT}
            metadata = {"name": f"agent-{node}", "labels": AGENT}
            cluster.cp.create(PODS, {"metadata": metadata, "spec": spec})
            made.add(node)
        status = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
        assert cluster.cp.request("PATCH", f"{PODS}/agent-{node}/status", {"status": status})[0] == 200

    yield be
    for node in made:
        cluster.cp.request("DELETE", f"{PODS}/agent-{node}?gracePeriodSeconds=0")


def counts(cluster: Cluster, profile: str) -> dict[str, int]:
    """Those that are not 0; how far a rollout is, is another matter."""
    found: dict[str, int] = cluster.cp.get(f"{PROFILES}/{profile}").get("status", {}).get("nodes", {})
    return {kind: count for kind, count in found.items() if count and kind != "updated"}


def told(cluster: Cluster, profile: str) -> list[tuple[str, str, int]]:
    """Type, reason and count of the profile's events."""
    selector = f"involvedObject.kind=NodeSwapProfile,involvedObject.name={profile}"
    items = cluster.cp.get(f"/api/v1/namespaces/default/events?fieldSelector={selector}")["items"]
    return sorted((one["type"], one["reason"], one["count"]) for one in items)


def condition(kind: str, status: str, reason: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": "so it is"}


@pytest.mark.usefixtures("controller")
def test_each_kind_of_node_is_counted_and_named(
    cluster: Cluster, agent: Callable[..., None], eventually: Eventually
) -> None:
    nodes = ("s-applied", "s-gone", "s-old", "s-pending")
    for name in nodes:
        cluster.node(name, {"pool": "status"})
    cluster.profile("status", {"pool": "status"}, swap={"behavior": "NoSwap"})
    eventually(lambda: counts(cluster, "status") == {"matched": 4, "withoutAgent": 4}, "there are no agents")
    for name in ("s-applied", "s-old", "s-pending"):
        agent(name, ready=True)
    eventually(lambda: all(cluster.spec(name).get("profileRef", {}).get("name") == "status" for name in nodes), "plans")
    cluster.report("s-applied", condition("Degraded", "True", "Polling"))
    cluster.report("s-old", condition("Compatible", "False", "NoCgroupV2"), applied="False", cgroupVersion=1)
    expected = {"matched": 4, "applied": 1, "pending": 1, "incompatible": 1, "withoutAgent": 1, "degraded": 1}
    eventually(lambda: counts(cluster, "status") == expected, "each is counted as what it is")
    described = " ".join(cluster.cp.kubectl("describe", "nsp", "status").stdout.split())
    assert (
        "1 of 4 nodes applied; pending: s-pending (its agent has not seen the plan yet); without an agent: s-gone;"
        " incompatible: s-old (NoCgroupV2: so it is)"
    ) in described
    assert "s-applied (Polling: so it is)" in described
    eventually(lambda: told(cluster, "status") == [("Warning", "NodesDegraded", 1)], "the event")
    assert "NodesDegraded" in cluster.cp.kubectl("describe", "nsp", "status").stdout
    agent("s-applied", ready=False)
    eventually(lambda: counts(cluster, "status").get("withoutAgent") == 2, "an agent that is not ready")
    agent("s-applied", ready=True)
    eventually(lambda: counts(cluster, "status").get("withoutAgent") == 1, "it is back")


@pytest.mark.usefixtures("controller")
def test_a_generation_that_all_nodes_applied_is_reported_once(
    cluster: Cluster, agent: Callable[..., None], eventually: Eventually
) -> None:
    def applied() -> object:
        return cluster.cp.get(f"{PROFILES}/told").get("status", {}).get("appliedGeneration")

    def planned(node: str, generation: int) -> bool:
        found: dict[str, Any] = cluster.spec(node).get("profileRef", {})
        return found == {"name": "told", "generation": generation}

    cluster.node("t-1", {"pool": "told"})
    agent("t-1", ready=True)
    cluster.profile("told", {"pool": "told"}, swap={"behavior": "NoSwap"})
    eventually(lambda: planned("t-1", 1), "the plan")
    cluster.report("t-1")
    eventually(lambda: told(cluster, "told") == [("Normal", "Applied", 1)], "it is told")
    assert applied() == 1
    cluster.node("t-2", {"pool": "told"})
    eventually(lambda: cluster.conditions("told").get("Ready") == ("False", "NoAgent"), "another one joins")
    agent("t-2", ready=True)
    eventually(lambda: planned("t-2", 1), "its plan")
    cluster.report("t-2")
    eventually(lambda: cluster.conditions("told").get("Ready") == ("True", "Applied"), "it has caught up")
    cluster.cp.request("PATCH", f"{PROFILES}/told", {"spec": {"swap": {"behavior": "LimitedSwap"}}})
    for name in ("t-1", "t-2"):
        eventually(lambda name=name: "preview" in cluster.spec(name), "the question what it takes")  # type: ignore[misc]  # bound on purpose
        cluster.report(name)
    for name in ("t-1", "t-2"):
        eventually(lambda name=name: planned(name, 2), "the new plan")  # type: ignore[misc]  # bound on purpose
        cluster.report(name)
    eventually(lambda: len(told(cluster, "told")) == 2, "the next generation is reported")
    assert told(cluster, "told") == [("Normal", "Applied", 1)] * 2, "and nothing else was"
    assert applied() == 2


@pytest.mark.usefixtures("controller")
def test_no_conflict_where_a_third_profile_governs(cluster: Cluster, eventually: Eventually) -> None:
    for number in range(2):
        cluster.node(f"c-{number}", {"pool": "contested", "third": str(number)})
    for name in ("c-one", "c-two"):
        cluster.profile(name, {"pool": "contested"})
    both = {"c-one": ("True", "SamePriority"), "c-two": ("True", "SamePriority")}

    def conflicted() -> dict[str, object]:
        return {name: cluster.conditions(name).get("Conflicted") for name in both}

    eventually(lambda: conflicted() == both, "the conflict")
    cluster.profile("c-third", {"third": "0"}, priority=200)

    def message(profile: str) -> str:
        found = cluster.cp.get(f"{PROFILES}/{profile}")["status"]["conditions"]
        return next(str(one["message"]) for one in found if one["type"] == "Conflicted")

    eventually(lambda: message("c-one").startswith("same priority as c-two on c-1:"), "one node is out of it")
    eventually(lambda: message("c-two").startswith("same priority as c-one on c-1:"), "for both")
    cluster.cp.request("PATCH", f"{PROFILES}/c-third", {"spec": {"nodeSelector": {"matchLabels": {"third": None}}}})
    eventually(lambda: set(conflicted().values()) == {("False", "NoConflict")}, "all nodes are")
    assert cluster.conditions("c-third")["Conflicted"] == ("False", "NoConflict")


def test_a_new_leader_repeats_nothing(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("l-1", {"pool": "led"})
    with Controller(cluster.cp, FAST) as first, Controller(cluster.cp, FAST) as second:
        both = (first, second)
        eventually(lambda: {one.health("/readyz")[0] for one in both} == {200}, "both are there")
        eventually(lambda: any(one.metric("swapwarden_controller_epoch") for one in both), "one of them leads")
        leads, other = sorted(both, key=lambda one: one.metric("swapwarden_controller_epoch"), reverse=True)
        cluster.profile("led-a", {"pool": "led"})
        cluster.profile("led-b", {"pool": "led"})
        for name in ("led-a", "led-b"):
            once = [("Warning", "Conflicted", 1)]
            eventually(lambda name=name, once=once: told(cluster, name) == once, "the conflict is reported")  # type: ignore[misc]  # bound on purpose
        leads.process.send_signal(signal.SIGKILL)
        other.leads()
        # It is created after the others, and reported after them.
        cluster.profile("led-c", {"pool": "led"})
        eventually(lambda: told(cluster, "led-c"), "the new leader reports")
        assert [told(cluster, name) for name in ("led-a", "led-b")] == [[("Warning", "Conflicted", 1)]] * 2
