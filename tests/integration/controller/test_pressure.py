"""`pressure.mode: Observe`: who would be evicted from a node under memory pressure, by real disruption budgets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from swapwarden.controller.pressure import budgets
from swapwarden.kube import client, config
from swapwarden.policy.pressure.candidates import Candidate

from testbed.product.controller import ACCOUNT, NAMESPACE, Controller
from tests.integration.controller.cluster import FAST, STATES, Cluster

Eventually = Callable[[Callable[[], object], str], None]
Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
MI = 2**20
SINCE = "2026-01-01T00:00:00Z"
NUMBERS = itertools.count(1)
HOLDS = "swapwarden_controller_pressure_holds_total"
ANSWERS = "swapwarden_controller_eviction_dry_runs_total"


@pytest.fixture(scope="module")
def allowed(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the rights that come with the chart's value."""
    with cluster.granted("evictionDryRun=true", "policy-evictions"):
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


def running(cluster: Cluster, node: str, name: str, request: str = "100Mi") -> str:
    """A running pod of a ReplicaSet with this name and a label of it; its UID."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": f"uid-of-{name}", "controller": True}
    resources = {"requests": {"memory": request}}
    body = {
        "metadata": {"name": name, "labels": {"app": name}, "ownerReferences": [owner]},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "none", "resources": resources}]},
    }
    made = cluster.cp.create(PODS, body)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": SINCE}
    code, answer = cluster.cp.request(
        "PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Running", "conditions": [ready]}}
    )
    assert code == 200, answer
    return str(made["metadata"]["uid"])


def budget(cluster: Cluster, name: str, pod: str, disruptions: int, *, processed: bool = True) -> None:
    """Make a disruption budget of a pod, and be the controller that fills in its status."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": pod}}}
    made = cluster.cp.create(BUDGETS, {"metadata": {"name": name}, "spec": spec})
    counts = {"currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2, "disruptionsAllowed": disruptions}
    status = {**counts, "observedGeneration": made["metadata"]["generation"] if processed else 0}
    code, answer = cluster.cp.request("PATCH", f"{BUDGETS}/{name}/status", {"status": status})
    assert code == 200, answer


def report(cluster: Cluster, node: str, seq: int, **mebibytes: int) -> None:
    """Be the agent of the node, and report the memory of pods by UID."""
    found = [{"pod": uid, "workingSetBytes": size * MI} for uid, size in mebibytes.items()]
    about = {"signal": "Headroom", "scope": "Node", "headroomBytes": 50 * MI, "since": SINCE}
    body = {"status": {"pressure": {"seq": seq, **about, "pods": found}}}
    code, answer = cluster.cp.request("PATCH", f"{STATES}/{node}/status", body)
    assert code == 200, answer


def begin(cluster: Cluster, node: str, eventually: Eventually) -> None:
    """Wait for the plan, and be the agent that has it in force."""
    eventually(lambda: "pressure" in cluster.spec(node), "the thresholds")
    cluster.report(node)


def told(cluster: Cluster, kind: str, name: str, reason: str) -> list[str]:
    selector = f"involvedObject.kind={kind},involvedObject.name={name},reason={reason}"
    found = cluster.cp.get(f"/api/v1/namespaces/default/events?fieldSelector={selector}")["items"]
    return [each["message"] for each in found]


def test_the_first_pod_that_budgets_let_go_is_named_with_its_sums(
    allowed: Cluster, node: str, eventually: Eventually
) -> None:
    with Controller(allowed.cp, FAST, "--eviction-dry-run") as controller:
        controller.leads()
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
    running(allowed, node, "mine")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "mine", "namespace": "default"}}
    token = allowed.cp.token(NAMESPACE, ACCOUNT)
    code, answer = allowed.cp.request("POST", f"{PODS}/mine/eviction{query}", eviction, token=token)
    assert code == status, answer
    assert status == 201 or "swapwarden-controller-evictions" in answer["message"]
    assert "deletionTimestamp" not in allowed.cp.get(f"{PODS}/mine")["metadata"]
