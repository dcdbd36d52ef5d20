"""`pressure.mode: Enforce`: which pod is evicted from a node under memory pressure, and that it is the only one."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from swapwarden.controller.pressure import budgets

from testbed.product.controller import ACCOUNT, NAMESPACE, Controller
from tests.integration.conftest import Eventually
from tests.integration.controller import evicting, overload, pressure
from tests.integration.controller.cluster import FAST, Cluster
from tests.integration.controller.pressure import ANSWERS, BUDGETS, HOLDS, PODS
from tests.unit.controller.known import term

EVICTION = "Enforce"
EVICTIONS = "swapwarden_controller_evictions_total"


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The file with the fault of requests to evict."""
    return tmp_path_factory.mktemp("evictions") / "fault"


def evictor(cluster: Cluster, fault: pathlib.Path) -> Controller:
    """A controller that evicts."""
    return Controller(cluster.cp, FAST, "--eviction=Enforce", program=(evicting.__file__, str(fault)))


@pytest.fixture(scope="module")
def leader(allowed: Cluster, fault: pathlib.Path) -> Iterator[Controller]:
    with evictor(allowed, fault) as controller:
        controller.leads()
        yield controller


def made(cluster: Cluster, **bounds: Any) -> str:
    """A new node whose profile has pods evicted, within these bounds."""
    bounds = {"settleSeconds": 1, "maxGracePeriodSeconds": 7, **bounds}
    return pressure.governed(cluster, mode="Enforce", eviction=bounds)


@pytest.fixture
def node(allowed: Cluster, fault: pathlib.Path) -> Iterator[str]:
    yield made(allowed)
    fault.unlink(missing_ok=True)
    pressure.no_budgets(allowed)


def ending(cluster: Cluster, *names: str) -> list[str]:
    """Those of the pods that were deleted, and may still run."""
    return [name for name in names if "deletionTimestamp" in cluster.cp.get(f"{PODS}/{name}")["metadata"]]


def ends(cluster: Cluster, name: str) -> None:
    """Be the kubelet, whose pod has ended."""
    assert cluster.cp.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")[0] == 200


def reports_until(
    cluster: Cluster, leader: Controller, node: str, seq: int, name: str, eventually: Eventually, **sizes: int
) -> None:
    """Report the same once more after each decision, until the pod is evicted."""

    def decisions() -> float:
        return leader.metric(HOLDS) + leader.metric(EVICTIONS)

    for number in range(seq, seq + 1000):
        before = decisions()
        pressure.report(cluster, node, number, **sizes)
        eventually(lambda: decisions() > before, "a decision")  # noqa: B023 it is waited for here
        if ending(cluster, name):
            return


def victim(cluster: Cluster, node: str) -> str:
    """The pod in the record."""
    return str(cluster.spec(node)["pressure"].get("victim", {}).get("name", ""))


def test_one_pod_is_evicted_and_no_other_before_it_is_gone(
    allowed: Cluster, leader: Controller, node: str, eventually: Eventually
) -> None:
    pressure.begin(allowed, node, eventually)
    within = pressure.running(allowed, node, "within", "1Gi")
    uids = {name: pressure.running(allowed, node, name) for name in ("kept", "twice", "first", "second")}
    pressure.budget(allowed, "kept", "kept", 0)
    pressure.budget(allowed, "twice", "twice", 1)
    pressure.budget(allowed, "twice-more", "twice", 1)
    pressure.budget(allowed, "first", "first", 1)
    sizes = {within: 1024, uids["kept"]: 900, uids["twice"]: 800, uids["first"]: 700, uids["second"]: 600}
    pressure.report(allowed, node, 1, **sizes)
    eventually(lambda: ending(allowed, "first"), "the eviction")
    found = allowed.cp.get(f"{PODS}/first")
    assert found["metadata"]["deletionGracePeriodSeconds"] == 7
    assert "EvictionByEvictionAPI" in {one.get("reason") for one in found["status"]["conditions"]}
    assert victim(allowed, node) == "first"
    assert allowed.cp.get(f"{BUDGETS}/first")["status"]["disruptionsAllowed"] == 0
    sums = "usage 700Mi (memory 700Mi + swap 0Mi) > request 100Mi + swap 0Mi; priority 0"
    low = "node headroom 50Mi < 204Mi"
    eventually(lambda: pressure.told(allowed, "Node", node, "SwapPressureEviction"), "the event of the node")
    assert pressure.told(allowed, "Node", node, "SwapPressureEviction") == [
        f"{low}; pod default/first is evicted: {sums}"
    ]
    eventually(lambda: pressure.told(allowed, "Pod", "first", "SwapPressureEviction"), "the event of the pod")
    pressure.report(allowed, node, 2, **sizes)
    eventually(lambda: leader.metric(HOLDS, reason="Settling"), "the decision on the next report")
    ends(allowed, "first")
    eventually(lambda: not victim(allowed, node), "the end of the record")
    reports_until(allowed, leader, node, 3, "second", eventually, **sizes)
    assert leader.metric(EVICTIONS, result="Evicted") == 2
    assert ending(allowed, "within", "kept", "twice") == []


