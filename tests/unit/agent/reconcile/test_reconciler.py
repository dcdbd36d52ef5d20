"""States and their changes applied to the files of a directory tree."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.drift import repairs
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.reconcile import cgroup_reconciler, container_reconciler, queue, reconciler
from swapwarden.agent.report import collector
from swapwarden.api import names
from swapwarden.api import state as api

from tests.unit.agent.agent_node import (
    MIB,
    Node,
    apply,
    armed,
    compare,
    lose_events,
    reasons,
    settle,
    snapshot,
    state,
    until,
)
from tests.unit.agent.cgroup_tree import swap_max, uid, write


async def test_a_pod_that_appears_gets_what_the_state_says(node: Node) -> None:
    agent = node.start()
    apply(agent, state({1: 0, 2: 64 * MIB, 3: cgroupfs.NO_LIMIT}))
    pods = [node.tree.pod(n, qos) for n, qos in ((1, "guaranteed"), (2, "burstable"), (3, "besteffort"))]
    await until(lambda: [swap_max(pod) for pod in pods] == ["0", str(64 * MIB), "max"])
    assert snapshot(agent).violations == []


async def test_an_unknown_pod_gets_0_until_its_state_arrives(node: Node) -> None:
    agent = node.start()
    pod = node.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    apply(agent, state({1: cgroupfs.NO_LIMIT}))
    assert swap_max(pod) == "max"


async def test_allow_leaves_an_unknown_pod_alone(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state(unknown=names.BeforePlan.UNMANAGED))
    unknown = plain.tree.pod(1)
    known = plain.tree.pod(2)
    apply(agent, state({2: 0}, unknown=names.BeforePlan.UNMANAGED))
    await until(lambda: swap_max(known) == "0")
    assert swap_max(unknown) == "max"


async def test_a_change_from_deny_to_allow_puts_back_what_deny_wrote(plain: Node) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    apply(agent, state(unknown=names.BeforePlan.UNMANAGED))
    assert swap_max(pod) == "max"


async def test_a_change_between_deny_and_allow_reaches_pods_that_wait(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state())
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    apply(agent, state(unknown=names.BeforePlan.UNMANAGED))
    assert swap_max(pod) == "max"
    apply(agent, state())
    assert swap_max(pod) == "0"


async def test_pods_found_at_the_first_start_are_left_alone_until_their_state_arrives(node: Node) -> None:
    pod = node.tree.pod(1)
    agent = node.start()
    apply(agent, state())
    assert swap_max(pod) == "max"
    apply(agent, state({1: 0}))
    assert swap_max(pod) == "0"


async def test_after_a_restart_known_pods_keep_and_unknown_ones_are_denied(plain: Node) -> None:
    left_alone, limited = plain.tree.pod(1), plain.tree.pod(2)
    apply(plain.start(), state({2: MIB}))
    plain.stop()
    appeared = plain.tree.pod(3)
    write(limited, "max")
    plain.start()
    assert [swap_max(pod) for pod in (left_alone, limited, appeared)] == ["max", str(MIB), "0"]


async def test_the_cached_state_is_in_force_at_once(plain: Node) -> None:
    pods = [plain.tree.pod(n) for n in (1, 2)]
    plain.start(state({1: 0, 2: MIB}))
    assert [swap_max(pod) for pod in pods] == ["0", str(MIB)]


async def test_containers_get_their_values_in_both_orders(node: Node) -> None:
    agent = node.start()
    pod = node.tree.pod(1)
    early = node.tree.container(pod, "early", memory_swap_max="0\n")
    wants = {1: {"early": spec.FileSetting(MIB, at_most=False), "late": spec.FileSetting(2 * MIB, at_most=False)}}
    apply(agent, state({1: cgroupfs.NO_LIMIT}, containers=wants))
    late = node.tree.container(pod, "late", memory_swap_max="0\n")
    other = node.tree.container(pod, "other", memory_swap_max="0\n")
    await until(lambda: [swap_max(early), swap_max(late)] == [str(MIB), str(2 * MIB)])
    write(late, "0")
    await until(lambda: swap_max(late) == str(2 * MIB))
    assert swap_max(other) == "0"
    apply(agent, state({1: cgroupfs.NO_LIMIT}))
    assert [swap_max(early), swap_max(late)] == ["0", "0"]


async def test_what_each_container_gets_reaches_those_that_start_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_reconciler, "YOUNG_SECONDS", 0.05)
    pod = node.tree.pod(1)
    early = node.tree.container(pod, "early", memory_swap_max="0\n")
    agent = node.start()
    apply(agent, state({1: 2 * MIB}, each=MIB))
    assert swap_max(early) == str(MIB)
    late = node.tree.container(pod, "late", memory_swap_max="0\n")
    await until(lambda: swap_max(late) == str(MIB))
    apply(agent, state({1: 2 * MIB}))
    assert (swap_max(early), swap_max(late)) == ("0", "0")


async def test_a_runtime_is_not_disturbed_while_it_makes_a_container(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_reconciler, "YOUNG_SECONDS", 3600.0)
    repaired = repairs.REPAIRS.value("container", "below")
    pod = plain.tree.pod(1)
    agent = plain.start()
    apply(agent, state({1: 2 * MIB}, each=MIB))
    app = plain.tree.container(pod, "app", memory_swap_max="0\n")
    await until(lambda: bool(plain.known(pod).containers))
    write(app, "4096")
    compare(agent)
    assert swap_max(app) == "4096"
    plain.later += 3600
    compare(agent)
    assert swap_max(app) == str(MIB)
    assert repairs.REPAIRS.value("container", "below") == repaired


async def test_what_a_slow_runtime_wrote_over_it_is_put_back(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_reconciler, "YOUNG_SECONDS", 0.0)
    agent = node.start()
    pod = node.tree.pod(1)
    apply(agent, state({1: 2 * MIB}, each=MIB))
    app = node.tree.container(pod, "app")
    await until(lambda: swap_max(app) == str(MIB))
    write(app, "4096")
    await until(lambda: swap_max(app) == str(MIB))
    node.stop()
    apply(node.start(state({1: 2 * MIB}, each=MIB)), state({1: 2 * MIB}, each=MIB, mode=names.Mode.RESTORE))
    assert [swap_max(path) for path in (pod, app)] == ["max", "4096"]


async def test_a_new_container_is_also_restored_in_the_end(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_reconciler, "YOUNG_SECONDS", 3600.0)
    pod = plain.tree.pod(1)
    agent = plain.start()
    apply(agent, state({1: 2 * MIB}, each=MIB))
    plain.tree.container(pod, "gone", memory_swap_max="0\n")
    plain.tree.container(pod, "app", memory_swap_max="0\n")
    await until(lambda: len(plain.known(pod).containers) == 2)
    timer = armed(agent)
    plain.tree.remove(plain.tree.container_path(pod, "gone"))
    await until(lambda: len(plain.known(pod).containers) == 1)
    apply(agent, state({1: 2 * MIB}, each=MIB, mode=names.Mode.RESTORE))
    assert not snapshot(agent).to_restore
    plain.stop()
    assert timer is None or timer.cancelled()


@pytest.mark.parametrize("mode", [names.Mode.RESTORE, names.Mode.AUDIT])
async def test_what_each_container_got_is_put_back(node: Node, mode: names.Mode) -> None:
    pod = node.tree.pod(1)
    apps = [node.tree.container(pod, name, memory_swap_max="0\n") for name in ("app", "sandbox")]
    apply(node.start(), state({1: 2 * MIB}, each=MIB))
    assert [swap_max(app) for app in apps] == [str(MIB)] * 2
    node.stop()
    agent = node.start(state({1: 2 * MIB}, each=MIB))
    assert [swap_max(app) for app in apps] == [str(MIB)] * 2
    apply(agent, state({1: 2 * MIB}, each=MIB, mode=mode))
    assert [swap_max(path) for path in (pod, *apps)] == ["max", "0", "0"]
    listed = [(each.container != "", each.desired) for each in snapshot(agent).violations]
    audited = [(False, str(2 * MIB)), (True, str(MIB)), (True, str(MIB))]
    assert sorted(listed) == (audited if mode is names.Mode.AUDIT else [])


async def test_qos_slices_are_never_written_and_kubepods_only_on_order(node: Node) -> None:
    agent = node.start()
    slices = [node.tree.level(qos) for qos in ("burstable", "besteffort")]
    node.tree.pod(1)
    apply(agent, state({1: 0}))
    assert swap_max(node.tree.kubepods) == "max"
    apply(agent, state({1: 0}, kubepods=512 * MIB))
    assert swap_max(node.tree.kubepods) == str(512 * MIB)
    write(node.tree.kubepods, "max")
    await until(lambda: swap_max(node.tree.kubepods) == str(512 * MIB))
    apply(agent, state({1: 0}))
    assert [swap_max(path) for path in (node.tree.kubepods, *slices)] == ["max", "max", "max"]


async def test_a_pod_gone_from_the_state_keeps_its_value(plain: Node) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    apply(agent, state({1: MIB}))
    await until(lambda: swap_max(pod) == str(MIB))
    apply(agent, state())
    write(pod, "max")
    await until(lambda: swap_max(pod) == str(MIB))


@pytest.mark.parametrize("mode", [names.Mode.RESTORE, names.Mode.AUDIT])
async def test_restore_and_audit_write_the_earlier_values(node: Node, mode: names.Mode) -> None:
    pods = [node.tree.pod(1, memory_swap_max=f"{8 * MIB}\n"), node.tree.pod(2)]
    app = node.tree.container(pods[1], "app", memory_swap_max="0\n")
    agent = node.start()
    wants = {2: {"app": spec.FileSetting(MIB, at_most=False)}}
    apply(agent, state({1: 0, 2: MIB}, kubepods=64 * MIB, containers=wants))
    files = [node.tree.kubepods, *pods, app]
    assert [swap_max(path) for path in files] == [str(64 * MIB), "0", str(MIB), str(MIB)]
    apply(agent, state({1: 0, 2: MIB}, kubepods=64 * MIB, containers=wants, mode=mode))
    assert [swap_max(path) for path in files] == ["max", str(8 * MIB), "max", "0"]
    assert snapshot(agent).to_restore == 0
    reported = [reason for reason in reasons(agent) if reason != "Exposed"]
    assert reported == (["Audit"] * 4 if mode is names.Mode.AUDIT else [])
    apply(agent, state({1: 0, 2: MIB}, kubepods=64 * MIB, containers=wants))
    assert [swap_max(path) for path in files] == [str(64 * MIB), "0", str(MIB), str(MIB)]


async def test_restore_after_a_restart_puts_back_too(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_swap_max=f"{8 * MIB}\n")
    apply(plain.start(), state({1: 0}))
    plain.stop()
    apply(plain.start(state({1: 0})), state({1: 0}, mode=names.Mode.RESTORE))
    assert swap_max(pod) == str(8 * MIB)


async def test_restore_leaves_another_writers_value(plain: Node) -> None:
    pod = plain.tree.pod(1)
    agent = plain.start()
    apply(agent, state({1: 0}))
    write(pod, "4096")
    apply(agent, state({1: 0}, mode=names.Mode.RESTORE))
    assert swap_max(pod) == "4096"
    new = plain.tree.pod(2)
    await asyncio.sleep(0)
    compare(agent)
    assert swap_max(new) == "max"


async def test_restore_does_not_write_to_a_file_that_another_changed_while_no_agent_ran(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for a moment: the value of before would be in force until it is written back."""
    pod = plain.tree.pod(1)
    apply(plain.start(), state({1: 0}))
    plain.stop()
    write(pod, "4096")
    written: list[str] = []
    monkeypatch.setattr(cgroupfs.Cgroups, "write", lambda _, path, _limit: written.append(path))
    plain.start(state({1: 0}, mode=names.Mode.RESTORE))
    assert written == []
    assert swap_max(pod) == "4096"
    assert plain.agent is not None
    assert snapshot(plain.agent).to_restore == 0


