from __future__ import annotations

import pathlib

import pytest
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.reconcile import headroom, swap_drain

from tests.unit.agent.cgroup_tree import PAGE, CgroupTree, write

MIB = 1 << 20
AVAILABLE = 3072 * MIB


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> CgroupTree:
    return CgroupTree(tmp_path)


@pytest.fixture
def space(tree: CgroupTree) -> headroom.Headroom:
    return headroom.Headroom(cgroupfs.Cgroups(str(tree.root), PAGE), tree.proc)


def name(tree: CgroupTree, path: pathlib.Path) -> str:
    return str(path.relative_to(tree.root))


def mib(number: int) -> str:
    return f"{number * MIB}\n"


def test_pages_in_the_swap_cache_are_in_memory_already(tree: CgroupTree, space: headroom.Headroom) -> None:
    pod = tree.pod(1, memory_current=mib(50), memory_swap_current=mib(40), memory_max=mib(64))
    (pod / "memory.stat").write_text(f"inactive_file {MIB}\nswapcached {38 * MIB}\n")
    node, own = space.usages(name(tree, pod))
    assert node == swap_drain.DrainUsage(0, 2 * MIB, AVAILABLE)
    assert own == swap_drain.DrainUsage(49 * MIB, 2 * MIB, 64 * MIB)
    (pod / "memory.stat").write_text(f"swapcached {41 * MIB}\n")
    assert space.swapped_out_bytes(name(tree, pod)) == 0


def test_a_kernel_that_counts_no_swap_cache(tree: CgroupTree, space: headroom.Headroom) -> None:
    pod = tree.pod(1, memory_swap_current=mib(40))
    (pod / "memory.stat").write_text("anon 4096\n")
    assert space.swapped_out_bytes(name(tree, pod)) == 40 * MIB
    (pod / "memory.stat").unlink()
    assert space.swapped_out_bytes(name(tree, pod)) == 40 * MIB


def test_an_unreadable_stat_shows_no_swap_cache(
    tree: CgroupTree, space: headroom.Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise cgroupfs.DeniedError("closed")

    pod = tree.pod(1, memory_swap_current=mib(40))
    monkeypatch.setattr(cgroupfs.Cgroups, "stat", denied)
    assert space.swapped_out_bytes(name(tree, pod)) == 40 * MIB


def test_the_least_of_memory_max_and_memory_high_is_the_ceiling(tree: CgroupTree, space: headroom.Headroom) -> None:
    pod = tree.pod(1, memory_swap_current=mib(4), memory_max=mib(64), memory_high=mib(32))
    assert [usage.ceiling for usage in space.usages(name(tree, pod))] == [AVAILABLE, 32 * MIB]
    (pod / "memory.high").unlink()
    assert [usage.ceiling for usage in space.usages(name(tree, pod))] == [AVAILABLE, 64 * MIB]


def test_pages_that_return_to_a_container_return_to_its_pod_and_to_kubepods(
    tree: CgroupTree, space: headroom.Headroom
) -> None:
    pod = tree.pod(1, memory_current=mib(60), memory_swap_current=mib(30), memory_max=mib(64))
    app = tree.container(pod, "app", memory_current=mib(20), memory_swap_current=mib(10), memory_max=mib(40))
    write(tree.kubepods, str(900 * MIB), "memory.max")
    write(tree.kubepods, str(800 * MIB), "memory.current")
    assert list(space.usages(name(tree, app))) == [
        swap_drain.DrainUsage(0, 10 * MIB, AVAILABLE),
        swap_drain.DrainUsage(60 * MIB, 10 * MIB, 64 * MIB),
        swap_drain.DrainUsage(800 * MIB, 10 * MIB, 900 * MIB),
        swap_drain.DrainUsage(20 * MIB, 10 * MIB, 40 * MIB),
    ]


def test_containers_with_swap_in_use_count_and_others_do_not(tree: CgroupTree, space: headroom.Headroom) -> None:
    pod = tree.pod(1, memory_swap_current=mib(30))
    tree.container(pod, "full", memory_current=mib(63), memory_swap_current=mib(30), memory_max=mib(64))
    tree.container(pod, "calm", memory_current=mib(64), memory_max=mib(64))
    assert list(space.usages(name(tree, pod)))[1:] == [swap_drain.DrainUsage(63 * MIB, 30 * MIB, 64 * MIB)]


def test_pages_about_to_return_elsewhere_also_need_room(tree: CgroupTree, space: headroom.Headroom) -> None:
    first, second = (tree.pod(number, memory_swap_current=mib(100)) for number in (1, 2))
    write(tree.kubepods, str(900 * MIB), "memory.max")
    write(tree.kubepods, str(700 * MIB), "memory.current")
    space.reserve(name(tree, first))
    node, kubepods = space.usages(name(tree, second))
    assert (node.back, kubepods.back) == (200 * MIB, 200 * MIB)
    assert [usage.back for usage in space.usages(name(tree, first))] == [100 * MIB, 100 * MIB]
    space.release(name(tree, first))
    assert [usage.back for usage in space.usages(name(tree, second))] == [100 * MIB, 100 * MIB]


def test_pages_that_return_to_a_pod_and_its_containers_count_once(tree: CgroupTree, space: headroom.Headroom) -> None:
    """Both are cut where a plan gives less to each."""
    first, second = (tree.pod(number, memory_swap_current=mib(100)) for number in (1, 2))
    inner = [tree.container(first, each, memory_swap_current=mib(50)) for each in ("app", "sidecar")]
    for cut in (*inner, first):
        space.reserve(name(tree, cut))
    assert [usage.back for usage in space.usages(name(tree, second))] == [200 * MIB]
    assert [usage.back for usage in space.usages(name(tree, inner[0]))] == [100 * MIB]
    space.release(name(tree, first))
    assert [usage.back for usage in space.usages(name(tree, second))] == [200 * MIB]


def test_a_cgroup_that_is_removed_meanwhile_needs_no_room(tree: CgroupTree, space: headroom.Headroom) -> None:
    pod = tree.pod(1, memory_swap_current=mib(30), memory_max=mib(64))
    usages = space.usages(name(tree, pod))
    next(usages)
    tree.remove(pod)
    assert list(usages) == []
    space.reserve(name(tree, pod))
    assert space.swapped_out_bytes(name(tree, pod)) == 0