def test_a_request_whose_answer_is_lost_evicts_one_pod(
    allowed: Cluster, leader: Controller, node: str, fault: pathlib.Path, eventually: Eventually
) -> None:
    evicted = leader.metric(EVICTIONS, result="Evicted") or 0
    fault.write_text(evicting.LOST)
    pressure.begin(allowed, node, eventually)
    uids = {name: pressure.running(allowed, node, name) for name in ("lost", "other")}
    pressure.report(allowed, node, 1, **{uids["lost"]: 900, uids["other"]: 800})
    eventually(lambda: leader.metric(EVICTIONS, result="Evicted") == evicted + 1, "it is found out")
    assert leader.metric(EVICTIONS, result="Error") == 1, "there was one request"
    ends(allowed, "lost")
    eventually(lambda: not victim(allowed, node), "the end of the record")
    assert ending(allowed, "other") == []
    eventually(lambda: pressure.told(allowed, "Pod", "lost", "SwapPressureEviction"), "the event")


def test_no_pod_is_evicted_while_the_kubelet_reports_memory_pressure(
    allowed: Cluster, leader: Controller, eventually: Eventually
) -> None:
    node, before = made(allowed, settleSeconds=600), leader.metric(HOLDS, reason="KubeletEvicting") or 0
    condition = {"type": "MemoryPressure", "status": "True", "reason": "KubeletHasInsufficientMemory"}
    allowed.cp.request("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": {"group": "other"}}})
    eventually(lambda: allowed.spec(node).get("profileRef", {}).get("name") != node, "the node follows no profile")
    patch = {"status": {"conditions": [condition]}}
    assert allowed.cp.request("PATCH", f"/api/v1/nodes/{node}/status", patch)[0] == 200
    # A later change of the same object: what shows it shows that the condition is known.
    allowed.cp.request("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": {"group": node}}})
    pressure.begin(allowed, node, eventually)
    pressure.report(allowed, node, 1, **{pressure.running(allowed, node, "spared"): 900})
    eventually(lambda: (leader.metric(HOLDS, reason="KubeletEvicting") or 0) > before, "the decision")
    assert victim(allowed, node) == ""
    assert ending(allowed, "spared") == []


def test_no_pod_is_evicted_a_moment_after_the_kubelet_evicted_one(
    allowed: Cluster, leader: Controller, eventually: Eventually
) -> None:
    node, before = made(allowed, settleSeconds=600), leader.metric(HOLDS, reason="KubeletEvicting") or 0
    pressure.begin(allowed, node, eventually)
    uids = {name: pressure.running(allowed, node, name) for name in ("ended", "stays")}
    eventually(lambda: uids["ended"] in allowed.spec(node).get("pods", {}), "the plan with the pod")
    pressure.evicted_by_kubelet(allowed, "ended")
    eventually(lambda: uids["ended"] not in allowed.spec(node).get("pods", {}), "the plan without the pod")
    allowed.report(node)
    pressure.report(allowed, node, 1, **{uids["stays"]: 900})
    eventually(lambda: (leader.metric(HOLDS, reason="KubeletEvicting") or 0) > before, "the decision")
    assert victim(allowed, node) == ""
    assert ending(allowed, "stays") == []


def test_a_pod_that_the_kubelet_evicts_first_is_left_to_it_and_no_other_follows(
    allowed: Cluster, leader: Controller, fault: pathlib.Path, eventually: Eventually
) -> None:
    def held() -> float:
        return sum(leader.metric(HOLDS, reason=each) or 0 for each in ("KubeletEvicting", "Settling"))

    node = made(allowed, settleSeconds=600)
    pressure.begin(allowed, node, eventually)
    uids = {name: pressure.running(allowed, node, name) for name in ("raced", "next")}
    fault.write_text(evicting.PAUSED)
    sizes = {uids["raced"]: 900, uids["next"]: 800}
    pressure.report(allowed, node, 1, **sizes)
    eventually(lambda: victim(allowed, node) == "raced", "the record")
    pressure.evicted_by_kubelet(allowed, "raced")
    fault.unlink()
    eventually(lambda: not victim(allowed, node), "the end of the record")
    before = held()
    pressure.report(allowed, node, 2, **sizes)
    eventually(lambda: held() > before, "the next decision")
    assert ending(allowed, "raced", "next") == [], "the API server deletes an ended pod that is evicted"
    assert pressure.told(allowed, "Pod", "raced", "SwapPressureEviction") == []


