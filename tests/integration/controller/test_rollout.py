"""A changed profile reaches its nodes in waves, and stops where it does harm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from testbed.controller import Controller
from tests.integration.controller.cluster import FACTS, FAST, PROFILES, STATES, Cluster

Eventually = Callable[[Callable[[], object], str], None]

NODES = [f"wave-{number}" for number in range(6)]


class Agents:
    """Answers for all nodes.

    Those in `slow` do not answer when their state names another generation than the first; those in `broken` say that
    they are degraded by what it says; `using` has how much swap pods use that a change would take.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.slow: set[str] = set()
        self.broken: set[str] = set()
        self.using: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            for name in NODES:
                self._answer(name)

    def _answer(self, name: str) -> None:
        found = self._cluster.state(name)
        if not found or (name in self.slow and found["spec"]["profile"].get("generation", 0) > 1):
            return
        generation, degraded = found["metadata"]["generation"], name in self.broken
        applied = {"type": "Applied", "status": "True", "reason": "AsSpecified"}
        bad = {"type": "Degraded", "status": str(degraded), "reason": "WriteFailed", "message": "no"}
        wanted = {"observedGeneration": generation, "facts": FACTS, "conditions": [applied, bad]}
        wanted["profile"] = {"generation": 0, **found["spec"]["profile"]}
        if "proposal" in found["spec"]:
            used = self.using.get(name, 0)
            cost = {"pods": int(used > 0), "bytes": used}
            wanted["proposal"] = {"profile": found["spec"]["proposal"]["profile"], **cost}
        if found.get("status") != wanted:
            self._cluster.cp.request("PATCH", f"{STATES}/{name}/status", {"status": {"proposal": None, **wanted}})


@pytest.fixture
def agents(cluster: Cluster) -> Iterator[Agents]:
    for name in NODES:
        cluster.node(name, {"group": "waves"})
    with Agents(cluster) as running:
        yield running


@pytest.fixture
def controller(cluster: Cluster) -> Iterator[Controller]:
    with Controller(cluster.cp, FAST) as running:
        running.leads()
        yield running


def change(cluster: Cluster, **spec: Any) -> int:
    """Change the profile; its generation now."""
    status, found = cluster.cp.request("PATCH", f"{PROFILES}/waves", {"spec": spec})
    assert status == 200, found
    return int(found["metadata"]["generation"])


def on(cluster: Cluster, generation: int) -> list[str]:
    """The nodes whose states name this generation of the profile."""
    wanted = {"name": "waves", "generation": generation}
    return [name for name in NODES if cluster.spec(name).get("profile") == wanted]


def progressing(cluster: Cluster) -> tuple[str, str]:
    return cluster.conditions("waves").get("Progressing", ("", ""))


def begin(cluster: Cluster, eventually: Eventually) -> None:
    cluster.profile("waves", {"group": "waves"}, swap={"behavior": "LimitedSwap"}, rollout={"maxUnavailable": 2})
    eventually(lambda: on(cluster, 1) == NODES, "all nodes follow the profile")
    eventually(lambda: cluster.conditions("waves").get("Ready") == ("True", "Applied"), "and have applied it")
    assert progressing(cluster) == ("False", "Complete")


@pytest.mark.usefixtures("controller")
def test_a_change_reaches_some_nodes_and_others_when_these_answer(
    cluster: Cluster, agents: Agents, eventually: Eventually
) -> None:
    begin(cluster, eventually)
    agents.slow.update(NODES)
    second = change(cluster, swap={"behavior": "NoSwap"})
    eventually(lambda: on(cluster, second) == NODES[:2], "the first wave")
    eventually(lambda: progressing(cluster) == ("True", "Waiting"), "the status says that it waits")
    kept = cluster.pod(NODES[2], "kept", memory="1Gi")
    changed = cluster.pod(NODES[0], "changed", memory="1Gi")
    eventually(lambda: cluster.swap_max(NODES[0], changed) == "0", "a new pod under the new generation")
    eventually(lambda: cluster.swap_max(NODES[2], kept) == str(2**28), "a new pod under the old one")
    agents.slow.discard(NODES[0])
    eventually(lambda: on(cluster, second) == NODES[:3], "one place in the wave is free")
    agents.slow.clear()
    eventually(lambda: on(cluster, second) == NODES, "all nodes, in the end")
    eventually(lambda: cluster.swap_max(NODES[2], kept) == "0", "the pod follows its node")
    eventually(lambda: progressing(cluster) == ("False", "Complete"), "the status says that it is done")
    kept_revisions = cluster.cp.get(f"{PROFILES}/waves")["status"]["revisions"]
    assert [each["generation"] for each in kept_revisions] == [second]


