"""The node is looked at while its state asks for it, and its pods are reported while a signal is on."""

from __future__ import annotations

import pathlib
from collections.abc import Collection

import msgspec
import pytest
from swapwarden.agent.node import headroom_reader
from swapwarden.agent.pressure import sampler, signals
from swapwarden.api import state
from swapwarden.api.names import PressureScope, PressureSignal

from tests.unit import background
from tests.unit.agent import host_tree
from tests.unit.agent.agent_node import MIB, Node, until
from tests.unit.agent.cgroup_tree import PAGE, uid

SETTINGS = state.PressureSettings(
    state.HeadroomThresholds(below_bytes=50 * MIB, clear_bytes=100 * MIB, for_milliseconds=0),
    state.StallThresholds(full_permille=400, over_milliseconds=10_000),
)


class Watched:
    """A node of 1 GiB, 200 MiB of swap, with a sampler whose clock stands still."""

    def __init__(self, node: Node) -> None:
        self.node = node
        agent = node.start()
        self.now = 1000.0
        self.wait: float | None = None
        proc = node.tree.proc
        reader = headroom_reader.HeadroomReader(
            node.cgroups, proc, proc.parent / "block", agent.inventory, clock=self.clock
        )
        self.sampler = sampler.Sampler(reader, node.cgroups, proc, agent.inventory, node.reports, clock=self.clock)

    def clock(self) -> float:
        return self.now

    def holds(self, free: int, swap: int = 0) -> None:
        """MiB of free memory and swap."""
        free_kib = (free << 10) + host_tree.MIN_PAGES * PAGE // 1024
        (self.node.tree.proc / "meminfo").write_text(
            f"MemTotal: {1 << 20} kB\nMemFree: {free_kib} kB\nActive(file): 0 kB\nInactive(file): 0 kB\n"
            f"SwapTotal: {200 << 10} kB\nSwapFree: {swap << 10} kB\n"
        )

    async def look(self, passed: float = 1.0) -> state.PressureReport | None:
        """Look once more after so many seconds."""
        self.now += passed
        self.wait = await self.sampler.look()
        return self.sampler.report

    async def pods(self, *made: pathlib.Path) -> None:
        """Wait until the agent knows these pods."""
        names = {path.name for path in made}
        await until(lambda: names <= {path.rpartition("/")[2] for path in self.known})

    @property
    def known(self) -> Collection[str]:
        assert self.node.agent is not None
        return self.node.agent.inventory.pods


def watching(node: Node) -> Watched:
    (node.tree.proc / "zoneinfo").write_text(host_tree.ZONEINFO)
    (node.tree.proc / "pressure").mkdir(exist_ok=True)
    made = Watched(node)
    made.holds(free=500)
    made.sampler.set_desired(SETTINGS)
    return made


@pytest.fixture
async def watched(plain: Node) -> Watched:
    return watching(plain)


def pod(node: Node, number: int, memory: int, *, cache: int = 0, swap: int = 0, refaults: int = 0) -> pathlib.Path:
    """Sizes in MiB."""
    return holding(node.tree.pod(number), memory, cache=cache, swap=swap, refaults=refaults)


def holding(path: pathlib.Path, memory: int, *, cache: int = 0, swap: int = 0, refaults: int = 0) -> pathlib.Path:
    (path / "memory.current").write_text(f"{memory * MIB}\n")
    (path / "memory.swap.current").write_text(f"{swap * MIB}\n")
    (path / "memory.stat").write_text(
        f"inactive_file {cache * MIB}\nworkingset_refault_anon {refaults}\nworkingset_refault_file {refaults}\n"
    )
    return path


def signal(name: str, scope: str) -> float | None:
    """The metric's value; None without one."""
    labels = (("signal", name), ("scope", scope))
    return next((each.value for each in sampler.SIGNAL.samples() if each.labels == labels), None)


