"""The controller's command line, and how its parts work together."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import pathlib
import socket
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest
from swapwarden.api import names, state
from swapwarden.controller import app, leader, leadership, main, notices, supervise, term, workqueue
from swapwarden.controller.nodes import reconciler
from swapwarden.controller.pods import verdicts
from swapwarden.controller.profiles import kopf_operator, revision_history, rollouts
from swapwarden.controller.term import Deposed
from swapwarden.controller.watches import profile_list
from swapwarden.kube import client, config, errors
from swapwarden.kube.election import election, elector
from swapwarden.policy import plan
from swapwarden.policy.observed import states
from swapwarden.policy.profile import compiled
from swapwarden.policy.verdict import pod_events
from swapwarden.telemetry import exposition, logs

from tests.unit import background
from tests.unit.controller.known import Led
from tests.unit.kube.scripted import CUT, HANG, STREAM, Request, Scripted, failure, page, reply, until
from tests.unit.objects import (
    container,
    make_override,
    named_profile,
    node,
    pod,
    profile_object,
    state_object,
    state_row,
)

LABELED = {names.NFD_SWAP_LABEL: "true", names.SWAP_LABEL: "true", names.BEHAVIOR_LABEL: "Kubelet"}


@pytest.fixture(autouse=True)
def _leave_the_process_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # For the process: the root logger's handlers, kopf's level, and a registry that takes a collector once.
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.setattr(exposition, "register", lambda: None)
    for name in ("POD_NAME", "POD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    level = logging.getLogger("kopf").level
    yield
    logging.getLogger("kopf").setLevel(level)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    main.add_arguments(parser)
    return parser.parse_args(arguments)


# --- the command line ---


def test_defaults() -> None:
    args = parse()
    assert (args.kubeconfig, args.namespace, args.identity) == (None, "swapwarden-system", "")
    assert (args.metrics_address, args.lease_duration, args.label_removal_delay) == (("", 8083), 15.0, 600.0)
    assert args.writes_per_second == 300.0


def test_nodes_are_vouched_for_by_labels() -> None:
    assert parse().vouched_nodes == {}
    assert parse("--vouched-nodes=").vouched_nodes == {}
    key, other = "node-restriction.kubernetes.io/swap", "a.node-restriction.kubernetes.io/b"
    assert parse(f"--vouched-nodes={key}=encrypted,{other}=").vouched_nodes == {key: "encrypted", other: ""}


def test_in_a_pod_its_name_and_namespace_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "controller-0")
    monkeypatch.setenv("POD_NAMESPACE", "swap")
    assert (parse().identity, parse().namespace) == ("controller-0", "swap")


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--namespace=", "'' is not the name of a namespace, such as swapwarden-system"),
        ("--namespace=a/b", "'a/b' is not the name of a namespace"),
        ("--metrics-address=8083", "write host:port"),
        ("--lease-duration=15s", "'15s' is not a number of seconds between 1 and 86400"),
        ("--lease-duration=0", "'0' is not a number of seconds"),
        ("--label-removal-delay=nan", "'nan' is not a number of seconds"),
        ("--label-removal-delay=86401", "'86401' is not a number of seconds"),
        ("--label-publisher=Both", "'Both' is not one of Direct, NodeFeature, Auto"),
        ("--vouched-nodes=pool=batch", "'pool=batch' is not KEY=VALUE"),
        ("--vouched-nodes=node-restriction.kubernetes.io/a", "is not KEY=VALUE"),
        (f"--vouched-nodes={names.VOUCHED_LABEL}=true", "is not KEY=VALUE"),
        ("--writes-per-second=0", "'0' is not a number of writes a second between 1 and 10000"),
        ("--writes-per-second=many", "'many' is not a number of writes a second"),
    ],
)
def test_what_makes_no_sense_is_refused(argument: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argument)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def error(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
    return record.getMessage()


def test_a_kubeconfig_that_is_missing_is_named(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    missing = tmp_path / "kubeconfig"
    assert main.run(parse(f"--kubeconfig={missing}")) == 2
    assert f"{missing}: No such file" in error(caplog)


def test_without_any_configuration_it_says_what_there_could_be(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main.run(parse()) == 2
    assert "no cluster configuration" in error(caplog)
    assert "KUBECONFIG" in error(caplog)


def test_a_port_that_is_taken_is_named(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c"}}],
                "current-context": "c",
            }
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main.run(parse(f"--kubeconfig={kubeconfig}", f"--metrics-address=127.0.0.1:{port}")) == 2
    assert "address already in use" in error(caplog).lower()
    assert str(port) in error(caplog)
    assert "(--metrics-address)" in error(caplog)


# --- the wiring ---


class Leadership:
    """In place of the elector: says what the test says."""

    def __init__(self) -> None:
        self.candidate = False
        self.released: bool | None = None
        self.reasons: list[str] = []
        self.counted: list[int] = []

    def start(self, *, candidate: bool) -> None:
        self.candidate = candidate

    def stop(self, *, release: bool) -> None:
        self.released = release

    def stand(self, *, candidate: bool) -> None:
        self.candidate = candidate

    def step_down(self, reason: str, led: Led) -> None:
        led.seconds = 0.0
        self.reasons.append(reason)

    def count_from(self, transitions: int) -> None:
        self.counted.append(transitions)

    def alive(self) -> bool:
        return True


class Bench:
    """A controller whose watches and whose Lease are in the hands of the test; while it leads, its workers run."""

    def __init__(self, controller: app.App, server: Scripted) -> None:
        self.controller = controller
        self.server = server
        self.lease = Leadership()
        self.led: Led | None = None
        controller.leadership.elector = self.lease  # type: ignore[assignment]  # all that is used of it
        self.known = controller.known

    def synced(self, *but: str) -> None:
        for name, event in self.controller.readiness.collections.items():
            if name not in but:
                event.set()

    def elected(self, transitions: int = 0) -> None:
        # The elector reports a leadership again when its Lease counts further.
        if self.led is None:
            self.led = Led()
        self.led.transitions = transitions
        self.controller.leadership.on_elected(cast("elector.Tenure", self.led))

    def deposed(self) -> None:
        assert self.led is not None
        self.led.seconds = 0.0
        self.controller.leadership.on_lost(cast("elector.Tenure", self.led), "the Lease went to other")
        self.led = None

    @property
    def leader(self) -> leader.Leader:
        found = self.controller.leadership.leader
        assert found is not None
        return found

    def node_comes(self, name: str = "node-1", **fields: Any) -> None:
        self.controller.node_changed(name, None, node(name, labels=LABELED, **fields))

    def profile_comes(self, body: dict[str, Any]) -> None:
        if self.controller.store.offer(body):
            self.controller.profiles_changed()

    def state_comes(self, row: states.StateRow, old: states.StateRow | None = None) -> None:
        self.controller.state_changed(row.name, old, row)

    def pod_comes(self, name: str = "a", **fields: Any) -> None:
        row = pod(container(), name=name, uid=f"uid-{name}", **fields)
        self.controller.pod_changed(f"default/{name}", None, row)

    async def writes(self, count: int) -> list[Request]:
        await self.server.seen(count)
        return self.server.requests


@pytest.fixture
async def bench(api: client.Client, server: Scripted, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(leader, "BACKOFF_SECONDS", (0.0, 0.0))
    for gauge in (leadership.LEADER, leadership.EPOCH):
        gauge.set(0)

    # These tests are about writes to nodes, and their order.
    async def nothing_kept(_: object) -> list[Any]:
        return []

    async def keeps(*_: object) -> bool:
        return True

    async def listed(*_: object, **__: object) -> None:
        pass

    async def runs(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(profile_list.ProfileList, "read", listed)
    monkeypatch.setattr(kopf_operator.ProfileOperator, "run", runs)
    monkeypatch.setattr(revision_history.RevisionHistory, "read", nothing_kept)
    monkeypatch.setattr(revision_history.RevisionHistory, "ensure", keeps)
    cfg = config.Config(server=server.url)
    found = Bench(app.App(cfg, api, parse("--identity=me", "--lease-duration=15", "--pod-conditions")), server)
    async with background.running(found.controller.leadership.compete(found.controller.follow_namespaces)):
        yield found
    await found.controller.leadership.stop()


def accepted(version: int, **fields: Any) -> bytes:
    return reply(state_object(state_row(version=version, **fields)))


def epoch(request: Request) -> int:
    found: int = json.loads(request.body)["spec"]["epoch"]
    return found


async def quiet(bench: Bench) -> None:
    """Wait until all work is done."""
    for _ in range(20):
        await asyncio.sleep(0)  # a new leader takes some turns of the loop to begin
    if bench.controller.leadership.leader is not None:
        queue = bench.leader.queue
        await until(lambda: not len(queue) and not queue.busy)


@pytest.mark.parametrize("missing", ["pods", "nodes", "nodeswapstates", "profiles"])
async def test_nothing_is_written_before_all_four_are_in_sync(bench: Bench, missing: str) -> None:
    bench.synced(missing)
    bench.elected()
    bench.node_comes()
    assert bench.controller.readiness.unready() == f"waiting for {missing}"
    await quiet(bench)
    assert bench.server.requests == []
    bench.server.answer(accepted(1))
    bench.controller.readiness.collections[missing].set()
    [made] = await bench.writes(1)
    assert made.method == "POST"
    assert bench.controller.readiness.unready() is None


async def test_only_one_that_is_in_sync_competes_and_says_that_it_leads(bench: Bench) -> None:
    bench.synced("pods")
    # An earlier process of this name may be the holder still.
    bench.elected()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not bench.lease.candidate
    assert (leadership.LEADER.value(), leadership.EPOCH.value()) == (0, 0)
    bench.controller.readiness.collections["pods"].set()
    await until(lambda: bench.lease.candidate)
    assert (leadership.LEADER.value(), leadership.EPOCH.value()) == (1, 1)
    bench.deposed()
    assert (leadership.LEADER.value(), leadership.EPOCH.value()) == (0, 0)


@pytest.mark.parametrize("late", ["pods", "nodes", "nodeswapstates", "profiles"])
async def test_one_that_is_in_sync_no_more_steps_down_until_it_is_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    monkeypatch.setattr(leadership, "SYNC_SECONDS", 0.0)
    bench.synced()
    await until(lambda: bench.lease.candidate)
    bench.elected()
    parts = (*bench.controller.informers, bench.controller.profiles)
    [watched] = [each for each in parts if each.name == late]
    watched.heard -= leadership.LAG_SECONDS + 1
    await until(lambda: bench.lease.reasons)
    assert bench.lease.reasons[0] == f"nothing was heard of {late} for 420 s" == bench.controller.readiness.unready()
    assert not bench.lease.candidate
    bench.deposed()
    assert leadership.LEADER.value() == 0
    watched.heard += leadership.LAG_SECONDS
    await until(lambda: bench.lease.candidate)
    assert bench.controller.readiness.unready() is None


async def test_a_term_that_fails_as_a_whole_ends_instead_of_doing_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise ValueError("of one pod")

    monkeypatch.setattr(bench.known, "all_due", fails)
    before = supervise.FAULTS.value(leadership.PART)
    bench.synced()
    bench.elected()
    await until(lambda: bench.lease.reasons)
    assert bench.lease.reasons == ["unexpected error: ValueError('of one pod')"]
    assert supervise.FAULTS.value(leadership.PART) == before + 1


TEAM = (compiled.LabelExpression("team", "In", frozenset({"a"})),)
BY_NAMESPACE = [
    {"name": "a", "namespaceSelector": {"matchLabels": {"team": "a"}}, "swap": {"policy": "Disabled"}},
]


async def test_one_that_lacks_the_namespaces_that_a_profile_asks_for_neither_competes_nor_leads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "SYNC_SECONDS", 0.0)
    bench.profile_comes(profile_object(overrides=BY_NAMESPACE))
    bench.synced("namespaces")
    bench.elected()
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.controller.readiness.unready() == "waiting for namespaces"
    assert (bench.lease.candidate, leadership.LEADER.value()) == (False, 0)
    bench.server.answer(page([], 1))
    bench.server.answer(STREAM, HANG)
    following = asyncio.create_task(bench.controller.namespaces.run())
    await until(lambda: bench.lease.candidate)
    assert (bench.controller.readiness.unready(), leadership.LEADER.value()) == (None, 1)
    following.cancel()


async def test_a_leader_that_cannot_learn_of_namespaces_that_it_came_to_need_steps_down(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "SYNC_SECONDS", 0.0)
    bench.synced()
    bench.elected()
    await until(lambda: bench.lease.candidate)
    bench.controller.namespaces.since -= 2 * leadership.LAG_SECONDS
    bench.profile_comes(profile_object(overrides=BY_NAMESPACE))
    await until(lambda: not bench.lease.candidate)
    assert (bench.lease.reasons, leadership.LEADER.value()) == ([], 1), "it has just begun to ask"
    bench.controller.namespaces.since -= leadership.LAG_SECONDS + 1
    await until(lambda: bench.lease.reasons)
    assert "namespaces" in bench.lease.reasons[0]


async def test_namespaces_count_also_where_only_a_state_that_came_late_asks_for_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "SYNC_SECONDS", 0.0)
    bench.synced()
    bench.node_comes()
    earlier = named_profile(overrides=(make_override(namespaces=TEAM, policy=names.Policy.DISABLED),))
    bench.known.profiles_changed({"p": named_profile(generation=2)}, {plan.reference(earlier): earlier})
    await until(lambda: bench.lease.candidate)
    bench.state_comes(state_row(spec=state.StateSpec(profile_ref=plan.reference(earlier)), observed=1))
    await until(lambda: bench.controller.readiness.unready() == "waiting for namespaces")


async def test_work_that_was_queued_in_an_earlier_leadership_writes_nothing_in_the_next(bench: Bench) -> None:
    bench.synced()
    bench.elected()
    assert bench.led is not None
    # The loop was busy while the Lease was lost and won again: neither has been reported yet.
    bench.led.seconds = 0.0
    bench.node_comes()
    bench.pod_comes(policy="Disabled")
    bench.state_comes(state_row("node-2", version=2, epoch=5))
    await quiet(bench)
    assert bench.server.requests == []
    late, bench.led = bench.led, None
    bench.elected(transitions=6)
    bench.controller.leadership.on_lost(cast("elector.Tenure", late), "the Lease went to other")
    assert leadership.LEADER.value() == 1, "it is about the leadership before"
    bench.server.answer(accepted(1))
    assert epoch((await bench.writes(1))[0]) == 7


async def test_a_leadership_that_is_over_before_its_report_arrives_is_none(bench: Bench) -> None:
    bench.synced()
    bench.led = Led(0.0)
    bench.elected()
    assert (leadership.LEADER.value(), leadership.EPOCH.value()) == (0, 0)


async def test_a_refusal_of_an_earlier_term_does_not_end_this_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.synced()
    bench.elected()
    earlier = bench.leader.term
    bench.deposed()

    async def refused(*_: object) -> None:
        raise Deposed(earlier, "the API server refused term 1")

    monkeypatch.setattr(reconciler.Reconciler, "reconcile", refused)
    bench.elected(transitions=1)
    bench.node_comes()
    await quiet(bench)
    assert bench.lease.reasons == []


MADE_FOR_A_TERM = (
    reconciler.Reconciler,
    rollouts.Rollouts,
    verdicts.PodVerdicts,
    workqueue.WorkQueue,
    pod_events.Exposures,
)


def parts_of(leader: leader.Leader) -> list[weakref.ref[object]]:
    """The leader, its term and all that is made for it, without keeping any."""
    parts = [part for part in vars(leader).values() if type(part) in MADE_FOR_A_TERM]
    assert len(parts) == len(MADE_FOR_A_TERM)
    return [weakref.ref(part) for part in (leader, leader.term, *parts)]


async def test_memory_of_a_term_is_dropped_with_it(bench: Bench) -> None:
    bench.synced()
    bench.elected()
    bench.node_comes()
    await bench.writes(1)
    first = parts_of(bench.leader)
    bench.controller.leadership.begin()
    assert [part() for part in parts_of(bench.leader)] == [part() for part in first], "it is the same leadership"
    bench.deposed()
    assert bench.controller.leadership.leader is None
    bench.elected(transitions=1)
    await bench.writes(2)

    def are_gone() -> bool:
        gc.collect()
        return all(part() is None for part in first)

    await until(are_gone)  # its last tasks may yet end


async def test_the_parts_of_a_term_begin_once_those_of_the_one_before_have_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []

    async def run(leads: leader.Leader) -> None:
        seen.append(("begins", leads.term.epoch))
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            seen.append(("ends", leads.term.epoch))

    monkeypatch.setattr(leader.Leader, "run", run)
    bench.synced()
    bench.elected()
    await until(lambda: seen)
    bench.deposed()
    bench.elected(transitions=1)
    await until(lambda: ("begins", 2) in seen)
    assert seen == [("begins", 1), ("ends", 1), ("begins", 2)]


async def test_a_process_that_stops_begins_no_term_any_more(bench: Bench) -> None:
    bench.synced()
    bench.elected()
    await bench.controller.leadership.drain()
    bench.deposed()
    bench.elected(transitions=1)
    assert bench.controller.leadership.leader is None


async def test_metrics_of_the_leader_are_at_0_when_it_leads_no_more(bench: Bench) -> None:
    bench.synced()
    bench.elected()
    bench.server.answer(HANG)
    bench.node_comes()
    bench.pod_comes()
    await bench.writes(1)
    bench.pod_comes("b")
    await until(lambda: workqueue.DEPTH.value("nodes") == 1)
    bench.deposed()
    await bench.controller.leadership.stop()  # waits for parts that are ending
    assert workqueue.DEPTH.value("nodes") == 0


@pytest.mark.parametrize("answered", [True, False])
async def test_the_lease_is_given_back_after_the_last_write(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    monkeypatch.setattr(term, "DRAIN_SECONDS", 60.0 if answered else 0.0)
    monkeypatch.setattr(bench.controller, "parts", dict)
    stop, arrived = asyncio.Event(), asyncio.Event()
    bench.server.answer(arrived, accepted(1))
    running = asyncio.create_task(bench.controller.run(stop))
    bench.synced()
    bench.node_comes()
    bench.elected()
    await bench.writes(1)
    stop.set()
    if answered:
        bench.node_comes("node-2")
        for _ in range(20):
            await asyncio.sleep(0)
        assert bench.lease.released is None
        arrived.set()
    await running
    # Nobody knows whether the cancelled write is done: others wait until the Lease expires.
    assert bench.lease.released is answered
    assert len(bench.server.requests) == 1, "nothing begins any more"
    assert leadership.LEADER.value() == 0


async def test_the_lease_is_not_given_back_while_a_write_of_the_term_before_may_land(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays this instance's in the API server until another one takes it."""
    monkeypatch.setattr(bench.controller, "parts", dict)
    stop = asyncio.Event()
    bench.server.answer(HANG)
    running = asyncio.create_task(bench.controller.run(stop))
    bench.synced()
    bench.node_comes()
    bench.elected()
    await bench.writes(1)
    ended = bench.leader.term
    bench.deposed()
    assert ended.unsure_until > asyncio.get_running_loop().time()
    stop.set()
    await running
    assert bench.lease.released is False