async def test_the_cost_of_a_preview_is_reported_and_nothing_is_written(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state({1: cgroupfs.NO_LIMIT, 2: cgroupfs.NO_LIMIT, 3: 0}))
    uses = {1: plain.tree.pod(1), 2: plain.tree.pod(2), 3: plain.tree.pod(3)}
    await until(lambda: [swap_max(pod) for pod in uses.values()] == ["max", "max", "0"])
    for number, used in ((1, 5 * MIB), (2, MIB), (3, 0)):
        write(uses[number], str(used), "memory.swap.current")
    preview = spec.Preview("p", 7, {uid(1): 2 * MIB, uid(2): 2 * MIB, uid(9): 0})
    apply(agent, msgspec.structs.replace(state({1: cgroupfs.NO_LIMIT, 2: cgroupfs.NO_LIMIT, 3: 0}), preview=preview))
    assert snapshot(agent).cost == api.PreviewCost(api.ProfileRef("p", 7), pods=1, bytes=3 * MIB)
    assert swap_max(uses[1]) == "max"
    apply(agent, state({1: cgroupfs.NO_LIMIT}))
    assert snapshot(agent).cost is None


async def test_250_pods_at_once(plain: Node) -> None:
    agent = plain.start()
    apply(agent, state(dict.fromkeys(range(250), MIB)))
    pods = [plain.tree.pod(n) for n in range(250)]
    await until(lambda: all(swap_max(pod) == str(MIB) for pod in pods))


