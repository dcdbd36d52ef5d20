"""The real scheduler packs swap limits by what the real kubelet says is allocatable of the extended resource."""

from __future__ import annotations

from typing import Any

from tests.e2e import cgroups
from tests.e2e.cgroups import PAGE
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release

RESOURCE = "swapwarden.dev/swap"


def test_pods_get_what_they_ask_for_and_wait_where_it_is_not_left(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    def offered() -> tuple[Any, Any]:
        status = cluster.get(f"/api/v1/nodes/{cluster.node_name}")["status"]
        return status["capacity"].get(RESOURCE), status["allocatable"].get(RESOURCE)

    def asks(name: str, limit: int) -> None:
        namespace.create_pod(name, nodeName=None, resources={"limits": {RESOURCE: str(limit)}})

    total = cgroups.meminfo(node, "SwapTotal")
    with swapwarden.profile("e2e-packed", scheduling={"extendedResource": "Enabled"}) as apply:
        apply(behavior="WorkloadControlled")
        eventually(lambda: None not in offered(), "the node offers it, and the kubelet takes it over")
        assert offered() == (str(total), str(total))
        limit = total // 2 // PAGE * PAGE + PAGE
        asks("fits", limit)
        fits = namespace.wait_ready("fits")
        eventually(
            lambda: cgroups.swap_max(node, cgroups.of_pod(node, fits)) == str(limit), "it gets what it asked for"
        )
        asks("waits", limit)
        eventually(lambda: namespace.scheduled("waits").get("reason") == "Unschedulable", "not so much is left")
        assert f"Insufficient {RESOURCE}" in namespace.scheduled("waits")["message"]
        namespace.delete_pod("fits")
        eventually(lambda: namespace.is_ready("waits"), "it runs when the other one is gone")
    eventually(lambda: offered() == (None, None), "without the profile the node offers none of it")
