"""Metrics of swap have the numbers of the files, bounded, and no value without a file."""

from __future__ import annotations

import asyncio
import math
import pathlib
from collections.abc import Iterator

import pytest
from swapwarden.agent.inventory import exposure
from swapwarden.agent.ledger import runtime_records
from swapwarden.agent.node import headroom_reader, swap_metrics
from swapwarden.api.names import Cause
from swapwarden.telemetry import metrics

from tests.unit.agent.agent_node import MIB, Node
from tests.unit.agent.cgroup_tree import PAGE, container_id, uid, write

GIB = 1 << 30
SWAP_EVENTS = "high 0\nmax {0}\nfail {0}\n"
MEMORY_EVENTS = "low 0\nhigh 1\nmax 2\noom 3\noom_kill 4\noom_group_kill 5\n"
PRESSURE = (
    "some avg10=0.00 avg60=0.10 avg300=0.05 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1250000\n"
)
VMSTAT = "nr_free_pages 7\npswpin 10\npswpout 20\nworkingset_refault_anon 30\nworkingset_refault_file 40\n"


@pytest.fixture(autouse=True)
def _published() -> Iterator[None]:
    """Metrics are the process's."""
    yield
    for metric in swap_metrics.READINGS:
        metric.hold({})


def values(metric: metrics.Reading) -> dict[tuple[str, ...], float]:
    """By label values."""
    return {tuple(text for _, text in sample.labels): sample.value for sample in metric.samples()}


class Reader:
    """Reads a node's files, as often as it is asked to."""

    def __init__(self, node: Node, top: int = 50, step: float = 0.0) -> None:
        """`step` are the seconds that pass between two looks at the clock."""
        agent = node.start()
        self.now = 0.0
        self.step = step
        self.usage = swap_metrics.SwapUsage(
            node.cgroups,
            node.tree.proc,
            node.tree.proc.parent / "sys",
            top=top,
            known=agent.inventory,
            runtime=node.ledger.runtime,
            clock=self.clock,
        )

    def clock(self) -> float:
        self.now += self.step
        return self.now

    async def read(self) -> None:
        self.now += swap_metrics.FRESH_SECONDS
        await self.usage.refresh()


def node_files(node: Node) -> None:
    proc = node.tree.proc
    (proc / "meminfo").write_text("MemTotal: 4194304 kB\nSwapTotal: 1048576 kB\nSwapFree: 786432 kB\n")
    (proc / "vmstat").write_text(VMSTAT)
    (proc / "pressure").mkdir()
    for resource in ("cpu", "memory", "io"):
        (proc / "pressure" / resource).write_text(PRESSURE)


def using(path: pathlib.Path, used: int, limit: str = "max") -> pathlib.Path:
    (path / "memory.swap.current").write_text(f"{used}\n")
    (path / "memory.swap.max").write_text(f"{limit}\n")
    return path


async def test_the_node(plain: Node) -> None:
    node_files(plain)
    using(plain.tree.kubepods, 0, str(768 * MIB))
    using(plain.tree.pod(1), 0, str(256 * MIB))
    await Reader(plain).read()
    assert values(swap_metrics.TOTAL) == {(): GIB}
    assert values(swap_metrics.USED) == {(): 256 * MIB}
    assert values(swap_metrics.ACCESSIBLE) == {(): 768 * MIB}
    assert values(swap_metrics.RESERVED) == {(): 256 * MIB}
    assert values(swap_metrics.UNASSIGNED) == {(): 512 * MIB}
    assert values(swap_metrics.SWAPPED_IN) == {(): 10 * PAGE}
    assert values(swap_metrics.SWAPPED_OUT) == {(): 20 * PAGE}
    assert values(swap_metrics.REFAULTS) == {("anon",): 30, ("file",): 40}
    stalled = {(resource, kind): s for resource in ("memory", "io") for kind, s in (("some", 2.5), ("full", 1.25))}
    assert values(swap_metrics.STALLED) == stalled