def test_a_degraded_node_stops_it_over_a_restart_too(
    cluster: Cluster, controller: Controller, agents: Agents, eventually: Eventually
) -> None:
    begin(cluster, eventually)
    agents.slow.update(NODES)
    second = change(cluster, swap={"behavior": "NoSwap"})
    eventually(lambda: on(cluster, second) == NODES[:2], "the first wave")
    agents.broken.add(NODES[1])
    agents.slow.clear()
    eventually(lambda: progressing(cluster) == ("False", "Stopped"), "it stops by itself")
    assert NODES[5] not in on(cluster, second)
    controller.process.send_signal(signal.SIGKILL)
    with Controller(cluster.cp, FAST) as other:
        other.leads()
        pod = cluster.pod(NODES[5], "later", memory="1Gi")
        eventually(lambda: cluster.swap_max(NODES[5], pod) == str(2**28), "the next leader knows the old generation")
        assert NODES[5] not in on(cluster, second)
        agents.broken.clear()
        eventually(lambda: on(cluster, second) == NODES, "it goes on when the node is well again")


@pytest.mark.usefixtures("controller")
def test_a_profile_deleted_in_the_middle_governs_nobody(
    cluster: Cluster, agents: Agents, eventually: Eventually
) -> None:
    begin(cluster, eventually)
    agents.slow.update(NODES)
    second = change(cluster, swap={"behavior": "NoSwap"})
    eventually(lambda: on(cluster, second) == NODES[:2], "the first wave")
    assert cluster.cp.request("DELETE", f"{PROFILES}/waves")[0] == 200
    eventually(
        lambda: {cluster.spec(name)["profile"]["name"] for name in NODES} == {"(built-in)"}, "all nodes are left alone"
    )


@pytest.mark.usefixtures("controller")
def test_all_at_once_if_asked(cluster: Cluster, agents: Agents, eventually: Eventually) -> None:
    begin(cluster, eventually)
    agents.slow.update(NODES)
    agents.broken.add(NODES[0])
    second = change(cluster, swap={"behavior": "NoSwap"}, rollout={"maxUnavailable": "100%"})
    eventually(lambda: on(cluster, second) == NODES, "no node waits for another")


@pytest.mark.usefixtures("controller")
def test_what_a_change_takes_is_told_before_and_held_if_asked(
    cluster: Cluster, agents: Agents, eventually: Eventually
) -> None:
    begin(cluster, eventually)
    agents.using = {NODES[0]: 2**20, NODES[3]: 2**21}
    rules = {"maxUnavailable": "50%", "onSwapInUse": "Hold"}
    second = change(cluster, swap={"behavior": "NoSwap"}, rollout=rules)
    kept = [NODES[0], NODES[3]]
    eventually(lambda: on(cluster, second) == [name for name in NODES if name not in kept], "the nodes without use")
    eventually(lambda: progressing(cluster) == ("False", "Held"), "the status says that it holds")
    told = cluster.cp.get(f"{PROFILES}/waves")["status"]["swapInUse"]
    assert told == {"nodes": 2, "pods": 2, "bytes": 3 * 2**20}
    agents.using = {NODES[3]: 2**21}
    eventually(lambda: NODES[0] in on(cluster, second), "a node where less is in use")
    assert NODES[3] not in on(cluster, second)
    third = change(cluster, rollout={"onSwapInUse": "Proceed"})
    eventually(lambda: on(cluster, third) == NODES, "all nodes, where that is what people want")
    eventually(lambda: "proposal" not in cluster.spec(NODES[3]), "nobody is asked any more")
    eventually(lambda: cluster.cp.get(f"{PROFILES}/waves")["status"]["swapInUse"]["pods"] == 0, "nothing left to take")


@pytest.mark.parametrize("value", [0, "0%", "101%", "half", -1])
def test_what_is_no_number_of_nodes_is_refused(cluster: Cluster, value: object) -> None:
    body = {
        "apiVersion": "swapwarden.dev/v1alpha1",
        "kind": "NodeSwapProfile",
        "metadata": {"name": "bad"},
        "spec": {"nodeSelector": {}, "rollout": {"maxUnavailable": value}},
    }
    status, answer = cluster.cp.request("POST", PROFILES, body)
    assert status == 422
    assert "must be a number of nodes from 1, or percents of them from 1% to 100%" in answer["message"]
