"""etcd restored from an older snapshot: objects and versions go back in time."""

from __future__ import annotations

from testbed.product.controller import Controller
from tests.integration.conftest import Eventually
from tests.integration.controller.cluster import FAST, PROFILES, Cluster


def answer(cluster: Cluster, node: str, eventually: Eventually) -> None:
    """Be the agent that is asked what a change takes."""
    eventually(lambda: "preview" in cluster.spec(node), "the question what the change takes")
    cluster.report(node)


def test_restarted_controllers_plan_the_same_again(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("r-1")
    cluster.profile("restored", {"group": "r-1"}, swap={"reserved": "50%"})
    early = cluster.pod("r-1", "early", {"swapwarden.dev/swap-policy": "Disabled"})
    free = cluster.pod("r-1", "free")
    with Controller(cluster.cp, FAST) as first:
        first.leads()
        eventually(lambda: cluster.swap_max("r-1", early) == "0", "the plan")
        cluster.report("r-1")
        eventually(lambda: cluster.conditions("restored").get("Ready") == ("True", "Applied"), "the profile is applied")
    saved = cluster.cp.servers.save()
    before = cluster.state("r-1")
    with Controller(cluster.cp, FAST) as second:
        epoch = second.leads()["epoch"]
        # A time of which nothing will be left: another profile, other pods, later terms and versions.
        cluster.cp.request("PATCH", f"{PROFILES}/restored", {"spec": {"swap": {"behavior": "NoSwap"}}})
        answer(cluster, "r-1", eventually)
        eventually(lambda: cluster.swap_max("r-1", free) == "0", "the changed profile is followed")
        late = cluster.pod("r-1", "late", {"swapwarden.dev/swap-policy": "Disabled"})
        eventually(lambda: cluster.swap_max("r-1", late) == "0", "the late pod is planned")
        assert cluster.spec("r-1")["epoch"] == epoch > before["spec"]["epoch"]
        cluster.cp.servers.restore(saved)
        assert cluster.cp.request("GET", "/api/v1/namespaces/default/pods/late")[0] == 404
        assert second.process.poll() is None, "it takes no harm"
    with Controller(cluster.cp, FAST) as third:
        third.leads()
        eventually(lambda: cluster.swap_max("r-1", free) == "max", "the restored profile is followed")
        spec = cluster.spec("r-1")
        assert spec["pods"].keys() == {early["metadata"]["uid"], free["metadata"]["uid"]}
        assert spec["profileRef"] == {"name": "restored", "generation": 1}
        # And on from there.
        next_one = cluster.pod("r-1", "late", {"swapwarden.dev/swap-policy": "Disabled"})
        assert next_one["metadata"]["uid"] != late["metadata"]["uid"]
        eventually(lambda: cluster.swap_max("r-1", next_one) == "0", "a new pod is planned")
        cluster.report("r-1")
        cluster.cp.request("PATCH", f"{PROFILES}/restored", {"spec": {"swap": {"behavior": "NoSwap"}}})
        answer(cluster, "r-1", eventually)
        eventually(lambda: cluster.swap_max("r-1", free) == "0", "it is also followed")
        cluster.report("r-1")
        eventually(lambda: cluster.conditions("restored").get("Ready") == ("True", "Applied"), "and reported")