async def test_what_cannot_be_read_is_left_out(plain: Node) -> None:
    for file in ("meminfo", "swaps"):
        (plain.tree.proc / file).unlink()
    pod = plain.tree.pod(1)
    reader = Reader(plain)
    for file in ("memory.swap.current", "memory.swap.max"):
        (pod / file).unlink()
        (plain.tree.kubepods / file).unlink()
    await reader.read()
    assert [metric.name for metric in swap_metrics.READINGS if values(metric)] == []
    assert "swapwarden_node_swap_total_bytes 0" not in metrics.REGISTRY.render()


async def test_no_difference_underflows(plain: Node) -> None:
    (plain.tree.proc / "meminfo").write_text("SwapTotal: 1024 kB\nSwapFree: 2048 kB\n")
    for number in (1, 2):
        using(plain.tree.pod(number), 0, str(MIB))
    await Reader(plain).read()
    assert values(swap_metrics.USED) == {(): 0}
    assert values(swap_metrics.UNASSIGNED) == {(): 0}
    assert values(swap_metrics.RESERVED) == {(): 0}


@pytest.mark.parametrize("naming", ["systemd", "cgroupfs", "kind"])
async def test_the_effective_limit_is_the_least_of_all_above(tmp_path: pathlib.Path, naming: str) -> None:
    node = Node(tmp_path, naming)
    try:
        pods = {number: node.tree.pod(number, "burstable") for number in (1, 2, 3)}
        for pod in pods.values():
            using(node.tree.container(pod, "app"), 0)
        using(pods[1], 3 * PAGE, str(64 * PAGE))
        using(pods[2], 0, str(16 * PAGE))
        using(node.tree.container(pods[2], "small"), PAGE, str(8 * PAGE))
        reader = Reader(node)
        await reader.read()
        assert values(swap_metrics.POD_LIMIT) == {(uid(1),): 64 * PAGE, (uid(2),): 16 * PAGE, (uid(3),): math.inf}
        assert values(swap_metrics.CONTAINER_LIMIT)[uid(2), container_id("small")] == 8 * PAGE
        assert values(swap_metrics.CONTAINER_LIMIT)[uid(2), container_id("app")] == 16 * PAGE
        assert values(swap_metrics.CONTAINER_LIMIT)[uid(3), container_id("app")] == math.inf
        assert values(swap_metrics.CONTAINER_USED)[uid(2), container_id("small")] == PAGE
        using(node.tree.level("burstable"), 0, str(32 * PAGE))
        await reader.read()
        assert values(swap_metrics.POD_LIMIT) == {(uid(1),): 32 * PAGE, (uid(2),): 16 * PAGE, (uid(3),): 32 * PAGE}
        assert f'swapwarden_pod_swap_limit_bytes{{pod_uid="{uid(1)}"}} {32 * PAGE}\n' in metrics.REGISTRY.render()
    finally:
        node.stop()


async def test_a_pods_limit_is_not_above_what_its_containers_may_use_together(plain: Node) -> None:
    """As where the runtime holds each container while something raised the pod's own cgroup."""
    limits_of: dict[int, tuple[int | None, ...]] = {1: (8, 4), 2: (8, 4), 3: (8, None), 4: (), 5: (0,)}
    for number, limits in limits_of.items():
        pod = using(plain.tree.pod(number), 0, str(10 * PAGE) if number == 2 else "max")
        using(plain.tree.container(pod, f"{number}-sandbox"), 0)
        for place, pages in enumerate(limits):
            limit = "max" if pages is None else str(pages * PAGE)
            using(plain.tree.container(pod, f"{number}-{place}"), 0, limit)
    reader = Reader(plain)
    for number in limits_of:
        plain.ledger.runtime.put(runtime_records.RuntimeRecord(container_id(f"{number}-sandbox"), uid(number)))
    await reader.read()
    expected = {1: 12.0, 2: 10.0, 3: math.inf, 4: math.inf, 5: 0.0}
    assert values(swap_metrics.POD_LIMIT) == {(uid(number),): count * PAGE for number, count in expected.items()}
    assert values(swap_metrics.CONTAINER_LIMIT)[uid(1), container_id("1-0")] == 8 * PAGE