async def test_silent_agents_are_counted_once_all_is_known(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "SILENT_SECONDS", 0.0)
    notices.SILENT.set(7)
    bench.synced("pods")
    bench.node_comes()
    counting = asyncio.create_task(bench.controller.parts()["silent_agents"]())
    await asyncio.sleep(0.01)
    assert notices.SILENT.value() == 7
    bench.controller.readiness.collections["pods"].set()
    await until(lambda: notices.SILENT.value() == 0)
    counting.cancel()


async def test_a_part_that_fails_ends_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "BACKOFF_SECONDS", (0.0, 0.0))
    faults = supervise.FAULTS.value("broken")
    failed, stop = 0, asyncio.Event()

    async def broken() -> None:
        nonlocal failed
        failed += 1
        raise ZeroDivisionError

    whole = bench.controller.parts()
    assert {"pods", "events", "restoring", "namespaces", "silent_agents"} < whole.keys()
    monkeypatch.setattr(bench.controller, "parts", lambda: {"broken": broken, "sync": whole["sync"]})
    running = asyncio.create_task(bench.controller.run(stop))
    bench.synced()
    await until(lambda: failed > 2)
    bench.node_comes()
    bench.server.answer(accepted(1))
    bench.elected()
    await bench.writes(1)
    assert supervise.FAULTS.value("broken") >= faults + 2
    stop.set()
    await running


