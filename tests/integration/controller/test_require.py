"""`swap.requirements`: what becomes of pods, labels and statuses where a node lacks what its profile requires."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.product.controller import Controller
from tests.integration.conftest import Eventually
from tests.integration.controller.cluster import FAST, PROFILES, Cluster
from tests.integration.controller.node_labels import BEHAVIOR, CLEAR, NVME, SWAP, ZRAM, labels, report

UNMET = f"{SWAP}-unmet"
SAFE_ZRAM = {**ZRAM, "encrypted": True}


@pytest.fixture(scope="module")
def controller(cluster: Cluster) -> Iterator[Controller]:
    """One that takes labels away at once, as good as."""
    with Controller(cluster.cp, FAST, "--label-removal-delay=1") as running:
        running.leads()
        yield running


def events(cluster: Cluster, pod: str) -> list[str]:
    """Reasons of the events about a pod."""
    found = cluster.cp.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return [each["reason"] for each in found if each["regarding"]["name"] == pod]


@pytest.mark.usefixtures("controller")
def test_pods_get_swap_only_when_the_node_meets_the_requirements(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    cluster.profile(
        "safe",
        {"group": "one"},
        swap={
            "behavior": "WorkloadControlled",
            "beforePlan": "Unmanaged",
            "requirements": ["Encrypted"],
            "allowedBacking": ["NVMe", "Zram"],
        },
    )
    asking = cluster.pod("one", "asking", {"swapwarden.dev/swap-limit": "64Mi"})
    plain = cluster.pod("one", "plain", {"swapwarden.dev/swap-policy": "NoPreference"})

    def planned() -> tuple[str | None, str | None]:
        return cluster.swap_max("one", asking), cluster.spec("one").get("beforePlan")

    eventually(lambda: planned() == ("0", None), "nothing is known of the node")
    eventually(lambda: "RequirementUnmet" in events(cluster, "asking"), "its owner has a notice")
    assert "RequirementUnmet" not in events(cluster, plain["metadata"]["name"])

    report(cluster, "one", CLEAR)
    eventually(lambda: "SwapRequirementUnmet" in events(cluster, "one"), "the node names the unmet requirement")
    eventually(lambda: labels(cluster, "one").get(UNMET) == "encrypted", "the node names the unmet requirement")
    eventually(lambda: SWAP not in labels(cluster, "one"), "placement does not count on it")
    assert labels(cluster, "one")[BEHAVIOR] == "NoSwap"
    eventually(
        lambda: cluster.conditions("safe").get("RequirementsMet") == ("False", "NodesLack"), "so does the profile"
    )
    status = cluster.cp.get(f"{PROFILES}/safe")["status"]
    assert status["nodes"]["requirementsUnmet"] == 1
    (told,) = (each["message"] for each in status["conditions"] if each["type"] == "RequirementsMet")
    assert "one (encrypted: /dev/sdb1: not known to be encrypted" in told

    report(cluster, "one", NVME, SAFE_ZRAM)
    eventually(lambda: planned() == (str(64 * 2**20), "Unmanaged"), "the facts changed, and the plan with them")
    eventually(lambda: labels(cluster, "one").get(SWAP) == "true", "placement counts on it")
    eventually(lambda: UNMET not in labels(cluster, "one"), "nothing is missing")
    eventually(lambda: cluster.conditions("safe").get("RequirementsMet") == ("True", "AllMet"), "so does the profile")

    report(cluster, "one", NVME, SAFE_ZRAM, CLEAR)
    eventually(lambda: planned() == ("0", None), "one more device, in the clear")

    change = {"spec": {"swap": {"requirements": None, "allowedBacking": None}}}
    assert cluster.cp.request("PATCH", f"{PROFILES}/safe", change)[0] == 200
    eventually(lambda: planned() == (str(64 * 2**20), "Unmanaged"), "as before")
    eventually(lambda: "RequirementsMet" not in cluster.conditions("safe"), "nothing to report")
