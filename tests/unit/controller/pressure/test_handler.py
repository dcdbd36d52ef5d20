"""Evictions from a node under memory pressure, by leaders that end at any moment, and an API server that refuses."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.api.notices import Notice
from swapwarden.controller.pressure import budgets, handler
from swapwarden.controller.writers import victims
from swapwarden.controller.writers.fenced import Fenced
from swapwarden.kube import client, errors, events, ratelimit
from swapwarden.policy import plan
from swapwarden.policy.fleet import cluster
from swapwarden.policy.observed import nodes, pods, states
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.pressure import handling
from swapwarden.policy.pressure.limits import HoldReason
from swapwarden.policy.pressure.thresholds import Eviction, Pressure

from tests.unit.controller.known import term
from tests.unit.objects import named_profile, node

MI = 2**20
NODE = node("n")
PRESSURE = Pressure("400Mi", "800Mi", 5, 40, 10, enforce=True)
ENFORCED = named_profile(behavior=names.Behavior.NO_SWAP, pressure=PRESSURE)
OWNER = {"kind": "ReplicaSet", "controller": True}
OVERLOAD = errors.ApiError(429, "TooManyRequests", "busy", 7.0)
BUDGET = errors.ApiError(429, "TooManyRequests", "...", causes=frozenset({"DisruptionBudget"}))
SILENCE = errors.Unreachable("no answer")


class KilledError(Exception):
    """The leader's process ends here."""


class Server:
    """An API server with a node's pods and its state, and the log of requests to it."""

    def __init__(self, *pods: str) -> None:
        self.pods = {name: pod(name) for name in pods}
        spec = plan.plan_node(ENFORCED, cluster_facts(), ())
        self.state: dict[str, Any] = {
            "metadata": {
                "name": "n",
                "uid": "s",
                "generation": 1,
                "resourceVersion": "1",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": NODE.uid}],
            },
            "spec": msgspec.to_builtins(spec),
            "status": {"observedGeneration": 1, "profileRef": msgspec.to_builtins(plan.reference(ENFORCED))},
        }
        self.log: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.before: dict[str, Exception] = {}
        """Errors in place of a step, by its line in the log."""
        self.after: dict[str, Exception] = {}
        """Errors after a step."""
        self.at_request: Callable[[], object] = lambda: None
        """Called before an eviction is executed."""

    def step(self, line: str) -> None:
        if error := self.before.pop(line, None):
            raise error
        self.log.append(line)

    def done(self, line: str, answer: object) -> bytes:
        if error := self.after.pop(line, None):
            raise error
        return msgspec.json.encode(answer)

    async def get(self, path: str, *, params: dict[str, str], **_: Any) -> bytes:
        key, name = params["fieldSelector"].split("=", 1)
        found = [one for one in self.pods.values() if one["metadata"]["name"] == name]
        if path == "/api/v1/pods":
            assert key == "spec.nodeName"
            found = list(self.pods.values())
        return msgspec.json.encode({"items": found, "metadata": {}})

    async def request(self, _: str, path: str, *, params: dict[str, str], body: bytes, **__: Any) -> bytes:
        assert path.endswith("/nodeswapstates/n")
        assert params["fieldValidation"] == "Strict"
        patch = msgspec.json.decode(body)
        victim = patch["spec"]["pressure"]["victim"]
        line = f"record {victim['name']}" if victim else "clear"
        self.step(line)
        version = patch["metadata"].get("resourceVersion", self.state["metadata"]["resourceVersion"])
        if version != self.state["metadata"]["resourceVersion"]:
            raise errors.ApiError(409, "Conflict", "the object has been modified")
        if patch["spec"]["epoch"] < self.state["spec"].get("epoch", 0):
            raise errors.ApiError(422, "Invalid", state.EPOCH_REFUSAL)
        self.state["spec"]["epoch"] = patch["spec"]["epoch"]
        self.state["spec"]["pressure"].pop("victim", None)
        if victim:
            self.state["spec"]["pressure"]["victim"] = victim
        if "evictedAt" in patch["spec"]["pressure"]:
            self.state["spec"]["pressure"]["evictedAt"] = patch["spec"]["pressure"]["evictedAt"] or []
        self.changed()
        return self.done(line, self.state)

    async def post(self, path: str, body: bytes, *, params: dict[str, str], **_: Any) -> bytes:
        name = path.split("/")[-2]
        assert not params
        self.at_request()
        self.step(f"evict {name}")
        self.bodies.append(msgspec.json.decode(body))
        if name not in self.pods:
            raise errors.ApiError(404, "NotFound", "no such pod")
        if self.pods[name]["metadata"]["uid"] != self.bodies[-1]["deleteOptions"]["preconditions"]["uid"]:
            raise errors.ApiError(409, "Conflict", "another UID")
        self.pods[name]["metadata"]["deletionTimestamp"] = "now"
        return self.done(f"evict {name}", {})

    def changed(self) -> None:
        self.state["metadata"]["resourceVersion"] = str(int(self.state["metadata"]["resourceVersion"]) + 1)

    @property
    def victim(self) -> str:
        found = self.state["spec"].get("pressure", {}).get("victim")
        return found["name"] if found else ""

    @property
    def evicted_at(self) -> list[str]:
        """The times of past evictions, without the day."""
        return [each[11:] for each in self.state["spec"]["pressure"].get("evictedAt", [])]

    def records(self, name: str) -> None:
        """Be another leader, and record a pod."""
        self.state["spec"]["pressure"]["victim"] = {"uid": f"uid-{name}", "namespace": "a", "name": name, "seq": 1}
        self.changed()

    def reports(self, seq: int, **sizes: int) -> None:
        """Be the agent, and report the memory of pods in MiB; without any, that there is no pressure."""
        found = [{"pod": f"uid-{name}", "workingSetBytes": size * MI} for name, size in sizes.items()]
        about = {"seq": seq, "signal": "Headroom", "scope": "Node", "headroomBytes": 310 * MI, "since": "s"}
        self.state["status"]["pressure"] = {**about, "pods": found} if sizes else None
        self.changed()


