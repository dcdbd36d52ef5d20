"""Why a value was written over: what the evidence speaks for, and how it is gathered."""

from __future__ import annotations

import asyncio
import logging
import math
import pathlib
import re
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.desired import spec
from swapwarden.agent.drift import attribution
from swapwarden.agent.host import cgroupfs, faults, inotify
from swapwarden.agent.inventory import exposure, records
from swapwarden.agent.reconcile import reconciler
from swapwarden.agent.report import collector
from swapwarden.api import names
from swapwarden.api import state as state_api

from tests.unit.agent.agent_node import MIB, Node, apply, compare, find_tree, lose_events, snapshot, state, until
from tests.unit.agent.cgroup_tree import container_id, swap_max, write

Cause = names.Cause
ALONE = attribution.Signs(math.inf, starts=False, unit=True, resized=False, together=1, running=30)


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        (ALONE, Cause.UNIT_VALUE),
        (msgspec.structs.replace(ALONE, unit=False), Cause.OTHER_WRITER),
        (msgspec.structs.replace(ALONE, age=2.0), Cause.START),
        (msgspec.structs.replace(ALONE, age=2.0, unit=False), Cause.OTHER_WRITER),
        (msgspec.structs.replace(ALONE, age=2.0, unit=False, starts=True), Cause.START),
        (msgspec.structs.replace(ALONE, age=20.0), Cause.UNIT_VALUE),
        (msgspec.structs.replace(ALONE, resized=True), Cause.RESIZE),
        (msgspec.structs.replace(ALONE, resized=True, unit=False), Cause.RESIZE),
        (msgspec.structs.replace(ALONE, together=3), Cause.RELOAD),
        (msgspec.structs.replace(ALONE, together=3, resized=True), Cause.RELOAD),
        (msgspec.structs.replace(ALONE, together=3, unit=False), Cause.OTHER_WRITER),
        (msgspec.structs.replace(ALONE, together=2), Cause.UNIT_VALUE),
        (msgspec.structs.replace(ALONE, together=2, running=2), Cause.RELOAD),
        (msgspec.structs.replace(ALONE, running=1), Cause.UNIT_VALUE),
    ],
)
def test_what_the_evidence_speaks_for(seen: attribution.Signs, cause: names.Cause) -> None:
    assert attribution.cause_of(seen) is cause


def test_what_systemd_has_a_unit_for() -> None:
    scope = "kubepods.slice/kubepods-pod1.slice/crio-1.scope"
    assert records.ControlFile("kubepods.slice/kubepods-pod1.slice", 1, None).is_systemds(cgroupfs.NO_LIMIT)
    assert not records.ControlFile("kubepods.slice/kubepods-pod1.slice", 1, None).is_systemds(0)
    assert not records.ControlFile("kubepods/pod1", 1, None).is_systemds(cgroupfs.NO_LIMIT)
    assert not records.ControlFile(scope, 1, None, "1").is_systemds(cgroupfs.NO_LIMIT)
    for path in (scope, f"{scope}/container"):
        file = records.ControlFile(path, 1, None, "1")
        file.systemd.value = 4096
        assert file.is_systemds(4096) is (path == scope)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment is over soon, and who came with the test is not young."""
    monkeypatch.setattr(attribution, "MOMENT_SECONDS", 0.05)


class Counted:
    """The increase of the counters since this was made, by cause."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> dict[names.Cause, int]:
        kinds = ("pod", "container", "kubepods")
        return {cause: int(sum(attribution.REWRITES.value(kind, cause) for kind in kinds)) for cause in names.Cause}

    def __call__(self) -> dict[names.Cause, int]:
        return {
            cause: count - self._before[cause] for cause, count in self._now().items() if count > self._before[cause]
        }


async def running(node: Node, count: int, limit: int = 0) -> list[pathlib.Path]:
    """So many pods with a container each, which are at their limit, and no longer young."""
    agent = node.agent or node.start()
    apply(agent, state(dict.fromkeys(range(count), limit)))
    made = [await node.run(number, f"app of {number}") for number in range(count)]
    await until(lambda: all(swap_max(pod) == cgroupfs.render(limit) for pod in made))
    node.later += 3600
    return made


