"""One cgroup's trouble is that cgroup's trouble: everything else gets its value in the same pass."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import pathlib
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.drift import attribution, repairs, systemd_zero
from swapwarden.agent.host import cgroup_files, cgroupfs, faults, inotify
from swapwarden.agent.inventory import exposure, records
from swapwarden.agent.reconcile import (
    cgroup_reconciler,
    container_reconciler,
    file_reconciler,
    queue,
    reconciler,
    schedule,
    tasks,
)
from swapwarden.agent.report import collector
from swapwarden.api import names
from swapwarden.api import state as state_api

from tests.unit.agent.agent_node import (
    MIB,
    Node,
    apply,
    built,
    causes_found,
    compare,
    due,
    find_causes,
    hear,
    is_idle,
    look_again,
    lose_events,
    mark,
    reasons,
    settle,
    snapshot,
    state,
    swap,
    until,
    waits,
)
from tests.unit.agent.cgroup_tree import container_id, swap_max, uid, write

PODS = range(1, 7)
HOSTILE = 3
FACTS = state_api.Facts(cgroup_version=2, swap_controller=True, swap_bytes=1 << 30, memory_bytes=1 << 32)
WANTED = spec.FileSetting(MIB, at_most=False)
EVENT = inotify.InotifyEvent(0, inotify.CONTENT, "")
LOST = (None, inotify.InotifyEvent(-1, inotify.Q_OVERFLOW, ""))


class _Capabilities(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


@contextlib.contextmanager
def without_override() -> Iterator[None]:
    """Let file modes bind this thread, as they bind an agent without capabilities (CAP_DAC_OVERRIDE, _READ_SEARCH)."""
    libc = ctypes.CDLL(None, use_errno=True)
    head = _Capabilities(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    assert libc.capget(ctypes.byref(head), sets) == 0
    before = list(sets)
    sets[0] &= ~0b110
    assert libc.capset(ctypes.byref(head), sets) == 0
    try:
        yield
    finally:
        assert libc.capset(ctypes.byref(head), (ctypes.c_uint32 * 6)(*before)) == 0


class Faults:
    """Stands for the counter: unexpected errors of other tests fail them."""

    def __init__(self) -> None:
        self.count = 0

    def inc(self) -> None:
        self.count += 1


@pytest.fixture
def mistakes(monkeypatch: pytest.MonkeyPatch) -> Faults:
    made = Faults()
    monkeypatch.setattr(faults, "FAULTS", made)
    return made


class Crowd:
    """Pods with a container each, and a state that gives both a value."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pods = {number: node.tree.pod(number) for number in PODS}
        self.apps = {number: node.tree.container(pod, "app") for number, pod in self.pods.items()}

    @staticmethod
    def state(limit: int = 2 * MIB, generation: int = 1) -> spec.NodeSpec:
        inner = {number: {"app": WANTED} for number in PODS}
        return state(dict.fromkeys(PODS, limit), containers=inner, kubepods=64 * MIB, generation=generation)

    def others(self) -> set[tuple[str, str]]:
        """Return the values of all pods except the hostile one, each with that of its container."""
        return {(swap_max(self.pods[n]), swap_max(self.apps[n])) for n in PODS if n != HOSTILE}


def condition(agent: reconciler.NodeReconciler, kind: str) -> tuple[str, str]:
    return next((each.status, each.reason) for each in built(agent, FACTS).conditions if each.type == kind)


def failures(agent: reconciler.NodeReconciler) -> list[tuple[str, str, str]]:
    return [
        (each.pod, each.container, each.reason)
        for each in snapshot(agent).violations
        if each.reason not in {"Exposed", "Draining"}
    ]


async def test_a_container_that_closes_its_cgroup_stops_no_other(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "RETRY_SECONDS", (0.01, 0.01))
    crowd = Crowd(plain)
    closed = crowd.apps[HOSTILE]
    closed.chmod(0)
    with without_override():
        agent = plain.start()
        apply(agent, crowd.state())
        assert crowd.others() == {(str(2 * MIB), str(MIB))}
        assert swap_max(plain.tree.kubepods) == str(64 * MIB), "it is raised and lowered for all"
        assert failures(agent) == [(uid(HOSTILE), container_id("app"), "AccessDenied")]
        assert condition(agent, "Applied") == ("False", "AccessDenied")
        assert condition(agent, "Degraded") == ("False", "AsExpected"), "a container must not stop a rollout"
        assert snapshot(agent).degraded == ""
        for number in PODS:
            if number != HOSTILE:
                write(crowd.pods[number], "max")
        lose_events(agent)
        compare(agent)
        assert crowd.others() == {(str(2 * MIB), str(MIB))}
        collector.publish(agent.inventory, agent.progress)
        assert collector.FAILING.value("AccessDenied") > 0
        closed.chmod(0o755)
        await until(lambda: swap_max(closed) == str(MIB))
        await until(lambda: condition(agent, "Applied") == ("True", "AsSpecified"))
        assert swap_max(crowd.pods[HOSTILE]) == str(2 * MIB)


@pytest.mark.parametrize("mode", [names.Mode.RESTORE, names.Mode.AUDIT])
async def test_a_closed_container_that_was_never_written_holds_up_no_restore(plain: Node, mode: names.Mode) -> None:
    crowd = Crowd(plain)
    with without_override():
        agent = plain.start()
        crowd.apps[HOSTILE].chmod(0)
        apply(agent, crowd.state())
        apply(agent, msgspec.structs.replace(crowd.state(generation=2), mode=mode))
        await until(lambda: condition(agent, "Applied")[0] == "True")
        assert crowd.others() == {("max", "max")}


async def test_a_closed_container_does_not_keep_other_pods_from_more(plain: Node) -> None:
    crowd = Crowd(plain)
    with without_override():
        agent = plain.start()
        for number in PODS:
            write(crowd.pods[number], "0")
        write(plain.tree.kubepods, "0")
        crowd.apps[HOSTILE].chmod(0)
        apply(agent, crowd.state())
        assert swap_max(plain.tree.kubepods) == str(64 * MIB)
        assert crowd.others() == {(str(2 * MIB), str(MIB))}
        assert swap_max(crowd.pods[HOSTILE]) == "0", "its container may hold more than it is to"