def cluster_facts() -> Any:
    known = cluster.Cluster()
    known.node_changed("n", NODE)
    return known.planner.facts("n")


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    about = {"name": name, "namespace": "a", "uid": f"uid-{name}", "ownerReferences": [OWNER]}
    return {
        "metadata": {**about, **metadata},
        "spec": {"containers": [], "terminationGracePeriodSeconds": 600},
        "status": {"phase": "Running"},
    }


class Leader:
    """One leadership, with all that it knows."""

    def __init__(
        self, server: Server, epoch: int = 1, *, may: bool = True, governed: Any = ENFORCED, today: float = 0.0
    ) -> None:
        self.server = server
        self.now = 0.0
        self.events: list[Notice] = []
        self.stepped_down = asyncio.Event()
        self.meanwhile: Callable[[], object] | None = None
        """Called between the decision and the record."""
        self.at_record: Callable[[], object] = lambda: None
        """Called once a pod is recorded, or a record is removed."""
        self.answer = handling.EvictionAnswer.ALLOWED
        """To dry runs."""
        self.ended = False
        """Whether the pressure ends while the pod is recorded."""
        self.today = today
        """The time of day at the beginning, in seconds since 1970."""
        self.known = cluster.Cluster()
        self.known.profiles_changed({"p": governed})
        self.known.node_changed("n", NODE)
        api, recorder = cast("client.Client", server), cast("events.Recorder", self)
        leads = term(epoch)
        writes = Fenced(api, leads, ratelimit.Throttle(100.0, lambda: self.now))
        self.handler = handler.PressureHandler(
            self.known,
            api,
            leads,
            recorder,
            victims.VictimWriter(writes, self.wrote),
            ask=self.ask,
            evict=functools.partial(budgets.evict, api, leads) if may else None,
            deposed=lambda _: self.stepped_down.set(),
            now=lambda: self.now,
            today=lambda: self.today + self.now,
        )
        self.syncs()
        self.now = 100.0

    async def ask(self, _: Any) -> handling.EvictionAnswer:
        if self.meanwhile is not None:
            self.meanwhile()
        return self.answer

    def wrote(self, row: states.StateRow) -> None:
        self.known.wrote(msgspec.structs.replace(row, pressure=None) if self.ended else row)
        self.at_record()

    def post(self, *notices: Notice) -> None:
        self.events += notices

    def kubelet_reports_pressure(self) -> None:
        self.handler.node_changed(NODE, msgspec.structs.replace(NODE, memory_pressure=True))

    def kubelet_evicts(self, name: str) -> None:
        """Be the kubelet, which evicted a pod."""
        self.server.pods[name]["status"] = {"phase": "Failed"}
        before = pods.project(msgspec.convert(pod(name) | {"spec": {"containers": [], "nodeName": "n"}}, WirePod))
        self.handler.pod_changed(before, msgspec.structs.replace(before, terminal=True, evicted=True))

    def syncs(self) -> None:
        """Let the watch report the state."""
        old = self.known.inventory.state_of("n")
        row = states.decode(msgspec.json.encode(self.server.state))
        self.known.state_changed("n", old, row)
        self.handler.state_changed("n", old, row)

    def decides(self) -> str:
        """Decide on the node; the reason why nothing is evicted."""
        self.syncs()
        before = {str(reason): handler.HOLDS.value(reason) for reason in (handling.OBSERVE, *HoldReason)}
        try:
            asyncio.run(self.handler.handle("n"))
        finally:
            self.syncs()
        [reason] = [each for each in before if handler.HOLDS.value(each) > before[each]] or [""]
        return reason

    def told(self) -> list[str]:
        return [f"{each.reason} {each.regarding.kind}" for each in self.events]


