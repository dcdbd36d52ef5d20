"""The headroom has the numbers of the files; swap counts where a cgroup can use it."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.node import headroom_reader
from swapwarden.agent.node.headroom_reader import NodeSizes, PodsSizes, SwapSpace, freed

from tests.unit.agent import host_tree
from tests.unit.agent.agent_node import MIB, Node
from tests.unit.agent.cgroup_tree import PAGE

FREE = 200
FILE = 30
MINIMUM = host_tree.MIN_PAGES * PAGE
BESIDE = FREE + FILE + 5
"""MiB of headroom without swap, with half of the slab, above the watermark."""
MEMINFO = f"""\
MemTotal: {1024 * 1024} kB
MemFree: {FREE * 1024 + MINIMUM // 1024} kB
Active(file): {10 * 1024} kB
Inactive(file): {20 * 1024} kB
SReclaimable: {10 * 1024} kB
SwapTotal: {512 * 1024} kB
SwapFree: {400 * 1024} kB
"""


@pytest.fixture
def node(plain: Node) -> Node:
    (plain.tree.proc / "meminfo").write_text(MEMINFO)
    (plain.tree.proc / "zoneinfo").write_text(host_tree.ZONEINFO)
    holding(plain.tree.kubepods, 0, "max")
    return plain


def holding(path: pathlib.Path, anonymous: int, limit: str | int, used: int = 0) -> pathlib.Path:
    """Sizes in MiB."""
    half = anonymous * MIB // 2
    (path / "memory.stat").write_text(f"anon 1\nactive_anon {half}\ninactive_anon {half}\n")
    (path / "memory.swap.max").write_text(f"{limit if limit == 'max' else int(limit) * MIB}\n")
    (path / "memory.swap.current").write_text(f"{used * MIB}\n")
    return path


async def headroom(node: Node) -> dict[str, float]:
    """By scope, in MiB."""
    agent = node.start()
    reader = headroom_reader.HeadroomReader(
        node.cgroups, node.tree.proc, node.tree.proc.parent / "block", agent.inventory
    )
    sizes = await reader.read(lambda: asyncio.sleep(0))
    return {scope.lower(): size / MIB for scope, size in sizes.items()}


async def test_without_pods(node: Node) -> None:
    assert await headroom(node) == {"node": BESIDE}


@pytest.mark.parametrize(
    ("anonymous", "limit", "used", "swappable"),
    [
        (100, "max", 0, 100),
        (100, 60, 0, 60),
        (100, 60, 50, 10),
        (100, 60, 70, 0),
        (100, 0, 0, 0),
        (0, 300, 0, 0),
        (900, "max", 0, 400),
    ],
)
async def test_a_pod_counts_with_the_memory_that_it_can_swap(
    node: Node, anonymous: int, limit: str | int, used: int, swappable: int
) -> None:
    holding(node.tree.pod(1), anonymous, limit, used)
    assert await headroom(node) == {"node": BESIDE + swappable}


async def test_what_a_pod_swaps_to_zram_takes_memory_there(node: Node) -> None:
    """A third of it, as of the 60 MiB there."""
    zram = node.tree.proc.parent / "block/zram0"
    zram.mkdir(parents=True)
    (zram / "mm_stat").write_text(f"{60 * MIB} 0 {20 * MIB} 0 0 0 0 0 0\n")
    (node.tree.proc / "swaps").write_text(f"Filename\n/dev/zram0 partition {512 * 1024} {60 * 1024} -2\n")
    holding(node.tree.pod(1), 90, "max")
    assert await headroom(node) == {"node": pytest.approx(BESIDE + 60)}


async def test_a_pod_without_a_limit_is_bound_by_those_of_its_containers(node: Node) -> None:
    pod = holding(node.tree.pod(1), 200, "max")
    holding(node.tree.container(pod, "app"), 100, 30)
    holding(node.tree.container(pod, "other"), 100, 0)
    assert await headroom(node) == {"node": BESIDE + 30}


async def test_limits_above_pods_bound_all_of_them(node: Node) -> None:
    for number in (1, 2):
        holding(node.tree.pod(number), 100, "max")
    assert await headroom(node) == {"node": BESIDE + 200}
    holding(node.tree.kubepods, 0, 150, used=30)
    assert await headroom(node) == {"node": BESIDE + 120}


async def test_other_slices_count(node: Node) -> None:
    holding(node.tree.group(node.tree.root / "user.slice"), 40, "max")
    assert await headroom(node) == {"node": BESIDE + 40}


async def test_the_limit_of_all_pods_has_a_headroom_of_its_own(node: Node) -> None:
    holding(node.tree.pod(1), 100, 25)
    (node.tree.kubepods / "memory.max").write_text(f"{500 * MIB}\n")
    (node.tree.kubepods / "memory.current").write_text(f"{450 * MIB}\n")
    (node.tree.kubepods / "memory.stat").write_text(f"active_file {3 * MIB}\ninactive_file {4 * MIB}\n")
    assert await headroom(node) == {"node": BESIDE + 25, "pods": 50 + 7 + 25}


@pytest.mark.parametrize("missing", ["MemFree", "Active(file)", "Inactive(file)", "SwapFree"])
async def test_no_value_without_its_sizes(node: Node, missing: str) -> None:
    lines = MEMINFO.splitlines(keepends=True)
    (node.tree.proc / "meminfo").write_text("".join(line for line in lines if not line.startswith(missing)))
    assert await headroom(node) == {}


async def test_no_value_without_watermarks(node: Node) -> None:
    (node.tree.proc / "zoneinfo").unlink()
    assert await headroom(node) == {}


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


def headroom_of_run(free: int, file: int, swap_free: int, anonymous: int, *devices: SwapSpace) -> float:
    memory = NodeSizes(free * MIB, minimum=43 * MIB, file=file * MIB, slab=0, swap_free=swap_free * MIB)
    return headroom_reader.node_headroom(memory, anonymous * MIB, devices) / MIB


def test_a_node_that_swaps_well_has_headroom_until_swap_is_nearly_full() -> None:
    by_time = {at: headroom_of_run(*sizes) for at, sizes in RUN.items()}
    assert [at for at, left in by_time.items() if left < 0.1 * TOTAL] == [57.2, 58.3]
    assert [at for at, left in by_time.items() if left < 0.05 * TOTAL] == [58.3]
    assert by_time[30.6] > 0.5 * TOTAL, "free memory was below 10 % then"


def test_swap_that_nobody_can_use_is_no_headroom() -> None:
    """One pod may not swap, and all of the other has been swapped: 500 MiB of swap are free."""
    assert headroom_of_run(free=50, file=2, swap_free=500, anonymous=0) == 9


def zram(free: int, original: int = 100, used: int = 25, *, priority: int = 100, limit: int = 0) -> SwapSpace:
    return SwapSpace(free * MIB, priority, original * MIB, used * MIB, limit * MIB, in_memory=True)


def test_zram_gives_less_than_it_takes() -> None:
    assert headroom_of_run(63, 0, 100, 100, zram(100)) == 20 + 75


def test_memory_that_does_not_compress_finds_no_room_in_zram() -> None:
    assert headroom_of_run(50, 2, 1000, 800, zram(1000, used=100)) == 9


def test_slab_counts_half_and_free_memory_below_the_watermark_not_at_all() -> None:
    memory = NodeSizes(free=10 * MIB, minimum=43 * MIB, file=0, slab=8 * MIB, swap_free=0)
    assert headroom_reader.node_headroom(memory, 0, ()) == 4 * MIB


def test_of_all_pods() -> None:
    assert headroom_reader.pods_headroom(PodsSizes(left=100, file=20), 3) == 123
    assert headroom_reader.pods_headroom(PodsSizes(left=-5, file=20), 0) == 20


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
    less, more = (headroom_reader.node_headroom(memory, each, devices) for each in sorted((one, other)))
    assert 0 <= less <= more
    assert freed(devices, one) <= one


def test_free_space_and_the_memory_that_zram_keeps(tmp_path: pathlib.Path) -> None:
    (tmp_path / "zram0").mkdir()
    (tmp_path / "zram0/mm_stat").write_text("104857600 30000000 31457280 67108864 32000000 0 0 0 0\n")
    (tmp_path / "swaps").write_text(
        "Filename\tType\tSize\tUsed\tPriority\n"
        "/dev/zram0\tpartition\t204800\t102400\t100\n"
        "/dev/zram1\tpartition\t1024\t0\t99\n"
        "/dev/zram0/../../etc\tpartition\t1024\t0\t99\n"
        "/dev/vda\tpartition\t2048\t4096\t-2\n"
        "/dev/vdb\tpartition\tx\t0\t-2\n"
        "/dev/vdb\tpartition\t2048\t0\tx\n"
        "/dev/vdc\n"
    )
    assert headroom_reader.swap_space(tmp_path, tmp_path) == [
        headroom_reader.SwapSpace(100 << 20, 100, 100 << 20, 30 << 20, 64 << 20, in_memory=True),
        headroom_reader.SwapSpace(1 << 20, 99, in_memory=True),
        headroom_reader.SwapSpace(1 << 20, 99),
        headroom_reader.SwapSpace(0, -2),
    ]
    assert headroom_reader.swap_space(tmp_path / "none", tmp_path) == []