async def test_a_container_that_was_raised_while_no_agent_ran_is_a_repair(plain: Node) -> None:
    app = plain.tree.container(plain.tree.pod(1), "app", memory_swap_max="0\n")
    wants = state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(MIB, at_most=False)}})
    apply(plain.start(), wants)
    plain.stop()
    write(app, "max")
    before = repairs.REPAIRS.value("container", "above")
    agent = plain.start(wants)
    assert (swap_max(app), reasons(agent)) == (str(MIB), ["Exposed"])
    assert repairs.REPAIRS.value("container", "above") == before + 1


async def test_a_container_keeps_its_value_over_a_restart_without_a_state(plain: Node) -> None:
    app = plain.tree.container(plain.tree.pod(1), "app", memory_swap_max="0\n")
    apply(plain.start(), state({1: cgroupfs.NO_LIMIT}, containers={1: {"app": spec.FileSetting(MIB, at_most=False)}}))
    plain.stop()
    write(app, "0")
    agent = plain.start()
    assert swap_max(app) == str(MIB)
    apply(agent, state({1: cgroupfs.NO_LIMIT}))
    assert swap_max(app) == "0"


async def test_a_pod_recreated_while_no_agent_ran_is_another(plain: Node) -> None:
    """Values from before the first boot are not restored after the second."""
    pod = plain.tree.pod(1, memory_swap_max=f"{8 * MIB}\n")
    apply(plain.start(), state({1: 0}))
    plain.stop()
    kept = pod.rename(pod.with_name("kept"))  # its inode must not be given away again
    pod = plain.tree.pod(1)
    agent = plain.start()
    assert swap_max(pod) == "0"
    apply(agent, state({1: 0}, mode=names.Mode.RESTORE))
    assert (swap_max(pod), swap_max(kept)) == ("max", "0")