def exposed(agent: reconciler.NodeReconciler) -> list[state_api.ExposedPod]:
    return list(snapshot(agent).recent.exposures)


def causes(node: Node, pod: pathlib.Path) -> list[str]:
    assert node.agent is not None
    listed = {each.pod: list(each.causes) for each in snapshot(node.agent).recent.exposures}
    return listed.get(node.known(pod).uid, [])


async def test_a_value_of_nobody_elses_is_another_writers(node: Node) -> None:
    (pod,) = await running(node, 1)
    counted = Counted()
    write(pod, str(5 * MIB))
    await until(lambda: counted() == {Cause.OTHER_WRITER: 1})
    assert (swap_max(pod), causes(node, pod)) == ("0", [Cause.OTHER_WRITER])


async def test_systemds_own_value_alone(node: Node) -> None:
    """Where the cgroupfs driver is, systemd has no unit that could hold a value."""
    pod, *_ = await running(node, 4)
    counted = Counted()
    write(pod, "max")
    expected = Cause.OTHER_WRITER if node.tree.naming == "cgroupfs" else Cause.UNIT_VALUE
    await until(lambda: counted() == {expected: 1})
    assert causes(node, pod) == [expected]


async def test_what_the_unit_holds_is_not_always_max(plain: Node) -> None:
    pod, *_ = await running(plain, 4, limit=8 * MIB)
    plain.known(pod).file.systemd.zero = True
    counted = Counted()
    write(pod, "0")
    await until(lambda: counted() == {Cause.UNIT_VALUE: 1})
    assert (swap_max(pod), causes(plain, pod)) == (str(8 * MIB), [])
    counted = Counted()
    write(pod, "4096")
    await until(lambda: counted() == {Cause.OTHER_WRITER: 1})


async def test_a_pod_that_starts(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: 0}))
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    counted = Counted()
    write(pod, "max")
    await until(lambda: counted() == {Cause.START: 1})
    assert snapshot(agent).violations == []


async def test_a_reload_writes_to_each_unit(plain: Node) -> None:
    """Also to those whose value is right: without them it would look like a write to one pod."""
    (disabled,) = await running(plain, 1)
    others = await running_free(plain, 10, 3)
    counted = Counted()
    for pod in (*others, disabled):
        write(pod, "max")
    await until(lambda: counted() == {Cause.RELOAD: 1})
    assert causes(plain, disabled) == [Cause.RELOAD]


async def running_free(node: Node, first: int, count: int) -> list[pathlib.Path]:
    """So many pods more, without a limit."""
    assert node.agent is not None
    numbers = range(first, first + count)
    apply(node.agent, state({0: 0, **dict.fromkeys(numbers, cgroupfs.NO_LIMIT)}))
    made = [node.tree.pod(number) for number in numbers]
    for pod in made:
        node.tree.container(pod, f"app of {pod.name}")
    await until(lambda: all(str(pod.relative_to(node.tree.root)) in node.agent.inventory.pods for pod in made))  # type: ignore[union-attr] # started
    await until(lambda: all(node.known(pod).containers for pod in made))
    node.later += 3600
    return made


async def test_the_agents_own_writes_are_no_sign_of_a_reload(plain: Node) -> None:
    pod, *others = await running(plain, 5)
    counted = Counted()
    assert plain.agent is not None
    apply(plain.agent, state({0: 0, **dict.fromkeys(range(1, 5), MIB)}, generation=2))
    write(pod, "max")
    await until(lambda: counted() == {Cause.UNIT_VALUE: 1})
    assert [swap_max(other) for other in others] == [str(MIB)] * 4


