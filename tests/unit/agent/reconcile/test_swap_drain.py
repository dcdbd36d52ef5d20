from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.reconcile import swap_drain

from tests.unit.agent.cgroup_tree import PAGE, CgroupTree, write

MIB = 1 << 20
bytes_ = st.integers(0, 1 << 30).map(lambda number: number // PAGE * PAGE)
limit_ = st.one_of(bytes_, st.just(cgroupfs.NO_LIMIT))
usage_ = st.builds(swap_drain.DrainUsage, bytes_, bytes_, limit_)
usages_ = st.lists(usage_, max_size=4)
held_ = st.none() | limit_


def settle(
    limit: int, observed: int, swap: int, usages: list[swap_drain.DrainUsage], *, held: int | None, units: bool = False
) -> tuple[int, swap_drain.Action]:
    action = swap_drain.next_write(limit, observed, swap, lambda: usages, held=held, units=units, page=PAGE)
    return (observed if action.write is None else action.write), action


@given(limit_, limit_, bytes_, usages_, held_)
def test_never_above_the_limit_or_the_use_with_room(
    limit: int, observed: int, swap: int, usages: list[swap_drain.DrainUsage], held: int | None
) -> None:
    after, action = settle(limit, observed, swap, usages, held=held)
    assert after <= max(limit, swap + max(swap // swap_drain.ROOM_SHARE, swap_drain.ROOM_BYTES))
    assert action.write is None or action.write == limit or action.write < observed


@given(limit_, limit_, bytes_, usages_, held_, st.booleans())
def test_settled_is_settled(
    limit: int, observed: int, swap: int, usages: list[swap_drain.DrainUsage], held: int | None, units: bool
) -> None:
    after, first = settle(limit, observed, swap, usages, held=held, units=units)
    _, again = settle(limit, after, swap, usages, held=held, units=units)
    assert again == swap_drain.Action(None, first.draining)


@given(limit_, limit_, bytes_, usages_, held_)
def test_swap_in_use_is_cut_only_where_everything_fits(
    limit: int, observed: int, swap: int, usages: list[swap_drain.DrainUsage], held: int | None
) -> None:
    after, _ = settle(limit, observed, swap, usages, held=held)
    if after < observed and after < swap:
        assert all((usage.memory + usage.back) * 100 <= usage.ceiling * swap_drain.FIT_PERCENT for usage in usages)


@given(limit_, limit_, bytes_, usages_)
def test_a_pod_at_its_memory_limit_keeps_room_to_swap_in(
    limit: int, observed: int, swap: int, usages: list[swap_drain.DrainUsage]
) -> None:
    full = [*usages, swap_drain.DrainUsage(100 * PAGE, swap or PAGE, 100 * PAGE)]
    after, _ = settle(limit, observed, swap, full, held=None)
    if after < observed:
        assert after >= swap + swap // swap_drain.EASE_SHARE


@given(limit_, limit_, bytes_, usages_, held_)
def test_success_means_that_the_limit_is_set_and_no_more_is_in_use(
    limit: int, observed: int, swap: int, usages: list[swap_drain.DrainUsage], held: int | None
) -> None:
    after, action = settle(limit, observed, swap, usages, held=held)
    assert action.draining == (after != limit or swap > limit)


@given(limit_, bytes_)
def test_memory_is_looked_at_only_where_swap_would_be_cut(limit: int, swap: int) -> None:
    def looked() -> list[swap_drain.DrainUsage]:
        raise AssertionError("looked")

    swap_drain.next_write(max(limit, swap * 2), cgroupfs.NO_LIMIT, swap, looked)
    swap_drain.next_write(max(limit, swap), cgroupfs.NO_LIMIT, swap, looked, held=max(limit, swap))
    swap_drain.next_write(limit, limit, swap, looked)


def test_raising_is_at_once_even_where_more_is_in_use() -> None:
    assert swap_drain.next_write(2 * PAGE, PAGE, 9 * PAGE, list) == swap_drain.Action(2 * PAGE, draining=True)


FULL = swap_drain.DrainUsage(64 * MIB, 40 * MIB, 64 * MIB)


def test_a_change_of_policy_leaves_room_for_peaks() -> None:
    assert swap_drain.next_write(0, cgroupfs.NO_LIMIT, 40 * MIB, lambda: [FULL]) == swap_drain.Action(
        56 * MIB, draining=True
    )
    assert swap_drain.next_write(0, cgroupfs.NO_LIMIT, 80 * MIB, lambda: [FULL]) == swap_drain.Action(
        100 * MIB, draining=True
    )
    assert swap_drain.next_write(42 * MIB, cgroupfs.NO_LIMIT, 40 * MIB, lambda: [FULL]).write == 56 * MIB
    assert swap_drain.next_write(45 * MIB, cgroupfs.NO_LIMIT, 40 * MIB, lambda: [FULL]).write == 45 * MIB


def test_a_repair_leaves_room_only_for_swap_taken_meanwhile() -> None:
    def repair(limit: int, swap: int) -> int | None:
        return swap_drain.next_write(limit, cgroupfs.NO_LIMIT, swap, lambda: [FULL], held=limit).write

    assert repair(40 * MIB, 40 * MIB) == 40 * MIB
    assert repair(40 * MIB, 48 * MIB) == 50 * MIB
    assert repair(0, 4 * PAGE) == 5 * PAGE


def test_a_repair_during_a_drain_leaves_the_earlier_limit_or_swap_taken_meanwhile() -> None:
    def repair(swap: int) -> int | None:
        return swap_drain.next_write(0, cgroupfs.NO_LIMIT, swap, lambda: [FULL], held=56 * MIB).write

    assert repair(56 * MIB) == repair(48 * MIB) == 56 * MIB
    assert repair(20 * MIB) == 36 * MIB, "it is lowered all the same"
    assert repair(64 * MIB) == 66 * MIB


def test_what_systemd_takes_from_what_drains_it_gets_back_unless_it_needs_it_no_more() -> None:
    def after(
        observed: int, swap: int, *usages: swap_drain.DrainUsage, limit: int = 0, cap: bool = False
    ) -> int | None:
        return swap_drain.next_write(
            limit, observed, swap, lambda: usages or [FULL], held=56 * MIB, units=True, cap=cap, page=PAGE
        ).write

    assert after(0, 40 * MIB) == after(8 * MIB, 40 * MIB) == 56 * MIB
    assert after(0, 20 * MIB) == 36 * MIB, "it is lowered all the same"
    assert after(0, 64 * MIB) == 66 * MIB
    assert after(0, 40 * MIB, swap_drain.DrainUsage(0, 40 * MIB, 64 * MIB)) is None
    assert after(8 * MIB, 40 * MIB, swap_drain.DrainUsage(0, 40 * MIB, 64 * MIB)) == 0
    assert after(0, 40 * MIB, cap=True) is None
    assert after(0, 40 * MIB, limit=64 * MIB) == 64 * MIB, "it has never held more than that"
    assert after(0, 40 * MIB, limit=48 * MIB) == 48 * MIB, "no more is in use"
    assert swap_drain.next_write(0, 0, 40 * MIB, lambda: [FULL], held=56 * MIB) == swap_drain.Action(
        None, draining=True
    )


@given(limit_, bytes_, bytes_, st.lists(bytes_, max_size=5))
def test_rewrites_do_not_raise_the_limit_of_a_pod_that_uses_all_it_may(
    limit: int, held: int, swap: int, taken: list[int]
) -> None:
    """Only what it takes while it is exposed does, with a quarter of that."""
    for more in taken:
        after, _ = settle(limit, cgroupfs.NO_LIMIT, swap + more, [FULL], held=held)
        known = max(limit, held)
        excess = max(0, swap + more - known)
        assert after <= known + excess + excess // swap_drain.ROOM_SHARE
        held, swap = after, min(after, swap + more)


def test_usage_fits_at_the_bound_and_not_above() -> None:
    assert swap_drain.DrainUsage(80, 10, 100).fits
    assert not swap_drain.DrainUsage(80, 11, 100).fits


def test_a_cap_leaves_smaller_values_alone() -> None:
    assert swap_drain.next_write(8 * PAGE, 4 * PAGE, 6 * PAGE, list, cap=True) == swap_drain.Action(
        None, draining=False
    )
    assert swap_drain.next_write(8 * PAGE, 4 * PAGE, 9 * PAGE, list, cap=True) == swap_drain.Action(None, draining=True)
    assert swap_drain.next_write(8 * PAGE, 9 * PAGE, 0, list, cap=True) == swap_drain.Action(8 * PAGE, draining=False)
    assert swap_drain.next_write(8 * PAGE, 4 * PAGE, 0, list, cap=False) == swap_drain.Action(8 * PAGE, draining=False)


def test_a_cut_to_the_limit_of_the_cgroup_above_needs_no_room() -> None:
    def cut(limit: int, above: int) -> swap_drain.Action:
        return swap_drain.next_write(limit, cgroupfs.NO_LIMIT, 40 * MIB, lambda: [FULL], above=lambda: above)

    assert cut(0, above=0) == swap_drain.Action(0, draining=True)
    assert cut(8 * MIB, above=MIB) == swap_drain.Action(8 * MIB, draining=True)
    assert cut(0, above=48 * MIB) == swap_drain.Action(48 * MIB, draining=True)
    assert cut(0, above=80 * MIB) == swap_drain.Action(56 * MIB, draining=True)


AVAILABLE = 3072 * MIB


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> CgroupTree:
    return CgroupTree(tmp_path)


@pytest.fixture
def space(tree: CgroupTree) -> swap_drain.Headroom:
    return swap_drain.Headroom(cgroupfs.Cgroups(str(tree.root), PAGE), tree.proc)


def name(tree: CgroupTree, path: pathlib.Path) -> str:
    return str(path.relative_to(tree.root))


def mib(number: int) -> str:
    return f"{number * MIB}\n"


def test_pages_in_the_swap_cache_are_in_memory_already(tree: CgroupTree, space: swap_drain.Headroom) -> None:
    pod = tree.pod(1, memory_current=mib(50), memory_swap_current=mib(40), memory_max=mib(64))
    (pod / "memory.stat").write_text(f"inactive_file {MIB}\nswapcached {38 * MIB}\n")
    node, own = space.usages(name(tree, pod))
    assert node == swap_drain.DrainUsage(0, 2 * MIB, AVAILABLE)
    assert own == swap_drain.DrainUsage(49 * MIB, 2 * MIB, 64 * MIB)
    (pod / "memory.stat").write_text(f"swapcached {41 * MIB}\n")
    assert space.swapped_out_bytes(name(tree, pod)) == 0


def test_a_kernel_that_counts_no_swap_cache(tree: CgroupTree, space: swap_drain.Headroom) -> None:
    pod = tree.pod(1, memory_swap_current=mib(40))
    (pod / "memory.stat").write_text("anon 4096\n")
    assert space.swapped_out_bytes(name(tree, pod)) == 40 * MIB
    (pod / "memory.stat").unlink()
    assert space.swapped_out_bytes(name(tree, pod)) == 40 * MIB


def test_an_unreadable_stat_shows_no_swap_cache(
    tree: CgroupTree, space: swap_drain.Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise cgroupfs.DeniedError("closed")

    pod = tree.pod(1, memory_swap_current=mib(40))
    monkeypatch.setattr(cgroupfs.Cgroups, "stat", denied)
    assert space.swapped_out_bytes(name(tree, pod)) == 40 * MIB


def test_the_least_of_memory_max_and_memory_high_is_the_ceiling(tree: CgroupTree, space: swap_drain.Headroom) -> None:
    pod = tree.pod(1, memory_swap_current=mib(4), memory_max=mib(64), memory_high=mib(32))
    assert [usage.ceiling for usage in space.usages(name(tree, pod))] == [AVAILABLE, 32 * MIB]
    (pod / "memory.high").unlink()
    assert [usage.ceiling for usage in space.usages(name(tree, pod))] == [AVAILABLE, 64 * MIB]


def test_pages_that_return_to_a_container_return_to_its_pod_and_to_kubepods(
    tree: CgroupTree, space: swap_drain.Headroom
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


def test_containers_with_swap_in_use_count_and_others_do_not(tree: CgroupTree, space: swap_drain.Headroom) -> None:
    pod = tree.pod(1, memory_swap_current=mib(30))
    tree.container(pod, "full", memory_current=mib(63), memory_swap_current=mib(30), memory_max=mib(64))
    tree.container(pod, "calm", memory_current=mib(64), memory_max=mib(64))
    assert list(space.usages(name(tree, pod)))[1:] == [swap_drain.DrainUsage(63 * MIB, 30 * MIB, 64 * MIB)]


def test_pages_about_to_return_elsewhere_also_need_room(tree: CgroupTree, space: swap_drain.Headroom) -> None:
    first, second = (tree.pod(number, memory_swap_current=mib(100)) for number in (1, 2))
    write(tree.kubepods, str(900 * MIB), "memory.max")
    write(tree.kubepods, str(700 * MIB), "memory.current")
    space.reserve(name(tree, first))
    node, kubepods = space.usages(name(tree, second))
    assert (node.back, kubepods.back) == (200 * MIB, 200 * MIB)
    assert [usage.back for usage in space.usages(name(tree, first))] == [100 * MIB, 100 * MIB]
    space.release(name(tree, first))
    assert [usage.back for usage in space.usages(name(tree, second))] == [100 * MIB, 100 * MIB]


def test_pages_that_return_to_a_pod_and_its_containers_count_once(tree: CgroupTree, space: swap_drain.Headroom) -> None:
    """Both are cut where a plan gives less to each."""
    first, second = (tree.pod(number, memory_swap_current=mib(100)) for number in (1, 2))
    inner = [tree.container(first, each, memory_swap_current=mib(50)) for each in ("app", "sidecar")]
    for cut in (*inner, first):
        space.reserve(name(tree, cut))
    assert [usage.back for usage in space.usages(name(tree, second))] == [200 * MIB]
    assert [usage.back for usage in space.usages(name(tree, inner[0]))] == [100 * MIB]
    space.release(name(tree, first))
    assert [usage.back for usage in space.usages(name(tree, second))] == [200 * MIB]


def test_a_cgroup_that_is_removed_meanwhile_needs_no_room(tree: CgroupTree, space: swap_drain.Headroom) -> None:
    pod = tree.pod(1, memory_swap_current=mib(30), memory_max=mib(64))
    usages = space.usages(name(tree, pod))
    next(usages)
    tree.remove(pod)
    assert list(usages) == []
    space.reserve(name(tree, pod))
    assert space.swapped_out_bytes(name(tree, pod)) == 0
