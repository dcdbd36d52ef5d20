"""Rollouts, and statuses of profiles, at an API server that gives scripted answers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from swapwarden.api import names, state
from swapwarden.api.notices import Notice
from swapwarden.controller import supervise, workqueue
from swapwarden.controller.profiles import rollouts, status_publisher
from swapwarden.controller.term import Term
from swapwarden.controller.writers.fenced import Fenced
from swapwarden.kube import backoff, client, errors, ratelimit
from swapwarden.policy.fleet import cluster, profile_status, progress, rollout
from swapwarden.policy.fleet.view import Planner
from swapwarden.policy.profile import compiled
from swapwarden.policy.profile.store import Entry, ProfileStore

from tests.unit import background
from tests.unit.controller.known import Known, Led, term
from tests.unit.kube.scripted import CUT, Request, Scripted, failure, reply, until
from tests.unit.objects import node, profile_object, state_row


class Told:
    """Takes events, and keeps their objects and messages."""

    def __init__(self) -> None:
        self.reasons: list[tuple[str, str, str]] = []

    def post(self, *posted: Notice) -> None:
        for notice in posted:
            assert notice.message
            assert (notice.regarding.kind, notice.regarding.namespace) == ("NodeSwapProfile", "")
            self.reasons.append((notice.regarding.uid, notice.type, notice.reason))


class Objects:
    """In place of an API server that is asked for profiles: has those that a test says."""

    def __init__(self) -> None:
        self.bodies: dict[str, dict[str, Any]] = {}

    async def get(self, path: str) -> bytes:
        name = path.rpartition("/")[2]
        if name not in self.bodies:
            raise errors.ApiError(404, "NotFound", "gone")
        return json.dumps(self.bodies[name]).encode()


class Kept:
    """In place of the revisions of profiles: keeps all, but for those that a test says."""

    def __init__(self) -> None:
        self.refused: set[str] = set()

    async def ensure(self, name: str) -> None:
        if name in self.refused:
            raise errors.Unreachable("not now")


class Bench:
    """Rollouts, the profiles that it knows, and one node."""

    def __init__(self, api: client.Client, server: Scripted) -> None:
        self.server = server
        self.known = Known()
        self.store = ProfileStore()
        self.told = Told()
        self.now = 0.0
        self.writes = ratelimit.Throttle(100.0, lambda: self.now)
        self._api = api
        self.objects = Objects()
        self.begins(term())
        self.known.node_changed("node-1", None, node())

    def begins(self, term: Term, patience: float = 120.0) -> None:
        """From now on it is this term."""
        self.term = term
        statuses = status_publisher.StatusPublisher(
            self.objects,  # type: ignore[arg-type]  # all that is used of it
            self.store,
            Fenced(self._api, term, self.writes),
            self.told,  # type: ignore[arg-type]  # a recorder is more than is needed here
            profile_status.Rights(extended_resource=False, eviction=False),
        )
        self.kept = Kept()
        self.rollouts = rollouts.Rollouts(
            self.known.cluster,
            self.store,
            statuses,
            self.kept,  # type: ignore[arg-type]  # all that is used of it
            apply=self.known.apply,
            on_change=self.changed,
            gather=0.0,
            patience=patience,
        )

    def offer(self, body: dict[str, Any]) -> None:
        """The watch has this profile."""
        self.objects.bodies[body["metadata"]["name"]] = body
        if self.store.offer(body):
            self.changed()

    def changed(self) -> None:
        self.known.profiles_changed(self.store.valid(), self.store.history(), self.store.ending())
        self.rollouts.request_sync()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with background.running(self.rollouts.run()):
            yield

    async def settled(self) -> list[Request]:
        """All requests until now: the reporter writes in the order in which it came to know the profiles."""
        before = len(self.server.requests)
        self.offer(profile_object("marker", nodeSelector={"matchLabels": {"no": "node"}}))
        self.rollouts.request_sync()
        await self.server.seen(before + 1)
        *found, last = self.server.requests
        assert last.path.endswith("/marker/status")
        return found

    def has_sent(self, text: bytes) -> bool:
        """Whether a request had this in its body."""
        return any(text in each.body for each in self.server.requests)

    def accepts(self, body: dict[str, Any], version: int) -> None:
        """Have the next write answered with the object as it is after it."""
        meta = {**body["metadata"], "resourceVersion": str(version)}
        self.server.answer(reply({**body, "metadata": meta, "status": {"conditions": [], "taken": version}}))


@pytest.fixture
def bench(api: client.Client, server: Scripted) -> Bench:
    return Bench(api, server)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Which profile was put off for how long after a failure, without waiting."""
    found: list[tuple[str, float]] = []
    retry = workqueue.WorkQueue.retry

    def at_once(queue: workqueue.WorkQueue, name: str, delay: float, *, at_least: float = 0.0) -> None:
        found.append((name, min(delay, at_least)))
        retry(queue, name, 0.01)

    monkeypatch.setattr(backoff.Backoff, "next", lambda _: 1.5)
    monkeypatch.setattr(workqueue.WorkQueue, "retry", at_once)
    return found


