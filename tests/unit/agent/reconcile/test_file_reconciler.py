"""One file and its other writers, its usage and its failures."""

from __future__ import annotations

import msgspec
import pytest
from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.drift import repairs
from swapwarden.agent.host import cgroup_files, cgroupfs
from swapwarden.agent.inventory import records
from swapwarden.agent.reconcile import file_reconciler, queue, schedule
from swapwarden.api import names

from tests.unit.agent.agent_node import (
    MIB,
    Node,
    apply,
    compare,
    due,
    is_idle,
    look_again,
    mark,
    reasons,
    settle,
    snapshot,
    state,
    unheard,
    until,
)
from tests.unit.agent.cgroup_tree import swap_max, uid, write


@pytest.mark.parametrize("other", ["max", str(128 * MIB), "0"])
async def test_another_writers_value_is_repaired(plain: Node, other: str) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    plain.tree.container(pod, "app")
    apply(agent, state({1: 64 * MIB}))
    await until(lambda: swap_max(pod) == str(64 * MIB))
    before = repairs.REPAIRS.value("pod", "below" if other == "0" else "above")
    write(pod, other)
    await until(lambda: repairs.REPAIRS.value("pod", "below" if other == "0" else "above") > before)
    assert swap_max(pod) == str(64 * MIB)


async def test_an_earlier_value_is_on_record_before_it_is_overwritten(plain: Node) -> None:
    agent = plain.start()
    recorded: list[bool] = []

    def spy(_: str, value: int) -> None:
        entry = plain.ledger.limits.get(plain.known(pod).file.key)
        recorded.append(entry is not None and entry.found == cgroupfs.NO_LIMIT and value in entry.wrote)

    plain.cgroups.before = spy
    pod = plain.tree.pod(1)
    apply(agent, state({1: MIB}))
    await until(lambda: swap_max(pod) == str(MIB))
    assert recorded
    assert all(recorded)


async def test_each_of_1000_exposures_is_counted(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: 0}))
    pod = await plain.run(1, "app")
    await until(lambda: swap_max(pod) == "0")
    for _ in range(1000):
        write(pod, "max")
        await until(lambda: swap_max(pod) == "0")
    (exposed,) = snapshot(agent).recent.exposures
    assert exposed.count == 1000


async def test_systemd_rewriting_an_empty_pod_is_repaired_and_is_no_exposure(plain: Node) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    apply(agent, state({1: 0}))
    await until(lambda: swap_max(pod) == "0")
    before = repairs.REPAIRS.value("pod", "above")
    write(pod, "max")
    await until(lambda: repairs.REPAIRS.value("pod", "above") > before)
    assert swap_max(pod) == "0"
    assert snapshot(agent).violations == []


async def test_a_new_value_of_the_state_is_neither_a_repair_nor_an_exposure(plain: Node) -> None:
    pod = plain.tree.pod(1)
    plain.tree.container(pod, "app", memory_swap_max="0\n")
    agent = plain.start()
    apply(agent, state({1: cgroupfs.NO_LIMIT}))
    before = repairs.REPAIRS.value("pod", "above") + repairs.REPAIRS.value("pod", "below")
    for value in (2 * MIB, 0, MIB):
        apply(agent, state({1: value}))
        assert swap_max(pod) == str(value)
    assert snapshot(agent).violations == []
    assert repairs.REPAIRS.value("pod", "above") + repairs.REPAIRS.value("pod", "below") == before


async def test_a_file_whose_cgroup_is_gone_is_not_tried_again(plain: Node) -> None:
    pod = plain.tree.pod(1)
    agent = plain.start()
    apply(agent, state({1: 0}))
    file = plain.known(pod).file
    plain.tree.remove(pod)
    look_again(agent, file)
    assert (due(agent, file, schedule.Why.RETRY), file.status.reason) == (None, None)


async def test_a_running_pod_whose_state_is_late_counts_as_exposed(plain: Node) -> None:
    plain.tree.container(plain.tree.pod(1), "app")
    agent = plain.start()
    apply(agent, state({1: 0}))
    (exposed,) = snapshot(agent).recent.exposures
    assert (exposed.count, exposed.observed) == (1, "max")