@pytest.mark.parametrize(("held", "raised"), [("0", True), ("max", False)])
async def test_a_container_that_refuses_to_be_written_bars_its_pod_only_from_what_it_would_get(
    plain: Node, held: str, *, raised: bool
) -> None:
    pod = plain.tree.pod(1, memory_swap_max="0\n")
    app = plain.tree.container(pod, "app", memory_swap_max=f"{held}\n")
    agent = plain.start()
    (app / "memory.swap.max").chmod(0o444)
    with without_override():
        apply(agent, state({1: 0}, containers={1: {"app": WANTED}}))
        assert failures(agent) == [(uid(1), container_id("app"), "AccessDenied")]
        apply(agent, state({1: 2 * MIB}, containers={1: {"app": WANTED}}, generation=2))
        assert swap_max(pod) == (str(2 * MIB) if raised else "0")
        write(pod, "0")
        agent.catch_up()
        assert swap_max(pod) == (str(2 * MIB) if raised else "0")
        apply(agent, state({1: 2 * MIB}, mode=names.Mode.RESTORE, generation=3))
        apply(agent, state({1: 2 * MIB}, generation=4))
        assert swap_max(pod) == str(2 * MIB), "nothing is asked of the container any more"


async def test_a_cause_that_cannot_be_found_hides_no_other(
    plain: Node, monkeypatch: pytest.MonkeyPatch, mistakes: Faults
) -> None:
    agent = plain.start(state(dict.fromkeys(PODS, 0)))
    crowd = Crowd(plain)
    await until(
        lambda: (
            len(agent.inventory.pods.values()) == len(PODS)
            and all(each.containers for each in agent.inventory.pods.values())
        )
    )
    await until(lambda: all(swap_max(pod) == "0" for pod in crowd.pods.values()))
    agent.catch_up()
    real, first = plain.cgroups.resources, agent.inventory.pods[next(iter(agent.inventory.pods))].path

    def resources(path: str) -> tuple[str, ...]:
        if path == first:
            raise ZeroDivisionError("a mistake")
        return real(path)

    monkeypatch.setattr(plain.cgroups, "resources", resources)
    for pod in crowd.pods.values():
        write(pod, "max")
    agent.catch_up()
    find_causes(agent)
    await until(
        lambda: sum(bool(each.tally.milliseconds_of) for each in agent.inventory.pods.values()) >= len(PODS) - 1
    )
    await until(lambda: causes_found(agent))
    assert mistakes.count == 1


async def test_a_pods_folder_that_cannot_be_listed_keeps_no_pod_from_its_limit(plain: Node) -> None:
    crowd = Crowd(plain)
    crowd.pods[HOSTILE].chmod(0o311)
    with without_override():
        agent = plain.start()
        apply(agent, crowd.state())
        assert crowd.others() == {(str(2 * MIB), str(MIB))}
        assert swap_max(crowd.pods[HOSTILE]) == str(2 * MIB)
        assert (uid(HOSTILE), "", "AccessDenied") in failures(agent)
        assert condition(agent, "Applied")[0] == "False"
        apply(agent, crowd.state(3 * MIB, generation=2))
        assert (uid(HOSTILE), "", "AccessDenied") in failures(agent), "it is known no better"
        write(crowd.pods[HOSTILE], "max")
        lose_events(agent)
        compare(agent)
        assert swap_max(crowd.pods[HOSTILE]) == str(3 * MIB)


def is_of(name: str, path: str) -> bool:
    """Whether a file is one of the cgroup's own."""
    return name.rpartition("/")[0] == path


@pytest.mark.parametrize("where", ["pod", "container", "file", "write", "evidence"])
async def test_an_unexpected_error_is_that_cgroups_own(
    plain: Node, monkeypatch: pytest.MonkeyPatch, mistakes: Faults, where: str
) -> None:
    monkeypatch.setattr(queue, "RETRY_SECONDS", (0.01, 0.01))
    crowd = Crowd(plain)
    agent = plain.start()
    bad = str(crowd.apps[HOSTILE].relative_to(plain.tree.root))

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a mistake")

    with monkeypatch.context() as broken:
        if where == "pod":
            real = resolve.of_pod

            def of_pod(
                current: spec.NodeSpec | None, entry: spec.PodEntry | None, **more: object
            ) -> resolve.DesiredValue:
                if entry is not None and entry.settings == swap(7 * MIB):
                    fail()
                return real(current, entry, **more)  # type: ignore[arg-type] # as they are given

            broken.setattr(resolve, "of_pod", of_pod)
        elif where == "container":
            opened = agent.inventory.open
            broken.setattr(
                agent.inventory, "open", lambda each, needed: fail() if each.path == bad else opened(each, needed)
            )
        elif where == "file":
            limit = plain.cgroups.read
            broken.setattr(plain.cgroups, "read", lambda name: fail() if is_of(name, bad) else limit(name))
        elif where == "write":
            plain.cgroups.before = lambda name, _: fail() if is_of(name, bad) else None
        else:
            came = systemd_zero.Evidence.came
            broken.setattr(
                systemd_zero.Evidence,
                "came",
                lambda self, root, pod: fail() if bad.startswith(pod.path) else came(self, root, pod),
            )
        new = crowd.state()
        if where == "pod":
            new = msgspec.structs.replace(
                new,
                pods={
                    **new.pods,
                    uid(HOSTILE): msgspec.structs.replace(new.pods[uid(HOSTILE)], settings=swap(7 * MIB)),
                },
            )
        if where == "evidence":
            new = msgspec.structs.replace(new, guarantee=names.Guarantee.STRICT)
        apply(agent, new)
        assert crowd.others() == {(str(2 * MIB), str(MIB))}
        assert mistakes.count > 0
        assert [(each[0], each[2]) for each in failures(agent)] == [(uid(HOSTILE), "InternalError")]
        assert condition(agent, "Applied") == ("False", "InternalError")
        assert condition(agent, "Degraded") == ("True", "InternalError")
        write(crowd.pods[1], "max")
        await until(lambda: swap_max(crowd.pods[1]) == str(2 * MIB))
    plain.cgroups.before = None
    await until(lambda: condition(agent, "Applied") == ("True", "AsSpecified"))
    assert swap_max(crowd.apps[HOSTILE]) == str(MIB)


@pytest.mark.parametrize("where", ["pod", "container"])
async def test_an_unexpected_error_keeps_no_other_pod_from_more(plain: Node, mistakes: Faults, where: str) -> None:
    crowd = Crowd(plain)
    agent = plain.start()
    for number in PODS:
        write(crowd.pods[number], "0" if number != HOSTILE else str(3 * MIB))
    write(plain.tree.kubepods, "0")
    bad = str((crowd.pods if where == "pod" else crowd.apps)[HOSTILE].relative_to(plain.tree.root))
    plain.cgroups.refuse(f"{bad}/memory", ZeroDivisionError("a mistake"))
    apply(agent, crowd.state())
    assert mistakes.count > 0
    assert swap_max(plain.tree.kubepods) == str(64 * MIB)
    assert crowd.others() == {(str(2 * MIB), str(MIB))}
    assert [(each[0], each[2]) for each in failures(agent)] == [(uid(HOSTILE), "InternalError")]
    write(plain.tree.kubepods, "0")
    agent.catch_up()
    assert swap_max(plain.tree.kubepods) == str(64 * MIB)


