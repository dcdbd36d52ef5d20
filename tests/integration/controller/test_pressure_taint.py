"""`pressure.taintEffect`: when nodes under memory pressure carry the taint, and what of others on them."""

from __future__ import annotations

from typing import Any

from testbed.product.controller import Controller
from tests.integration.chart.agents import Agent
from tests.integration.conftest import Eventually, Json
from tests.integration.controller import sooner
from tests.integration.controller.cluster import FAST, PROFILES, STATES, Cluster

KEY = "node.swapwarden.dev/memory-pressure"
OTHERS: list[Json] = [{"key": "pool", "value": "batch", "effect": "NoSchedule"}, {"key": "x", "effect": "NoExecute"}]
PRESSURE = {"seq": 1, "signal": "Headroom", "scope": "Node", "headroomBytes": 7, "since": "2026-01-01T00:00:00Z"}


def own(effect: str = "NoSchedule") -> Json:
    return {"key": KEY, "value": "true", "effect": effect}


def report(cluster: Cluster, node: str, pressure: Json | None) -> None:
    """Be the agent, and report pressure, or none."""
    assert cluster.cp.request("PATCH", f"{STATES}/{node}/status", {"status": {"pressure": pressure}})[0] == 200


def follow(cluster: Cluster, node: str, eventually: Eventually, **pressure: Any) -> None:
    """Have the node follow a profile of its own, whose plan its agent has in force."""
    cluster.node(node)
    cluster.profile(node, {"group": node}, swap={"behavior": "NoSwap"}, pressure={"mode": "Observe", **pressure})
    eventually(lambda: "pressure" in cluster.spec(node), "the thresholds")
    cluster.report(node)


def test_it_appears_with_the_pressure_and_disappears_some_time_after_it(
    cluster: Cluster, eventually: Eventually
) -> None:
    with Controller(cluster.cp, FAST, program=(sooner.__file__,)) as controller:
        controller.leads()
        follow(cluster, "one", eventually, taintEffect="NoSchedule")
        follow(cluster, "two", eventually)
        cluster.taint("one", *OTHERS)
        cluster.taint("two")
        report(cluster, "two", PRESSURE)
        report(cluster, "one", PRESSURE)
        eventually(lambda: cluster.taints("one") == [*OTHERS, own()], "the taint")
        cluster.taint("one", *OTHERS)
        eventually(lambda: cluster.taints("one") == [*OTHERS, own()], "it is set once more")
        selector = "involvedObject.kind=Node,involvedObject.name=two,reason=MemoryPressureObserved"
        events = f"/api/v1/namespaces/default/events?fieldSelector={selector}"
        eventually(lambda: cluster.cp.get(events)["items"], "the event about the other node's pressure")
        assert cluster.taints("two") == [], "its profile names no effect"
        report(cluster, "one", None)
        eventually(lambda: cluster.taints("one") == OTHERS, "it is gone some time after the pressure")


def test_it_stays_over_a_failover_and_is_gone_with_the_profile(cluster: Cluster, eventually: Eventually) -> None:
    with Controller(cluster.cp, FAST) as controller:
        controller.leads()
        follow(cluster, "one", eventually, taintEffect="PreferNoSchedule")
        cluster.taint("one")
        report(cluster, "one", PRESSURE)
        eventually(lambda: cluster.taints("one") == [own("PreferNoSchedule")], "the taint")
        report(cluster, "one", None)
    with Controller(cluster.cp, FAST) as controller, Agent(cluster, "one"):
        controller.leads()
        pod = cluster.pod("one", "later")
        eventually(lambda: cluster.swap_max("one", pod) == "0", "a plan of the next leader")
        assert cluster.taints("one") == [own("PreferNoSchedule")]
        assert cluster.cp.request("PATCH", f"{PROFILES}/one", {"spec": {"pressure": {"mode": "Off"}}})[0] == 200
        eventually(lambda: cluster.taints("one") == [], "it ends with the mode")
        assert cluster.cp.request("PATCH", f"{PROFILES}/one", {"spec": {"pressure": {"mode": "Observe"}}})[0] == 200
        eventually(lambda: "pressure" in cluster.spec("one"), "the thresholds")
        report(cluster, "one", PRESSURE)
        eventually(lambda: cluster.taints("one") == [own("PreferNoSchedule")], "the taint")
        cluster.cp.request("DELETE", f"{PROFILES}/one")
        eventually(lambda: cluster.taints("one") == [], "it ends with the profile")