async def test_a_state_with_other_values_while_files_cannot_be_written(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "RETRY_SECONDS", (0.01, 0.01))
    pod = plain.tree.pod(1)
    agent = plain.start()
    plain.cgroups.refuse()
    apply(agent, state({1: 0}))
    assert [reason for reason in reasons(agent) if reason != "Exposed"] == ["WriteFailed"]
    apply(agent, state({1: MIB}, generation=2))
    plain.cgroups.before = None
    await until(lambda: swap_max(pod) == str(MIB) and "WriteFailed" not in reasons(agent))


async def test_a_pod_that_got_back_what_it_had_is_still_known_after_a_restart(plain: Node) -> None:
    """It is no pod that appeared while no agent ran."""
    pod = plain.tree.pod(1)
    agent = plain.start()
    apply(agent, state({1: 0}))
    apply(agent, state({1: None}))
    assert swap_max(pod) == "max"
    plain.stop()
    plain.start(state())
    assert swap_max(pod) == "max"


async def test_what_went_while_no_agent_ran_is_forgotten(plain: Node) -> None:
    pod = plain.tree.pod(1)
    apply(plain.start(), state({1: 0}))
    plain.stop()
    plain.tree.remove(pod)
    plain.start()
    assert list(plain.ledger.limits) == []