async def test_a_cap_only_lowers(plain: Node) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    low = plain.tree.container(pod, "low", memory_swap_max=f"{MIB}\n")
    high = plain.tree.container(pod, "high", memory_swap_max=f"{4 * MIB}\n")
    wants = {1: {"low": spec.FileSetting(2 * MIB, at_most=True), "high": spec.FileSetting(2 * MIB, at_most=True)}}
    apply(agent, state({1: cgroupfs.NO_LIMIT}, containers=wants))
    await until(lambda: swap_max(high) == str(2 * MIB))
    write(low, str(3 * MIB))
    await until(lambda: swap_max(low) == str(2 * MIB))
    write(low, "4096")
    compare(agent)
    assert swap_max(low) == "4096"


async def test_a_cap_leaves_a_smaller_value_written_at_the_same_time(plain: Node) -> None:
    agent = plain.start()
    app = plain.tree.container(plain.tree.pod(1), "app")
    plain.cgroups.after = lambda _, limit: write(app, "4096") if limit == MIB else None
    apply(agent, state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(MIB, at_most=True)}}))
    await until(lambda: swap_max(app) != "max")
    assert (swap_max(app), snapshot(agent).violations) == ("4096", [])


async def test_a_smaller_value_under_a_cap_is_not_the_desired_one(plain: Node) -> None:
    agent = plain.start()
    app = plain.tree.container(
        plain.tree.pod(1), "app", memory_swap_max="4096\n", memory_swap_current=f"{MIB}\n", memory_current="0\n"
    )
    apply(agent, state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(MIB, at_most=True)}}))
    compare(agent)
    assert (swap_max(app), snapshot(agent).violations) == ("4096", [])


async def test_restore_leaves_a_value_written_at_the_same_time(plain: Node) -> None:
    pod = plain.tree.pod(1)
    agent = plain.start()
    apply(agent, state({1: 0}))
    plain.cgroups.after = lambda *_: write(pod, "4096")
    apply(agent, state({1: 0}, mode=names.Mode.RESTORE))
    assert (swap_max(pod), snapshot(agent).to_restore) == ("4096", 0)


async def test_swap_in_use_is_not_cut_where_memory_is_short(plain: Node) -> None:
    pod = plain.tree.pod(
        1, memory_max=f"{64 * MIB}\n", memory_current=f"{63 * MIB}\n", memory_swap_current=f"{32 * MIB}\n"
    )
    agent = plain.start()
    apply(agent, state({1: 0}))
    assert (swap_max(pod), reasons(agent)) == (str(48 * MIB), ["Draining"])
    write(pod, "max")
    await until(lambda: swap_max(pod) == str(48 * MIB))
    write(pod, str(16 * MIB), "memory.swap.current")
    compare(agent)
    assert swap_max(pod) == str(32 * MIB)
    write(pod, "0", "memory.swap.current")
    compare(agent)
    assert (swap_max(pod), reasons(agent)) == ("0", [])


async def test_rewrites_do_not_raise_the_limit_of_a_draining_pod(plain: Node) -> None:
    """A pod that uses all its swap gets its earlier limit, and room only for the swap that it took while exposed."""
    agent = plain.start()
    apply(agent, state({1: 0}))
    pod = await plain.run(1, "app")
    write(pod, str(64 * MIB), "memory.max")
    write(pod, str(63 * MIB), "memory.current")
    write(pod, str(40 * MIB), "memory.swap.current")
    for used, held in ((40, 50), (50, 50), (50, 50), (58, 60), (20, 36)):
        write(pod, str(used * MIB), "memory.swap.current")
        write(pod, "max")
        await until(lambda held=held: swap_max(pod) == str(held * MIB))  # type: ignore[misc]
    tally = plain.known(pod).tally
    assert (tally.count, tally.desired, tally.grown) == (5, 0, 58 * MIB)