async def test_an_unexpected_error_after_a_file_was_lowered_bars_nothing(
    plain: Node, monkeypatch: pytest.MonkeyPatch, mistakes: Faults
) -> None:
    pod = plain.tree.pod(1, memory_swap_max="0\n")
    app = plain.tree.container(pod, "app")
    agent = plain.start()

    def fail(_: repairs.Repairs, file: records.ControlFile, *__: object) -> None:
        if file.container:
            raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(repairs.Repairs, "book", fail)
    apply(agent, state({1: 2 * MIB}, containers={1: {"app": WANTED}}))
    assert mistakes.count > 0
    assert (swap_max(pod), swap_max(app)) == (str(2 * MIB), str(MIB))


async def test_what_fails_all_the_time_fills_no_log(
    plain: Node, monkeypatch: pytest.MonkeyPatch, mistakes: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue, "RETRY_SECONDS", (0.0001, 0.0001))
    agent = plain.start()
    plain.tree.pod(1)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(agent.inventory, "observe", fail)
    await until(lambda: mistakes.count > 20)
    assert len([each for each in caplog.records if each.exc_info]) == 1
    assert failures(agent)[0][2] == "InternalError"


async def test_a_raise_that_waits_is_made_though_another_cgroup_fails(
    plain: Node, monkeypatch: pytest.MonkeyPatch, mistakes: Faults
) -> None:
    crowd = Crowd(plain)
    agent = plain.start()
    apply(agent, crowd.state(0))
    real = resolve.of_pod

    def of_pod(current: spec.NodeSpec | None, entry: spec.PodEntry | None, **more: object) -> resolve.DesiredValue:
        if entry is not None and entry is current.pods[uid(max(PODS))]:  # type: ignore[union-attr] # where an entry is
            raise ZeroDivisionError("a mistake")
        return real(current, entry, **more)  # type: ignore[arg-type] # as they are given

    monkeypatch.setattr(resolve, "of_pod", of_pod)
    apply(agent, crowd.state(generation=2))
    held = [swap_max(crowd.pods[number]) for number in PODS]
    assert held == [*[str(2 * MIB)] * (len(PODS) - 1), "0"]
    assert mistakes.count == 1


@pytest.mark.parametrize("loss", [names.Mode.RESTORE, names.Mode.AUDIT, None])
async def test_a_capped_container_is_put_back(plain: Node, loss: names.Mode | None) -> None:
    pod = plain.tree.pod(1)
    app = plain.tree.container(pod, "app")
    agent = plain.start()
    apply(agent, state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(MIB, at_most=True)}}))
    assert swap_max(app) == str(MIB)
    apply(agent, state({1: cgroupfs.NO_LIMIT}, mode=loss or names.Mode.ENFORCE, generation=2))
    assert swap_max(app) == "max"
    assert snapshot(agent).to_restore == 0


async def test_a_file_that_was_not_seen_to_hold_is_not_applied(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: 0}))
    assert condition(agent, "Applied") == ("True", "AsSpecified")
    pod = plain.tree.pod_path(1)
    pod.mkdir()
    await until(lambda: len(agent.inventory.pods.values()) == 1)
    assert condition(agent, "Applied") == ("False", "Reconciling")
    shutil.rmtree(pod)
    await until(lambda: condition(agent, "Applied") == ("True", "AsSpecified"))


async def test_a_pod_that_closes_many_cgroups_is_listed_once_and_behind_others(
    plain: Node, caplog: pytest.LogCaptureFixture
) -> None:
    pod, draining = plain.tree.pod(1), plain.tree.pod(2, memory_swap_current=f"{MIB}\n")
    apps = [f"app {number}" for number in range(2 * state_api.MAX_VIOLATIONS)]
    for name in apps:
        plain.tree.container(pod, name).chmod(0)
    agent = plain.start()
    with without_override():
        apply(agent, state({1: MIB, 2: 0}, containers={1: dict.fromkeys(apps, WANTED)}))
    ((pod_uid, _, reason),) = failures(agent)
    assert (pod_uid, reason) == (uid(1), "AccessDenied")
    assert len([each for each in caplog.records if each.levelname == "ERROR"]) == faults.LOG_LINES
    listed = built(agent, FACTS).violations
    assert [each.pod for each in listed if each.reason in {"Draining", "AccessDenied"}] == [uid(2), uid(1)]
    assert draining.exists()


# Exposures


async def test_exposures_in_a_loop_fill_no_log_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(exposure, "lines", exposure.LineBudget())
    tally = exposure.Tally()
    for _ in range(400):
        one = exposure.Exposure(1, 2.0, 4096)
        tally.add("u", one, desired=0, observed=cgroupfs.NO_LIMIT, ended=0.0, until=0.0, rewritten=True)
    assert len(caplog.records) == exposure.LOG_LINES
    monkeypatch.setattr(exposure, "LOG_SECONDS", 0.0)
    exposure.lines.flush()
    rest = vars(caplog.records[-1])
    assert (rest["exposures"], rest["swapBytes"]) == (340, 340 * 4096)
    assert (tally.count, tally.grown) == (400, 400 * 4096)
    caplog.clear()
    caplog.set_level("DEBUG")
    monkeypatch.setattr(exposure, "LOG_SECONDS", 60.0)
    for _ in range(400):
        tally.add("u", exposure.NONE, desired=0, observed=cgroupfs.NO_LIMIT, ended=0.0, until=0.0, rewritten=True)
    assert len(caplog.records) == 400