async def test_the_pods_are_reported_while_headroom_is_low(watched: Watched) -> None:
    small, large = pod(watched.node, 1, 100, cache=60, swap=5), pod(watched.node, 2, 80, swap=30)
    await watched.pods(small, large)
    assert await watched.look() is None
    watched.holds(free=10, swap=20)
    report = await watched.look()
    assert report == state.PressureReport(
        seq=1,
        signal=PressureSignal.HEADROOM,
        scope=PressureScope.NODE,
        headroom_bytes=10 * MIB,
        since=report.since if report else "",
        pods=[
            state.PressuredPod(uid(2), working_set_bytes=80 * MIB, swap_bytes=30 * MIB),
            state.PressuredPod(uid(1), working_set_bytes=40 * MIB, swap_bytes=5 * MIB),
        ],
    )
    assert signal("headroom", "node") == 1
    watched.holds(free=500)
    told = watched.node.told
    assert await watched.look() is None
    assert watched.node.told > told, "the status must lose it"
    assert signal("headroom", "node") == 0


async def test_swap_that_pods_can_use_is_headroom(plain: Node) -> None:
    path = pod(plain, 1, 300)
    with (path / "memory.stat").open("a") as stat:
        stat.write(f"active_anon {150 * MIB}\ninactive_anon {150 * MIB}\n")
    watched = watching(plain)
    watched.holds(free=10, swap=200)
    assert await watched.look() is None
    (path / "memory.swap.max").write_text("0\n")
    report = await watched.look()
    assert report is not None
    assert report.headroom_bytes == 10 * MIB


async def test_a_report_is_new_each_thirty_seconds_whatever_the_scope(watched: Watched) -> None:
    watched.holds(free=10)
    first = await watched.look()
    told = watched.node.told
    assert await watched.look(SETTINGS.report_seconds - 1) is first
    assert watched.node.told == told
    second = await watched.look()
    assert first is not None
    assert second is not None
    assert (first.seq, second.seq, first.since == second.since) == (1, 2, True)
    assert watched.node.told > told
    (watched.node.tree.kubepods / "memory.max").write_text(f"{105 * MIB}\n")
    (watched.node.tree.kubepods / "memory.current").write_text(f"{100 * MIB}\n")
    assert await watched.look() is second
    third = await watched.look(SETTINGS.report_seconds)
    assert third is not None
    assert (third.seq, third.scope, third.headroom_bytes) == (3, PressureScope.PODS, 5 * MIB)


async def test_a_state_may_ask_for_reports_more_often(watched: Watched) -> None:
    watched.sampler.set_desired(msgspec.structs.replace(SETTINGS, report_seconds=5))
    watched.holds(free=10)
    first = await watched.look()
    assert await watched.look(4) is first
    assert await watched.look(1) is not first


async def test_another_signal_is_reported_at_once(watched: Watched) -> None:
    first = await stalled(watched)
    watched.holds(free=10)
    second = await watched.look()
    assert second is not None
    assert (first.seq, second.seq, second.signal) == (1, 2, PressureSignal.HEADROOM)


async def test_refaults_count_from_when_memory_became_short(watched: Watched) -> None:
    path = pod(watched.node, 1, 100, refaults=1000)
    await watched.pods(path)
    watched.holds(free=90)
    assert await watched.look() is None, "near, and not low yet"
    holding(path, 100, refaults=1007)
    watched.holds(free=10)
    report = await watched.look()
    assert report is not None
    assert [each.refaults for each in report.pods] == [14]
    watched.holds(free=500)
    await watched.look()
    watched.holds(free=10)
    report = await watched.look()
    assert report is not None
    assert [each.refaults for each in report.pods] == [0]


async def test_pods_beyond_the_largest_are_counted(watched: Watched) -> None:
    made = [pod(watched.node, number, number + 1) for number in range(state.MAX_PRESSURED + 3)]
    await watched.pods(*made)
    watched.holds(free=10)
    report = await watched.look()
    assert report is not None
    assert [each.pod for each in report.pods] == [uid(number) for number in reversed(range(3, len(made)))]
    assert report.pods_omitted == 3