async def test_a_value_that_the_pod_could_live_with_is_repaired_at_once(plain: Node) -> None:
    """Though nearly as much is in use, and its memory is full: only a change of policy leaves room."""
    pod = plain.tree.pod(1, memory_max=f"{64 * MIB}\n", memory_current=f"{63 * MIB}\n")
    agent = plain.start()
    apply(agent, state({1: 64 * MIB}))
    write(pod, str(60 * MIB), "memory.swap.current")
    write(pod, "max")
    await until(lambda: swap_max(pod) == str(64 * MIB))
    assert reasons(agent) == []


@pytest.mark.parametrize("restarted", [False, True])
async def test_systemds_0_does_not_kill_a_pod_that_drains(plain: Node, restarted: bool) -> None:
    """Under guarantee Strict it writes 0 at each reload; another writer's 0 is its own affair."""
    plain.start(msgspec.structs.replace(state(), guarantee=names.Guarantee.STRICT))
    pod = plain.tree.pod(1, memory_max=f"{64 * MIB}\n", memory_current=f"{63 * MIB}\n", memory_swap_max="0\n")
    assert plain.agent is not None
    await until(lambda: bool(plain.agent and plain.agent.inventory.pods.values()))
    apply(plain.agent, msgspec.structs.replace(state({1: 100 * MIB}), guarantee=names.Guarantee.STRICT))
    write(pod, str(40 * MIB), "memory.swap.current")
    wished = msgspec.structs.replace(state({1: 0}), guarantee=names.Guarantee.STRICT)
    apply(plain.agent, wished)
    assert swap_max(pod) == str(56 * MIB)
    if restarted:
        plain.stop()
    write(pod, "0")
    agent = plain.start(wished) if restarted else plain.agent
    await until(lambda: swap_max(pod) == str(56 * MIB))
    write(pod, "4096")
    agent.catch_up()
    assert swap_max(pod) == "4096"
    write(pod, "0", "memory.swap.current")
    write(pod, str(56 * MIB))
    await until(lambda: swap_max(pod) == "0")
    assert reasons(agent) == []


async def test_a_draining_pod_is_looked_at_again(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reconciler, "DRAIN_SECONDS", (0.01, 0.01))
    pod = plain.tree.pod(1, memory_max="4096\n", memory_swap_current=f"{32 * MIB}\n")
    apply(plain.start(), state({1: 0}))
    assert swap_max(pod) == str(48 * MIB)
    write(pod, "0", "memory.swap.current")
    await until(lambda: swap_max(pod) == "0")