async def test_a_new_pods_wait_for_its_value_is_timed_once(plain: Node) -> None:
    listed = plain.tree.pod(1)
    agent = plain.start(cached=state({1: 0}))
    before = cgroup_reconciler.ENFORCED_SECONDS.count()
    late, early = plain.tree.pod(2), plain.tree.pod(3)
    await until(lambda: [swap_max(pod) for pod in (listed, late, early)] == ["0", "0", "0"])
    assert cgroup_reconciler.ENFORCED_SECONDS.count() == before
    apply(agent, state({1: MIB, 2: MIB, 3: 0}))
    assert cgroup_reconciler.ENFORCED_SECONDS.count() == before + 2
    apply(agent, state({1: 2 * MIB, 2: 2 * MIB, 3: 2 * MIB}))
    assert cgroup_reconciler.ENFORCED_SECONDS.count() == before + 2


async def test_values_that_are_not_enforced_are_not_timed(plain: Node) -> None:
    agent = plain.start(cached=state({1: 0}, mode=names.Mode.AUDIT))
    before = cgroup_reconciler.ENFORCED_SECONDS.count()
    pod = plain.tree.pod(1)
    await until(lambda: len(agent.inventory.pods.values()) == 1)
    apply(agent, state({1: 0}))
    assert swap_max(pod) == "0"
    assert cgroup_reconciler.ENFORCED_SECONDS.count() == before


async def test_pods_that_wait_are_counted_also_without_a_status(plain: Node) -> None:
    agent = plain.start()
    await plain.run(1, "app")
    collector.publish(agent.inventory, agent.progress)
    assert collector.AWAITING.value() == 1
    apply(agent, state({1: 0}))
    collector.publish(agent.inventory, agent.progress)
    assert collector.AWAITING.value() == 0


# A state is applied in turns


async def test_the_generation_is_reported_when_everything_was_brought_to_it(plain: Node) -> None:
    pods = [plain.tree.pod(number) for number in range(100)]
    agent = plain.start(state(generation=1))
    assert snapshot(agent).generation == 1
    agent.set_desired(state(dict.fromkeys(range(100), MIB), generation=2))
    assert (snapshot(agent).generation, plain.reports.busy) == (1, True)
    held: set[str] = set()
    while snapshot(agent).generation == 1:
        held = {swap_max(pod) for pod in pods}
        await asyncio.sleep(0)
    assert held != {str(MIB)}
    assert {swap_max(pod) for pod in pods} == {str(MIB)}
    assert not plain.reports.busy


async def test_a_state_that_changes_no_cgroup_is_reported(plain: Node) -> None:
    agent = plain.start(state(generation=1))
    agent.set_desired(state({1: 0}, generation=2))
    await until(lambda: snapshot(agent).generation == 2 and not plain.reports.busy)


async def test_a_state_that_arrives_while_another_is_applied_is_the_reported_one(plain: Node) -> None:
    pods = [plain.tree.pod(number) for number in range(50)]
    agent = plain.start(state(generation=1))
    for generation in (2, 3):
        agent.set_desired(state(dict.fromkeys(range(50), generation * MIB), generation=generation))
    generations = {snapshot(agent).generation}
    while plain.reports.busy:
        await asyncio.sleep(0)
        generations.add(snapshot(agent).generation)
    assert generations == {1, 3}
    assert {swap_max(pod) for pod in pods} == {str(3 * MIB)}


async def test_an_order_to_restore_under_way_counts_as_unrestored(plain: Node) -> None:
    pod = plain.tree.pod(1)
    agent = plain.start()
    apply(agent, state({1: 0}))
    agent.set_desired(state({1: 0}, mode=names.Mode.RESTORE, generation=2))
    assert snapshot(agent).to_restore > 0
    settle(agent)
    assert (swap_max(pod), snapshot(agent).to_restore) == ("max", 0)


