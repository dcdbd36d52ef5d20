"""Nodes that change, and nodes that are recreated."""

from __future__ import annotations

import pytest

from testbed.product.controller import Controller
from tests.integration import needs
from tests.integration.conftest import Eventually
from tests.integration.controller.cluster import STATES, Cluster

pytestmark = pytest.mark.usefixtures("controller")


@needs.NODES_TELL_SWAP
def test_a_node_is_planned_again_when_its_swap_changes(
    cluster: Cluster, eventually: Eventually, controller: Controller
) -> None:
    cluster.node("f-1")
    pod = cluster.pod("f-1", "app", memory="1Gi")
    cluster.profile("facts", {"group": "f-1"}, swap={"behavior": "LimitedSwap", "reserved": "50%"})

    def planned() -> tuple[str | None, str | None]:
        return cluster.spec("f-1").get("kubepods", {}).get("swapMax"), cluster.swap_max("f-1", pod)

    eventually(lambda: planned() == (str(2**29), str(2**27)), "the plan from what the Node says")
    # Another disk, swapoff, the first one again; 1 GiB is a quarter of the memory.
    for swap in (2**33, 0, 2**30):
        cluster.report("f-1", swapBytes=swap)
        expected = (str(swap // 2), str(swap // 8))
        eventually(lambda expected=expected: planned() == expected, f"the plan for {swap} bytes")  # type: ignore[misc]  # bound on purpose
        # Swap that the kubelet counted at its start is reported if it differs from the present.
        problem = {"node": "f-1", "problem": "KubeletRestartNeeded"}
        needed = float(swap != 2**30)
        eventually(
            lambda needed=needed, problem=problem: (  # type: ignore[misc]  # bound on purpose
                controller.metric("swapwarden_controller_node_problem", **problem) == needed
            ),
            "whether the kubelet must start again",
        )
    cluster.report("f-1", memoryBytes=2**31)
    eventually(lambda: planned() == (str(2**29), str(2**28)), "the plan for half of the memory")
    cluster.report("f-1", cgroupVersion=1)
    eventually(lambda: planned() == (None, "max"), "the plan has no limit on an incompatible node")


@needs.NODES_TELL_SWAP
def test_a_recreated_node_waits_for_an_agent_of_its_own(cluster: Cluster, eventually: Eventually) -> None:
    def planned(pod: str) -> bool:
        made = cluster.pod("again", pod, {"swapwarden.dev/swap-policy": "Disabled"})
        eventually(lambda: cluster.swap_max("again", made) == "0", f"the plan of {pod}")
        return True

    def applied(swap: int) -> bool:
        cluster.report("again", swapBytes=swap)  # as an agent does for each generation
        return cluster.conditions("again").get("Ready") == ("True", "Applied")

    cluster.profile("again", {"group": "again"}, swap={"reserved": "50%"})
    cluster.node("again", swap=2**31)
    assert planned("first")
    eventually(lambda: applied(2**31), "the profile is applied")
    cluster.cp.request("DELETE", "/api/v1/nodes/again")
    eventually(lambda: cluster.conditions("again").get("Ready") == ("True", "NoNodes"), "the node is gone")
    stale = cluster.state("again")
    node = cluster.node("again", swap=2**30)
    eventually(lambda: cluster.spec("again").get("kubepods") == {"swapMax": str(2**29)}, "its own swap counts")
    assert planned("second")
    eventually(lambda: cluster.conditions("again").get("Ready") == ("False", "NoAgent"), "nobody has applied it")
    # As the garbage collector does: what owned the state is gone.
    assert cluster.state("again")["metadata"]["ownerReferences"] == stale["metadata"]["ownerReferences"]
    cluster.cp.request("DELETE", f"{STATES}/again")
    eventually(lambda: cluster.state("again"), "a state of its own")
    state = cluster.state("again")
    assert [one["uid"] for one in state["metadata"]["ownerReferences"]] == [node["metadata"]["uid"]]
    assert len(state["spec"]["pods"]) == 2
    eventually(lambda: applied(2**30), "the profile is applied")