async def test_a_resize_changes_other_files_too(plain: Node) -> None:
    pod, *_ = await running(plain, 4)
    counted = Counted()
    (pod / "cpu.weight").write_text("79\n")
    write(pod, "max")
    await until(lambda: counted() == {Cause.RESIZE: 1})
    write(pod, "max")
    await until(lambda: counted() == {Cause.RESIZE: 1, Cause.UNIT_VALUE: 1})
    assert sorted(causes(plain, pod)) == [Cause.RESIZE, Cause.UNIT_VALUE]


async def test_a_pod_that_is_removed_is_not_resized(plain: Node) -> None:
    pod = (await running(plain, 1))[0]
    assert plain.agent is not None
    file = plain.known(pod).file
    before = file.resources
    plain.tree.remove(pod)
    assert not plain.agent._attribution.observe(file)
    assert file.resources == before


async def test_the_kubelets_number_is_what_a_containers_unit_holds(plain: Node) -> None:
    pod = plain.tree.pod(1)
    app = plain.tree.container(pod, "app", memory_swap_max="4096\n")
    apply(plain.start(), state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(MIB, at_most=False)}}))
    assert swap_max(app) == str(MIB)
    counted = Counted()
    write(app, "4096")
    await until(lambda: counted() == {Cause.UNIT_VALUE: 1})
    write(app, "0")
    await until(lambda: counted() == {Cause.UNIT_VALUE: 1, Cause.OTHER_WRITER: 1})
    (app / "memory.max").write_text("8192\n")
    write(app, "8192")
    await until(lambda: counted().get(Cause.RESIZE) == 1)
    write(app, "8192")
    await until(lambda: counted().get(Cause.UNIT_VALUE) == 2)


@pytest.mark.parametrize("fought", [False, True])
async def test_the_kubelets_number_is_known_to_the_next_agent(plain: Node, *, fought: bool) -> None:
    pod = plain.tree.pod(1)
    app = plain.tree.container(pod, "app", memory_swap_max="4096\n")
    wants = state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(MIB, at_most=False)}})
    apply(plain.start(), wants)
    assert swap_max(app) == str(MIB)
    counted = Counted()
    before: dict[Cause, int] = {}
    if fought:
        write(app, "0")
        before[Cause.OTHER_WRITER] = 1
        await until(lambda: counted() == before)
    plain.stop()
    plain.start(wants)
    plain.later += 3600
    write(app, "0")
    await until(lambda: counted() == before | {Cause.OTHER_WRITER: len(before) + 1})
    write(app, "4096")
    await until(lambda: counted().get(Cause.UNIT_VALUE) == 1)


async def test_each_kind_of_external_write_is_described_until_it_is_long_ago(plain: Node) -> None:
    (pod,) = await running(plain, 1)
    agent = plain.agent
    assert agent is not None
    apply(agent, state({1: 0}, kubepods=512 * MIB))
    pods, kubepods = "another writer gives a number of bytes to pods", "another writer gives 0 to kubepods"
    write(pod, "4096")
    await until(lambda: snapshot(agent).recent.others == pods)
    plain.later += 100
    write(plain.tree.kubepods, "0")
    await until(lambda: snapshot(agent).recent.others == f"{kubepods}; {pods}")
    plain.later += exposure.RECENT_SECONDS - 50
    assert snapshot(agent).recent.others == kubepods
    plain.later += 100
    assert snapshot(agent).recent.others == ""


async def test_a_value_that_the_runtime_put_into_a_containers_unit_is_no_other_writers(plain: Node) -> None:
    pod = plain.tree.pod(1)
    app = plain.tree.group(pod / f"crio-{container_id('app')}.scope", memory_swap_max="8192\n")
    agent = plain.start()
    apply(agent, state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(4096, at_most=False)}}))
    plain.later += 3600
    counted = Counted()
    write(app, "8192")
    await until(lambda: counted() == {Cause.UNIT_VALUE: 1})
    assert swap_max(app) == "4096"
    assert snapshot(agent).recent.others == ""