def status_of(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.body)["status"]
    return found


async def test_a_difference_is_written_for_this_object_only_and_the_answer_counts(bench: Bench) -> None:
    body = profile_object(version=3)
    bench.offer(body)
    async with bench.running():
        await bench.server.seen(1)
        [patch] = bench.server.requests
        assert (patch.method, patch.path) == ("PATCH", f"{names.PROFILES_PATH}/p/status")
        assert json.loads(patch.body)["metadata"] == {"uid": "uid-of-p", "resourceVersion": "3"}
        written = status_of(patch)
        assert written["observedGeneration"] == 1
        assert (written["nodes"]["matched"], written["nodes"]["pending"]) == (1, 0)
        assert written["nodes"]["withoutAgent"] == 1
    bench.offer({**body, "metadata": {**body["metadata"], "resourceVersion": "4"}, "status": written})
    async with bench.running():
        assert await bench.settled() == [patch], "it is as it should be"


async def test_what_the_answer_to_a_write_says_of_a_profile_is_planned_with(bench: Bench) -> None:
    bench.offer(profile_object(version=3))
    bench.accepts(profile_object(generation=2, mode="Audit"), version=5)
    async with bench.running():
        await bench.server.seen(2)
    assert bench.known.planner.profiles["p"].generation == 2
    assert status_of(bench.server.requests[1])["observedGeneration"] == 2


async def test_who_does_not_lead_reports_nothing_until_it_does(bench: Bench) -> None:
    bench.begins(term(1, Led(0.0)))
    bench.offer(profile_object())
    async with bench.running():
        await until(lambda: bench.rollouts.judged)
        await until(lambda: not bench.rollouts.queue.busy)
        assert bench.server.requests == []
    bench.begins(term())
    bench.rollouts.request_sync()
    async with bench.running():
        await bench.server.seen(1)
    assert len(bench.server.requests) == 1