async def test_a_term_is_later_than_the_lease_and_all_states_say(bench: Bench) -> None:
    bench.synced()
    bench.node_comes()
    bench.server.answer(accepted(1))
    bench.elected(transitions=4)
    assert epoch((await bench.writes(1))[0]) == 5
    bench.deposed()
    bench.state_comes(state_row("node-2", version=2, epoch=11))
    bench.node_comes("node-3")
    bench.server.answer(accepted(3, name="node-3"))
    bench.elected(transitions=5)
    assert bench.lease.counted == [11]
    await quiet(bench)
    assert len(bench.server.requests) == 1, "the Lease does not say yet which term this is"
    bench.elected(transitions=11)
    assert epoch((await bench.writes(2))[1]) == 12


async def test_a_term_that_no_lease_can_count_is_a_later_one_all_the_same(bench: Bench) -> None:
    bench.synced()
    bench.node_comes()
    bench.state_comes(state_row("node-2", epoch=2**31))
    bench.server.answer(accepted(1))
    bench.elected(transitions=4)
    assert epoch((await bench.writes(1))[0]) == 2**31 + 1
    assert bench.lease.counted == []


async def test_one_that_stands_by_writes_nothing_and_takes_up_all_nodes_when_it_leads(bench: Bench) -> None:
    bench.synced()
    for name in ("node-1", "node-2"):
        bench.node_comes(name)
    await quiet(bench)
    assert bench.server.requests == []
    for name in ("node-1", "node-2"):
        bench.server.answer(accepted(1, name=name))
    bench.elected()
    made = await bench.writes(2)
    assert {json.loads(one.body)["metadata"]["name"] for one in made} == {"node-1", "node-2"}