async def test_values_written_over_while_no_agent_ran(plain: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=attribution.__name__)
    (pod,) = await running(plain, 1)
    plain.stop()
    write(pod, "max")
    write(pod, str(3 * MIB), "memory.swap.current")
    appeared = plain.tree.pod(2)
    plain.tree.container(appeared, "app")
    empty = plain.tree.pod(3)
    counted = Counted()
    before = {cause: exposure.GROWN.value(cause) for cause in names.Cause}
    agent = plain.start(away=10.0)
    assert [swap_max(each) for each in (appeared, empty)] == ["0", "0"]
    assert counted() == {Cause.AGENT_DOWN: 1}
    (line,) = (vars(each) for each in caplog.records if each.name == attribution.__name__)
    assert (line["cause"], line["cgroup"], line["observed"]) == ("AgentDown", f"/{plain.known(pod).file.path}", "max")
    listed = {each.pod: each for each in snapshot(agent).recent.exposures}
    exposed = [listed[plain.known(each).uid] for each in (pod, appeared)]
    assert len(listed) == 2
    assert [each.causes for each in exposed] == [[Cause.AGENT_DOWN]] * 2
    assert all(each.milliseconds >= 3_500_000 for each in exposed)
    assert exposed[0].swap_bytes == 3 * MIB
    assert exposure.GROWN.value(Cause.AGENT_DOWN) - before[Cause.AGENT_DOWN] == 3 * MIB


async def test_a_containers_value_written_over_while_no_agent_ran_counts_as_long(plain: Node) -> None:
    wants = state({1: 64 * MIB}, containers={1: {"app": spec.FileSetting(MIB, at_most=False)}})
    apply(plain.start(), wants)
    pod = await plain.run(1, "app")
    app = plain.tree.container_path(pod, "app")
    await until(lambda: swap_max(app) == str(MIB))
    plain.stop()
    write(app, "max")
    plain.later += 3600
    plain.start(wants, away=10.0)
    assert swap_max(app) == str(MIB)
    assert plain.known(pod).tally.milliseconds >= 3_500_000


@pytest.mark.parametrize("full", [False, True])
async def test_swap_taken_is_reported_until_a_status_is_written(plain: Node, full: bool) -> None:
    """Also of a pod at its memory limit, which is one that swaps, and of which what it took cannot be cut at once."""
    pod, other = await running(plain, 2)
    agent = plain.agent
    assert agent is not None
    if full:
        write(pod, str(64 * MIB), "memory.max")
        write(pod, str(63 * MIB), "memory.current")
    for each, used in ((pod, MIB), (other, 0)):
        write(each, str(used), "memory.swap.current")
        write(each, "max")
    await until(lambda: all(causes(plain, each) for each in (pod, other)))
    uid = plain.known(pod).uid
    assert snapshot(agent).recent.unreported == {uid}
    assert (swap_max(pod) != "0") == full
    plain.later += exposure.RECENT_SECONDS
    (violation,) = exposed(agent)
    assert (violation.swap_bytes, violation.desired) == (MIB, "0")
    told = [{"pod": uid, "swapBytes": MIB, "causes": ["UnitValue"], "since": violation.since}]
    for incomplete in ([], [{**told[0], "causes": []}], [{**told[0], "swapBytes": MIB - 1}]):
        collector.acknowledge(agent.inventory.pods.values(), incomplete)
        assert snapshot(agent).recent.unreported == {uid}
    collector.acknowledge(agent.inventory.pods.values(), told)
    assert snapshot(agent).recent.unreported == set()
    assert exposed(agent) == []


async def test_swap_taken_is_reported_with_its_own_cause(plain: Node) -> None:
    """And not even for a second by the causes of earlier exposures: an event reports each growth once."""
    (pod,) = await running(plain, 1)
    agent = plain.agent
    assert agent is not None
    write(pod, "max")
    await until(lambda: causes(plain, pod) == [Cause.UNIT_VALUE])
    plain.later += 60
    write(pod, str(MIB), "memory.swap.current")
    write(pod, str(5 * MIB))
    await until(lambda: plain.known(pod).tally.grown == MIB)
    (before,) = exposed(agent)
    assert (before.count, before.causes, before.swap_bytes) == (2, [Cause.UNIT_VALUE], 0)
    assert snapshot(agent).recent.unreported == set()
    await until(lambda: Cause.OTHER_WRITER in causes(plain, pod))
    (after,) = exposed(agent)
    assert after.swap_bytes == MIB
    assert snapshot(agent).recent.unreported == {after.pod}