async def test_containers_that_are_not_listed_leave_the_pods_own_limit(
    plain: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swap_metrics, "_CONTAINERS", 1)
    pod = using(plain.tree.pod(1), 0, str(64 * PAGE))
    for name in ("a", "b"):
        using(plain.tree.container(pod, name), 0, str(PAGE))
    await Reader(plain).read()
    assert values(swap_metrics.POD_LIMIT) == {(uid(1),): 64 * PAGE}


async def test_no_limit_is_written_as_prometheus_does(plain: Node) -> None:
    plain.tree.pod(1)
    await Reader(plain).read()
    assert f'swapwarden_pod_swap_limit_bytes{{pod_uid="{uid(1)}"}} +Inf\n' in metrics.REGISTRY.render()


async def test_events_of_a_pod_and_of_all(plain: Node) -> None:
    pod = plain.tree.pod(1)
    for path, count in ((pod, 7), (plain.tree.kubepods, 70)):
        (path / "memory.swap.events").write_text(SWAP_EVENTS.format(count))
        (path / "memory.events").write_text(MEMORY_EVENTS)
    await Reader(plain).read()
    assert values(swap_metrics.POD_SWAP_EVENTS) == {(uid(1), "high"): 0, (uid(1), "max"): 7, (uid(1), "fail"): 7}
    memory = {"high": 1, "max": 2, "oom": 3, "oom_kill": 4}
    assert values(swap_metrics.POD_MEMORY_EVENTS) == {(uid(1), event): count for event, count in memory.items()}
    assert values(swap_metrics.PODS_SWAP_EVENTS) == {("high",): 0, ("max",): 70, ("fail",): 70}
    assert values(swap_metrics.PODS_MEMORY_EVENTS) == {(event,): count for event, count in memory.items()}


async def test_protection_above_all_pods_is_counted_against_the_nodes_memory(plain: Node) -> None:
    (plain.tree.proc / "meminfo").write_text("MemTotal: 2048 kB\n")
    plain.tree.pod(1)
    for name, pages in (("memory.low", 30), ("memory.min", 2)):
        (plain.tree.kubepods / name).write_text(f"{pages * PAGE}\n")
    await Reader(plain).read()
    assert values(swap_metrics.MEMORY_TOTAL) == {(): 2 * MIB}
    assert values(swap_metrics.PROTECTED) == {("memory.low",): 30 * PAGE, ("memory.min",): 2 * PAGE}


async def test_the_largest_users_are_listed_and_the_rest_summed(plain: Node) -> None:
    for number in range(1, 6):
        pod = using(plain.tree.pod(number), number * PAGE)
        using(plain.tree.container(pod, "app"), PAGE)
    reader = Reader(plain, top=2)
    await reader.read()
    assert values(swap_metrics.POD_USED) == {(uid(5),): 5 * PAGE, (uid(4),): 4 * PAGE, (swap_metrics.OTHER,): 6 * PAGE}
    assert set(values(swap_metrics.POD_LIMIT)) == {(uid(5),), (uid(4),)}
    assert set(values(swap_metrics.CONTAINER_USED)) == {(uid(5), container_id("app")), (uid(4), container_id("app"))}


