"""Beside a recorded run on a real kernel: 960 MiB of memory, 512 MiB of swap on a disk, one process that grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.node import memory_headroom
from swapwarden.agent.node.memory_headroom import NodeSizes, PodsSizes, SwapSpace, freed

MIB = 1 << 20
TOTAL = 960
RUN = {
    0.0: (899, 6, 511, 12),
    30.6: (92, 6, 511, 826),
    48.9: (54, 6, 331, 853),
    54.1: (68, 6, 161, 830),
    56.2: (65, 2, 76, 833),
    57.2: (63, 2, 32, 826),
    58.3: (55, 2, 5, 832),
}
"""By seconds, in MiB: free memory, file pages, free swap, anonymous memory. The OOM killer struck at 68.5 s."""


def headroom(free: int, file: int, swap_free: int, anonymous: int, *devices: SwapSpace) -> float:
    memory = NodeSizes(free * MIB, minimum=43 * MIB, file=file * MIB, slab=0, swap_free=swap_free * MIB)
    return memory_headroom.of_node(memory, anonymous * MIB, devices) / MIB


def test_a_node_that_swaps_well_has_headroom_until_swap_is_nearly_full() -> None:
    by_time = {at: headroom(*sizes) for at, sizes in RUN.items()}
    assert [at for at, left in by_time.items() if left < 0.1 * TOTAL] == [57.2, 58.3]
    assert [at for at, left in by_time.items() if left < 0.05 * TOTAL] == [58.3]
    assert by_time[30.6] > 0.5 * TOTAL, "free memory was below 10 % then"


def test_swap_that_nobody_can_use_is_no_headroom() -> None:
    """One pod may not swap, and all of the other has been swapped: 500 MiB of swap are free."""
    assert headroom(free=50, file=2, swap_free=500, anonymous=0) == 9


def zram(free: int, original: int = 100, used: int = 25, *, priority: int = 100, limit: int = 0) -> SwapSpace:
    return SwapSpace(free * MIB, priority, original * MIB, used * MIB, limit * MIB, in_memory=True)


def test_zram_gives_less_than_it_takes() -> None:
    assert headroom(63, 0, 100, 100, zram(100)) == 20 + 75


def test_memory_that_does_not_compress_finds_no_room_in_zram() -> None:
    assert headroom(50, 2, 1000, 800, zram(1000, used=100)) == 9


def test_slab_counts_half_and_free_memory_below_the_watermark_not_at_all() -> None:
    memory = NodeSizes(free=10 * MIB, minimum=43 * MIB, file=0, slab=8 * MIB, swap_free=0)
    assert memory_headroom.of_node(memory, 0, ()) == 4 * MIB


def test_of_all_pods() -> None:
    assert memory_headroom.of_pods(PodsSizes(left=100, file=20), 3) == 123
    assert memory_headroom.of_pods(PodsSizes(left=-5, file=20), 0) == 20


DISK = SwapSpace(300 * MIB, -2)


@pytest.mark.parametrize(
    ("devices", "size", "gained"),
    [
        pytest.param([], 40, 40, id="unknown devices"),
        pytest.param([DISK], 40, 40, id="a disk"),
        pytest.param([zram(100, original=0)], 40, 20, id="zram that has shown nothing"),
        pytest.param([zram(100, used=30)], 40, 28, id="zram"),
        pytest.param([zram(100, used=130)], 40, 0, id="zram of which most is unused pieces"),
        pytest.param([DISK, zram(100)], 100, 75, id="zram is filled first"),
        pytest.param([DISK, zram(100)], 200, 75 + 100, id="and then the disk"),
        pytest.param([DISK, zram(100, priority=-3)], 100, 100, id="the disk is filled first"),
        pytest.param([DISK, zram(0)], 100, 100, id="zram is full"),
        pytest.param([zram(100, limit=35)], 100, 30, id="zram may take 10 MiB more, of 40"),
        pytest.param([zram(100, limit=20)], 100, 0, id="zram may take nothing"),
        pytest.param([zram(100, used=0, limit=20)], 100, 100, id="zeros take nothing"),
    ],
)
def test_memory_that_is_free_once_so_much_is_swapped(devices: list[SwapSpace], size: int, gained: int) -> None:
    assert freed(devices, size * MIB) / MIB == pytest.approx(gained)


SIZES = st.integers(0, 1 << 50)
DEVICES = st.lists(st.builds(SwapSpace, SIZES, st.integers(-9, 9), SIZES, SIZES, SIZES, st.booleans()), max_size=4)


@given(st.builds(NodeSizes, *[SIZES] * 5), SIZES, SIZES, DEVICES)
def test_more_that_can_be_swapped_never_leaves_less(
    memory: NodeSizes, one: int, other: int, devices: list[SwapSpace]
) -> None:
    less, more = (memory_headroom.of_node(memory, each, devices) for each in sorted((one, other)))
    assert 0 <= less <= more
    assert freed(devices, one) <= one