def evictions(result: str) -> float:
    return handler.EVICTIONS.value(result)


def pressed(*pods: str, **sizes: int) -> tuple[Server, Leader]:
    """A node that came under pressure while an instance led."""
    server = Server(*pods)
    leader = Leader(server)
    server.reports(1, **sizes)
    return server, leader


def test_a_pod_is_recorded_before_it_is_evicted_and_until_it_has_ended() -> None:
    server, leader = pressed("x", "y", x=900, y=800)
    before = evictions("Evicted")
    assert leader.decides() == ""
    assert server.log == ["record x", "evict x"]
    assert server.bodies[0]["deleteOptions"] == {"preconditions": {"uid": "uid-x"}, "gracePeriodSeconds": 30}
    assert leader.told() == ["SwapPressureEviction Node", "SwapPressureEviction Pod"]
    sums = "usage 900Mi (memory 900Mi + swap 0Mi) > request 0Mi + swap 0Mi; priority 0"
    assert leader.events[1].message == f"this pod is evicted from node n: {sums}; node headroom 310Mi < 400Mi"
    assert len(leader.handler.queue) == 1, "it looks again"
    server.reports(2, x=900, y=800)
    leader.now += 5
    assert leader.decides() == "Settling"
    del server.pods["x"]
    leader.now += 5
    leader.decides()
    assert server.log == ["record x", "evict x", "clear"]
    server.reports(3, y=800)
    leader.now += 14
    assert leader.decides() == "Settling"
    server.reports(4, y=800)
    leader.now += 1
    assert leader.decides() == ""
    assert server.log[3:] == ["record y", "evict y"]
    assert evictions("Evicted") - before == 2