@pytest.mark.parametrize("first", ["pod", "container"])
async def test_a_pod_above_several_of_its_limits_is_exposed_for_that_time_once(plain: Node, first: str) -> None:
    agent = plain.start()
    inner = {name: spec.FileSetting(MIB, at_most=False) for name in ("app", "sidecar")}
    apply(agent, state({1: 5 * MIB}, containers={1: inner}))
    pod = await plain.run(1, *inner)
    files = [pod, *(plain.tree.container_path(pod, name) for name in inner)]
    held = [str(5 * MIB), str(MIB), str(MIB)]
    await until(lambda: [swap_max(path) for path in files] == held)

    def slow(*_: object) -> None:
        plain.later += 60

    plain.cgroups.before = slow
    order = files if first == "pod" else files[::-1]
    for path in order:
        write(path, "max")
    for path, used in zip(files, (8, 3, 3), strict=True):
        write(path, str(used * MIB), "memory.swap.current")
    agent.catch_up()
    assert [swap_max(path) for path in files] == held
    tally = plain.known(pod).tally
    assert (tally.count, round(tally.milliseconds / 60_000)) == (3, 3)
    assert tally.grown == 4 * MIB, "3 beyond the pod's limit are among the 2 and 2 beyond those of its containers"
    write(files[1], str(4 * MIB), "memory.swap.current")
    write(files[1], "max")
    agent.catch_up()
    assert tally.grown == 5 * MIB, "at another time"
    write(pod, str(9 * MIB), "memory.swap.current")
    write(pod, "max")
    agent.catch_up()
    assert tally.grown == 6 * MIB, "the swap of a container's earlier exposure was counted then, this one was not"


async def test_sums_say_since_when_they_count(plain: Node) -> None:
    async def told() -> state_api.ExposedPod:
        assert plain.agent is not None
        write(pod, "max")
        await until(lambda: causes(plain, pod) != [])
        (violation,) = snapshot(plain.agent).recent.exposures
        return violation

    (pod,) = await running(plain, 1)
    first = await told()
    write(pod, "max")
    assert (await told()).since == first.since
    plain.stop()
    plain.start(state({0: 0}))
    again = await told()
    assert (again.count, again.since > first.since) == (1, True)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", again.since)


async def test_each_exposure_has_a_line_with_its_begin_and_end(plain: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=exposure.__name__)
    (pod,) = await running(plain, 1)
    before = exposure.moment(time.time())
    for used in (0, MIB):
        write(pod, str(used), "memory.swap.current")
        write(pod, "max")
        await until(lambda: swap_max(pod) != "max")
    quiet, harmful = (vars(record) for record in caplog.records)
    assert [quiet["levelname"], harmful["levelname"]] == ["DEBUG", "INFO"]
    assert (harmful["uid"], harmful["observed"], harmful["swapBytes"]) == (plain.known(pod).uid, "max", MIB)
    assert before <= quiet["from"] <= quiet["until"] <= harmful["from"] <= harmful["until"]


async def test_what_drains_while_no_agent_runs_was_not_exposed(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_max="4096\n", memory_swap_current=f"{32 * MIB}\n")
    plain.tree.container(pod, "app")
    apply(plain.start(), state({1: 0}))
    plain.stop()
    write(pod, "0", "memory.swap.current")
    agent = plain.start(state({1: 0}), away=0.0)
    assert swap_max(pod) == "0"
    assert snapshot(agent).violations == []


