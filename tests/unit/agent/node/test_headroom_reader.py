"""The headroom has the numbers of the files; swap counts where a cgroup can use it."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from swapwarden.agent.node import headroom_reader

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