def test_a_new_leader_evicts_the_recorded_pod_though_another_exceeds_more_by_now() -> None:
    server, first = pressed("x", "y", x=900, y=800)
    server.before["evict x"] = KilledError()
    with pytest.raises(KilledError):
        first.decides()
    assert server.victim == "x"
    second = Leader(server, 2)
    second.decides()
    assert server.log == ["record x"], "a report from before does not count"
    server.reports(2, x=700, y=2000)
    second.decides()
    assert server.log == ["record x", "evict x"]
    assert second.told()[1:] == ["SwapPressureEviction Node", "SwapPressureEviction Pod"]
    del server.pods["x"]
    second.decides()
    assert server.log == ["record x", "evict x", "clear"]


def test_a_new_leader_asks_nothing_about_a_pod_that_ends() -> None:
    server, first = pressed("x", "y", x=900, y=800)
    first.decides()
    second = Leader(server, 2)
    server.reports(2, x=900, y=800)
    assert second.decides() == "Settling"
    assert server.log == ["record x", "evict x"]
    assert second.events == []


def test_a_new_leader_cancels_an_eviction_without_a_report() -> None:
    server, first = pressed("x", x=900)
    server.before["evict x"] = KilledError()
    with pytest.raises(KilledError):
        first.decides()
    second = Leader(server, 2)
    second.decides()
    second.now += handling.PATIENCE_SECONDS
    second.decides()
    assert server.log == ["record x", "clear"]


def test_a_record_without_an_answer_counts_as_an_eviction_and_is_written_again() -> None:
    """It may be executed later, and its pod evicted beside those that the rates allow."""
    server, leader = pressed("x", "y", x=900, y=800)
    server.before["record x"] = SILENCE
    with pytest.raises(errors.Unreachable):
        leader.decides()
    server.reports(2, x=900, y=800)
    assert leader.decides() == "Settling"
    assert server.log == []
    server.reports(3, x=900, y=800)
    leader.now += 15
    leader.decides()
    assert server.log == ["record x", "evict x"]


def test_a_request_without_an_answer_is_not_made_twice() -> None:
    server, leader = pressed("x", x=900)
    before = evictions("Evicted")
    server.after["evict x"] = SILENCE
    with pytest.raises(errors.Unreachable):
        leader.decides()
    leader.decides()
    leader.decides()
    assert server.log == ["record x", "evict x"]
    assert evictions("Evicted") - before == 1
    assert leader.told() == ["SwapPressureEviction Node", "SwapPressureEviction Pod"]


@pytest.mark.parametrize("error", [OVERLOAD, SILENCE, errors.ApiError(500, "InternalError", "etcd is away")])
def test_a_request_that_was_not_executed_is_made_again_for_the_same_pod(error: Exception) -> None:
    server, leader = pressed("x", "y", x=900, y=800)
    server.before["evict x"] = error
    with pytest.raises(type(error)):
        leader.decides()
    assert (server.victim, leader.events) == ("x", [])
    leader.decides()
    assert server.log == ["record x", "evict x"]


def test_a_budget_that_forbids_it_meanwhile_leads_to_the_next_pod() -> None:
    server, leader = pressed("x", "y", x=900, y=800)
    server.before["evict x"] = BUDGET
    leader.decides()
    assert server.log == ["record x", "clear", "record y", "evict y"]
    assert [each.regarding.name for each in leader.events] == ["n", "y"]


def test_a_refusal_leaves_no_record() -> None:
    server, leader = pressed("x", x=900)
    server.before["evict x"] = errors.ApiError(403, "Forbidden", "no right")
    with pytest.raises(errors.ApiError):
        leader.decides()
    assert server.log == ["record x", "clear"]


def ends(server: Server) -> None:
    server.reports(2)


def keeps_within(server: Server) -> None:
    server.reports(2, x=0, y=0)


@pytest.mark.parametrize("change", [ends, keeps_within])
def test_what_no_longer_holds_before_the_request_cancels_it(change: Callable[[Server], None]) -> None:
    server, leader = pressed("x", "y", x=900, y=800)
    before = evictions("Cancelled")
    server.before["evict x"] = OVERLOAD
    with pytest.raises(errors.ApiError):
        leader.decides()
    change(server)
    leader.decides()
    assert server.log == ["record x", "clear"]
    assert evictions("Cancelled") - before == 1


