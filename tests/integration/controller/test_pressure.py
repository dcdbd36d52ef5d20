"""`pressure.mode: Observe`: who would be evicted from a node under memory pressure, by real disruption budgets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from swapwarden.controller.pressure import budgets

from testbed.product.controller import ACCOUNT, NAMESPACE, Controller
from tests.integration.conftest import Eventually
from tests.integration.controller import pressure
from tests.integration.controller.cluster import FAST, PROFILES, Cluster
from tests.integration.controller.pressure import ANSWERS, BUDGETS, HOLDS, PODS

EVICTION = "DryRun"


@pytest.fixture
def node(allowed: Cluster) -> Iterator[str]:
    """A new node whose profile observes its pressure."""
    yield pressure.governed(allowed, mode="Observe")
    pressure.no_budgets(allowed)


def test_the_first_pod_that_budgets_let_go_is_named_with_its_sums(
    allowed: Cluster, node: str, eventually: Eventually
) -> None:
    enforcing = {"spec": {"pressure": {"mode": "Enforce"}}}
    assert allowed.cp.request("PATCH", f"{PROFILES}/{node}", enforcing)[0] == 200
    with Controller(allowed.cp, FAST, "--eviction=DryRun") as controller:
        controller.leads()
        eventually(lambda: allowed.conditions(node).get("Degraded") == ("True", "NoEviction"), "the profile says so")
        pressure.begin(allowed, node, eventually)
        uids = {name: pressure.running(allowed, node, name) for name in ("kept", "unready", "twice", "free")}
        pressure.budget(allowed, "kept", "kept", 0)
        pressure.budget(allowed, "unready", "unready", 1, processed=False)
        pressure.budget(allowed, "twice", "twice", 1)
        pressure.budget(allowed, "twice-more", "twice", 1)
        pressure.budget(allowed, "free", "free", 1)
        sizes = {uids["kept"]: 900, uids["unready"]: 800, uids["twice"]: 700, uids["free"]: 600}
        eventually(lambda: sizes.keys() <= allowed.spec(node)["pods"].keys(), "their plan, with what they may swap")
        pressure.report(allowed, node, 1, **sizes)
        eventually(lambda: pressure.told(allowed, "Pod", "free", "WouldBeEvicted"), "the event of the pod")
        sums = "usage 600Mi (memory 600Mi + swap 0Mi) > request 100Mi + swap 0Mi; priority 0"
        low = "node headroom 50Mi < 204Mi"
        asked = "disruption budgets allow it"
        assert pressure.told(allowed, "Pod", "free", "WouldBeEvicted") == [
            f"this pod would be evicted first from node {node}: {sums}; {low}; {asked}"
        ]
        eventually(lambda: pressure.told(allowed, "Node", node, "MemoryPressureObserved"), "the event of the node")
        assert pressure.told(allowed, "Node", node, "MemoryPressureObserved") == [
            f"{low}; pod default/free would be evicted first: {sums}; {asked}"
        ]
        for name in ("kept", "unready", "twice"):
            assert pressure.told(allowed, "Pod", name, "WouldBeEvicted") == []
        for answer, count in {"Budget": 2, "SeveralBudgets": 1, "Allowed": 1}.items():
            assert controller.metric(ANSWERS, answer=answer) == count
        assert controller.metric(HOLDS, reason="Observe") == 1
        # Once more: blocked pods are not asked about again, and no event is posted twice.
        pressure.report(allowed, node, 2, **sizes)
        eventually(lambda: controller.metric(HOLDS, reason="Observe") == 2, "the next decision")
        assert controller.metric(ANSWERS, answer="Budget") == 2
        assert controller.metric(ANSWERS, answer="Allowed") == 2
        assert len(pressure.told(allowed, "Pod", "free", "WouldBeEvicted")) == 1
    # Nothing was evicted, and no disruption used up.
    assert "deletionTimestamp" not in allowed.cp.get(f"{PODS}/free")["metadata"]
    assert allowed.cp.get(f"{BUDGETS}/free")["status"]["disruptionsAllowed"] == 1


def test_a_pod_within_its_request_is_not_named_and_the_node_has_the_reason(
    allowed: Cluster, node: str, eventually: Eventually
) -> None:
    with Controller(allowed.cp, FAST) as controller:
        controller.leads()
        pressure.begin(allowed, node, eventually)
        within, above = pressure.running(allowed, node, "within", "1Gi"), pressure.running(allowed, node, "above")
        pressure.report(allowed, node, 1, **{within: 1024})
        eventually(lambda: pressure.told(allowed, "Node", node, "MemoryPressureObserved"), "the event")
        [text] = pressure.told(allowed, "Node", node, "MemoryPressureObserved")
        assert "no pod that may be evicted uses more than its memory request and its swap" in text
        pressure.report(allowed, node, 2, **{within: 1024, above: 200})
        eventually(lambda: pressure.told(allowed, "Pod", "above", "WouldBeEvicted"), "the event of the pod")
        assert pressure.told(allowed, "Pod", "above", "WouldBeEvicted")[0].endswith("disruption budgets were not asked")
        assert pressure.told(allowed, "Pod", "within", "WouldBeEvicted") == []


def test_pods_of_daemon_sets_and_bare_ones_are_named_where_the_profile_says_so(
    allowed: Cluster, node: str, eventually: Eventually
) -> None:
    kinds = ("daemonSets", "unmanaged")
    nodes = [node, *(pressure.governed(allowed, mode="Observe", eviction={kind: "Evict"}) for kind in kinds)]
    with Controller(allowed.cp, FAST) as controller:
        controller.leads()
        for number, each in enumerate(nodes):
            pressure.begin(allowed, each, eventually)
            daemon = pressure.running(allowed, each, f"daemon-{number}", owner="DaemonSet")
            bare = pressure.running(allowed, each, f"bare-{number}", owner="")
            pressure.report(allowed, each, 1, **{daemon: 900, bare: 800})
        eventually(lambda: controller.metric(HOLDS) == 3, "the decisions")
        for name in ("daemon-1", "bare-2"):
            eventually(lambda: pressure.told(allowed, "Pod", name, "WouldBeEvicted"), "the event")  # noqa: B023 now
        assert controller.metric(HOLDS, reason="NoCandidate") == 1
        for name in ("daemon-0", "bare-0", "bare-1", "daemon-2"):
            assert pressure.told(allowed, "Pod", name, "WouldBeEvicted") == []


def test_a_report_from_before_counts_once_its_agent_reports_again(
    allowed: Cluster, node: str, eventually: Eventually
) -> None:
    with Controller(allowed.cp, FAST) as controller:
        controller.leads()
        pressure.begin(allowed, node, eventually)
    uid = pressure.running(allowed, node, "large")
    pressure.report(allowed, node, 7, **{uid: 900})
    with Controller(allowed.cp, FAST) as controller:
        controller.leads()
        eventually(lambda: controller.metric(HOLDS, reason="Stale") == 1, "the first decision")
        assert pressure.told(allowed, "Pod", "large", "WouldBeEvicted") == []
        pressure.report(allowed, node, 8, **{uid: 900})
        eventually(lambda: pressure.told(allowed, "Pod", "large", "WouldBeEvicted"), "the event of the pod")


def test_another_pod_of_the_same_name_is_not_evicted_in_its_place(allowed: Cluster, node: str) -> None:
    uid = pressure.running(allowed, node, "again")
    asked = pressure.answers(allowed, budgets.ask, (uid, "again"), ("former", "again"), (uid, "no"))
    assert asked == ["Allowed", "Replaced", "Gone"]


@pytest.mark.parametrize(("query", "status"), [("", 403), ("?dryRun=All", 201)])
def test_it_may_ask_and_not_evict(allowed: Cluster, node: str, query: str, status: int) -> None:
    uid = pressure.running(allowed, node, "mine")
    token = allowed.cp.token(NAMESPACE, ACCOUNT)
    body = pressure.eviction("mine", preconditions={"uid": uid}, gracePeriodSeconds=1)
    code, answer = allowed.cp.request("POST", f"{PODS}/mine/eviction{query}", body, token=token)
    assert code == status, answer
    assert status == 201 or "swapwarden-controller-evictions" in answer["message"]
    assert "deletionTimestamp" not in allowed.cp.get(f"{PODS}/mine")["metadata"]