async def test_pods_that_come_with_their_tree_ran_since_there_was_none_at_most(plain: Node) -> None:
    plain.tree.remove(plain.tree.kubepods)
    agent = plain.start(away=0.0)
    plain.later += 1000
    find_tree(agent)
    plain.later += 5
    plain.tree.group(plain.tree.kubepods)
    pod = plain.tree.pod(1, "guaranteed")
    plain.tree.container(pod, "app")
    find_tree(agent)
    assert swap_max(pod) == "0"
    assert late(agent) == [plain.known(pod).uid]


def late(agent: reconciler.NodeReconciler) -> list[str]:
    """The UIDs of pods that ran before the agent saw them: some 5 seconds long, or longer by as much as tests take."""
    listed = exposed(agent)
    assert all(each.causes == [Cause.AGENT_LATE] and each.count == 1 for each in listed)
    assert all(5000 <= each.milliseconds < 500_000 for each in listed)
    return [each.pod for each in listed]


async def test_a_pod_that_ran_before_the_agent_saw_it(node: Node) -> None:
    """A write that the agent did not notice cannot be older than the last time that it read all events."""
    agent = node.start()
    apply(agent, state({1: 0}))
    node.later += 1000
    agent.catch_up()
    node.later += 5
    before = exposure.EXPOSURES.value(Cause.AGENT_LATE), exposure.GROWN.value(Cause.AGENT_LATE)
    pod = node.tree.pod(1, memory_swap_current=f"{3 * MIB}\n")
    node.tree.container(pod, "app")
    await until(lambda: swap_max(pod) == "0")
    assert late(agent) == [node.known(pod).uid]
    assert exposed(agent)[0].swap_bytes == 3 * MIB
    after = exposure.EXPOSURES.value(Cause.AGENT_LATE), exposure.GROWN.value(Cause.AGENT_LATE)
    assert after == (before[0] + 1, before[1] + 3 * MIB)


async def test_each_event_says_that_nothing_else_came(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: 0, 2: 0}))
    plain.later += 1000
    await plain.run(1)
    plain.later += 5
    pod = plain.tree.pod(2)
    plain.tree.container(pod, "app")
    await until(lambda: swap_max(pod) == "0")
    assert late(agent) == [plain.known(pod).uid]


async def test_a_pod_whose_events_were_lost_ran_unseen(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: 0, 2: 0}))
    plain.later += 1000
    compare(agent)
    plain.later += 5
    pod, empty = plain.tree.pod(1), plain.tree.pod(2)
    plain.tree.container(pod, "app")
    lose_events(agent)
    compare(agent)
    assert (swap_max(pod), swap_max(empty)) == ("0", "0")
    assert late(agent) == [plain.known(pod).uid]


async def test_events_say_nothing_of_what_cannot_be_watched(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: 0}))
    agent.work.watching.degrade(inotify.Degraded.WATCHES, "not everything can be watched")
    pod = plain.tree.pod(1)
    plain.tree.container(pod, "app")
    lose_events(agent)
    plain.later += 5
    agent.catch_up()
    compare(agent)
    assert late(agent) == [plain.known(pod).uid]


async def test_a_pod_that_may_have_as_much_was_not_exposed_before_it_was_found(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: cgroupfs.NO_LIMIT, 2: MIB}))
    free, strict = plain.tree.pod(1), plain.tree.pod(2, memory_swap_max="0\n")
    for pod in (free, strict):
        plain.tree.container(pod, f"app of {pod.name}")
    await until(lambda: len(agent.inventory.pods.values()) == 2 and swap_max(strict) == str(MIB))
    apply(agent, state({1: cgroupfs.NO_LIMIT, 2: MIB}, unknown=names.BeforePlan.UNMANAGED, generation=2))
    unknown = plain.tree.pod(3)
    plain.tree.container(unknown, "app")
    await until(lambda: len(agent.inventory.pods.values()) == 3)
    assert [swap_max(pod) for pod in (free, strict, unknown)] == ["max", str(MIB), "max"]
    assert exposed(agent) == []