def test_a_cancelled_eviction_whose_request_had_no_answer_counts() -> None:
    """It may yet be executed: then another pod would be the second one."""
    server, leader = pressed("x", "y", x=900, y=800)
    for error in (SILENCE, OVERLOAD):
        server.before["evict x"] = error
        with pytest.raises(type(error)):
            leader.decides()
    server.reports(2, x=0, y=800)
    assert leader.decides() == "Settling"
    assert server.log == ["record x", "clear"]
    assert server.evicted_at == ["00:01:40Z"]


def test_pressure_that_ends_while_the_pod_is_recorded_cancels_it() -> None:
    server, leader = pressed("x", x=900)
    leader.ended = True
    leader.decides()
    assert server.log == ["record x", "clear"]


def test_another_pod_of_the_name_is_not_evicted() -> None:
    server, leader = pressed("x", x=900)
    before = evictions("Gone")
    server.before["evict x"] = OVERLOAD
    with pytest.raises(errors.ApiError):
        leader.decides()
    server.pods["x"] = pod("x", uid="uid-new")
    leader.decides()
    assert server.log == ["record x", "clear"]
    assert evictions("Gone") - before == 1


def test_a_pod_that_is_replaced_at_the_request_is_not_evicted() -> None:
    server, leader = pressed("x", x=900)
    before = evictions("Gone"), evictions("Evicted")
    server.at_request = lambda: server.pods.update(x=pod("x", uid="uid-new"))
    assert leader.decides() == "Settling"
    assert "deletionTimestamp" not in server.pods["x"]["metadata"]
    assert server.log == ["record x", "evict x", "clear"]
    assert (evictions("Gone"), evictions("Evicted")) == (before[0] + 1, before[1])
    assert "SwapPressureEviction Pod" not in leader.told()


def test_a_request_that_is_still_unanswered_when_the_pressure_ends_counts_as_evicted_once_the_pod_is_gone() -> None:
    server, leader = pressed("x", x=900)
    before = evictions("Evicted"), evictions("Cancelled")

    def ends() -> None:
        server.reports(2)
        leader.syncs()

    server.at_request, server.after["evict x"] = ends, SILENCE
    with pytest.raises(errors.Unreachable):
        leader.decides()
    assert server.log == ["record x", "evict x"]
    del server.pods["x"]
    leader.decides()
    assert server.log == ["record x", "evict x", "clear"]
    assert (evictions("Evicted"), evictions("Cancelled")) == (before[0] + 1, before[1])
    assert leader.told() == ["SwapPressureEviction Node", "SwapPressureEviction Pod"]


def test_a_state_that_changed_since_the_decision_keeps_its_record() -> None:
    server, leader = pressed("x", x=900)
    leader.meanwhile = lambda: server.records("other")  # an earlier leader did, and the watch is late
    with pytest.raises(errors.ApiError, match="modified"):
        leader.decides()
    assert server.log == ["record x"]
    assert server.victim == "other"


def test_a_leader_that_was_replaced_evicts_nothing() -> None:
    server, leader = pressed("x", x=900)
    server.state["spec"]["epoch"] = 2
    leader.syncs()

    async def serves() -> None:
        serving = asyncio.create_task(leader.handler.run())
        async with asyncio.timeout(10):
            await leader.stepped_down.wait()
        serving.cancel()

    asyncio.run(serves())
    assert server.log == ["record x"]
    assert server.victim == ""