@pytest.mark.parametrize("how", ["polling", "overflow"])
async def test_an_exposure_without_an_event_counts_from_when_the_file_was_last_right(
    plain: Node, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "polling":

        def refuse() -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(inotify, "Inotify", refuse)
        monkeypatch.setattr(inotify, "POLL_SECONDS", 3600.0)
    agent = plain.start()
    pod = plain.tree.pod(1)
    app = plain.tree.container(pod, "app")
    compare(agent)
    apply(agent, state({1: MIB}, containers={1: {"app": spec.FileSetting(0, at_most=False)}}))
    (late,) = snapshot(agent).recent.exposures
    compare(agent)
    before = late.milliseconds
    for number in range(3):
        plain.later += 3600  # nothing happens for long
        compare(agent)
        plain.later += 2
        write(app if number == 2 else pod, "max")
        plain.later += 3
        if how == "overflow":
            lose_events(agent)
            hear(agent, LOST)
            await until(lambda: is_idle(agent))
        else:
            compare(agent)
        (exposed,) = snapshot(agent).recent.exposures
        lasted = exposed.milliseconds - before
        assert 5000 <= lasted < 6000, "the look before was five seconds ago, the write three"
        before = exposed.milliseconds


@pytest.mark.parametrize("how", ["event", "apply", "again"])
async def test_an_exposure_whose_first_event_was_lost_counts_from_when_the_file_was_last_right(
    plain: Node, how: str
) -> None:
    agent = plain.start(state({1: MIB}))
    pod = await plain.run(1, "app")
    await until(lambda: swap_max(pod) == str(MIB))
    compare(agent)
    file = plain.known(pod).file

    def lose(*after: records.ControlFile) -> None:
        """Lose events, except those of the files `after`."""
        lose_events(agent)
        hear(agent, LOST, *((each, EVENT) for each in after))

    def lasted() -> float:
        before, file.pod.tally.milliseconds = file.pod.tally.milliseconds, 0.0  # type: ignore[union-attr] # it has one
        return before

    for lost in range(3):
        agent.catch_up()
        plain.later += 100
        agent.catch_up()  # all events until now are read
        lasted()
        plain.later += 5
        write(pod, "max")
        lose()
        assert swap_max(pod) == "max", "its turn has not come"
        plain.later += 2
        if lost == 2:
            lose()
            plain.later += 1
        if how == "event":
            if lost == 1:
                lose(file)
            else:
                write(pod, "max")
                agent.catch_up()
        elif how == "apply":
            apply(agent, state({1: MIB}, unknown=list(names.BeforePlan)[lost % 2 - 1], generation=2 + lost))
        else:
            look_again(agent, file)
        assert swap_max(pod) == str(MIB)
        assert 7000 <= lasted() < 9000
        settle(agent)
    plain.later += 100
    write(pod, "max")
    agent.catch_up()
    assert lasted() < 5000, "all files were looked at since"


async def test_a_short_exposure_takes_no_time_from_a_longer_one_that_is_found_after_it(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: 8 * MIB}, containers={1: {"app": WANTED}}))
    pod = await plain.run(1, "app")
    app = plain.tree.container_path(pod, "app")
    await until(lambda: swap_max(app) == str(MIB))
    compare(agent)
    known = plain.known(pod)
    agent.work.watching.release(known.file)  # the pod's own file has no events
    plain.later += 10
    write(pod, "max")
    plain.later += 5
    write(app, "max")
    agent.catch_up()
    assert swap_max(app) == str(MIB)
    assert known.tally.milliseconds < 1000
    plain.later += 1
    compare(agent)
    assert swap_max(pod) == str(8 * MIB)
    assert known.tally.count == 2
    assert 16_000 <= known.tally.milliseconds < 17_000


async def test_an_event_that_came_before_others_were_lost_counts_from_then(plain: Node) -> None:
    agent = plain.start(state({1: MIB}))
    pod = await plain.run(1, "app")
    await until(lambda: swap_max(pod) == str(MIB))
    compare(agent)
    file = plain.known(pod).file
    plain.later += 100
    write(pod, "max")
    lose_events(agent)
    hear(agent, (file, EVENT), LOST, (file, EVENT))
    assert swap_max(pod) == str(MIB)
    assert plain.known(pod).tally.milliseconds < 5000