async def test_a_pod_that_cannot_be_read_is_left_out(watched: Watched) -> None:
    gone, there = pod(watched.node, 1, 100), pod(watched.node, 2, 100)
    await watched.pods(gone, there)
    (gone / "memory.current").unlink()
    watched.holds(free=10)
    report = await watched.look()
    assert report is not None
    assert ([each.pod for each in report.pods], report.pods_omitted) == ([uid(2)], 0)


async def test_pods_are_read_only_when_memory_is_short(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    async def spied(reader: headroom_reader.HeadroomReader, _: object) -> headroom_reader.Sizes:
        read.append(reader)
        return {}

    monkeypatch.setattr(headroom_reader.HeadroomReader, "read", spied)
    await watched.look()
    assert read == []
    watched.holds(free=100)
    await watched.look()
    assert len(read) == 1


async def test_the_report_of_a_stall_has_the_headroom_with_swap(plain: Node) -> None:
    path = pod(plain, 1, 300)
    with (path / "memory.stat").open("a") as stat:
        stat.write(f"active_anon {60 * MIB}\n")
    watched = watching(plain)
    watched.holds(free=500, swap=200)
    report = await stalled(watched)
    assert report.headroom_bytes == 560 * MIB


async def test_a_stall_of_the_node(watched: Watched) -> None:
    report = await stalled(watched)
    assert (report.signal, report.scope, report.stall_permille) == (PressureSignal.STALL, PressureScope.NODE, 500)
    assert report.headroom_bytes == 500 * MIB
    assert (signal("stall", "node"), signal("headroom", "node")) == (1, 0)


async def stalled(watched: Watched) -> state.PressureReport:
    """Have all tasks of the node stall for half of the time."""
    proc = watched.node.tree.proc
    for second in range(12):
        (proc / "pressure/memory").write_text(f"full avg10=0.00 avg60=0.00 avg300=0.00 total={second * 500_000}\n")
        (proc / "vmstat").write_text(f"pgscan_kswapd {second}\npgscan_direct {second}\npgscan_khugepaged 0\n")
        report = await watched.look()
    assert report is not None
    return report


async def test_a_kernel_without_stalls_is_logged_once_of_each_scope(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        await watched.look()
    logged = [record for record in caplog.records if "psi=1" in record.message]
    assert [vars(record)["scope"] for record in logged] == [PressureScope.NODE, PressureScope.PODS]
    caplog.clear()
    await stalled(watched)
    await watched.look()
    assert not [record for record in caplog.records if "psi=1" in record.message]


@pytest.mark.parametrize("scope", PressureScope)
@pytest.mark.parametrize(("back", "on"), [(1, False), (100, True), (None, True)])
async def test_a_stall_without_refaults_is_no_signal(
    watched: Watched, scope: PressureScope, back: int | None, *, on: bool
) -> None:
    """Of 200 pages a second. Where the kernel does not count refaults, the stall alone counts."""
    root, proc = watched.node.tree.kubepods, watched.node.tree.proc
    stalls = (proc / "pressure/memory") if scope is PressureScope.NODE else (root / "memory.pressure")
    for second in range(12):
        refaults = "" if back is None else "workingset_refault_anon {0}\nworkingset_refault_file {0}\n"
        refaults = refaults.format(second * (back or 0))
        steals = f"pgsteal_kswapd {second * 100}\npgsteal_direct {second * 100}\n"
        stalls.write_text(f"full avg10=0.00 avg60=0.00 avg300=0.00 total={second * 500_000}\n")
        (root / "memory.events.local").write_text(f"low 0\nhigh {second}\nmax 0\n")
        (root / "memory.stat").write_text(f"pgsteal {second * 200}\n{refaults}")
        (proc / "vmstat").write_text(f"pgscan_kswapd {second}\npgscan_direct {second}\n{steals}{refaults}")
        await watched.look()
    assert (watched.sampler.report is not None) == on
    assert signal("stall", "pod") == 0


@pytest.mark.parametrize(("limit", "scope"), [("max", "pod"), ("high", "pods")])
async def test_a_stall_of_pods(watched: Watched, limit: str, scope: str) -> None:
    """With `high` the limit above all pods is hit; `max` is hit in a pod only."""
    root = watched.node.tree.kubepods
    for second in range(12):
        (root / "memory.pressure").write_text(f"full avg10=0.00 avg60=0.00 avg300=0.00 total={second * 500_000}\n")
        (root / "memory.events.local").write_text(f"low 0\nhigh {second if limit == 'high' else 0}\nmax 0\n")
        (root / "memory.events").write_text(f"low 0\nhigh 0\nmax {second}\n")
        await watched.look()
    assert {each for each in ("node", "pods", "pod") if signal("stall", each)} == {scope}
    assert (watched.sampler.report is not None) == (scope == "pods")


async def test_a_pause_follows_what_the_verdict_needs(watched: Watched) -> None:
    watched.holds(free=900)
    await watched.look()
    await watched.look()
    assert watched.wait == signals.RARE_SECONDS
    watched.holds(free=100)
    await watched.look()
    assert watched.wait == 1


async def test_without_thresholds_nothing_is_left(watched: Watched) -> None:
    watched.holds(free=10)
    assert await watched.look() is not None
    watched.sampler.set_desired(None)
    assert await watched.look() is None
    assert watched.wait is None
    assert [*sampler.SIGNAL.samples(), *sampler.STALL.samples()] == []


async def test_other_thresholds_count_at_once(watched: Watched) -> None:
    async with background.running(watched.sampler.run()):
        await until(lambda: signal("headroom", "node") == 0)
        more = state.HeadroomThresholds(below_bytes=600 * MIB, clear_bytes=700 * MIB, for_milliseconds=0)
        watched.sampler.set_desired(state.PressureSettings(more, SETTINGS.stall))
        await until(lambda: watched.sampler.report is not None)


@pytest.mark.parametrize(
    ("status", "seq"),
    [
        ({"pressure": {"seq": 41}}, 42),
        (None, 1),
        ({}, 1),
        ({"pressure": None}, 1),
        ({"pressure": []}, 1),
        ({"pressure": {"seq": "41"}}, 1),
        ({"pressure": {"seq": True}}, 1),
        ({"pressure": {"seq": -3}}, 1),
        ({"pressure": {"seq": 1 << 63}}, 1),
    ],
)
async def test_numbers_of_reports_continue_after_a_restart(
    watched: Watched, status: dict[str, object] | None, seq: int
) -> None:
    watched.sampler.resume(status)
    watched.holds(free=10)
    report = await watched.look()
    assert report is not None
    assert report.seq == seq


async def test_a_report_before_the_first_status_differs_from_that_of_the_status(watched: Watched) -> None:
    """By the cached state an agent may report before it reads the API server."""
    watched.holds(free=10)
    await watched.look()
    for status in ({"pressure": {"seq": 1}}, {"pressure": {"seq": 2}}):
        watched.sampler.resume(status)
        assert watched.sampler.report is not None
        assert watched.sampler.report.seq == 2, "the second status is its own"


@pytest.mark.parametrize("file", ["meminfo", "zoneinfo", "pressure/memory", "vmstat"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\0 9\n", b"full total=" + b"9" * 5000, b"MemFree: 1 kB\n" * 9])
async def test_files_with_anything_in_them_are_no_signal(watched: Watched, file: str, content: bytes | None) -> None:
    path = watched.node.tree.proc / file
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    for _ in range(12):
        assert await watched.look() is None
