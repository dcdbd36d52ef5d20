"""`scheduling.taintEffect`: which nodes carry the taint, and what of others on them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testbed.product.controller import Controller
from tests.integration.chart.agents import Agent
from tests.integration.controller.cluster import FAST, PROFILES, Cluster

Eventually = Callable[[Callable[[], object], str], None]
Json = dict[str, Any]

OTHERS: list[Json] = [{"key": "pool", "value": "batch", "effect": "NoSchedule"}, {"key": "x", "effect": "NoExecute"}]


def own(effect: str = "NoSchedule") -> Json:
    return {"key": "node.swapwarden.dev/swap", "value": "true", "effect": effect}


@pytest.fixture(scope="module")
def controller(cluster: Cluster) -> Iterator[Controller]:
    with Controller(cluster.cp, FAST) as running:
        running.leads()
        yield running


def put(cluster: Cluster, node: str, *taints: Json) -> None:
    """Have a node carry these taints only; a new one has `node.kubernetes.io/not-ready`."""
    assert cluster.cp.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": list(taints)}})[0] == 200


def taints(cluster: Cluster, node: str) -> list[Json]:
    found: list[Json] = cluster.cp.get(f"/api/v1/nodes/{node}")["spec"].get("taints", [])
    return [{key: value for key, value in each.items() if key != "timeAdded"} for each in found]


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
    put(cluster, "one", *others)
    cluster.profile(
        "tainted", {"group": "one"}, swap={"behavior": "LimitedSwap"}, scheduling={"taintEffect": "NoSchedule"}
    )
    eventually(lambda: cluster.spec("one").get("profileRef", {}).get("name") == "tainted", "the plan")
    assert taints(cluster, "one") == others, "no agent has applied it yet"
    with Agent(cluster, "one", **report):
        eventually(lambda: taints(cluster, "one") == [*others, own()], "the taint")
        effect(cluster, "tainted", "PreferNoSchedule")
        eventually(lambda: taints(cluster, "one") == [*others, own("PreferNoSchedule")], "the other effect")
        put(cluster, "one", *others)
        eventually(lambda: taints(cluster, "one") == [*others, own("PreferNoSchedule")], "what someone took is back")
        cluster.cp.request("DELETE", f"{PROFILES}/tainted")
        eventually(lambda: taints(cluster, "one") == others, "it is gone with the profile")


@pytest.mark.usefixtures("controller")
def test_nodes_that_give_no_swap_have_none(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    put(cluster, "one")
    cluster.profile("tainted", {"group": "one"}, swap={"behavior": "NoSwap"}, scheduling={"taintEffect": "NoSchedule"})
    with Agent(cluster, "one"):
        eventually(lambda: cluster.conditions("tainted").get("Ready", ("",))[0] == "True", "the profile is applied")
        assert taints(cluster, "one") == []
        body = {"spec": {"swap": {"behavior": "LimitedSwap"}}}
        assert cluster.cp.request("PATCH", f"{PROFILES}/tainted", body)[0] == 200
        eventually(lambda: taints(cluster, "one") == [own()], "now it gives swap")


@pytest.mark.usefixtures("controller")
def test_writes_of_others_at_the_same_moment_stay(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    put(cluster, "one")
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
                    lambda wanted=wanted: [each for each in taints(cluster, "one") if each["key"] != "turn"] == wanted,  # type: ignore[misc] # a default has no type
                    "the taint as the profile says",
                )
                eventually(lambda: any(each["key"] == "turn" for each in taints(cluster, "one")), "the other's taint")
    finally:
        done.set()
        other.join()
    assert next(written) > 10