async def test_many_rewrites_are_one_line_of_the_log(plain: Node, caplog: pytest.LogCaptureFixture) -> None:
    (pod,) = await running(plain, 1)
    counted = Counted()

    def lines() -> list[object]:
        return [
            vars(each)["rewrites"] for each in caplog.records if each.message.startswith("a value was written over")
        ]

    for number in range(5):
        write(pod, str((number + 1) * MIB))
        await until(lambda: swap_max(pod) == "0")
        await until(lambda number=number: counted().get(Cause.OTHER_WRITER) == number + 1)  # type: ignore[misc] # a default has no type
    assert lines() == [1]
    plain.later += faults.LOG_SECONDS
    write(pod, str(MIB))
    await until(lambda: lines() == [1, 5])


def test_the_longest_cause_is_first() -> None:
    tally = exposure.Tally()
    assert collector.causes(tally) == []
    for cause, milliseconds in ((Cause.START, 1.0), (Cause.RELOAD, 5.0), (Cause.START, 2.0)):
        tally.attribute(cause, exposure.Exposure(1, milliseconds, 0))
    assert collector.causes(tally) == [Cause.RELOAD, Cause.START]


def test_sums_count_from_when_the_record_of_the_pod_was_made() -> None:
    tally = exposure.Tally(created=0.25)
    for ended in (5.0, 7.0):
        tally.add("a", exposure.Exposure(1, 1.0, 0), desired=0, observed=1, ended=ended, until=ended, rewritten=True)
    assert tally.since == "1970-01-01T00:00:00.250000Z"


def told_and_true(tally: exposure.Overlap, exposures: list[tuple[int, int]]) -> tuple[float, int]:
    """Seconds that are counted, and that were; FOUND is how long each lasted, and how long after the last it ended."""
    now, seconds = 100, 0.0
    above: set[int] = set()
    for lasted, later in exposures:
        now += later
        above |= set(range(now - lasted, now))
        seconds += tally.lasted(now - lasted, now)
    return seconds, len(above)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=exposure.TIMES))
def test_times_above_several_limits_are_counted_once_in_whatever_order_they_are_found(
    exposures: list[tuple[int, int]],
) -> None:
    seconds, above = told_and_true(exposure.Overlap(), exposures)
    assert seconds == above


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=100))
def test_of_many_times_few_are_kept_and_none_is_left_out(exposures: list[tuple[int, int]]) -> None:
    tally = exposure.Overlap()
    seconds, above = told_and_true(tally, exposures)
    assert seconds >= above
    assert len(tally.times) <= exposure.TIMES


async def test_causes_are_found_one_at_a_time(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "MOMENT_SECONDS", 0.05)
    count = 12
    agent = plain.start()
    apply(agent, state(dict.fromkeys(range(count), 0)))
    made = [await plain.run(number, "app") for number in range(count)]
    await until(lambda: all(swap_max(pod) == "0" for pod in made))

    def told() -> int:
        return sum(bool(each.tally.milliseconds_of) for each in agent.inventory.pods.values())

    for pod in made:
        write(pod, str(5 * MIB))
    steps = {0}

    for _ in range(10**6):
        steps.add(told())
        if count in steps:
            break
        await asyncio.sleep(0)
    assert steps == set(range(count + 1))


async def test_what_systemd_holds_of_a_container_is_known_after_a_restart_without_a_write(plain: Node) -> None:
    pod = plain.tree.pod(1)
    app = plain.tree.container(pod, "app", memory_swap_max="4096\n")
    enforced = state({1: MIB}, containers={1: {"app": spec.FileSetting(0, at_most=False)}})
    apply(plain.start(), enforced)
    assert swap_max(app) == "0"
    plain.stop()
    plain.start(enforced)
    (file,) = (file for each in plain.known(pod).containers.values() for file in each.files)
    assert not file.times.write_seq
    assert [file.is_systemds(value) for value in (4096, 0, cgroupfs.NO_LIMIT)] == [True, False, False]