@pytest.mark.parametrize(
    ("may", "governed"),
    [
        (False, ENFORCED),
        (True, msgspec.structs.replace(ENFORCED, pressure=msgspec.structs.replace(PRESSURE, enforce=False))),
    ],
    ids=["not by the chart", "not by the profile"],
)
def test_where_it_is_not_enforced_a_pod_is_named_only(may: bool, governed: Any) -> None:
    server = Server("x")
    leader = Leader(server, may=may, governed=governed)
    server.reports(1, x=900)
    assert leader.decides() == "Observe"
    assert server.log == []
    assert leader.told() == ["MemoryPressureObserved Node", "WouldBeEvicted Pod"]
    # The record of a leader that could.
    server.records("x")
    leader.decides()
    assert server.log == ["clear"]


def test_by_a_report_on_another_plan_nothing_is_evicted() -> None:
    server, leader = pressed("x", x=900)
    server.state["status"]["profileRef"] = {"name": "former"}
    server.changed()
    assert leader.decides() == "Stale"
    assert server.log == []


def test_the_taint_of_the_profile_precedes_an_eviction() -> None:
    tainting = msgspec.structs.replace(PRESSURE, taint=names.TaintEffect.NO_SCHEDULE)
    server = Server("x")
    leader = Leader(server, governed=msgspec.structs.replace(ENFORCED, pressure=tainting))
    server.reports(1, x=900)
    leader.decides()
    assert server.log == []
    assert len(leader.handler.queue) == 1, "it looks again"
    leader.known.node_changed("n", node("n", taints=(nodes.WireTaint(names.PRESSURE_TAINT, effect="NoSchedule"),)))
    leader.decides()
    assert server.log == ["record x", "evict x"]


def test_a_new_leader_settles_first() -> None:
    server = Server("x")
    leader = Leader(server)
    leader.now = 14.0
    server.reports(1, x=900)
    assert leader.decides() == "Settling"
    assert server.log == []


def test_a_record_is_looked_at_though_the_pressure_ended_before_the_term() -> None:
    server = Server("x")
    server.records("x")
    leader = Leader(server)
    assert len(leader.handler.queue) == 1
    leader.decides()
    assert server.log == ["clear"]


ONE_AN_HOUR = msgspec.structs.replace(
    ENFORCED, pressure=msgspec.structs.replace(PRESSURE, eviction=Eviction(per_hour=1))
)


def once_evicted() -> Server:
    """A node from which a leader evicted a pod 100 seconds after its term began, which is gone."""
    server = Server("x", "y", "z")
    leader = Leader(server, governed=ONE_AN_HOUR)
    server.reports(1, x=900, y=800)
    leader.decides()
    assert server.evicted_at == []
    del server.pods["x"]
    leader.now += 5
    leader.decides()
    assert server.evicted_at == ["00:01:40Z"]
    return server


@pytest.mark.parametrize(("today", "left"), [(1000.0, 2600.0), (-7200.0, 3500.0)], ids=["later", "its clock is behind"])
def test_a_new_leader_counts_evictions_of_earlier_terms(today: float, left: float) -> None:
    server = once_evicted()
    second = Leader(server, 2, governed=ONE_AN_HOUR, today=today)
    server.reports(2, y=800)
    assert second.decides() == "NodeLimit"
    second.now += left - 1
    server.reports(3, y=800)
    assert second.decides() == "NodeLimit"
    second.now += 1
    server.reports(4, y=800)
    assert second.decides() == ""
    assert server.log == ["record x", "evict x", "clear", "record y", "evict y"]


def test_an_eviction_counts_once_though_the_state_has_it_too() -> None:
    bounded = msgspec.structs.replace(PRESSURE, eviction=Eviction(per_hour=2))
    server = Server("x", "y", "z")
    leader = Leader(server, governed=msgspec.structs.replace(ENFORCED, pressure=bounded), today=0.7)
    for number, (name, reason) in enumerate((("x", ""), ("y", ""), ("z", "NodeLimit"))):
        server.reports(number + 1, **{name: 900})
        assert leader.decides() == reason
        server.pods.pop(name)
        leader.decides()
        leader.now += 15
    assert server.evicted_at == ["00:01:41Z", "00:01:56Z"]


