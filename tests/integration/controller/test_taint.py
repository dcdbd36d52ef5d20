"""`scheduling.taintEffect`: which nodes carry the taint, and what of others on them."""

from __future__ import annotations

import itertools
import threading

import pytest

from tests.integration.chart.agents import Agent
from tests.integration.conftest import Eventually, Json
from tests.integration.controller.cluster import PROFILES, Cluster

OTHERS: list[Json] = [{"key": "pool", "value": "batch", "effect": "NoSchedule"}, {"key": "x", "effect": "NoExecute"}]


def own(effect: str = "NoSchedule") -> Json:
    return {"key": "node.swapwarden.dev/swap", "value": "true", "effect": effect}


def effect(cluster: Cluster, profile: str, value: str | None) -> None:
    body = {"spec": {"scheduling": {"taintEffect": value}}}
    assert cluster.cp.request("PATCH", f"{PROFILES}/{profile}", body)[0] == 200


@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize(
    ("others", "report"),
    [([], {}), (OTHERS, {"status": "False", "reason": "Draining"})],
    ids=["alone", "among others, while pods drain"],
)
def test_it_appears_with_the_applied_profile_and_disappears_with_it(
    cluster: Cluster, eventually: Eventually, others: list[Json], report: dict[str, str]
) -> None:
    cluster.node("one")
    cluster.taint("one", *others)
    cluster.profile(
        "tainted", {"group": "one"}, swap={"behavior": "LimitedSwap"}, scheduling={"taintEffect": "NoSchedule"}
    )
    eventually(lambda: cluster.spec("one").get("profileRef", {}).get("name") == "tainted", "the plan")
    assert cluster.taints("one") == others, "no agent has applied it yet"
    with Agent(cluster, "one", **report):
        eventually(lambda: cluster.taints("one") == [*others, own()], "the taint")
        effect(cluster, "tainted", "PreferNoSchedule")
        eventually(lambda: cluster.taints("one") == [*others, own("PreferNoSchedule")], "the other effect")
        cluster.taint("one", *others)
        eventually(lambda: cluster.taints("one") == [*others, own("PreferNoSchedule")], "what someone took is back")
        cluster.cp.request("DELETE", f"{PROFILES}/tainted")
        eventually(lambda: cluster.taints("one") == others, "it is gone with the profile")


@pytest.mark.usefixtures("controller")
def test_nodes_that_give_no_swap_have_none(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    cluster.taint("one")
    cluster.profile("tainted", {"group": "one"}, swap={"behavior": "NoSwap"}, scheduling={"taintEffect": "NoSchedule"})
    with Agent(cluster, "one"):
        eventually(lambda: cluster.conditions("tainted").get("Ready", ("",))[0] == "True", "the profile is applied")
        assert cluster.taints("one") == []
        body = {"spec": {"swap": {"behavior": "LimitedSwap"}}}
        assert cluster.cp.request("PATCH", f"{PROFILES}/tainted", body)[0] == 200
        eventually(lambda: cluster.taints("one") == [own()], "now it gives swap")


@pytest.mark.usefixtures("controller")
def test_writes_of_others_at_the_same_moment_stay(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    cluster.taint("one")
    cluster.profile(
        "tainted", {"group": "one"}, swap={"behavior": "LimitedSwap"}, scheduling={"taintEffect": "NoSchedule"}
    )
    done, written = threading.Event(), itertools.count()

    def keep_writing() -> None:
        """Somebody who reads a node, changes its taints, and writes it back."""
        while not done.is_set():
            found = cluster.cp.get("/api/v1/nodes/one")
            kept = [each for each in found["spec"].get("taints", []) if each["key"] != "turn"]
            found["spec"]["taints"] = [{"key": "turn", "value": f"{next(written)}", "effect": "NoSchedule"}, *kept]
            cluster.cp.request("PUT", "/api/v1/nodes/one", found)

    other = threading.Thread(target=keep_writing)
    other.start()
    try:
        with Agent(cluster, "one"):
            for value in ("PreferNoSchedule", None, "NoSchedule", None, "PreferNoSchedule"):
                effect(cluster, "tainted", value)
                wanted = [] if value is None else [own(value)]
                eventually(
                    lambda wanted=wanted: [each for each in cluster.taints("one") if each["key"] != "turn"] == wanted,  # type: ignore[misc] # a default has no type
                    "the taint as the profile says",
                )
                eventually(lambda: any(each["key"] == "turn" for each in cluster.taints("one")), "the other's taint")
    finally:
        done.set()
        other.join()
    assert next(written) > 10