async def test_a_repair_does_not_wait_for_a_state_to_be_applied(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "SLICE_SECONDS", 0.0)
    pods = [plain.tree.pod(number) for number in range(100)]
    agent = plain.start(state(dict.fromkeys(range(100), 0)))
    wrote: list[str] = []
    agent.set_desired(state(dict.fromkeys(range(1, 100), MIB), generation=2))
    await asyncio.sleep(0)
    plain.cgroups.before = lambda name, _: wrote.append(name)
    write(pods[0], "max")
    await until(lambda: swap_max(pods[0]) == "0")
    assert len(wrote) < 50
    await until(lambda: not plain.reports.busy)
    assert len(wrote) > 90


async def test_a_long_turn_reads_events_too(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "SLICE_SECONDS", 60.0)
    monkeypatch.setattr(reconciler, "LOOK_SECONDS", 0.0)
    pods = [plain.tree.pod(number) for number in range(100)]
    agent = plain.start(state(dict.fromkeys(range(100), 0)))
    agent.catch_up()
    wrote: list[str] = []

    def spy(name: str, _: int) -> None:
        wrote.append(name.rpartition("/")[0])
        if len(wrote) == 10:
            write(pods[0], "max")

    plain.cgroups.after = spy
    apply(agent, state(dict.fromkeys(range(1, 100), MIB), generation=2))
    assert swap_max(pods[0]) == "0"
    assert [name.endswith(pods[0].name) for name in wrote].index(True) in range(10, 20)
    assert len(wrote) == 100


async def test_events_of_the_agents_own_writes_cost_one_read_each(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [plain.tree.pod(number) for number in range(3)]
    agent = plain.start(state(dict.fromkeys(range(3), 0)))
    agent.catch_up()
    agent.set_desired(state(dict.fromkeys(range(3), MIB), generation=2))
    settle(agent)
    read: list[str] = []
    real = plain.cgroups.read

    def spy(name: str) -> int:
        read.append(name)
        return real(name)

    monkeypatch.setattr(plain.cgroups, "read", spy)
    agent.catch_up()
    assert sorted(plain.tree.root / name for name in read) == sorted(pod / cgroupfs.SWAP_MAX for pod in pods)


async def test_a_value_written_before_a_new_state_is_repaired_against_the_old_one(plain: Node) -> None:
    """The event is read together with the new state, which may allow the value."""
    agent = plain.start(state({1: 0}))
    pod = await plain.run(1, "app")
    await until(lambda: swap_max(pod) == "0")
    agent.catch_up()
    write(pod, str(MIB))
    apply(agent, state({1: MIB}, generation=2))
    assert swap_max(pod) == str(MIB)
    assert plain.known(pod).tally.count == 1


async def test_a_comparison_is_over_when_containers_were_compared_too(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "SLICE_SECONDS", 0.0)
    agent = plain.start()
    pod = plain.tree.pod(1)
    made = [plain.tree.container(pod, f"app{number}") for number in range(20)]
    apply(
        agent,
        state(
            {1: 2 * MIB}, containers={1: {f"app{number}": spec.FileSetting(MIB, at_most=False) for number in range(20)}}
        ),
    )
    await until(lambda: {swap_max(path) for path in made} == {str(MIB)})
    for path in made:
        write(path, "max")
    lose_events(agent)
    before = agent.tasks.comparison.last
    plain.later += 1
    agent.resync()
    await until(lambda: agent.tasks.comparison.last > before)
    assert {swap_max(path) for path in made} == {str(MIB)}


@pytest.mark.parametrize("mode", [names.Mode.RESTORE, names.Mode.AUDIT])
async def test_a_pod_without_an_entry_keeps_no_value_from_before_all_values_were_restored(
    plain: Node, mode: names.Mode
) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    apply(agent, state({1: MIB}))
    compare(agent)
    assert swap_max(pod) == str(MIB)
    apply(agent, state({1: MIB}, mode=mode, generation=2))
    assert swap_max(pod) == "max"
    apply(agent, state({}, generation=3))
    assert swap_max(pod) == "max"