def test_the_state_has_the_times_of_an_hour() -> None:
    server = once_evicted()
    second = Leader(server, 2, governed=ONE_AN_HOUR, today=3600.0)
    server.reports(2, y=800)
    second.decides()
    del server.pods["y"]
    second.decides()
    assert server.evicted_at == ["01:01:40Z"], "the first is older than an hour"


def test_an_eviction_that_was_refused_is_no_past_one() -> None:
    server, leader = pressed("x", x=900)
    server.before["evict x"] = BUDGET
    leader.decides()
    assert (server.log, server.evicted_at) == (["record x", "clear"], [])


def test_the_eviction_of_an_earlier_term_that_a_new_leader_finds_ended_counts() -> None:
    server, first = pressed("x", "y", x=900, y=800)
    first.decides()
    del server.pods["x"]
    second = Leader(server, 2, governed=ONE_AN_HOUR, today=50.0)
    second.decides()
    assert server.evicted_at == ["00:02:30Z"]
    third = Leader(server, 3, governed=ONE_AN_HOUR, today=100.0)
    server.reports(2, y=800)
    assert third.decides() == "NodeLimit"


def test_a_time_that_is_none_counts_as_of_now() -> None:
    server = Server("x")
    server.state["spec"]["pressure"]["evictedAt"] = ["2026-13-41T99:00:00Z"]
    leader = Leader(server, governed=ONE_AN_HOUR)
    server.reports(1, x=900)
    assert leader.decides() == "NodeLimit"


def held() -> dict[str, str]:
    """The reasons by node."""
    return {labels["node"]: labels["reason"] for labels in (dict(each.labels) for each in handler.HELD.samples())}


def test_a_node_shows_why_no_pod_is_evicted_until_one_is_or_the_pressure_ends() -> None:
    server, leader = pressed("x", x=900)
    server.pods["x"]["metadata"]["ownerReferences"] = []
    leader.decides()
    assert held() == {"n": "NoCandidate"}
    server.pods["x"]["metadata"]["ownerReferences"] = [OWNER]
    server.reports(2, x=900)
    leader.decides()
    assert held() == {}
    server.reports(3, x=900)
    leader.decides()
    assert held() == {"n": "Settling"}
    server.reports(4)
    leader.syncs()
    assert held() == {}


def test_pressure_that_ends_during_a_decision_leaves_no_reason() -> None:
    server, leader = pressed("x", x=900)

    def ends() -> None:
        server.reports(2)
        leader.syncs()

    leader.syncs()
    leader.meanwhile, leader.answer = ends, handling.EvictionAnswer.BUDGET
    asyncio.run(leader.handler.handle("n"))
    assert held() == {}


def test_a_node_shows_that_the_api_server_refuses() -> None:
    server, leader = pressed("x", x=900)
    server.before["record x"] = errors.ApiError(403, "Forbidden", "no right")

    async def serves() -> dict[str, str]:
        serving = asyncio.create_task(leader.handler.run())
        async with asyncio.timeout(10):
            while not held():  # noqa: ASYNC110 a metric has no event
                await asyncio.sleep(0)
        found = held()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return found

    leader.syncs()
    assert asyncio.run(serves()) == {"n": "Error"}
    assert held() == {}, "the term is over"


def test_where_nothing_is_evicted_no_node_shows_a_reason() -> None:
    server = Server("x")
    leader = Leader(server, may=False)
    server.reports(1, x=0)
    assert leader.decides() == "NoCandidate"
    assert held() == {}


def test_namespaces_of_the_profile_are_spared() -> None:
    pressure = msgspec.structs.replace(PRESSURE, eviction=Eviction(excluded=frozenset({"a"})))
    server = Server("x")
    leader = Leader(server, governed=msgspec.structs.replace(ENFORCED, pressure=pressure))
    server.reports(1, x=900)
    assert leader.decides() == "NoCandidate"
    assert leader.decides() == "", "it is decided once"


