"""NodeSwapStates that are deleted while the agents of their nodes are down."""

from __future__ import annotations

from testbed.product.controller import Controller
from tests.integration import needs
from tests.integration.conftest import Eventually
from tests.integration.controller.cluster import FAST, STATES, Cluster
from tests.integration.controller.node_labels import BACKING, CLEAR, ENCRYPTED, NVME, SWAP, labels, report

SOON = "--label-removal-delay=1"


def wait_for_a_removal(cluster: Cluster, node: str, eventually: Eventually) -> None:
    """Until a label was taken away whose time began after this was called."""
    cluster.node(node)
    eventually(lambda: labels(cluster, node).get(SWAP) == "true", f"labels of {node}")
    report(cluster, node, CLEAR, swap=0)
    eventually(lambda: SWAP not in labels(cluster, node), f"{node} loses them")


def taints(cluster: Cluster, node: str) -> list[str]:
    return [taint["key"] for taint in cluster.cp.get(f"/api/v1/nodes/{node}")["spec"].get("taints", [])]


@needs.NODES_TELL_SWAP
def test_what_an_agent_reported_outlives_its_state(cluster: Cluster, eventually: Eventually) -> None:
    # A kubelet before 1.33 says nothing of swap.
    cluster.node("kept", swap=0)
    cluster.profile(
        "safe",
        {"group": "kept"},
        swap={"behavior": "WorkloadControlled", "requirements": ["Encrypted"]},
        scheduling={"taintEffect": "NoSchedule"},
    )
    asking = cluster.pod("kept", "asking", {"swapwarden.dev/swap-limit": "64Mi"})
    with Controller(cluster.cp, FAST, SOON) as controller:
        controller.leads()
        eventually(lambda: cluster.state("kept"), "a state")
        report(cluster, "kept", NVME)
        eventually(lambda: cluster.swap_max("kept", asking) == str(2**26), "the requirement is met")
        cluster.report("kept", swapBytes=2**29)
        report(cluster, "kept", NVME)
        eventually(lambda: "node.swapwarden.dev/swap" in taints(cluster, "kept"), "the taint")
        eventually(lambda: labels(cluster, "kept").get(SWAP) == "true", "the labels")
        before, uid = labels(cluster, "kept"), cluster.state("kept")["metadata"]["uid"]
        assert (before[BACKING], before[ENCRYPTED]) == ("nvme", "true")

        cluster.cp.request("DELETE", f"{STATES}/kept")
        eventually(
            lambda: cluster.state("kept").get("metadata", {}).get("uid", uid) != uid, "a state that is recreated"
        )
        assert cluster.swap_max("kept", asking) == str(2**26), "from the beginning"
        wait_for_a_removal(cluster, "first", eventually)
        assert labels(cluster, "kept") == before
        assert "node.swapwarden.dev/swap" in taints(cluster, "kept")

    cluster.cp.request("DELETE", f"{STATES}/kept")
    with Controller(cluster.cp, FAST, SOON) as controller:
        controller.leads()
        wait_for_a_removal(cluster, "second", eventually)
        assert labels(cluster, "kept") == before, "nobody knows that any of it is wrong"
        assert "node.swapwarden.dev/swap" in taints(cluster, "kept")
        assert cluster.swap_max("kept", asking) == "0", "unknown facts count as missing"
        report(cluster, "kept", NVME)
        eventually(lambda: cluster.swap_max("kept", asking) == str(2**26), "its agent is back")
