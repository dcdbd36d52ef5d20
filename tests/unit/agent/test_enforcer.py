"""The state machine on a directory tree, without an API server."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from swapwarden.agent import cgroupfs, enforcer, inotify, journal, limits, wanted
from swapwarden.api import names

from tests.unit.agent.cgroup_tree import PAGE, CgroupTree, container_id, swap_max, uid, write

MIB = 1 << 20


def state(
    pods: dict[int, int | None] | None = None,
    *,
    mode: names.Mode = names.Mode.ENFORCE,
    unknown: names.UnknownPod = names.UnknownPod.DENY,
    kubepods: int | None = None,
    containers: dict[int, dict[str, wanted.Container]] | None = None,
    generation: int = 1,
) -> wanted.State:
    inner = containers or {}
    entries = {
        uid(number): wanted.Pod(limit, {container_id(name): c for name, c in inner.get(number, {}).items()})
        for number, limit in (pods or {}).items()
    }
    return wanted.State("u", generation, mode, unknown, kubepods, entries)


class Node:
    """One node with one agent's enforcer on it."""

    def __init__(self, folder: pathlib.Path, naming: str = "systemd") -> None:
        self.folder = folder
        self.tree = CgroupTree(folder, naming)
        self.enforcer: enforcer.Enforcer | None = None

    def start(self, cached: wanted.State | None = None, own_uid: str = "") -> enforcer.Enforcer:
        self.cgroups = cgroupfs.Cgroups(str(self.tree.root), PAGE)
        self.journal = journal.Journal(self.folder / "journal.jsonl")
        self.enforcer = enforcer.Enforcer(self.cgroups, self.journal, proc=self.tree.proc, own_uid=own_uid)
        self.enforcer.start(cached)
        return self.enforcer

    def stop(self) -> None:
        if self.enforcer is not None:
            self.enforcer.close()
            self.journal.close()
            self.cgroups.close()
            self.enforcer = None