def test_a_record_that_someone_removes_ends_the_eviction() -> None:
    server, leader = pressed("x", "y", x=900, y=800)
    leader.decides()
    del server.state["spec"]["pressure"]["victim"]
    server.changed()
    del server.pods["x"]
    server.reports(2, y=800)
    assert leader.decides() == "Settling"
    leader.now += 15
    server.reports(3, y=800)
    assert leader.decides() == ""
    assert server.log[2:] == ["record y", "evict y"]


def test_a_state_that_is_created_again_during_an_eviction_forbids_no_later_one() -> None:
    server, leader = pressed("x", "y", x=900, y=800)
    leader.decides()
    leader.handler.state_changed("n", leader.known.inventory.state_of("n"), None)
    del server.state["spec"]["pressure"]["victim"]
    server.state["metadata"]["uid"] = "again"
    server.changed()
    del server.pods["x"]
    server.reports(2, y=800)
    leader.decides()  # a report that was there before counts from the next one on
    leader.now += 15
    server.reports(3, y=800)
    assert leader.decides() == ""
    assert server.log[2:] == ["record y", "evict y"]


def test_while_the_kubelet_evicts_no_pod_is_evicted() -> None:
    server, leader = pressed("x", "y", x=900, y=800)
    leader.kubelet_reports_pressure()
    assert leader.decides() == "KubeletEvicting"
    leader.now += 10
    leader.kubelet_evicts("x")
    server.reports(2, x=900, y=800)
    leader.now += 14
    assert leader.decides() == "KubeletEvicting"
    assert {(each.reason, each.key) for each in leader.events} == {("MemoryPressureObserved", leader.events[0].key)}
    assert server.log == []
    leader.now += 1
    server.reports(3, y=800)
    assert leader.decides() == ""
    assert server.log == ["record y", "evict y"]


def test_memory_pressure_that_stays_does_not_forbid_evictions_for_ever() -> None:
    """The kubelet keeps the condition for five minutes, also where it evicts nothing."""
    server, leader = pressed("x", x=900)
    leader.kubelet_reports_pressure()
    leader.now += 15
    held = msgspec.structs.replace(NODE, memory_pressure=True)
    leader.handler.node_changed(held, msgspec.structs.replace(held, labels={"other": ""}))
    leader.handler.node_changed(held, NODE)
    assert leader.decides() == ""
    assert server.log == ["record x", "evict x"]


def test_a_pod_that_the_kubelet_evicts_while_it_is_recorded_is_left_to_it() -> None:
    server, leader = pressed("x", "y", x=900, y=800)
    before = evictions("Gone"), evictions("Evicted")
    leader.meanwhile = lambda: server.pods["x"].update(status={"phase": "Failed"})
    assert leader.decides() == "Settling"
    assert server.log == ["record x", "clear"]
    assert (evictions("Gone"), evictions("Evicted")) == (before[0] + 1, before[1])
    assert leader.events == []
    server.reports(2, y=800)
    leader.now += 14
    assert leader.decides() == "Settling"


def test_a_kubelet_that_begins_to_evict_while_a_pod_is_recorded_cancels_it() -> None:
    server, leader = pressed("x", "y", x=900, y=800)
    leader.at_record = leader.kubelet_reports_pressure
    assert leader.decides() == "KubeletEvicting"
    assert server.log == ["record x", "clear"]
    assert leader.told() == ["MemoryPressureObserved Node"]


def test_a_kubelet_that_begins_to_evict_cancels_a_request_that_was_not_executed() -> None:
    server, leader = pressed("x", "y", x=900, y=800)
    server.before["evict x"] = OVERLOAD
    with pytest.raises(errors.ApiError):
        leader.decides()
    leader.kubelet_evicts("y")
    leader.decides()
    assert server.log == ["record x", "clear"]