async def test_a_new_leader_reports_swap_that_pods_took_against_their_policy(bench: Bench) -> None:
    waiting = bench.controller.recorder.queues.urgent

    def told() -> list[tuple[str, str]]:
        """Which also takes it."""
        return [
            (happening.regarding.name, each.name) for happening, each in (waiting.pop() for _ in range(len(waiting)))
        ]

    bench.synced()
    bench.pod_comes("web")
    plan = {"uid-web": state.PodSettings(reason=names.Reason.POLICY_DISABLED, swap_max="0")}
    spec = state.StateSpec(profile_ref=state.ProfileRef(names.BUILT_IN_PROFILE), pods=plan)
    taken = state.ExposedPod("uid-web", swap_bytes=4096, causes=("Reload",), since="boot")
    bench.server.answer(accepted(4))
    bench.node_comes()
    bench.state_comes(state_row(version=2, spec=spec, exposed_pods=(taken,)))
    assert told() == [], "the one that leads does"
    bench.elected()
    bench.state_comes(state_row(version=3, spec=spec, exposed_pods=(taken,)))
    await until(lambda: len(waiting))
    ((pod_name, event),) = told()
    assert pod_name == "web"
    bench.deposed()
    bench.elected()
    await until(lambda: len(waiting))
    assert told() == [("web", event)], "by the same name, which the API server takes once"