async def test_a_refusal_for_one_profile_does_not_keep_the_next_from_its_status(
    bench: Bench, waits: list[tuple[str, float]], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        bench.offer(profile_object(name, priority=1 if name == "a" else 2))
    bench.server.answer(failure(403, "Forbidden", "not you", Retry_After="7"))
    bench.accepts(profile_object("b"), version=5)
    async with bench.running():
        await bench.server.seen(3)
    assert [request.path.split("/")[-2] for request in bench.server.requests[:3]] == ["a", "b", "a"]
    assert waits[0] == ("a", 7.0), "what the API server asks for, if that is more than our own pause"
    assert any("profile a" in one and "not you" in one for one in caplog.messages)


async def test_an_api_server_that_is_away_is_asked_again_after_a_pause(
    bench: Bench, waits: list[tuple[str, float]]
) -> None:
    bench.offer(profile_object("a"))
    bench.server.answer(CUT)
    async with bench.running():
        await bench.server.seen(2)
    assert [request.path.split("/")[-2] for request in bench.server.requests[:2]] == ["a", "a"]
    assert waits[0] == ("a", 1.5)


async def test_a_status_that_hangs_keeps_no_other_profile_from_its_own_again_and_again(bench: Bench) -> None:
    bench.offer(profile_object("hangs", version=3))
    async with bench.running():
        await bench.server.seen(1)
        for _ in range(100):  # on a busy machine a write may be repeated before the next version arrives
            bench.server.answer(failure(404, "NotFound", "it is no matter here what becomes of it"))
        for number in range(2, 7):
            bench.offer(profile_object("goes-on", version=number, generation=number))
            version = f'"resourceVersion":"{number}"'.encode()
            await until(functools.partial(bench.has_sent, version))
    assert bench.server.requests[0].path.split("/")[-2] == "hangs"
    assert {each.path.split("/")[-2] for each in bench.server.requests[1:]} == {"goes-on"}


async def test_a_profile_that_something_is_the_matter_with_keeps_no_other_from_its_status(
    bench: Bench, waits: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = profile_status.build

    def odd(entry: Entry, *others: Any, **more: Any) -> dict[str, Any]:
        if entry.name == "odd":
            raise KeyError("nobody thought of it")
        return build(entry, *others, **more)

    monkeypatch.setattr(profile_status, "build", odd)
    for name in ("odd", "well"):
        bench.offer(profile_object(name))
    async with bench.running():
        await bench.server.seen(1)
    assert bench.server.requests[0].path.endswith("/well/status")
    assert ("odd", 1.5) in waits


async def test_a_profile_that_cannot_be_judged_keeps_no_other_from_its_status_and_is_looked_at_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So short that it is over before the rollouts look for the next time at which something is due.
    monkeypatch.setattr(backoff.Backoff, "next", lambda _: 1e-9)
    faults = supervise.FAULTS.value(rollouts.PART)
    judge, odd = progress.rollout_of, {"odd"}

    def fails(planner: Planner, found: compiled.Profile, *others: Any) -> rollout.RolloutProgress:
        if found.name in odd:
            raise KeyError("nobody thought of it")
        return judge(planner, found, *others)

    monkeypatch.setattr(progress, "rollout_of", fails)
    bench.known.node_changed("node-2", None, node("node-2", labels={"pool": "odd"}))
    bench.offer(profile_object("odd", nodeSelector={"matchLabels": {"pool": "odd"}}, priority=200))
    bench.offer(profile_object("well"))
    async with bench.running():
        await bench.server.seen(1)
        await until(lambda: supervise.FAULTS.value(rollouts.PART) > faults + 2)
        assert [request.path.split("/")[-2] for request in bench.server.requests] == ["well"]
        odd.clear()
        await bench.server.seen(2)
    assert bench.server.requests[1].path.endswith("/odd/status")


async def test_an_error_in_a_look_at_all_profiles_loses_no_look(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff.Backoff, "next", lambda _: 0.01)
    faults = supervise.FAULTS.value(rollouts.PART)
    whole = progress.generations

    def fails(planner: Planner) -> Any:
        if supervise.FAULTS.value(rollouts.PART) < faults + 2:
            raise KeyError("nobody thought of it")
        return whole(planner)

    monkeypatch.setattr(progress, "generations", fails)
    bench.offer(profile_object())
    async with bench.running():
        await bench.server.seen(1)


async def test_a_profile_that_changed_by_others_is_read_again(bench: Bench) -> None:
    """Labels, say: kopf reports only changes of the spec."""
    bench.offer(profile_object(version=3))
    bench.objects.bodies["p"] = profile_object(version=4)
    bench.server.answer(failure(409, "Conflict", "another one"))
    async with bench.running():
        await bench.server.seen(2)
    assert [json.loads(request.body)["metadata"] for request in bench.server.requests] == [
        {"uid": "uid-of-p", "resourceVersion": "3"},
        {"uid": "uid-of-p", "resourceVersion": "4"},
    ]


async def test_a_profile_that_is_gone_is_forgotten(bench: Bench) -> None:
    bench.offer(profile_object(version=3))
    bench.objects.bodies.clear()
    bench.server.answer(failure(404, "NotFound", "gone"))
    async with bench.running():
        await until(lambda: not bench.known.planner.profiles)
    assert bench.store.entries == {}


async def test_no_node_is_admitted_if_the_status_was_not_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    advanced: list[str] = []

    def admit(judged: compiled.Profile, *_: object) -> cluster.Changes:
        advanced.append(judged.name)
        return cluster.Changes()

    monkeypatch.setattr(bench.known.cluster, "admit", admit)
    bench.offer(profile_object(version=3))
    bench.server.answer(failure(409, "Conflict", "another one"))
    async with bench.running():
        await bench.server.seen(1)
        assert advanced == []
        bench.accepts(profile_object("p"), version=5)
        bench.rollouts.request_sync()
        await until(lambda: advanced == ["p"])


async def test_no_node_is_admitted_before_the_generation_of_the_others_is_kept(
    bench: Bench, waits: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    advanced: list[str] = []

    def admit(judged: compiled.Profile, *_: object) -> cluster.Changes:
        advanced.append(judged.name)
        return cluster.Changes()

    monkeypatch.setattr(bench.known.cluster, "admit", admit)
    bench.kept.refused = {"p"}
    for version in range(5, 15):
        bench.accepts(profile_object("p"), version=version)
    bench.offer(profile_object(version=3))
    async with bench.running():
        await until(lambda: len(waits) > 2)
        assert advanced == []
        bench.kept.refused = set()
        await until(lambda: "p" in advanced)


def stands(bench: Bench, body: dict[str, Any], **fields: Any) -> None:
    """The node follows a profile, and its agent has answered."""
    ref = state.ProfileRef("p", body["metadata"]["generation"])
    old = bench.known.inventory.state_of("node-1")
    row = state_row(
        version=1 + (old.version if old else 0), spec=state.StateSpec(profile_ref=ref), observed=1, **fields
    )
    bench.known.state_changed("node-1", old, row)


async def test_a_profile_that_changes_while_its_status_is_written_takes_no_turn_of_what_it_was(bench: Bench) -> None:
    first, second = profile_object(version=3), profile_object(version=4, generation=2, swap={"behavior": "NoSwap"})
    bench.offer(first)
    stands(bench, first)
    bench.offer(second)
    asked = state.PreviewCost(state.ProfileRef("p", 2))
    stands(bench, first, preview=asked.profile_ref, cost=asked)
    written = asyncio.Event()
    answer = {**second, "metadata": {**second["metadata"], "resourceVersion": "5"}, "status": {"conditions": []}}
    bench.server.answer(written, reply(answer))
    third = profile_object(version=6, generation=3, rollout={"onSwapInUse": "Hold"}, swap={"behavior": "NoSwap"})
    async with bench.running():
        await bench.server.seen(1)
        bench.offer(third)
        stands(bench, first, preview=asked.profile_ref, cost=asked)
        written.set()
        await bench.server.seen(2)
        assert bench.known.plan("node-1").profile_ref.generation == 1, "nobody asked what generation 3 takes"
        assert status_of(bench.server.requests[1])["observedGeneration"] == 3


async def test_a_rollout_continues_if_an_agent_is_silent_and_nothing_else_changes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def written(*_: object) -> bool:
        return True

    monkeypatch.setattr(status_publisher.StatusPublisher, "write", written)
    bench.begins(term(), patience=0.02)
    first, second = profile_object(version=3), profile_object(version=4, generation=2, swap={"behavior": "NoSwap"})
    bench.offer(first)
    stands(bench, first)
    bench.offer(second)
    async with bench.running():
        await until(lambda: "node-1" in bench.known.planner.admissions.turns)


async def test_an_agent_is_waited_for_and_asked_for_a_time_each(bench: Bench) -> None:
    first, second = profile_object(version=3), profile_object(version=4, generation=2, swap={"behavior": "NoSwap"})
    bench.offer(first)
    for number in range(1, 4):
        name = f"node-{number}"
        bench.known.node_changed(name, None, node(name))
        spec = state.StateSpec(profile_ref=state.ProfileRef("p", 1))
        bench.known.state_changed(name, None, state_row(name, spec=spec, observed=1))
    bench.offer(second)

    def judged() -> rollout.RolloutProgress:
        bench.rollouts.judge()
        return bench.rollouts.judged["p"].progress

    def time_passes() -> None:
        bench.rollouts.waits.since = dict.fromkeys(bench.rollouts.waits.since, -1e9)

    assert (judged().asking, judged().next) == (("node-1", "node-2", "node-3"), ())
    assert {wait.moved for wait in bench.rollouts.waits.since} == {False}
    time_passes()
    found = bench.rollouts.judged["p"]
    assert judged().next == ("node-1",), "nobody answers, and so one of them is admitted"
    bench.known.admit(second_of(bench), judged().next, bench.rollouts.judged["p"].overdue)
    assert judged().next == (), "it is waited for, although it was not any more when it was asked"
    assert [wait.node for wait in bench.rollouts.waits.since if wait.moved] == ["node-1"]
    assert not found.stalled
    time_passes()
    assert judged().next == ("node-2",)
    assert bench.rollouts.judged["p"].stalled
    bench.offer(profile_object(version=5, generation=3, swap={"behavior": "NoSwap"}))
    assert judged().next == (), "all of them are asked about the next one"
    time_passes()
    bench.offer(profile_object(version=6, generation=4, swap={"behavior": "NoSwap"}))
    assert judged().next == (), "and about the one after it"
    bench.store.remove("p", "uid-of-p")
    bench.changed()
    bench.rollouts.judge()
    assert bench.rollouts.waits.since == {}
    assert bench.known.planner.admissions.turns == {}


def second_of(bench: Bench) -> compiled.Profile:
    return bench.store.valid()["p"]


async def test_profiles_of_one_priority_both_say_so(bench: Bench) -> None:
    older, younger = profile_object("older"), profile_object("younger")
    younger["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    bench.offer(younger)
    bench.offer(older)
    bench.accepts(younger, version=5)
    async with bench.running():
        await bench.server.seen(2)
    found = {request.path.split("/")[-2]: status_of(request) for request in bench.server.requests[:2]}
    conflicts = {
        name: next(one for one in status["conditions"] if one["type"] == "Conflicted") for name, status in found.items()
    }
    assert {name: one["status"] for name, one in conflicts.items()} == {"older": "True", "younger": "True"}
    assert conflicts["older"]["message"] == profile_status.SAME_PRIORITY.format("younger", "node-1")
    assert conflicts["younger"]["message"] == profile_status.SAME_PRIORITY.format("older", "node-1")
    assert {name: status["nodes"]["matched"] for name, status in found.items()} == {"older": 1, "younger": 0}


async def test_news_is_reported_once_it_is_written_and_not_by_the_next_leader(bench: Bench) -> None:
    body = profile_object(version=3, mode="Whatever")
    bench.offer(body)
    async with bench.running():
        await bench.server.seen(1)
        assert bench.told.reasons == [], "nobody has it yet"
    written = {**body, "metadata": {**body["metadata"], "resourceVersion": "4"}}
    written["status"] = status_of(bench.server.requests[0])
    bench.server.answer(reply(written))
    bench.rollouts.request_sync()
    async with bench.running():
        await until(lambda: bench.told.reasons)
    bench.rollouts.request_sync()
    async with bench.running():
        assert len(await bench.settled()) == 2
    assert bench.told.reasons == [("uid-of-p", "Warning", "Invalid")]


async def test_news_that_could_not_be_written_is_not_reported(bench: Bench) -> None:
    for name in ("a", "b"):
        bench.offer(profile_object(name, mode="Whatever"))
    bench.server.answer(failure(409, "Conflict", "another uid"))
    bench.server.answer(failure(404, "NotFound", "gone"))
    async with bench.running():
        await bench.server.seen(2)
        bench.rollouts.request_sync()
        await bench.server.seen(3)
    assert bench.told.reasons == []


def conflicts(requests: list[Request]) -> dict[str, tuple[str, str]]:
    """Status and message of the condition, by profile."""
    found = {}
    for request in requests:
        [one] = [one for one in status_of(request)["conditions"] if one["type"] == "Conflicted"]
        found[request.path.split("/")[-2]] = (one["status"], one["message"])
    return found


async def test_a_conflict_names_the_nodes_that_no_third_profile_governs(bench: Bench) -> None:
    for number in range(2, 15):
        name = f"node-{number:02}"
        bench.known.node_changed(name, None, node(name, labels={"pool": "x"} if number < 4 else {}))
    bench.known.node_changed("node-1", node(), None)
    bodies = [profile_object(name) for name in ("p", "q")]
    bodies.append(profile_object("third", priority=200, nodeSelector={"matchLabels": {"pool": "x"}}))
    for number, body in enumerate(bodies):
        body["metadata"]["creationTimestamp"] = f"2026-01-0{number + 1}T00:00:00Z"
        bench.offer(body)
        bench.server.answer(failure(404, "NotFound", "it is no matter here what becomes of it"))
    async with bench.running():
        await bench.server.seen(3)
    nodes = ", ".join(f"node-{number:02}" for number in range(4, 14)) + " and 1 more"
    assert conflicts(bench.server.requests) == {
        "p": ("True", profile_status.SAME_PRIORITY.format("q", nodes)),
        "q": ("True", profile_status.SAME_PRIORITY.format("p", nodes)),
        "third": ("False", ""),
    }


async def test_profiles_that_overlap_only_below_a_third_one_are_in_no_conflict(bench: Bench) -> None:
    for name in ("p", "q"):
        bench.offer(profile_object(name))
        bench.server.answer(failure(404, "NotFound", "it is no matter here what becomes of it"))
    bench.offer(profile_object("third", priority=200))
    async with bench.running():
        await bench.server.seen(3)
    assert set(conflicts(bench.server.requests).values()) == {("False", "")}


async def test_a_write_that_was_cut_off_is_made_again_where_the_term_was_renewed(
    bench: Bench, waits: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([0.05])
    monkeypatch.setattr(bench.term, "left", lambda: next(left, 60.0))
    bench.offer(profile_object(version=3))
    async with bench.running():
        await bench.server.seen(2)
    assert waits == [("p", 1.5)]
