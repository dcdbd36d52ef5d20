"""`pressure.mode: Observe`: who would be evicted from a node under memory pressure, by real disruption budgets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from swapwarden.controller.pressure import budgets
from swapwarden.kube import client, config
from swapwarden.policy.pressure.candidates import Candidate

from testbed.product.controller import ACCOUNT, NAMESPACE, Controller
from tests.integration.controller.cluster import FAST, PROFILES, Cluster
from tests.integration.controller.pressure import (
    BUDGETS,
    PODS,
    Eventually,
    begin,
    budget,
    eviction,
    report,
    running,
    told,
)

NUMBERS = itertools.count(1)
HOLDS = "swapwarden_controller_pressure_holds_total"
ANSWERS = "swapwarden_controller_eviction_dry_runs_total"


@pytest.fixture(scope="module")
def allowed(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the rights that come with the chart's value."""
    with cluster.granted("eviction=DryRun", "policy-evictions"):
        yield cluster


@pytest.fixture
def node(allowed: Cluster) -> Iterator[str]:
    """A new node whose profile observes its pressure."""
    name = f"full-{next(NUMBERS)}"
    allowed.node(name)
    allowed.profile(name, {"group": name}, swap={"behavior": "NoSwap"}, pressure={"mode": "Observe"})
    yield name
    for item in allowed.cp.get(BUDGETS)["items"]:
        allowed.cp.request("DELETE", f"{BUDGETS}/{item['metadata']['name']}")


def test_the_first_pod_that_budgets_let_go_is_named_with_its_sums(
    allowed: Cluster, node: str, eventually: Eventually
) -> None:
    enforcing = {"spec": {"pressure": {"mode": "Enforce"}}}
    assert allowed.cp.request("PATCH", f"{PROFILES}/{node}", enforcing)[0] == 200
    with Controller(allowed.cp, FAST, "--eviction=DryRun") as controller:
        controller.leads()
        eventually(lambda: allowed.conditions(node).get("Degraded") == ("True", "NoEviction"), "the profile says so")
        begin(allowed, node, eventually)
        uids = {name: running(allowed, node, name) for name in ("kept", "unready", "twice", "free")}
        budget(allowed, "kept", "kept", 0)
        budget(allowed, "unready", "unready", 1, processed=False)
        budget(allowed, "twice", "twice", 1)
        budget(allowed, "twice-more", "twice", 1)
        budget(allowed, "free", "free", 1)
        sizes = {uids["kept"]: 900, uids["unready"]: 800, uids["twice"]: 700, uids["free"]: 600}
        report(allowed, node, 1, **sizes)
        eventually(lambda: told(allowed, "Pod", "free", "WouldBeEvicted"), "the event of the pod")
        sums = "usage 600Mi (memory 600Mi + swap 0Mi) > request 100Mi + swap 0Mi; priority 0"
        low = "node headroom 50Mi < 204Mi"
        asked = "disruption budgets allow it"
        assert told(allowed, "Pod", "free", "WouldBeEvicted") == [
            f"this pod would be evicted first from node {node}: {sums}; {low}; {asked}"
        ]
        eventually(lambda: told(allowed, "Node", node, "MemoryPressureObserved"), "the event of the node")
        assert told(allowed, "Node", node, "MemoryPressureObserved") == [
            f"{low}; pod default/free would be evicted first: {sums}; {asked}"
        ]
        for name in ("kept", "unready", "twice"):
            assert told(allowed, "Pod", name, "WouldBeEvicted") == []
        for answer, count in {"Budget": 2, "SeveralBudgets": 1, "Allowed": 1}.items():
            assert controller.metric(ANSWERS, answer=answer) == count
        assert controller.metric(HOLDS, reason="Observe") == 1
        # Once more: blocked pods are not asked about again, and no event is posted twice.
        report(allowed, node, 2, **sizes)
        eventually(lambda: controller.metric(HOLDS, reason="Observe") == 2, "the next decision")
        assert controller.metric(ANSWERS, answer="Budget") == 2
        assert controller.metric(ANSWERS, answer="Allowed") == 2
        assert len(told(allowed, "Pod", "free", "WouldBeEvicted")) == 1
    # Nothing was evicted, and no disruption used up.
    assert "deletionTimestamp" not in allowed.cp.get(f"{PODS}/free")["metadata"]
    assert allowed.cp.get(f"{BUDGETS}/free")["status"]["disruptionsAllowed"] == 1


def test_a_pod_within_its_request_is_not_named_and_the_node_has_the_reason(
    allowed: Cluster, node: str, eventually: Eventually
) -> None:
    with Controller(allowed.cp, FAST) as controller:
        controller.leads()
        begin(allowed, node, eventually)
        within, above = running(allowed, node, "within", "1Gi"), running(allowed, node, "above")
        report(allowed, node, 1, **{within: 1024})
        eventually(lambda: told(allowed, "Node", node, "MemoryPressureObserved"), "the event")
        [text] = told(allowed, "Node", node, "MemoryPressureObserved")
        assert "no pod that may be evicted uses more than its memory request and its swap" in text
        report(allowed, node, 2, **{within: 1024, above: 200})
        eventually(lambda: told(allowed, "Pod", "above", "WouldBeEvicted"), "the event of the pod")
        assert told(allowed, "Pod", "above", "WouldBeEvicted")[0].endswith("disruption budgets were not asked")
        assert told(allowed, "Pod", "within", "WouldBeEvicted") == []


def test_a_report_from_before_counts_once_its_agent_reports_again(
    allowed: Cluster, node: str, eventually: Eventually
) -> None:
    with Controller(allowed.cp, FAST) as controller:
        controller.leads()
        begin(allowed, node, eventually)
    uid = running(allowed, node, "large")
    report(allowed, node, 7, **{uid: 900})
    with Controller(allowed.cp, FAST) as controller:
        controller.leads()
        eventually(lambda: controller.metric(HOLDS, reason="Stale") == 1, "the first decision")
        assert told(allowed, "Pod", "large", "WouldBeEvicted") == []
        report(allowed, node, 8, **{uid: 900})
        eventually(lambda: told(allowed, "Pod", "large", "WouldBeEvicted"), "the event of the pod")


def test_another_pod_of_the_same_name_is_not_evicted_in_its_place(allowed: Cluster, node: str) -> None:
    uid = running(allowed, node, "again")
    kubeconfig = allowed.cp.kubeconfig_for(allowed.cp.token(NAMESPACE, ACCOUNT), "asks")

    async def answers() -> list[str]:
        async with client.Client(config.load(str(kubeconfig)), user_agent="test") as api:
            pods = [
                Candidate(one, one, "default", name) for one, name in ((uid, "again"), ("former", "again"), (uid, "no"))
            ]
            return [await budgets.ask(api, one) for one in pods]

    assert asyncio.run(answers()) == ["Allowed", "Replaced", "Gone"]


@pytest.mark.parametrize(("query", "status"), [("", 403), ("?dryRun=All", 201)])
def test_it_may_ask_and_not_evict(allowed: Cluster, node: str, query: str, status: int) -> None:
    uid = running(allowed, node, "mine")
    token = allowed.cp.token(NAMESPACE, ACCOUNT)
    body = eviction("mine", preconditions={"uid": uid}, gracePeriodSeconds=1)
    code, answer = allowed.cp.request("POST", f"{PODS}/mine/eviction{query}", body, token=token)
    assert code == status, answer
    assert status == 201 or "swapwarden-controller-evictions" in answer["message"]
    assert "deletionTimestamp" not in allowed.cp.get(f"{PODS}/mine")["metadata"]
