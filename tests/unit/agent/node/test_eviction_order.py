"""Beside recorded runs on a real kernel: 1 GiB of memory, vm.min_free_kbytes 45056, one process that grows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.node.eviction_order import FirstEvent, NodeMemory, PodsMemory, find, steady

MIB = 1 << 20
CACHE = 305
"""MiB of inactive file pages in one of the runs: kswapd woke at 392 MiB available, and swapped from 93 MiB on."""
STARTED = NodeMemory(
    total=960 * MIB,
    free=(606 + CACHE) * MIB,
    inactive_file=0,
    kernel=34 * MIB,
    slab=9 * MIB,
    minimum=43 * MIB,
    low=54 * MIB,
)
"""At the start of it, had nothing been read before. The OOM killer struck at 80 MiB available."""
CACHED = msgspec.structs.replace(STARTED, free=606 * MIB, inactive_file=CACHE * MIB)
LIMITED = msgspec.structs.replace(STARTED, kernel=41 * MIB, slab=0, pods=PodsMemory(limit=700 * 10**6, working_set=0))
"""A run with a limit of all pods: they had 100 MiB left three seconds before the first page was swapped."""


def first(memory: NodeMemory, threshold: int, *, limits_pods: bool = True) -> FirstEvent:
    order = find(memory, lambda _: threshold * MIB, limits_pods=limits_pods)
    assert order is not None
    return order.first


@pytest.mark.parametrize("memory", [STARTED, CACHED])
@pytest.mark.parametrize(
    ("threshold", "event"),
    [
        (0, FirstEvent.OOM_KILLER),
        (60, FirstEvent.OOM_KILLER),
        (85, FirstEvent.SWAP),
        (104, FirstEvent.NODE_EVICTION),
        (200, FirstEvent.NODE_EVICTION),
    ],
)
def test_the_nodes_threshold(memory: NodeMemory, threshold: int, event: FirstEvent) -> None:
    """The page cache delays swapping as it delays the eviction."""
    assert first(memory, threshold) is event


def test_memory_of_the_kernel_keeps_the_kubelet_from_evicting() -> None:
    """As seen: OOM kills at 90 and 87 MiB available, 41 of them used by the kernel."""
    seen = msgspec.structs.replace(STARTED, kernel=41 * MIB, slab=0, minimum=44 * MIB)
    assert first(seen, 80) is FirstEvent.OOM_KILLER
    assert first(seen, 86) is FirstEvent.SWAP
    assert first(msgspec.structs.replace(seen, kernel=400 * MIB), 100) is FirstEvent.OOM_KILLER


def test_slab_that_can_be_reclaimed_is_no_proof_of_an_oom_kill() -> None:
    assert first(msgspec.structs.replace(STARTED, kernel=400 * MIB, slab=350 * MIB), 100) is FirstEvent.SWAP


def test_the_limit_of_all_pods() -> None:
    assert first(LIMITED, 100) is FirstEvent.PODS_EVICTION
    assert first(LIMITED, 100, limits_pods=False) is FirstEvent.NODE_EVICTION
    assert first(LIMITED, 90, limits_pods=False) is FirstEvent.SWAP
    assert first(LIMITED, 0) is FirstEvent.OOM_KILLER


def test_with_as_much_reserved_as_the_remedy_says_pods_swap() -> None:
    order = find(LIMITED, lambda _: 90 * MIB, limits_pods=True)
    assert order is not None
    assert order.reservable < order.reserved
    for reserved, event in ((order.reservable, FirstEvent.SWAP), (order.reservable + 1, FirstEvent.PODS_EVICTION)):
        pods = PodsMemory(LIMITED.total - reserved, working_set=0)
        assert first(msgspec.structs.replace(LIMITED, pods=pods), 90) is event


def test_an_eviction_by_the_limit_of_pods_counts_before_an_oom_kill() -> None:
    # Pods swap from 857 MiB on, and the kernel is out of memory when they use 877 MiB.
    for limit, event in ((950, FirstEvent.OOM_KILLER), (930, FirstEvent.SWAP), (910, FirstEvent.PODS_EVICTION)):
        pods = PodsMemory(limit * MIB, working_set=0)
        assert first(msgspec.structs.replace(STARTED, pods=pods), 60) is event


def test_memory_of_pods_does_not_count_as_memory_beside_them() -> None:
    used = msgspec.structs.replace(
        LIMITED, free=LIMITED.free - 300 * MIB, pods=PodsMemory(700 * 10**6, working_set=300 * MIB)
    )
    before, after = (find(each, lambda _: 90 * MIB, limits_pods=True) for each in (LIMITED, used))
    assert before == after


def test_both_thresholds_too_high() -> None:
    pods = msgspec.structs.replace(LIMITED, pods=PodsMemory(960 * MIB, working_set=0))
    assert first(pods, 200) is FirstEvent.NODE_EVICTION
    assert first(LIMITED, 200) is FirstEvent.PODS_EVICTION


def test_an_invalid_threshold() -> None:
    assert find(STARTED, lambda _: None, limits_pods=True) is None


def test_a_threshold_in_percent_is_of_the_limit_for_pods() -> None:
    order = find(LIMITED, lambda memory: memory // 10, limits_pods=True)
    assert order is not None
    assert (order.threshold, order.pods_threshold) == (96 * MIB, 630 * 10**6)


SIZES = st.integers(0, 1 << 50)
MEMORIES = st.builds(
    NodeMemory,
    *[SIZES] * 7,
    pods=st.none() | st.builds(PodsMemory, SIZES, SIZES),
)


@given(MEMORIES, SIZES, SIZES)
def test_a_higher_threshold_never_has_the_kubelet_evict_later(memory: NodeMemory, one: int, other: int) -> None:
    order = [FirstEvent.OOM_KILLER, FirstEvent.SWAP, FirstEvent.NODE_EVICTION]
    orders = [find(memory, lambda _, each=each: each, limits_pods=False) for each in sorted((one, other))]  # type: ignore[misc]  # mypy infers no type for a default of a lambda
    places = [order.index(each.first) for each in orders if each is not None]
    assert places == sorted(places)
    assert len(places) == 2


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"free": STARTED.free - 5 * MIB, "kernel": 45 * MIB}, True),
        ({"kernel": 60 * MIB}, False),
        ({"slab": 30 * MIB}, False),
        ({"free": STARTED.free - 17 * MIB}, False),
        ({"free": STARTED.free - 300 * MIB, "inactive_file": 300 * MIB}, True),
        ({"low": 55 * MIB}, False),
        ({"minimum": 44 * MIB}, False),
        ({"pods": PodsMemory(700 * MIB, 0)}, False),
    ],
)
def test_only_a_real_change_counts(changes: dict[str, Any], same: bool) -> None:
    now = msgspec.structs.replace(STARTED, **changes)
    assert steady(STARTED, now) is (STARTED if same else now)


def test_the_first_and_the_last_look_count() -> None:
    assert steady(None, STARTED) is STARTED
    assert steady(STARTED, None) is None


def test_pods_that_grow_are_no_change() -> None:
    grown = msgspec.structs.replace(
        LIMITED, free=LIMITED.free - 300 * MIB, pods=PodsMemory(700 * 10**6, working_set=300 * MIB)
    )
    assert steady(LIMITED, grown) is LIMITED