@pytest.fixture(params=["systemd", "cgroupfs", "kind"])
async def node(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    made = Node(tmp_path, request.param)
    yield made
    made.stop()


@pytest.fixture
async def plain(tmp_path: pathlib.Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    made.stop()


async def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 files have no event to wait for, and inotify is what is tested
            await asyncio.sleep(0.001)


def reasons(agent: enforcer.Enforcer) -> list[str]:
    return sorted(violation.reason for violation in agent.standing().violations)


async def test_a_pod_that_appears_gets_what_the_state_says(node: Node) -> None:
    agent = node.start()
    agent.apply(state({1: 0, 2: 64 * MIB, 3: limits.NO_LIMIT}))
    pods = [node.tree.pod(n, qos) for n, qos in ((1, "guaranteed"), (2, "burstable"), (3, "besteffort"))]
    await until(lambda: [swap_max(pod) for pod in pods] == ["0", str(64 * MIB), "max"])
    assert agent.standing().violations == []


async def test_an_unknown_pod_gets_0_until_its_state_arrives(node: Node) -> None:
    agent = node.start()
    pod = node.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    agent.apply(state({1: limits.NO_LIMIT}))
    assert swap_max(pod) == "max"


async def test_allow_leaves_an_unknown_pod_alone(plain: Node) -> None:
    agent = plain.start()
    agent.apply(state(unknown=names.UnknownPod.ALLOW))
    unknown = plain.tree.pod(1)
    known = plain.tree.pod(2)
    agent.apply(state({2: 0}, unknown=names.UnknownPod.ALLOW))
    await until(lambda: swap_max(known) == "0")
    assert swap_max(unknown) == "max"


async def test_a_change_from_deny_to_allow_puts_back_what_deny_wrote(plain: Node) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    agent.apply(state(unknown=names.UnknownPod.ALLOW))
    assert swap_max(pod) == "max"


async def test_pods_found_at_the_first_start_are_left_alone_until_their_state_arrives(node: Node) -> None:
    pod = node.tree.pod(1)
    agent = node.start()
    agent.apply(state())
    assert swap_max(pod) == "max"
    agent.apply(state({1: 0}))
    assert swap_max(pod) == "0"


async def test_after_a_restart_known_pods_keep_and_unknown_ones_are_denied(plain: Node) -> None:
    left_alone, limited = plain.tree.pod(1), plain.tree.pod(2)
    plain.start().apply(state({2: MIB}))
    plain.stop()
    appeared = plain.tree.pod(3)
    write(limited, "max")
    plain.start()
    assert [swap_max(pod) for pod in (left_alone, limited, appeared)] == ["max", str(MIB), "0"]


async def test_the_cached_state_is_in_force_at_once(plain: Node) -> None:
    pods = [plain.tree.pod(n) for n in (1, 2)]
    plain.start(state({1: 0, 2: MIB}))
    assert [swap_max(pod) for pod in pods] == ["0", str(MIB)]


@pytest.mark.parametrize("other", ["max", str(128 * MIB), "0"])
async def test_another_writers_value_is_repaired(plain: Node, other: str) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    plain.tree.container(pod, "app")
    agent.apply(state({1: 64 * MIB}))
    await until(lambda: swap_max(pod) == str(64 * MIB))
    before = enforcer.REPAIRS.value("pod", "below" if other == "0" else "above")
    write(pod, other)
    await until(lambda: enforcer.REPAIRS.value("pod", "below" if other == "0" else "above") > before)
    assert swap_max(pod) == str(64 * MIB)


async def test_each_of_1000_exposures_is_counted(plain: Node) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    agent.apply(state({1: 0}))
    plain.tree.container(pod, "app")
    await until(lambda: swap_max(pod) == "0" and len(agent._pods[agent_path(plain, pod)].containers) == 1)
    for _ in range(1000):
        write(pod, "max")
        await until(lambda: swap_max(pod) == "0")
    (violation,) = agent.standing().violations
    assert (violation.reason, violation.exposures) == ("Exposed", 1000)


def agent_path(node: Node, path: pathlib.Path) -> str:
    return str(path.relative_to(node.tree.root))


async def test_systemd_rewriting_an_empty_pod_is_repaired_and_is_no_exposure(plain: Node) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    agent.apply(state({1: 0}))
    await until(lambda: swap_max(pod) == "0")
    before = enforcer.REPAIRS.value("pod", "above")
    write(pod, "max")
    await until(lambda: enforcer.REPAIRS.value("pod", "above") > before)
    assert swap_max(pod) == "0"
    assert agent.standing().violations == []


async def test_a_running_pod_whose_state_comes_late_counts_as_exposed(plain: Node) -> None:
    plain.tree.container(plain.tree.pod(1), "app")
    agent = plain.start()
    agent.apply(state({1: 0}))
    (violation,) = agent.standing().violations
    assert (violation.reason, violation.exposures, violation.found) == ("Exposed", 1, "max")


async def test_containers_get_their_values_in_both_orders(node: Node) -> None:
    agent = node.start()
    pod = node.tree.pod(1)
    early = node.tree.container(pod, "early", memory_swap_max="0\n")
    wants = {1: {"early": wanted.Container(MIB, cap=False), "late": wanted.Container(2 * MIB, cap=False)}}
    agent.apply(state({1: limits.NO_LIMIT}, containers=wants))
    late = node.tree.container(pod, "late", memory_swap_max="0\n")
    other = node.tree.container(pod, "other", memory_swap_max="0\n")
    await until(lambda: [swap_max(early), swap_max(late)] == [str(MIB), str(2 * MIB)])
    write(late, "0")
    await until(lambda: swap_max(late) == str(2 * MIB))
    assert swap_max(other) == "0"
    agent.apply(state({1: limits.NO_LIMIT}))
    assert [swap_max(early), swap_max(late)] == ["0", "0"]


async def test_a_cap_only_lowers(plain: Node) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    low = plain.tree.container(pod, "low", memory_swap_max=f"{MIB}\n")
    high = plain.tree.container(pod, "high", memory_swap_max=f"{4 * MIB}\n")
    wants = {1: {"low": wanted.Container(2 * MIB, cap=True), "high": wanted.Container(2 * MIB, cap=True)}}
    agent.apply(state({1: limits.NO_LIMIT}, containers=wants))
    await until(lambda: swap_max(high) == str(2 * MIB))
    write(low, str(3 * MIB))
    await until(lambda: swap_max(low) == str(2 * MIB))
    write(low, "4096")
    agent.resync()
    assert swap_max(low) == "4096"


async def test_a_cap_leaves_a_smaller_value_that_comes_while_it_writes(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = plain.start()
    app = plain.tree.container(plain.tree.pod(1), "app")
    real = plain.cgroups.set_limit

    def overtaken(path: str, limit: int) -> None:
        real(path, limit)
        if limit == MIB:
            write(app, "4096")

    monkeypatch.setattr(plain.cgroups, "set_limit", overtaken)
    agent.apply(state({1: limits.NO_LIMIT}, containers={1: {"app": wanted.Container(MIB, cap=True)}}))
    await until(lambda: swap_max(app) != "max")
    assert (swap_max(app), agent.standing().violations) == ("4096", [])


async def test_a_smaller_value_under_a_cap_is_not_what_is_wanted(plain: Node) -> None:
    agent = plain.start()
    app = plain.tree.container(
        plain.tree.pod(1), "app", memory_swap_max="4096\n", memory_swap_current=f"{MIB}\n", memory_current="0\n"
    )
    agent.apply(state({1: limits.NO_LIMIT}, containers={1: {"app": wanted.Container(MIB, cap=True)}}))
    agent.resync()
    assert (swap_max(app), agent.standing().violations) == ("4096", [])


async def test_cruns_inner_cgroup_gets_the_value_too(plain: Node) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    scope = plain.tree.container(pod, "app")
    agent.apply(state({1: limits.NO_LIMIT}, containers={1: {"app": wanted.Container(MIB, cap=False)}}))
    await until(lambda: swap_max(scope) == str(MIB))
    inner = plain.tree.group(scope / "container")
    await until(lambda: swap_max(inner) == str(MIB))


async def test_qos_slices_are_never_written_and_kubepods_only_on_order(node: Node) -> None:
    agent = node.start()
    slices = [node.tree.level(qos) for qos in ("burstable", "besteffort")]
    node.tree.pod(1)
    agent.apply(state({1: 0}))
    assert swap_max(node.tree.kubepods) == "max"
    agent.apply(state({1: 0}, kubepods=512 * MIB))
    assert swap_max(node.tree.kubepods) == str(512 * MIB)
    write(node.tree.kubepods, "max")
    await until(lambda: swap_max(node.tree.kubepods) == str(512 * MIB))
    agent.apply(state({1: 0}))
    assert [swap_max(path) for path in (node.tree.kubepods, *slices)] == ["max", "max", "max"]


async def test_a_pod_gone_from_the_state_keeps_its_value(plain: Node) -> None:
    agent = plain.start()
    pod = plain.tree.pod(1)
    agent.apply(state({1: MIB}))
    await until(lambda: swap_max(pod) == str(MIB))
    agent.apply(state())
    write(pod, "max")
    await until(lambda: swap_max(pod) == str(MIB))


@pytest.mark.parametrize("mode", [names.Mode.RESTORE, names.Mode.AUDIT])
async def test_restore_and_audit_put_back_what_was_there(node: Node, mode: names.Mode) -> None:
    pods = [node.tree.pod(1, memory_swap_max=f"{8 * MIB}\n"), node.tree.pod(2)]
    app = node.tree.container(pods[1], "app", memory_swap_max="0\n")
    agent = node.start()
    wants = {2: {"app": wanted.Container(MIB, cap=False)}}
    agent.apply(state({1: 0, 2: MIB}, kubepods=64 * MIB, containers=wants))
    files = [node.tree.kubepods, *pods, app]
    assert [swap_max(path) for path in files] == [str(64 * MIB), "0", str(MIB), str(MIB)]
    agent.apply(state({1: 0, 2: MIB}, kubepods=64 * MIB, containers=wants, mode=mode))
    assert [swap_max(path) for path in files] == ["max", str(8 * MIB), "max", "0"]
    assert agent.standing().to_put_back == 0
    reported = [reason for reason in reasons(agent) if reason != "Exposed"]
    assert reported == (["Audit"] * 4 if mode is names.Mode.AUDIT else [])
    agent.apply(state({1: 0, 2: MIB}, kubepods=64 * MIB, containers=wants))
    assert [swap_max(path) for path in files] == [str(64 * MIB), "0", str(MIB), str(MIB)]


async def test_restore_after_a_restart_puts_back_too(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_swap_max=f"{8 * MIB}\n")
    plain.start().apply(state({1: 0}))
    plain.stop()
    plain.start(state({1: 0})).apply(state({1: 0}, mode=names.Mode.RESTORE))
    assert swap_max(pod) == str(8 * MIB)


async def test_restore_leaves_a_value_that_comes_while_it_writes(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = plain.tree.pod(1)
    agent = plain.start()
    agent.apply(state({1: 0}))
    real = plain.cgroups.set_limit

    def overtaken(path: str, limit: int) -> None:
        real(path, limit)
        write(pod, "4096")

    monkeypatch.setattr(plain.cgroups, "set_limit", overtaken)
    agent.apply(state({1: 0}, mode=names.Mode.RESTORE))
    assert (swap_max(pod), agent.standing().to_put_back) == ("4096", 0)


async def test_restore_leaves_another_writers_value(plain: Node) -> None:
    pod = plain.tree.pod(1)
    agent = plain.start()
    agent.apply(state({1: 0}))
    write(pod, "4096")
    agent.apply(state({1: 0}, mode=names.Mode.RESTORE))
    assert swap_max(pod) == "4096"
    new = plain.tree.pod(2)
    await asyncio.sleep(0)
    agent.resync()
    assert swap_max(new) == "max"


async def test_swap_in_use_is_not_cut_where_memory_is_short(plain: Node) -> None:
    pod = plain.tree.pod(
        1, memory_max=f"{64 * MIB}\n", memory_current=f"{63 * MIB}\n", memory_swap_current=f"{32 * MIB}\n"
    )
    agent = plain.start()
    agent.apply(state({1: 0}))
    assert (swap_max(pod), reasons(agent)) == (str(48 * MIB), ["Draining"])
    write(pod, "max")
    await until(lambda: swap_max(pod) == str(48 * MIB))
    write(pod, str(16 * MIB), "memory.swap.current")
    agent.resync()
    assert swap_max(pod) == str(32 * MIB)
    write(pod, "0", "memory.swap.current")
    agent.resync()
    assert (swap_max(pod), reasons(agent)) == ("0", [])


async def test_a_draining_pod_is_looked_at_again(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforcer, "DRAIN_SECONDS", (0.01, 0.01))
    pod = plain.tree.pod(1, memory_max="4096\n", memory_swap_current=f"{32 * MIB}\n")
    plain.start().apply(state({1: 0}))
    assert swap_max(pod) == str(48 * MIB)
    write(pod, "0", "memory.swap.current")
    await until(lambda: swap_max(pod) == "0")


async def test_a_cut_pod_drains_until_no_more_is_in_use_than_wanted(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is right at once, but pages on the disk are no success."""
    monkeypatch.setattr(enforcer, "DRAIN_SECONDS", (0.01, 0.01))
    pod = plain.tree.pod(1, memory_swap_current=f"{32 * MIB}\n")
    agent = plain.start()
    agent.apply(state({1: MIB}))
    (violation,) = agent.standing().violations
    assert (swap_max(pod), violation.reason, violation.wanted) == (str(MIB), "Draining", str(MIB))
    assert (violation.swap_bytes, violation.message.split()[0]) == (32 * MIB, str(31 * MIB))
    write(pod, str(2 * MIB), "memory.swap.current")
    await until(lambda: [each.swap_bytes for each in agent.standing().violations] == [2 * MIB])
    assert reasons(agent) == ["Draining"]
    write(pod, str(MIB), "memory.swap.current")
    await until(lambda: agent.standing().violations == [])


async def test_a_pod_that_does_not_drain_is_looked_at_ever_seldomer_up_to_a_bound(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_swap_current=f"{32 * MIB}\n")
    agent = plain.start()
    agent.apply(state({1: 0}))
    now = agent._clock()
    knob = agent._pods[agent_path(plain, pod)].knob

    def wait(later: int) -> int:
        agent._clock = lambda: now + later
        agent.resync()
        assert knob.retry is not None
        return round(knob.retry.when() - asyncio.get_running_loop().time())

    assert [wait(later) for later in (0, 2, 10, 100)] == [2, 2, 5, 30]
    write(pod, str(16 * MIB), "memory.swap.current")
    assert wait(101) == 2


async def test_an_agent_that_comes_up_to_swap_in_use_above_the_limit_says_so(plain: Node) -> None:
    plain.tree.pod(1, memory_swap_max="0\n", memory_swap_current=f"{32 * MIB}\n")
    assert reasons(plain.start(state({1: 0}))) == ["Draining"]


async def test_what_is_in_the_swap_cache_is_no_reason_not_to_cut_swap(plain: Node) -> None:
    """But no success either: the pages are on the disk until the kernel looks at them again."""
    pod = plain.tree.pod(
        1, memory_max=f"{64 * MIB}\n", memory_current=f"{50 * MIB}\n", memory_swap_current=f"{32 * MIB}\n"
    )
    (pod / "memory.stat").write_text(f"swapcached {31 * MIB}\n")
    agent = plain.start()
    agent.apply(state({1: 0}))
    assert (swap_max(pod), reasons(agent)) == ("0", ["Draining"])


async def test_pods_are_cut_only_as_far_as_all_of_them_have_room(plain: Node) -> None:
    """Each would fit into the 3 GiB that the node has left; all of them would not."""
    pods = [plain.tree.pod(n, memory_swap_current=f"{1024 * MIB}\n") for n in range(4)]
    agent = plain.start()
    agent.apply(state(dict.fromkeys(range(4), 0)))
    assert sorted(swap_max(pod) for pod in pods) == ["0", "0", str(1280 * MIB), str(1280 * MIB)]
    for pod in pods:
        if swap_max(pod) == "0":
            plain.tree.remove(pod)
    await until(lambda: len(agent._pods) == 2)
    agent.resync()
    assert [swap_max(pod) for pod in pods if pod.exists()] == ["0", "0"]


async def test_page_cache_is_no_reason_not_to_cut_swap(plain: Node) -> None:
    pod = plain.tree.pod(
        1, memory_max=f"{64 * MIB}\n", memory_current=f"{63 * MIB}\n", memory_swap_current=f"{8 * MIB}\n"
    )
    (pod / "memory.stat").write_text(f"anon 1\ninactive_file {40 * MIB}\nslab 3\n")
    plain.start().apply(state({1: 0}))
    assert swap_max(pod) == "0"


async def test_a_full_container_keeps_its_pods_swap_from_being_cut(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_swap_current=f"{32 * MIB}\n")
    plain.tree.container(
        pod, "app", memory_max=f"{64 * MIB}\n", memory_current=f"{63 * MIB}\n", memory_swap_current=f"{32 * MIB}\n"
    )
    agent = plain.start()
    agent.apply(state({1: 0}))
    assert swap_max(pod) == str(48 * MIB)


async def test_the_nodes_memory_bounds_what_can_come_back(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_swap_current=f"{4096 * MIB}\n")
    plain.start().apply(state({1: 0}))
    assert swap_max(pod) == str(5120 * MIB)


async def test_swap_in_use_is_cut_where_memory_has_room_but_is_no_success_yet(plain: Node) -> None:
    pod = plain.tree.pod(1, memory_max=f"{640 * MIB}\n", memory_swap_current=f"{32 * MIB}\n")
    agent = plain.start()
    agent.apply(state({1: 0}))
    assert (swap_max(pod), reasons(agent)) == ("0", ["Draining"])


async def test_a_nested_clusters_pods_are_untouched(plain: Node) -> None:
    pod = plain.tree.pod(1)
    outer = plain.tree.container(pod, "kind")
    inner = plain.tree.group(
        outer / "kubelet.slice" / "kubelet-kubepods.slice" / "kubelet-kubepods-pod0123456789ab.slice"
    )
    agent = plain.start()
    agent.apply(state({1: MIB}))
    assert (swap_max(pod), swap_max(inner)) == (str(MIB), "max")


async def test_a_pod_that_goes_while_being_written_is_no_failure(plain: Node) -> None:
    agent = plain.start()
    for number in range(50):
        plain.tree.pod(number)
        await asyncio.sleep(0)
        plain.tree.remove(plain.tree.pod_path(number))
    await until(lambda: not agent._pods)
    agent.resync()
    assert agent.standing().violations == []


async def test_watches_and_descriptors_stay_flat(plain: Node) -> None:
    agent = plain.start()
    watches = len(agent._watched)
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 there is nothing to wait for
    for number in range(40):
        pod = plain.tree.pod(number)
        plain.tree.container(pod, "app")
        await until(lambda pod=pod: swap_max(pod) == "0")  # type: ignore[misc] # mypy sees no type for the default
        plain.tree.remove(pod)
    await until(lambda: not agent._pods)
    assert len(agent._watched) == watches
    assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208 as above
    assert list(plain.journal.paths()) == []


async def test_250_pods_at_once(plain: Node) -> None:
    agent = plain.start()
    agent.apply(state(dict.fromkeys(range(250), MIB)))
    pods = [plain.tree.pod(n) for n in range(250)]
    await until(lambda: all(swap_max(pod) == str(MIB) for pod in pods))


async def test_lost_events_are_made_up_for(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = plain.start()
    gone, changed = plain.tree.pod(1), plain.tree.pod(2)
    await until(lambda: swap_max(gone) == swap_max(changed) == "0")
    assert agent._notify is not None
    monkeypatch.setattr(agent._notify, "read", list)
    plain.tree.remove(gone)
    write(changed, "max")
    new = plain.tree.pod(3)
    agent.resync()
    assert [swap_max(changed), swap_max(new)] == ["0", "0"]
    assert len(agent._pods) == 2


async def test_a_level_made_anew_unseen_is_watched_again(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = plain.start()
    assert agent._notify is not None
    with monkeypatch.context() as lost:
        lost.setattr(agent._notify, "read", list)
        (plain.tree.root / "old").mkdir()
        plain.tree.level("burstable").rename(plain.tree.root / "old" / "level")
        plain.tree.group(plain.tree.level("burstable"))
        agent.resync()
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")


async def test_without_inotify_it_polls_and_says_so(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(inotify, "Inotify", refuse)
    monkeypatch.setattr(enforcer, "POLL_SECONDS", 0.01)
    plain.tree.remove(plain.tree.kubepods)
    agent = plain.start()
    plain.tree.group(plain.tree.kubepods)
    await until(lambda: agent.root is not None)
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    assert "max_user_instances" in agent.standing().polling


async def test_watches_that_run_out_are_made_up_for_by_polling(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforcer, "POLL_SECONDS", 0.01)
    agent = plain.start()
    assert agent._notify is not None

    def refuse(path: str, mask: int) -> int:
        raise OSError(28, "No space left on device", path, mask)

    with monkeypatch.context() as short:
        short.setattr(agent._notify, "add", refuse)
        pod = plain.tree.pod(1)
        await until(lambda: swap_max(pod) == "0")
        assert "max_user_watches" in agent.standing().polling
        write(pod, "max")
        await until(lambda: swap_max(pod) == "0")
    await until(lambda: not agent.standing().polling)
    write(pod, "max")
    await until(lambda: swap_max(pod) == "0")


async def test_the_tree_may_come_later_and_may_go(plain: Node) -> None:
    plain.tree.remove(plain.tree.kubepods)
    agent = plain.start()
    problem = agent.standing().problem
    assert problem is not None
    assert problem.reason == "NoPodTree"
    plain.tree.group(plain.tree.kubepods)
    pod = plain.tree.pod(1)
    await until(lambda: swap_max(pod) == "0")
    plain.tree.remove(plain.tree.kubepods)
    await until(lambda: agent.root is None)
    assert agent._pods == {}


async def test_the_agents_own_container_may_be_denied(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [plain.tree.pod(n) for n in (1, 2)]
    containers = [plain.tree.container(pod, "app") for pod in pods]
    agent = plain.start(own_uid=uid(1))
    real = plain.cgroups.set_limit

    def deny(path: str, limit: int) -> None:
        if "cri-containerd" in path:
            raise cgroupfs.DeniedError(f"{path}: Permission denied")
        real(path, limit)

    monkeypatch.setattr(plain.cgroups, "set_limit", deny)
    wants = {n: {"app": wanted.Container(MIB, cap=False)} for n in (1, 2)}
    agent.apply(state({1: MIB, 2: MIB}, containers=wants))
    failed = [violation.pod for violation in agent.standing().violations if violation.reason == "WriteFailed"]
    assert failed == [uid(2)]
    assert [swap_max(path) for path in containers] == ["max", "max"]


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    before = enforcer.FAULTS.value()
    yield
    assert enforcer.FAULTS.value() == before


async def test_a_file_that_never_comes_is_a_failure(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforcer, "FILE_SECONDS", (0.001, 0.01))
    agent = plain.start()
    plain.tree.pod_path(1).mkdir()
    await until(lambda: reasons(agent) == ["WriteFailed"])
    (plain.tree.pod_path(1) / "memory.swap.max").write_text("max\n")
    await until(lambda: swap_max(plain.tree.pod_path(1)) == "0" and reasons(agent) == [])


async def test_a_writer_that_is_as_fast_is_a_failure(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = plain.tree.pod(1)
    agent = plain.start()
    real = plain.cgroups.set_limit

    def contested(path: str, limit: int) -> None:
        real(path, limit)
        write(pod, "max")

    with monkeypatch.context() as other:
        other.setattr(plain.cgroups, "set_limit", contested)
        agent.apply(state({1: 0}))
        assert [reason for reason in reasons(agent) if reason != "Exposed"] == ["WriteFailed"]
    await until(lambda: swap_max(pod) == "0" and reasons(agent) == [])


async def test_pods_of_a_tree_that_was_ambiguous_at_first_were_there_before(plain: Node) -> None:
    pod = plain.tree.pod(1)
    other = plain.tree.group(plain.tree.root / "other" / "kubepods")
    agent = plain.start()
    problem = agent.standing().problem
    assert problem is not None
    assert problem.reason == "AmbiguousTree"
    plain.tree.remove(other)
    await until(lambda: agent.root is not None)
    assert swap_max(pod) == "max"