async def test_a_cut_pod_drains_until_no_more_is_in_use_than_wanted(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is right at once, but pages on the disk are no success."""
    monkeypatch.setattr(file_reconciler, "DRAIN_SECONDS", (0.01, 0.01))
    pod = plain.tree.pod(1, memory_swap_current=f"{32 * MIB}\n")
    agent = plain.start()
    apply(agent, state({1: MIB}))
    (violation,) = snapshot(agent).violations
    assert (swap_max(pod), violation.reason, violation.desired) == (str(MIB), "Draining", str(MIB))
    assert (violation.swap_bytes, violation.message.split()[0]) == (32 * MIB, str(31 * MIB))
    write(pod, str(2 * MIB), "memory.swap.current")
    await until(lambda: [each.swap_bytes for each in snapshot(agent).violations] == [2 * MIB])
    assert reasons(agent) == ["Draining"]
    write(pod, str(MIB), "memory.swap.current")
    await until(lambda: snapshot(agent).violations == [])


async def test_a_check_that_is_due_together_with_the_event_of_a_write_is_made(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_swap_current=f"{32 * MIB}\n")
    agent = plain.start()
    apply(agent, state({1: 0}))
    plain.later = file_reconciler.DRAIN_SECONDS[0] + 1
    agent.wake()
    assert due(agent, plain.known(pod).file, schedule.Why.RETRY) is not None, "the next one"


async def test_a_drain_to_the_earlier_value_names_it(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_swap_max=f"{8 * MIB}\n", memory_max="4096\n")
    agent = plain.start()
    apply(agent, state({1: 64 * MIB}))
    write(pod, str(32 * MIB), "memory.swap.current")
    apply(agent, state({1: 64 * MIB}, mode=names.Mode.RESTORE))
    (violation,) = snapshot(agent).violations
    assert (violation.reason, violation.desired, violation.observed) == ("Draining", str(8 * MIB), str(48 * MIB))
    assert violation.message.split()[0] == str(24 * MIB)


async def test_a_pod_that_does_not_drain_is_checked_less_and_less_often_up_to_a_bound(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_swap_current=f"{32 * MIB}\n")
    agent = plain.start()
    apply(agent, state({1: 0}))
    file = plain.known(pod).file

    def wait(later: float) -> int:
        plain.later = later
        compare(agent)
        wait = due(agent, file, schedule.Why.RETRY)
        assert wait is not None
        return round(wait)

    assert [wait(later) for later in (0, 2, 10, 100)] == [2, 2, 5, 30]
    write(pod, str(16 * MIB), "memory.swap.current")
    assert wait(101) == 2


async def test_an_agent_that_starts_with_swap_in_use_above_the_limit_reports_it(plain: Node) -> None:
    plain.tree.pod(1, memory_swap_max="0\n", memory_swap_current=f"{32 * MIB}\n")
    assert reasons(plain.start(state({1: 0}))) == ["Draining"]


async def test_pages_in_the_swap_cache_are_no_reason_not_to_cut_swap(plain: Node) -> None:
    """But no success either: the pages are on the disk until the kernel looks at them again."""
    pod = plain.tree.pod(
        1, memory_max=f"{64 * MIB}\n", memory_current=f"{50 * MIB}\n", memory_swap_current=f"{32 * MIB}\n"
    )
    (pod / "memory.stat").write_text(f"swapcached {31 * MIB}\n")
    agent = plain.start()
    apply(agent, state({1: 0}))
    assert (swap_max(pod), reasons(agent)) == ("0", ["Draining"])


async def test_pods_are_cut_only_as_far_as_all_of_them_have_room(plain: Node) -> None:
    """Each would fit into the 3 GiB that the node has left; all of them would not."""
    pods = [plain.tree.pod(n, memory_swap_current=f"{1024 * MIB}\n") for n in range(4)]
    agent = plain.start()
    apply(agent, state(dict.fromkeys(range(4), 0)))
    assert sorted(swap_max(pod) for pod in pods) == ["0", "0", str(1280 * MIB), str(1280 * MIB)]
    for pod in pods:
        if swap_max(pod) == "0":
            plain.tree.remove(pod)
    await until(lambda: len(agent.inventory.pods) == 2)
    compare(agent)
    assert [swap_max(pod) for pod in pods if pod.exists()] == ["0", "0"]


async def test_page_cache_is_no_reason_not_to_cut_swap(plain: Node) -> None:
    pod = plain.tree.pod(
        1, memory_max=f"{64 * MIB}\n", memory_current=f"{63 * MIB}\n", memory_swap_current=f"{8 * MIB}\n"
    )
    (pod / "memory.stat").write_text(f"anon 1\ninactive_file {40 * MIB}\nslab 3\n")
    apply(plain.start(), state({1: 0}))
    assert swap_max(pod) == "0"


async def test_a_full_container_keeps_its_pods_swap_from_being_cut(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_swap_current=f"{32 * MIB}\n")
    plain.tree.container(
        pod, "app", memory_max=f"{64 * MIB}\n", memory_current=f"{63 * MIB}\n", memory_swap_current=f"{32 * MIB}\n"
    )
    agent = plain.start()
    apply(agent, state({1: 0}))
    assert swap_max(pod) == str(48 * MIB)


async def test_the_nodes_memory_bounds_what_can_come_back(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_swap_current=f"{4096 * MIB}\n")
    apply(plain.start(), state({1: 0}))
    assert swap_max(pod) == str(5120 * MIB)


async def test_swap_in_use_is_cut_where_memory_has_room_but_is_no_success_yet(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_max=f"{640 * MIB}\n", memory_swap_current=f"{32 * MIB}\n")
    agent = plain.start()
    apply(agent, state({1: 0}))
    assert (swap_max(pod), reasons(agent)) == ("0", ["Draining"])


async def test_the_agents_own_container_may_be_denied(plain: Node) -> None:
    pods = [plain.tree.pod(n) for n in (1, 2)]
    containers = [plain.tree.container(pod, "app") for pod in pods]
    agent = plain.start(own_uid=uid(1))
    plain.cgroups.refuse("cri-containerd")
    wants = {n: {"app": spec.FileSetting(MIB, at_most=False)} for n in (1, 2)}
    apply(agent, state({1: MIB, 2: MIB}, containers=wants))
    failed = [violation.pod for violation in snapshot(agent).violations if violation.reason == "AccessDenied"]
    assert failed == [uid(2)]
    assert [swap_max(path) for path in containers] == ["max", "max"]


async def test_a_file_that_never_appears_is_a_failure(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "SOON_SECONDS", (0.001, 0.01))
    agent = plain.start()
    plain.tree.pod_path(1).mkdir()
    await until(lambda: reasons(agent) == ["WriteFailed"])
    (plain.tree.pod_path(1) / "memory.swap.max").write_text("max\n")
    await until(lambda: swap_max(plain.tree.pod_path(1)) == "0" and reasons(agent) == [])


async def test_a_failure_to_raise_is_one_failure_however_often_all_is_compared(
    plain: Node, caplog: pytest.LogCaptureFixture
) -> None:
    pod = plain.tree.pod(1, memory_swap_max="0\n")
    agent = plain.start()
    plain.cgroups.refuse()
    apply(agent, state({1: MIB}))
    for _ in range(3):
        compare(agent)
        assert reasons(agent) == ["WriteFailed"]
    assert swap_max(pod) == "0"
    assert len([each for each in caplog.records if each.message.startswith("cannot set memory.swap.max")]) == 1


async def test_a_writer_that_is_as_fast_is_a_failure(plain: Node) -> None:
    pod = plain.tree.pod(1)
    agent = plain.start()
    plain.cgroups.after = lambda *_: write(pod, "max")
    apply(agent, state({1: 0}))
    assert [reason for reason in reasons(agent) if reason != "Exposed"] == ["WriteFailed"]
    plain.cgroups.after = None
    await until(lambda: swap_max(pod) == "0" and reasons(agent) == [])


async def test_growth_is_counted_once_where_one_repair_takes_several_writes(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: 0}))
    pod = await plain.run(1, "app")
    write(pod, str(3 * MIB), "memory.swap.current")
    writes = []

    def contested(_: str, limit: int) -> None:
        writes.append(limit)
        if len(writes) < file_reconciler.ATTEMPTS:
            write(pod, "max")

    plain.cgroups.after = contested
    write(pod, "max")
    await until(lambda: len(writes) == file_reconciler.ATTEMPTS)
    tally = plain.known(pod).tally
    assert (tally.count, tally.grown) == (file_reconciler.ATTEMPTS, 3 * MIB)


async def test_a_full_container_gets_no_room_by_its_pods_raise(plain: Node) -> None:
    """Its pod held 0: what it has in swap came back, or did not, before the plan changed as well as after."""
    agent = plain.start()
    apply(agent, state({1: 0}))
    pod = await plain.run(1, "app")
    app = plain.tree.container_path(pod, "app")
    for path in (pod, app):
        for file, value in (("max", 64), ("current", 63), ("swap.current", 10)):
            write(path, str(value * MIB), f"memory.{file}")
    apply(agent, state({1: 1024 * MIB}, containers={1: {"app": spec.FileSetting(0, at_most=False)}}, generation=2))
    assert (swap_max(pod), swap_max(app)) == (str(1024 * MIB), "0")


async def test_a_momentary_cut_by_others_is_no_reason_to_cut_the_cgroups_below(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: 1024 * MIB}))
    pod = await plain.run(1, "app")
    app = plain.tree.container_path(pod, "app")
    for file, value in (("max", 64), ("current", 63), ("swap.current", 40)):
        write(app, str(value * MIB), f"memory.{file}")
    await until(lambda: swap_max(pod) == str(1024 * MIB))
    write(pod, "0")
    apply(agent, state({1: 1024 * MIB}, containers={1: {"app": spec.FileSetting(0, at_most=False)}}, generation=2))
    assert swap_max(app) == str(56 * MIB)


@pytest.mark.parametrize("ends", ["written", "gone", "wished"])
async def test_a_pod_is_not_raised_while_a_container_cannot_be_lowered(
    plain: Node, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(queue, "RETRY_SECONDS", (0.01, 0.01))
    agent = plain.start()
    apply(agent, state({1: 0}))
    pod = await plain.run(1, "app")
    app = plain.tree.container_path(pod, "app")

    def raised(limit: int) -> spec.NodeSpec:
        return state({1: MIB}, containers={1: {"app": spec.FileSetting(limit, at_most=False)}})

    plain.cgroups.refuse("cri-containerd")
    apply(agent, raised(0))
    compare(agent)
    assert (swap_max(pod), reasons(agent)) == ("0", ["AccessDenied"])
    assert snapshot(agent).unseen == 1, "the pod's own limit waits, and nothing says that it holds"
    write(pod, "max")
    await until(lambda: swap_max(pod) != "max")
    assert swap_max(pod) == "0", "after another writer's change it has its earlier value again"
    if ends == "gone":
        plain.tree.remove(app)
    elif ends == "wished":
        apply(agent, raised(cgroupfs.NO_LIMIT))
    if ends != "written":
        await until(lambda: swap_max(pod) == str(MIB) and "AccessDenied" not in reasons(agent))
    plain.cgroups.before = None
    await until(lambda: swap_max(pod) == str(MIB) and "AccessDenied" not in reasons(agent))


@pytest.mark.parametrize("late", [False, True])
async def test_an_exposure_that_cannot_be_ended_at_once_counts_from_its_beginning(
    plain: Node, monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    """By another writer, or because the pod ran before there was a state."""
    monkeypatch.setattr(queue, "RETRY_SECONDS", (0.01, 0.01))
    agent = plain.start(state())
    if not late:
        apply(agent, state({1: 0}))
    else:
        apply(agent, state(unknown=names.BeforePlan.UNMANAGED))
    pod = await plain.run(1, "app")
    plain.cgroups.refuse()
    if late:
        apply(agent, state({1: 0}))
    else:
        write(pod, "max")
    await until(lambda: "WriteFailed" in reasons(agent))
    plain.later += 90
    compare(agent)
    plain.cgroups.before = None
    await until(lambda: swap_max(pod) == "0")
    tally = plain.known(pod).tally
    assert tally.count == 1
    assert tally.milliseconds >= 90_000
    if late:
        assert list(tally.milliseconds_of) == [names.Cause.STATE_LATE]


async def test_a_container_that_cannot_be_raised_does_not_keep_its_pod_from_it(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_swap_max="0\n")
    plain.tree.container(pod, "app", memory_swap_max="0\n")
    agent = plain.start()
    plain.cgroups.refuse("cri-containerd")
    apply(agent, state({1: MIB}, containers={1: {"app": spec.FileSetting(MIB, at_most=False)}}))
    compare(agent)
    assert (swap_max(pod), reasons(agent)) == (str(MIB), ["AccessDenied"])


async def test_a_protection_is_repaired_when_it_is_reset_and_left_when_another_writer_has_a_number(plain: Node) -> None:
    agent = plain.start(state({1: cgroupfs.NO_LIMIT}))
    pod = await plain.run(1, "app")
    (pod / "memory.low").write_text("0\n")
    known = plain.known(pod)
    low = cgroup_files.CgroupFile("memory.low", unset=0, denied=None, exposed=cgroup_files.Exposed.BELOW)
    file = records.ControlFile(known.path, known.file.inode, known, spec=low)
    file.desired = records.Desired(MIB, MIB)
    look_again(agent, file)
    before, repaired = known.tally.count, repairs.MEMORY_REPAIRS.value("memory.low")
    for reset in ("0", "max"):
        write(pod, reset, "memory.low")
        look_again(agent, file)
        assert (pod / "memory.low").read_text().split() == [str(MIB)]
    assert repairs.MEMORY_REPAIRS.value("memory.low") == repaired + 2
    assert known.tally.count == before, "exposures are of swap"
    write(pod, str(2 * MIB), "memory.low")
    look_again(agent, file)
    assert file.status.foreign
    file.desired = records.Desired(resolve.Handling.RESTORE)
    look_again(agent, file)
    assert (pod / "memory.low").read_text().split() == [str(2 * MIB)], "as another writer last had it"
    assert swap_max(pod) == "max"


async def test_a_promised_minimum_is_raised_at_once_and_lowered_after_what_waited_before(plain: Node) -> None:
    agent = plain.start(state({1: cgroupfs.NO_LIMIT}))
    pod = await plain.run(1, "app")
    (pod / "memory.low").write_text("0\n")
    known = plain.known(pod)
    low = cgroup_files.CgroupFile("memory.low", unset=0, denied=None, exposed=cgroup_files.Exposed.BELOW)
    file = records.ControlFile(known.path, known.file.inode, known, spec=low)
    (app,) = known.containers.values()
    idle: list[bool] = []
    for desired in (2 * MIB, MIB):
        file.desired = records.Desired(desired, desired)
        mark(agent, app)
        agent.work.waiting.mark(file, queue.Priority.REPAIR, queue.Mark(0.0, 0.0))
        with unheard(agent):
            plain.cgroups.before = lambda *_: idle.append(is_idle(agent))
            settle(agent)
            plain.cgroups.before = None
        assert (pod / "memory.low").read_text().split() == [str(desired)]
    assert idle == [False, True], "the second one waited for the container"


async def test_a_limit_is_set_where_nothing_counts_the_swap_in_use(plain: Node) -> None:
    pod = plain.tree.pod(1)
    (pod / "memory.swap.current").unlink(missing_ok=True)
    agent = plain.start()
    apply(agent, state({1: MIB}))
    assert (swap_max(pod), reasons(agent)) == (str(MIB), [])


async def test_a_pod_is_not_raised_while_the_kernel_fails_to_lower_a_container(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: 0}))
    pod = await plain.run(1, "app")
    app = plain.tree.container_path(pod, "app")
    plain.cgroups.refuse("cri-containerd", cgroupfs.CgroupError("Input/output error"))
    apply(agent, state({1: MIB}, containers={1: {"app": spec.FileSetting(0, at_most=False)}}))
    compare(agent)
    assert (swap_max(pod), swap_max(app), reasons(agent)) == ("0", "max", ["WriteFailed"])
    plain.cgroups.before = None
    compare(agent)
    await until(lambda: (swap_max(pod), swap_max(app)) == (str(MIB), "0"))


async def test_a_value_counts_as_not_restored_until_it_is(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: 0}))
    pod = await plain.run(1)
    plain.cgroups.refuse(error=cgroupfs.CgroupError("Input/output error"))
    apply(agent, state({1: 0}, mode=names.Mode.RESTORE))
    assert (swap_max(pod), snapshot(agent).to_restore) == ("0", 1)
    plain.cgroups.before = None
    compare(agent)
    assert (swap_max(pod), snapshot(agent).to_restore) == ("max", 0)


async def test_returned_pages_need_no_memory_any_more(plain: Node) -> None:
    """The node has 3 GiB available: enough for the swap of one of these pods, not for that of both."""
    agent = plain.start()
    apply(agent, state({1: 3000 * MIB, 2: 3000 * MIB}))
    first, second = await plain.run(1), await plain.run(2)
    for pod in (first, second):
        write(pod, str(2000 * MIB), "memory.swap.current")
    apply(agent, state({1: 0, 2: 3000 * MIB}))
    assert swap_max(first) == "0"
    apply(agent, state({1: 0, 2: 0}))
    assert swap_max(second) == str(2500 * MIB)
    write(first, "0", "memory.swap.current")
    look_again(agent, plain.known(first).file)
    look_again(agent, plain.known(second).file)
    assert swap_max(second) == "0"