async def test_a_value_written_over_before_its_read_back_counts_until_it_is_repaired(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the next event, which is read when all else was done: another writer may be as quick as the agent."""
    monkeypatch.setattr(file_reconciler, "CONTESTED_SECONDS", 1000.0)
    agent = plain.start()
    apply(agent, state({1: 0}))
    pod = await plain.run(1, "app")
    known = plain.known(pod)
    agent.catch_up()
    writes = 0

    def overwritten(*_: object) -> None:
        nonlocal writes
        writes += 1
        if writes <= file_reconciler.ATTEMPTS:
            write(pod, "max")

    plain.cgroups.after = overwritten
    write(pod, "max")
    agent.catch_up()
    assert swap_max(pod) == "max"
    before = known.tally.milliseconds
    plain.later += 3
    agent.catch_up()
    assert swap_max(pod) == "0"
    assert 3000 <= known.tally.milliseconds - before < 3500


@pytest.mark.parametrize("error", [cgroupfs.CgroupError("out of memory"), ZeroDivisionError("a mistake")])
async def test_a_file_with_an_event_that_could_not_be_read_counts_from_the_event(
    plain: Node, monkeypatch: pytest.MonkeyPatch, mistakes: Faults, error: Exception
) -> None:
    monkeypatch.setattr(queue, "RETRY_SECONDS", (1000.0, 1000.0))
    agent = plain.start()
    apply(agent, state({1: 0}))
    pod = await plain.run(1, "app")
    known = plain.known(pod)
    agent.catch_up()

    def fail(*_: object) -> None:
        raise error

    plain.later += 100
    with monkeypatch.context() as broken:
        broken.setattr(plain.cgroups, "read", fail)
        write(pod, "max")
        agent.catch_up()
    assert swap_max(pod) == "max"
    assert mistakes.count == isinstance(error, ZeroDivisionError)
    before = known.tally.milliseconds
    plain.later += 20
    look_again(agent, known.file)
    assert swap_max(pod) == "0"
    assert 20_000 <= known.tally.milliseconds - before < 30_000


async def test_an_exposure_with_an_event_counts_from_the_event(plain: Node) -> None:
    agent = plain.start(state({1: 0}))
    pod = await plain.run(1, "app")
    await until(lambda: swap_max(pod) == "0")
    compare(agent)
    plain.later += 30
    write(pod, "max")
    agent.resync()
    assert swap_max(pod) == "0"
    assert plain.known(pod).tally.milliseconds < 5000


# Order


async def test_repairs_come_before_arrivals(plain: Node) -> None:
    agent = plain.start(state({1: 0}))
    pod = await plain.run(1, "app")
    await until(lambda: swap_max(pod) == "0")
    agent.catch_up()
    wrote: list[str] = []
    plain.cgroups.before = lambda path, _: wrote.append(path.rpartition("/")[0])
    arrivals = [plain.tree.pod(number) for number in range(2, 202)]
    write(pod, "max")
    await until(lambda: len(wrote) >= 201)
    assert wrote[0] == str(pod.relative_to(plain.tree.root))
    assert {swap_max(each) for each in arrivals} == {"0"}


async def test_a_repair_does_not_wait_for_a_comparison_of_all(plain: Node) -> None:
    made = [plain.tree.pod(number) for number in range(200)]
    agent = plain.start()
    apply(agent, state(dict.fromkeys(range(200), 0)))
    agent.catch_up()
    left: list[int] = []
    plain.cgroups.before = lambda *_: left.append(len(waits(agent)))
    agent.resync()
    await asyncio.sleep(0)
    write(made[-1], "max")
    await until(lambda: len(left) == 1)
    assert left[0] > 100
    resyncs = tasks.RESYNCS.value()
    await until(lambda: is_idle(agent))
    assert tasks.RESYNCS.value() == resyncs


async def test_a_level_that_cannot_be_looked_at_once_stops_no_comparison(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [plain.tree.pod(number) for number in PODS]
    agent = plain.start(state(dict.fromkeys(PODS, 0)))
    await until(lambda: all(swap_max(pod) == "0" for pod in made))
    level = next(path for path in agent.inventory.levels if "burstable" in path)
    real, failed = plain.cgroups.inode, False

    def inode(path: str) -> int | None:
        nonlocal failed
        if path == level and not failed:
            failed = True
            raise cgroupfs.CgroupError("Cannot allocate memory")
        return real(path)

    monkeypatch.setattr(plain.cgroups, "inode", inode)
    write(made[0], "max")
    lose_events(agent)
    agent.resync()
    assert failed
    await until(lambda: swap_max(made[0]) == "0")


async def test_endless_events_keep_nothing_from_being_compared(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when containers make and remove a folder in a loop, or the kernel drops events again and again."""
    monkeypatch.setattr(reconciler, "SLICE_SECONDS", 0.0)
    for number in range(20):
        plain.tree.pod(number)
    agent = plain.start()
    level = next(iter(agent.inventory.levels.values()))
    busy = queue.Child(level, "nothing")
    real = agent.inventory.observe

    def look(owner: inotify.Watched, name: str, origin: resolve.Origin, noticed: float) -> None:
        real(owner, name, origin, noticed)
        if name == busy.name:
            mark(agent, busy, noticed)

    monkeypatch.setattr(agent.inventory, "observe", look)
    mark(agent, busy)
    for lost in (False, True):
        before = agent.tasks.comparison.last
        plain.later += 1
        agent.resync()
        async with asyncio.timeout(10):
            while agent.tasks.comparison.last == before:
                if lost:
                    agent.resync()
                await asyncio.sleep(0)


async def test_a_pod_that_failed_when_it_came_is_tried_again(
    plain: Node, monkeypatch: pytest.MonkeyPatch, mistakes: Faults
) -> None:
    monkeypatch.setattr(queue, "RETRY_SECONDS", (0.01, 0.01))
    agent = plain.start(state({1: MIB}))

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a mistake")

    broken = pytest.MonkeyPatch()
    broken.setattr(cgroup_reconciler.CgroupReconciler, "reconcile_pod", fail)
    pod = plain.tree.pod(1)
    await until(lambda: mistakes.count > 1)
    assert failures(agent) == [(uid(1), "", "InternalError")]
    assert condition(agent, "Applied") == ("False", "InternalError")
    broken.undo()
    await until(lambda: swap_max(pod) == str(MIB))
    await until(lambda: failures(agent) == [])


async def test_nothing_is_said_of_a_cgroup_that_failed_and_is_gone(
    plain: Node, monkeypatch: pytest.MonkeyPatch, mistakes: Faults
) -> None:
    monkeypatch.setattr(queue, "RETRY_SECONDS", (0.01, 0.01))
    agent = plain.start(state({1: MIB}))
    crowd = Crowd(plain)

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(agent.inventory, "open", fail)
    monkeypatch.setattr(agent.inventory, "refresh", fail)
    await until(lambda: len(agent.inventory.pods.values()) == len(PODS))
    apply(agent, crowd.state())
    compare(agent)
    assert len(failures(agent)) == 2 * len(PODS)
    plain.tree.remove(plain.tree.level("burstable"))
    await until(lambda: failures(agent) == [])
    assert not agent.work.failures.of
    assert mistakes.count > 0


# crun's cgroup inside, and what containers make themselves


async def test_events_of_a_recreated_cgroup_of_crun_arrive(plain: Node) -> None:
    agent = plain.start()
    scope = plain.tree.container(plain.tree.pod(1), "app")
    apply(agent, state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": WANTED}}))
    inner = plain.tree.group(scope / "container")
    await until(lambda: swap_max(inner) == str(MIB))
    old = inner.rename(plain.folder / "old")
    plain.tree.group(inner)
    await until(lambda: swap_max(inner) == str(MIB))
    write(inner, "max")
    await until(lambda: swap_max(inner) == str(MIB))
    assert swap_max(old) == str(MIB)
    assert snapshot(agent).violations == [] or failures(agent) == []


@pytest.mark.parametrize("lack", ["memory.swap.max", "cgroup.events", "process"])
async def test_a_folder_that_a_container_makes_is_none_of_the_agents(
    plain: Node, monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    monkeypatch.setattr(queue, "SOON_SECONDS", (0.0001, 0.0001))
    agent = plain.start()
    scope = plain.tree.container(plain.tree.pod(1), "app")
    apply(agent, state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": WANTED}}))
    inner = plain.tree.group(plain.folder / "container")
    if lack == "process":
        (inner / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    else:
        (inner / lack).unlink()
    inner = inner.rename(scope / "container")
    agent.catch_up()
    for _ in range(20):
        await asyncio.sleep(0.001)
    compare(agent)
    assert failures(agent) == []
    assert condition(agent, "Applied") == ("True", "AsSpecified")
    assert condition(agent, "Degraded") == ("False", "AsExpected")
    if lack == "process":
        assert swap_max(inner) == "max"
        (inner / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        compare(agent)
        assert swap_max(inner) == str(MIB), "crun puts the process there after it made it"


async def test_a_file_that_a_container_takes_away_does_not_degrade_its_node(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "SOON_SECONDS", (0.0001, 0.0001))
    agent = plain.start()
    scope = plain.tree.container(plain.tree.pod(1), "app")
    apply(agent, state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": WANTED}}))
    inner = plain.tree.group(scope / "container")
    await until(lambda: swap_max(inner) == str(MIB))
    (inner / "memory.swap.max").unlink()  # as by `echo -memory > cgroup.subtree_control`
    compare(agent)
    await until(lambda: condition(agent, "Applied")[1] == "AccessDenied")
    assert condition(agent, "Degraded") == ("False", "AsExpected")


@pytest.mark.parametrize("populated", [0, 1])
async def test_a_folder_that_is_recreated_all_the_time_is_read_once_in_a_while(
    plain: Node, monkeypatch: pytest.MonkeyPatch, populated: int
) -> None:
    monkeypatch.setattr(container_reconciler, "STIR_SECONDS", 0.1)
    monkeypatch.setattr(queue, "SOON_SECONDS", (0.0001, 0.0001))
    agent = plain.start(state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": WANTED}}))
    pod = await plain.run(1, "app")
    scope = plain.tree.container_path(pod, "app")
    inner, looks = scope / "container", 0
    real = agent.inventory.open

    def spy(container: records.Container, needed: list[cgroup_files.CgroupFile]) -> None:
        nonlocal looks
        looks += 1
        real(container, needed)

    monkeypatch.setattr(agent.inventory, "open", spy)
    begun = asyncio.get_running_loop().time()
    for _ in range(100):
        plain.tree.group(inner, cgroup_events=f"populated {populated}\n")
        agent.catch_up()
        inner.rename(plain.folder / f"old{_}")
        agent.catch_up()
    plain.tree.group(inner)
    lasted = asyncio.get_running_loop().time() - begun
    assert looks <= container_reconciler.STIRS + lasted / container_reconciler.STIR_SECONDS
    await until(lambda: swap_max(inner) == str(MIB))
    inner.rename(plain.folder / "gone")
    plain.tree.group(inner, cgroup_events="populated 0\n")
    looks = 0
    await until(lambda: looks > 0)
    for _ in range(queue.SOON_ATTEMPTS):
        await asyncio.sleep(0.001)
    assert looks < 3, "an empty one is not looked for again"
    assert failures(agent) == []
    (known,) = plain.known(pod).containers.values()
    await until(lambda: due(agent, known, schedule.Why.SETTLED) is None)
    plain.later += container_reconciler.CALM_SECONDS + 1
    inner.rename(plain.folder / "old")
    plain.tree.group(inner)
    agent.catch_up()
    assert due(agent, known, schedule.Why.SETTLED) is None, "after a while the count starts again"
    assert swap_max(inner) == str(MIB)


@pytest.mark.parametrize("what", ["own", "inner", "writes"])
async def test_what_containers_do_in_a_loop_does_not_fill_the_queue_of_events(
    plain: Node, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(container_reconciler, "STIR_SECONDS", 0.1)
    agent = plain.start()
    made = await inside(plain, agent, 2)
    heard = 0
    real = inotify.Inotify.read

    def spy(self: inotify.Inotify) -> list[inotify.InotifyEvent]:
        nonlocal heard
        events = real(self)
        heard += len(events)
        return events

    monkeypatch.setattr(inotify.Inotify, "read", spy)
    begun = asyncio.get_running_loop().time()
    for number in range(200):
        for inner in made:  # in turns: the kernel merges equal events
            if what == "own":
                (inner.parent / f"own-{number}").mkdir()
            elif what == "writes":
                write(inner, "max")
            else:
                inner.rename(plain.folder / f"old-{number}-{inner.parent.name}")
                plain.tree.group(inner)
        agent.catch_up()
    lasted = asyncio.get_running_loop().time() - begun
    assert heard <= 10 * len(made) * (container_reconciler.STIRS + lasted / container_reconciler.STIR_SECONDS)
    await until(lambda: {swap_max(inner) for inner in made} == {str(MIB)})
    for inner in made:
        write(inner, "max")
    await until(lambda: {swap_max(inner) for inner in made} == {str(MIB)})
    assert failures(agent) == []


async def inside(node: Node, agent: reconciler.NodeReconciler, count: int) -> list[pathlib.Path]:
    """So many containers of one pod, each with a cgroup of its own in it, in the agent's hands."""
    names = [f"app {number}" for number in range(count)]
    apply(agent, state({1: 8 * MIB, 2: 0}, containers={1: dict.fromkeys(names, WANTED)}))
    pod = await node.run(1, *names)
    made = [node.tree.group(node.tree.container_path(pod, name) / "container") for name in names]
    await until(lambda: {swap_max(inner) for inner in made} == {str(MIB)})
    agent.catch_up()
    return made


async def test_what_a_container_gives_a_cgroup_of_its_own_is_no_exposure(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_reconciler, "STIR_SECONDS", 0.01)
    monkeypatch.setattr(attribution, "MOMENT_SECONDS", 0.0)
    agent = plain.start()
    (inner,) = await inside(plain, agent, 1)
    write(inner, "4096", "memory.high")  # as with a plugin of the runtime that gives max
    plain.later += 10 * attribution.START_SECONDS  # else it might be the runtime that starts it
    rewritten = attribution.REWRITES.value("container", names.Cause.OTHER_WRITER.value)
    for _ in range(50):
        write(inner, "max")
        agent.catch_up()
        await asyncio.sleep(0)
    await until(lambda: swap_max(inner) == str(MIB))
    await until(lambda: causes_found(agent))
    assert plain.known(inner.parent.parent).tally.count == 0
    assert snapshot(agent).violations == []
    assert condition(agent, "Drifted") == ("False", "Quiet")
    assert attribution.REWRITES.value("container", names.Cause.OTHER_WRITER.value) == rewritten
    write(inner, "0")
    await until(lambda: swap_max(inner) == str(MIB))
    await until(lambda: causes_found(agent))
    assert condition(agent, "Drifted") == ("False", "Quiet"), "less is no news of the node's, either"
    # The value that it had while nothing above it had a limit is news, wherever it is written.
    scope = inner.parent
    for limit in (inner, scope, scope.parent):
        write(limit, "max")
    agent.catch_up()
    assert plain.known(scope.parent).tally.count > 0


@pytest.mark.parametrize("drains", [False, True])
async def test_a_container_that_gets_more_than_its_limit_is_exposed_though_its_pod_drains(
    plain: Node, *, drains: bool
) -> None:
    """A pod that drains keeps more than such a container had, unless the container drains itself."""
    agent = plain.start()
    before = spec.FileSetting(64 * MIB, at_most=False) if drains else WANTED
    apply(agent, state({1: 64 * MIB}, containers={1: {"app": before}}))
    pod = await plain.run(1, "app")
    app = plain.tree.container_path(pod, "app")
    await until(lambda: swap_max(app) == str(before.value))
    for each in (pod, app) if drains else (pod,):
        for value, file in ((32 * MIB, "memory.swap.current"), (63 * MIB, "memory.current"), (64 * MIB, "memory.max")):
            write(each, str(value), file)
    apply(agent, state({1: MIB}, containers={1: {"app": WANTED}}, generation=2))
    left = swap_max(app)
    assert int(swap_max(pod)) > 32 * MIB
    assert (int(left) > MIB) == drains
    write(app, "max")
    agent.catch_up()
    assert swap_max(app) == left
    assert plain.known(pod).tally.count == (0 if drains else 1)


async def test_writes_to_a_cgroup_of_its_own_are_looked_at_once_in_a_while(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_reconciler, "STIR_SECONDS", 0.1)
    agent = plain.start()
    (inner,) = await inside(plain, agent, 1)
    file, written = str((inner / "memory.swap.max").relative_to(plain.tree.root)), []
    plain.cgroups.before = lambda name, _: written.append(name)
    begun = asyncio.get_running_loop().time()
    for _ in range(100):
        write(inner, "max")
        agent.catch_up()
    lasted = asyncio.get_running_loop().time() - begun
    assert written.count(file) <= container_reconciler.STIRS + lasted / container_reconciler.STIR_SECONDS
    # The pod around it is repaired as fast as ever.
    write(inner.parent, "max")
    agent.catch_up()
    assert swap_max(inner.parent) == str(MIB)
    await until(lambda: swap_max(inner) == str(MIB))


async def test_a_container_that_writes_all_the_time_to_a_cgroup_of_its_own_does_not_degrade_its_node(
    plain: Node,
) -> None:
    agent = plain.start()
    (inner,) = await inside(plain, agent, 1)

    def contend(path: str, _: int) -> None:
        if path.endswith("/container/memory.swap.max"):
            write(inner, "max")

    plain.cgroups.after = contend
    write(inner, "max")
    agent.catch_up()
    assert condition(agent, "Applied") == ("False", "AccessDenied")
    assert condition(agent, "Degraded") == ("False", "AsExpected")


async def test_cgroups_that_containers_lower_are_listed_once_and_behind_others(plain: Node) -> None:
    plain.tree.pod(2, memory_swap_current=f"{MIB}\n")
    agent = plain.start()
    await plain.run(3, "app")
    made = await inside(plain, agent, 2 * state_api.MAX_VIOLATIONS)
    for _ in range(repairs.ROUNDS + 1):
        for inner in made:
            write(inner, "0")
        agent.catch_up()
        plain.later += container_reconciler.CALM_SECONDS / 10
        compare(agent)
    assert {swap_max(inner) for inner in made} == {"0"}, "they may have less, if they like"
    listed = built(agent, FACTS).violations
    assert [(each.pod, each.reason) for each in listed] == [
        (uid(2), "Draining"),
        (uid(3), "AwaitingState"),
        (uid(1), "Yielded"),
    ]
    assert condition(agent, "Drifted") == ("False", "Quiet"), "nobody else writes on the node"
    scope = made[0].parent
    for _ in range(repairs.ROUNDS + 1):
        write(scope, "0")
        agent.catch_up()
    assert condition(agent, "Drifted") == ("True", "Yielded"), "that is not the container's to write"


# Reads of other files


@pytest.mark.parametrize("file", ["memory.stat", "memory.current", "child"])
async def test_a_neighbour_that_cannot_be_read_keeps_nobody_from_being_lowered(plain: Node, file: str) -> None:
    swap, most = 32 * MIB, {"memory_max": f"{64 * MIB}\n", "memory_current": f"{8 * MIB}\n"}
    pod = plain.tree.pod(1, memory_swap_current=f"{swap}\n", **most)
    app = plain.tree.container(pod, "app", memory_swap_current=f"{swap}\n", **most)
    agent = plain.start()
    closed = app if file == "child" else pod / file
    if file == "memory.stat":
        closed.write_text("inactive_file 0\n")
    closed.chmod(0)
    with without_override():
        apply(agent, state({1: 0}))
    assert failures(agent) == []
    assert int(swap_max(pod)) <= swap + max(swap // 4, 16 * MIB), "it can grow no more than while it drains"


async def test_a_missing_file_and_a_refused_write_have_waits_of_their_own(plain: Node) -> None:
    pod = plain.tree.pod(1)
    agent = plain.start()
    refused = cgroupfs.CgroupError("Input/output error")
    plain.cgroups.refuse(error=refused)
    apply(agent, state({1: 0}))
    file = plain.known(pod).file
    for _ in range(10):
        look_again(agent, file)
    plain.cgroups.before = None
    swap_limit = pod / "memory.swap.max"
    held = swap_limit.read_text()
    swap_limit.unlink()
    look_again(agent, file)
    wait = due(agent, file, schedule.Why.RETRY)
    assert wait is not None
    assert wait <= queue.SOON_SECONDS[0] * 2, "the first look for a file is a moment away"
    swap_limit.write_text(held)
    plain.cgroups.refuse(error=refused)
    look_again(agent, file)
    assert file.retries is not None
    assert file.retries.refused.failures > 10, "refused writes are retried less and less often"


def nested(path: pathlib.Path, count: int) -> None:
    for number in range(count):
        (path / f"n{number}").mkdir()
        (path / f"n{number}" / "memory.swap.current").write_text("4096\n")


async def test_so_many_cgroups_in_a_pod_are_looked_at_and_no_more(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    swap = 32 * MIB
    pod = plain.tree.pod(1, memory_swap_current=f"{swap}\n")
    app = plain.tree.container(pod, "app", memory_swap_current=f"{swap}\n")
    nested(app, 1000)
    agent = plain.start()
    looks = 0
    real = plain.cgroups.read

    def spy(name: str) -> int:
        nonlocal looks
        looks += name.endswith("/memory.swap.current")
        return real(name)

    monkeypatch.setattr(plain.cgroups, "read", spy)
    apply(agent, state({1: 0}))
    assert looks < 220
    assert reasons(agent) == ["Draining", "Exposed"]
    assert int(swap_max(pod)) == swap + 16 * MIB


class Chaos:
    """Anything may fail that is asked of the hostile pod's cgroups."""

    METHODS = ("read", "children", "inode", "write", "stat", "counts", "resources")

    def __init__(self, crowd: Crowd, chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        self._chance = chance
        self._place = str(crowd.pods[HOSTILE].relative_to(crowd.node.tree.root))
        for name in self.METHODS:
            monkeypatch.setattr(crowd.node.cgroups, name, self._failing(name, getattr(crowd.node.cgroups, name)))

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        errors: list[Exception] = [
            cgroupfs.DeniedError("denied"),
            cgroupfs.CgroupError("out of descriptors"),
            ZeroDivisionError("a mistake"),
            RecursionError("another"),
        ]
        if name in {"read", "write"}:
            errors += [cgroupfs.GoneError("gone"), cgroupfs.TransientError("empty")]

        def call(path: str, *more: object, **named: object) -> object:
            if self.on and path.startswith(self._place) and self._chance.random() < 0.4:
                raise self._chance.choice(errors)
            return real(path, *more, **named)

        return call


@pytest.mark.usefixtures("mistakes")
@pytest.mark.parametrize("seed", range(8))
async def test_whatever_fails_about_one_pod_others_have_their_values_and_it_gets_its_own_in_the_end(
    plain: Node, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    soon = (0.005, 0.01)
    for name in ("RETRY_SECONDS", "SOON_SECONDS"):
        monkeypatch.setattr(queue, name, soon)
    monkeypatch.setattr(inotify, "POLL_SECONDS", 0.01)
    chance = random.Random(seed)  # noqa: S311 no secret
    crowd = Crowd(plain)
    agent = plain.start()
    chaos = Chaos(crowd, chance, monkeypatch)
    pod = container = 0
    for generation in range(1, 13):
        chaos.on = chance.random() < 0.8
        pod, container = (chance.choice([0, MIB, 2 * MIB, cgroupfs.NO_LIMIT]) for _ in range(2))
        inner = {number: {"app": spec.FileSetting(container, at_most=False)} for number in PODS}
        apply(agent, state(dict.fromkeys(PODS, pod), containers=inner, generation=generation))
        held = {(cgroupfs.render(pod), cgroupfs.render(container))}
        assert crowd.others() == held, "in the same pass"
        for number in (chance.choice([n for n in PODS if n != HOSTILE]), HOSTILE):
            write(chance.choice([crowd.pods, crowd.apps])[number], chance.choice(["max", "0", "4096"]))
        if chance.random() < 0.3:
            agent.resync()
        if chance.random() < 0.2 and not (crowd.apps[HOSTILE] / "container").exists():
            plain.tree.group(crowd.apps[HOSTILE] / "container")
        if chance.random() < 0.1:
            plain.tree.remove(crowd.pods[HOSTILE])
            plain.tree.container(plain.tree.pod(HOSTILE), "app")
        await until(lambda held=held: crowd.others() == held)  # type: ignore[misc] # mypy sees no type for the default
    chaos.on = False
    own = cgroupfs.render(pod), cgroupfs.render(container)
    await until(lambda: (swap_max(crowd.pods[HOSTILE]), swap_max(crowd.apps[HOSTILE])) == own)
    await until(lambda: condition(agent, "Applied") == ("True", "AsSpecified"))
    await until(lambda: condition(agent, "Degraded") == ("False", "AsExpected"))


class Overwritten:
    """Files that others write over, and how long each was above its limit at least, as far as an agent can know."""

    def __init__(self, crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
        self._node = crowd.node
        self._patch = monkeypatch
        pods = list(crowd.pods.values())
        self.pod_of = dict(zip([*pods, *crowd.apps.values()], [*pods, *pods], strict=True))
        self._since: dict[pathlib.Path, float] = {}
        self.lasted: dict[pathlib.Path, float] = {}
        self.lost = False
        """Whether the kernel has dropped events, and not reported that yet."""
        real = inotify.Inotify.read

        def read(notify: inotify.Inotify) -> list[inotify.InotifyEvent]:
            overflow = [inotify.InotifyEvent(-1, inotify.Q_OVERFLOW, "")] if self.lost else []
            self.lost = False
            return overflow + real(notify)

        monkeypatch.setattr(inotify.Inotify, "read", read)

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self._node.later

    def begin(self, since: float = 0.0) -> None:
        """Forget earlier exposures; later writes count `since` then, if that is given."""
        self._since, self.lasted = {}, {}
        if since:
            self._since = {path: since for path in self.pod_of if swap_max(path) == "max"}

    def look(self) -> None:
        """Those that were repaired meanwhile were above until the look before, at least."""
        for path in list(self._since):
            if swap_max(path) == "max":
                self.lasted[path] = self.now() - self._since[path]
            else:
                del self._since[path]

    def write(self, agent: reconciler.NodeReconciler, path: pathlib.Path, how: str) -> None:
        """Write over a file: with an event, without one, or while the agent cannot use the file."""
        write(path, "max")
        since = self.now()
        if how == "lost":
            lose_events(agent)
            self.lost = True
        else:
            with self._patch.context() as broken:
                if how != "told":
                    broken.setattr(self._node.cgroups, how, failing(getattr(self._node.cgroups, how), path))
                agent.catch_up()
            since = self.now()
        self._since.setdefault(path, since)


def failing(real: Callable[..., Any], bad: pathlib.Path) -> Callable[..., Any]:
    """As it is, but for one cgroup."""

    def call(name: str, *more: object) -> Any:
        if str(bad).endswith(name.rpartition("/")[0]):
            raise cgroupfs.CgroupError("out of memory")
        return real(name, *more)

    return call


@pytest.mark.parametrize("seed", range(12))
async def test_no_exposure_is_reported_shorter_than_it_was(
    plain: Node, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whether its event arrives, is lost, arrives while the file cannot be used, or no agent runs."""
    for name in ("RETRY_SECONDS", "SOON_SECONDS"):
        monkeypatch.setattr(queue, name, (1e6, 1e6))
    monkeypatch.setattr(inotify, "POLL_SECONDS", 1e6)
    chance = random.Random(seed)  # noqa: S311 no secret
    crowd = Crowd(plain)
    written = Overwritten(crowd, monkeypatch)
    agent = plain.start()
    apply(agent, crowd.state())
    for _ in range(12):
        compare(agent)
        agent.catch_up()
        before = {pod: plain.known(pod).tally.milliseconds for pod in crowd.pods.values()}
        written.begin()
        for path in chance.sample(list(written.pod_of), 3):
            plain.later += chance.random() * 5
            written.look()
            written.write(agent, path, chance.choice(["told", "lost", "read", "write"]))
        plain.later += chance.random() * 5
        if chance.random() < 0.2:
            plain.stop()
            written.lost, away = False, written.now()
            for path in chance.sample(list(written.pod_of), 3):
                write(path, "max")
            written.begin(away)
            before = dict.fromkeys(before, 0.0)
            plain.later += chance.random() * 5
            written.look()
            agent = plain.start(crowd.state(), away=away)
        written.look()
        agent.catch_up()
        for file in agent.inventory.files():
            look_again(agent, file)
        compare(agent)
        for path, seconds in written.lasted.items():
            pod = written.pod_of[path]
            assert plain.known(pod).tally.milliseconds - before[pod] >= 1000 * seconds - 0.001
        assert {swap_max(path) for path in written.pod_of} == {str(MIB), str(2 * MIB)}