async def test_an_order_to_restore_is_reported_by_the_leader_and_by_the_next_one(bench: Bench) -> None:
    def told() -> list[str]:
        """Which also takes it."""
        waiting = bench.controller.recorder.queues.urgent
        return [happening.reason for happening, _ in (waiting.pop() for _ in range(len(waiting)))]

    order = bench.controller.order
    bench.synced()
    bench.server.answer(reply({"metadata": {"uid": "u", "resourceVersion": "1"}, "data": {"restore": "true"}}))
    await order.read()
    assert told() == [], "the one that leads does"
    bench.elected()
    await quiet(bench)
    assert told() == ["Restoring"]
    bench.server.answer(reply({"metadata": {"uid": "u", "resourceVersion": "2"}, "data": {"restore": "false"}}))
    await order.read()
    assert told() == []
    bench.server.answer(reply({"metadata": {"uid": "u", "resourceVersion": "3"}, "data": {"restore": "true"}}))
    await order.read()
    assert told() == ["Restoring"]


async def test_one_that_cannot_read_what_profiles_said_before_plans_nothing_and_leads_no_longer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = []

    async def refused(_: object) -> list[Any]:
        refusals.append(1)
        raise errors.ApiError(403, "Forbidden", "not you")

    async def nothing_kept(_: object) -> list[Any]:
        return []

    monkeypatch.setattr(revision_history.RevisionHistory, "read", refused)
    bench.synced()
    bench.elected()
    bench.node_comes()
    await until(lambda: len(refusals) > 2)
    assert bench.server.requests == []
    monkeypatch.setattr(leader, "PAST_SECONDS", 0.0)
    bench.deposed()
    bench.elected()
    await until(lambda: bench.lease.reasons)
    assert "not you" in caplog.text
    monkeypatch.setattr(leader, "PAST_SECONDS", 30.0)
    bench.deposed()
    monkeypatch.setattr(revision_history.RevisionHistory, "read", nothing_kept)
    bench.server.answer(accepted(1))
    bench.elected()
    [made] = await bench.writes(1)
    assert made.method == "POST"