async def test_of_exposed_pods_as_many_are_listed(plain: Node) -> None:
    pods = {number: plain.tree.pod(number) for number in range(1, 5)}
    reader = Reader(plain, top=2)
    await reader.read()
    assert values(exposure.POD_EXPOSURES) == {}
    for number, milliseconds, grown in ((1, 9000.0, 0), (2, 1.0, PAGE), (3, 5.0, 0)):
        tally = plain.known(pods[number]).tally
        one = exposure.Exposure(number, milliseconds, grown)
        tally.add(uid(number), one, desired=0, observed=PAGE, ended=0.0, until=0.0, rewritten=False)
    tally = plain.known(pods[1]).tally
    for cause, milliseconds in ((Cause.START, 1500.0), (Cause.RELOAD, 7000.0), (Cause.START, 500.0)):
        tally.attribute(cause, exposure.Exposure(1, milliseconds, 0))
    await reader.read()
    assert values(exposure.POD_EXPOSURES) == {(uid(2),): 2, (uid(1),): 1}
    assert values(exposure.POD_EXPOSED) == {(uid(2),): 0.001, (uid(1),): 9}
    assert values(exposure.POD_EXPOSED_BY_CAUSE) == {(uid(1), "Start"): 2, (uid(1), "Reload"): 7}
    assert values(exposure.POD_GROWN) == {(uid(2),): PAGE, (uid(1),): 0}


async def test_a_pod_that_is_gone_leaves_nothing(plain: Node) -> None:
    pods = [using(plain.tree.pod(number), number * PAGE) for number in (1, 2)]
    reader = Reader(plain)
    await reader.read()
    assert set(values(swap_metrics.POD_USED)) == {(uid(1),), (uid(2),)}
    plain.tree.remove(pods[0])
    await reader.read()
    assert set(values(swap_metrics.POD_USED)) == set(values(swap_metrics.POD_LIMIT)) == {(uid(2),)}


@pytest.mark.parametrize("reads", range(4))
async def test_a_cgroup_that_is_removed_while_it_is_read_has_no_metrics(
    plain: Node, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    """Neither that it had no limit, nor that nothing is left for others."""
    for number in (1, 2):
        write(using(plain.tree.pod(number), number * PAGE), str(2 * PAGE))
    going = using(plain.tree.container(plain.tree.pod_path(2), "app"), PAGE)
    reader = Reader(plain)
    real = plain.cgroups.read
    left = [reads]

    def read(path: str) -> int:
        if path.startswith(str(plain.tree.pod_path(2).relative_to(plain.tree.root))):
            if not left[0] and going.exists():
                plain.tree.remove(plain.tree.pod_path(2))
            left[0] -= 1
        return real(path)

    monkeypatch.setattr(plain.cgroups, "read", read)
    await reader.read()
    assert not going.exists()
    assert values(swap_metrics.POD_LIMIT)[(uid(1),)] == 2 * PAGE
    assert math.inf not in values(swap_metrics.POD_LIMIT).values()
    assert values(swap_metrics.CONTAINER_LIMIT) == {}
    assert values(swap_metrics.UNASSIGNED)[()] > 0


async def test_slices_without_the_pods(node: Node) -> None:
    for name, used in (("system.slice", 5), ("user.slice", 3)):
        (node.tree.root / name).mkdir(exist_ok=True)
        (node.tree.root / name / "memory.swap.current").write_text(f"{used * PAGE}\n")
    (node.tree.root / "system.slice" / "io.pressure").write_text(PRESSURE)
    await Reader(node).read()
    assert values(swap_metrics.SLICE_STALLED) == {
        ("system.slice", "io", "some"): 2.5,
        ("system.slice", "io", "full"): 1.25,
    }
    assert values(swap_metrics.SLICE_USED) == {("system.slice",): 5 * PAGE, ("user.slice",): 3 * PAGE}


async def test_fresh_values_are_served_again(plain: Node) -> None:
    pod = using(plain.tree.pod(1), PAGE)
    reader = Reader(plain)
    await reader.read()
    using(pod, 2 * PAGE)
    await asyncio.gather(reader.usage.refresh(), reader.usage.refresh())
    assert values(swap_metrics.POD_USED) == {(uid(1),): PAGE}
    await reader.read()
    assert values(swap_metrics.POD_USED) == {(uid(1),): 2 * PAGE}


async def test_others_have_their_turn_between_pods(plain: Node) -> None:
    for number in range(1, 5):
        plain.tree.pod(number)
    reader = Reader(plain, step=2 * headroom_reader.TURN_SECONDS)
    reading = asyncio.ensure_future(reader.read())
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 4 + 4