def test_the_next_leader_evicts_the_recorded_pod_and_no_other(
    allowed: Cluster, leader: Controller, node: str, fault: pathlib.Path, eventually: Eventually
) -> None:
    leader.stop()
    once = made(allowed, perNodePerHour=1)
    names = {once: ("chosen", "larger"), node: ("replaced", "neighbour")}
    fault.write_text(evicting.STUCK)
    uids: dict[str, str] = {}
    with evictor(allowed, fault) as first:
        first.leads()
        for each, pods in names.items():
            pressure.begin(allowed, each, eventually)
            uids |= {name: pressure.running(allowed, each, name) for name in pods}
            pressure.report(allowed, each, 1, **{uids[pods[0]]: 900, uids[pods[1]]: 800})
            eventually(lambda: victim(allowed, each), "the record")  # noqa: B023 it is waited for here
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(10)
    assert ending(allowed, *uids) == []
    # One pod is replaced by another of its name, which keeps within its request.
    ends(allowed, "replaced")
    uids["replaced"] = pressure.running(allowed, list(names)[1], "replaced", "2Gi")
    fault.unlink()
    with evictor(allowed, fault) as second:
        second.leads()
        for each, pods in names.items():
            pressure.report(allowed, each, 2, **{uids[pods[0]]: 700, uids[pods[1]]: 2000})
        eventually(lambda: ending(allowed, *uids), "the eviction")
        eventually(lambda: not victim(allowed, list(names)[1]), "the end of the other record")
        assert ending(allowed, *uids) == ["chosen"]
        assert second.metric(EVICTIONS, result="Gone") == 1
        ends(allowed, "chosen")
        eventually(lambda: allowed.spec(once)["pressure"].get("evictedAt"), "the time for the next leader")
    with evictor(allowed, fault) as third:
        third.leads()
        pressure.report(allowed, once, 3, **{uids["larger"]: 2000})
        eventually(lambda: third.metric(HOLDS, reason="NodeLimit") == 1, "the decision of the next leader")
        assert ending(allowed, "larger") == []


def test_an_overloaded_api_server_is_asked_again_about_the_same_pod(
    allowed: Cluster, node: str, fault: pathlib.Path, eventually: Eventually
) -> None:
    with evictor(allowed, fault) as leader:
        leader.leads()
        pressure.begin(allowed, node, eventually)
        uids = {name: pressure.running(allowed, node, name) for name in ("chosen", "other")}
        sizes = {uids["chosen"]: 900, uids["other"]: 800}
        fault.write_text(evicting.STUCK)
        with overload.overloaded(allowed, eventually):
            pressure.report(allowed, node, 1, **sizes)
            eventually(lambda: leader.metric(ANSWERS, answer="Error"), "the dry run is refused")
            assert victim(allowed, node) == ""
        pressure.report(allowed, node, 2, **sizes)
        eventually(lambda: victim(allowed, node), "the record")
        with overload.overloaded(allowed, eventually):
            fault.unlink()
            eventually(lambda: leader.metric(EVICTIONS, result="Error"), "the request is refused")
            assert victim(allowed, node) == "chosen"
            assert ending(allowed, *uids) == []
        eventually(lambda: ending(allowed, *uids), "the eviction")
        assert ending(allowed, *uids) == ["chosen"]
        assert leader.metric(EVICTIONS, result="Evicted") == 1
        assert not leader.metric(ANSWERS, answer="Budget"), "a 429 of overload is no budget's"


def test_another_pod_of_the_same_name_is_not_evicted(allowed: Cluster, node: str) -> None:
    uid = pressure.running(allowed, node, "again")
    leads = term()
    pods = (("former", "again"), (uid, "no"), (uid, "again"))
    asked = pressure.answers(allowed, lambda api, pod: budgets.evict(api, leads, pod, 30), *pods)
    assert asked == ["Replaced", "Gone", "Allowed"]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"gracePeriodSeconds": 1}, 403),
        ({"preconditions": {"uid": "UID"}}, 403),
        ({"preconditions": {"uid": "UID"}, "gracePeriodSeconds": 0}, 403),
        ({"preconditions": {"uid": "UID"}, "gracePeriodSeconds": 1}, 201),
    ],
    ids=["no uid", "no grace", "at once", "as it does"],
)
def test_it_may_evict_what_it_names_by_uid_and_gives_time(
    allowed: Cluster, node: str, options: dict[str, Any], status: int
) -> None:
    uid = pressure.running(allowed, node, "mine")
    if "preconditions" in options:
        options = {**options, "preconditions": {"uid": uid}}
    token = allowed.cp.token(NAMESPACE, ACCOUNT)
    code, answer = allowed.cp.request(
        "POST", f"{PODS}/mine/eviction", pressure.eviction("mine", **options), token=token
    )
    assert code == status, answer
    assert status == 201 or "swapwarden-controller-evictions" in answer["message"]
    assert bool(ending(allowed, "mine")) == (status == 201)