async def test_a_state_of_a_later_term_ends_this_one(bench: Bench) -> None:
    bench.synced()
    bench.elected(transitions=3)
    bench.state_comes(state_row(version=2, epoch=4))
    assert bench.lease.reasons == []
    bench.state_comes(state_row(version=3, epoch=5))
    [reason] = bench.lease.reasons
    assert all(part in reason for part in ("node-1", "term 5", "4"))


async def test_a_refusal_of_the_term_ends_it(bench: Bench) -> None:
    bench.synced()
    bench.node_comes()
    bench.state_comes(state_row(version=2, epoch=1))
    bench.server.answer(failure(422, "Invalid", state.EPOCH_REFUSAL))
    bench.elected(transitions=1)
    bench.pod_comes(policy="Disabled")
    await until(lambda: bench.lease.reasons)
    [reason] = bench.lease.reasons
    assert "term 2" in reason
    assert "node-1" in reason
    await quiet(bench)
    assert len(bench.server.requests) == 1, "one that was deposed does not try again"


async def test_a_node_that_fails_is_tried_again_and_keeps_no_other_waiting(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    failures = leader.FAILURES.value("request")
    bench.synced()
    bench.node_comes("node-1")
    bench.server.answer(CUT)
    bench.server.answer(accepted(1))
    bench.elected()
    first, again = await bench.writes(2)
    assert first.body == again.body
    await quiet(bench)
    assert leader.FAILURES.value("request") == failures + 1
    assert any("node-1" in one.getMessage() for one in caplog.records if one.levelno == logging.WARNING)
    assert bench.leader.queue.backoffs == {}


async def test_a_write_that_is_cut_off_is_repeated_by_one_that_leads_on(bench: Bench) -> None:
    bench.synced()
    bench.server.answer(HANG)
    bench.server.answer(accepted(1))
    bench.elected()
    assert bench.led is not None
    bench.led.seconds = 0.02
    bench.node_comes()
    await bench.writes(1)
    bench.led.seconds = 10.0  # the Lease is renewed while the API server takes its time
    first, again = await bench.writes(2)
    assert first.body == again.body


async def test_nodes_with_pods_that_must_not_swap_come_first_in_a_term(bench: Bench) -> None:
    bench.synced()
    names_of_nodes = [f"node-{number}" for number in range(2 * leader.WORKERS)]
    for name in names_of_nodes:
        bench.node_comes(name)
    bench.pod_comes(policy="Disabled", node=names_of_nodes[-1])
    for name in names_of_nodes:
        bench.server.answer(accepted(1, name=name))
    bench.elected()
    made = await bench.writes(len(names_of_nodes))
    assert names_of_nodes[-1] in {json.loads(one.body)["metadata"]["name"] for one in made[: leader.WORKERS]}


async def test_all_nodes_wait_for_as_long_as_the_api_server_asks_one_to(bench: Bench) -> None:
    bench.synced()
    bench.node_comes("node-1")
    bench.server.answer(failure(429, "TooManyRequests", "slow down", Retry_After="60"))
    bench.elected()
    await bench.writes(1)
    await until(lambda: not bench.leader.queue.busy)
    assert bench.controller.shared.throttle.delay() > 59
    bench.node_comes("node-2")
    bench.pod_comes("b", policy="Disabled", node="node-2")
    await until(lambda: len(bench.leader.queue) == 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(bench.server.requests) == 1


async def test_a_node_that_cannot_be_planned_is_reported_and_does_not_end_the_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = leader.FAILURES.value("internal")
    real = reconciler.Reconciler.reconcile

    async def fails_once(*_: object) -> None:
        monkeypatch.setattr(reconciler.Reconciler, "reconcile", real)
        raise ZeroDivisionError

    monkeypatch.setattr(reconciler.Reconciler, "reconcile", fails_once)
    bench.synced()
    bench.node_comes()
    bench.server.answer(accepted(1))
    bench.elected()
    await bench.writes(1)
    assert leader.FAILURES.value("internal") == failures + 1
    assert "cannot plan node node-1" in caplog.text


async def test_profiles_go_from_the_store_into_plans(bench: Bench) -> None:
    bench.synced()
    bench.node_comes()
    bench.server.answer(accepted(1))
    bench.elected()
    await bench.writes(1)
    bench.server.answer(accepted(2))
    bench.profile_comes(profile_object(mode="Audit"))
    request = (await bench.writes(2))[1]
    assert (request.method, request.path) == ("PATCH", f"{names.STATES_PATH}/node-1")
    assert json.loads(request.body)["spec"]["mode"] == "Audit"


async def test_the_lease_is_competed_for_as_other_controllers_do(api: client.Client, server: Scripted) -> None:
    controller = app.App(config.Config(server=server.url), api, parse())
    assert controller.leadership.elector._election.timing == election.Timing(15.0, 10.0, 2.0), "client-go's defaults"


async def test_namespaces_are_followed_when_a_profile_asks_for_them(bench: Bench) -> None:
    bench.synced()
    bench.node_comes()
    following = asyncio.create_task(bench.controller.namespaces.run())
    namespace = {"metadata": {"name": "default", "resourceVersion": "3", "labels": {"team": "a"}}}
    bench.server.answer(page([namespace], 5))
    bench.server.answer(STREAM, HANG)
    bench.pod_comes()
    bench.profile_comes(profile_object(overrides=BY_NAMESPACE))
    await bench.writes(2)
    bench.server.answer(accepted(1))
    bench.elected()
    made = (await bench.writes(3))[2]
    assert json.loads(made.body)["spec"]["pods"] == {"uid-a": {"reason": "OverrideDisabled", "swapMax": "0"}}
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
