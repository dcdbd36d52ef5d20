"""Turns of the thread on a directory tree with an obedient kernel."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from swapwarden.agent.desired import reclaim, resolve, spec
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import board, records
from swapwarden.agent.reclaim import reclaimer
from swapwarden.api import names, state

MIB = 1 << 20
GIB = 1 << 30
ROOT = "kubepods.slice"
BOUNDS = state.ReclaimSettings(
    max_stall_permille=1, interval_seconds=6, step_percent=10, keep_swap_free_bytes=0, writes_per_day_bytes=GIB
)
CONTINUOUS, STARTUP = names.ReclaimMode.CONTINUOUS, names.ReclaimMode.STARTUP


class Kernel(cgroupfs.ReclaimFiles):
    """Reclaims what it is asked, as long as there is anonymous memory."""

    idle = True
    """Whether it does so; else it accepts and does nothing."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), 4096)
        self.pieces: list[tuple[str, int]] = []

    def reclaim(self, path: str, size: int) -> None:
        self.pieces.append((path, size))
        if self.idle:
            there = self.read(f"{path}/memory.current")
            moved = min(size, there)
            for each in (path, ROOT):
                self.write(f"{each}/memory.current", max(0, self.read(f"{each}/memory.current") - moved))
                self.write(f"{each}/memory.swap.current", self.read(f"{each}/memory.swap.current") + moved)
            if moved < size:
                raise cgroupfs.LessError("less")


class Node:
    """A tree with pods, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1000.0
        self.stop = threading.Event()
        self.cgroups, self.proc, self.run = folder / "cgroups", folder / "proc", folder / "run"
        for path in (self.cgroups, self.proc / "pressure", self.run):
            path.mkdir(parents=True)
        self.make(ROOT)
        (self.proc / "meminfo").write_text("SwapTotal: 4194304 kB\nSwapFree: 4194304 kB\n")
        (self.proc / "vmstat").write_text("pgscan_direct 7\n")
        (self.proc / "pressure/memory").write_text("some total=0\nfull avg10=0.00 total=0\n")
        self.kernel = Kernel(self.cgroups)
        self.targets: list[reclaimer.ReclaimTarget] = []
        self.start()

    def start(self, **fields: Any) -> None:
        """Begin as the next agent does."""
        past = reclaimer.History(self.run, self.now)
        self.made = reclaimer.Reclaimer(self.kernel, self.proc, past, self.stop, clock=lambda: self.now, **fields)
        self.order()

    def order(self, bounds: state.ReclaimSettings | None = BOUNDS) -> None:
        self.made.order = reclaimer.ReclaimOrder(bounds, ROOT, tuple(self.targets))

    def make(self, path: str, current: int = 0, swap_max: str = "max", some: int = 0) -> None:
        folder = self.cgroups / path
        folder.mkdir()
        content = {
            "memory.current": current,
            "memory.swap.current": 0,
            "memory.swap.max": swap_max,
            "memory.low": 0,
            "memory.min": 0,
            "memory.stat": "workingset_refault_anon 0",
            "memory.pressure": f"some avg10=0.00 avg60=0.00 avg300=0.00 total={some}",
            "memory.reclaim": "",
        }
        for name, value in content.items():
            (folder / name).write_text(f"{value}\n")

    def pod(self, uid: str, mode: names.ReclaimMode = CONTINUOUS, **fields: Any) -> str:
        path = f"{ROOT}/pod{uid}"
        self.make(path, **{"current": 100 * MIB, **fields})
        self.targets.append(reclaimer.ReclaimTarget(uid, path, mode, self.now, frozenset({f"{uid}-1"})))
        self.order()
        return path

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.now += self.made.turn()

    def number(self, path: str, file: str = "memory.current") -> int:
        return int((self.cgroups / path / file).read_text())

    def holds(self) -> dict[str, str]:
        return {pod.pod: pod.hold for pod in self.made.view.pods}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.kernel.close()


def test_pods_that_ask_shrink_in_pieces(node: Node) -> None:
    path, other = node.pod("a"), node.pod("b")
    node.targets.pop()
    node.order()
    node.turns(4)
    assert node.number(path) < 80 * MIB
    assert node.number(other) == 100 * MIB
    assert {piece[0] for piece in node.kernel.pieces} == {path}
    assert max(size for _, size in node.kernel.pieces) <= 4 * MIB
    (told,) = node.made.view.pods
    assert told.moved_bytes == node.number(path, "memory.swap.current")


def test_nothing_happens_without_bounds_or_pods(node: Node) -> None:
    assert node.made.turn() == reclaimer.IDLE_SECONDS
    node.pod("a")
    node.order(None)
    assert node.made.turn() == reclaimer.IDLE_SECONDS
    assert node.kernel.pieces == []
    assert not (node.run / reclaimer.FILE).exists()


def test_pods_without_swap_are_left_alone(node: Node) -> None:
    path = node.pod("a", swap_max="0")
    (node.cgroups / ROOT / "memory.swap.max").write_text("0\n")
    above = node.pod("b")
    node.turns(5)
    assert node.kernel.pieces == []
    assert node.holds() == {"a": "SwapLimit", "b": "SwapLimit"}
    assert [node.number(each) for each in (path, above)] == [100 * MIB] * 2


def test_a_node_that_is_short_of_memory_moves_nothing(node: Node) -> None:
    node.pod("a")
    for scanned in range(6):
        (node.proc / "vmstat").write_text(f"pgscan_direct {scanned}\n")
        node.turns(1)
    assert node.kernel.pieces == []
    assert node.holds() == {"a": "NodePressure"}
    node.turns(2)
    assert node.kernel.pieces


def test_a_stop_ends_within_a_piece(node: Node) -> None:
    node.pod("a", current=GIB)
    node.turns(1)
    asked = node.kernel.reclaim

    def reclaim_and_stop(path: str, size: int) -> None:
        asked(path, size)
        node.stop.set()

    node.kernel.reclaim = reclaim_and_stop  # type: ignore[method-assign]  # the end comes while the kernel works
    node.turns(3)
    assert len(node.kernel.pieces) == 1


def test_a_kernel_without_effect_is_reported_and_left_alone_for_an_hour(node: Node) -> None:
    node.kernel.idle = False
    for name in "abcd":
        node.pod(name)
    while not node.made.view.problem:
        node.turns(1)
        assert node.now < 1000 + 3600
    assert "reclaims nothing" in node.made.view.problem
    pieces = len(node.kernel.pieces)
    assert pieces == reclaimer.EFFECTLESS
    node.turns(1)
    assert node.made.turn() > 500
    assert len(node.kernel.pieces) == pieces
    node.kernel.idle, node.now = True, node.now + 3700
    node.turns(3)
    assert node.made.view.problem == ""


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        (f"cgroups/{ROOT}/memory.reclaim", None, "Linux 5.19"),
        ("proc/pressure/memory", None, "CONFIG_PSI"),
        ("proc/pressure/memory", "garbage\n", "CONFIG_PSI"),
    ],
)
def test_a_kernel_that_lacks_something_is_reported(node: Node, file: str, text: str | None, problem: str) -> None:
    node.pod("a")
    (node.folder / file).unlink()
    if text is not None:
        (node.folder / file).write_text(text)
    assert node.made.turn() > 500
    assert problem in node.made.view.problem
    assert node.kernel.pieces == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("memory.pressure", ""),
        ("memory.pressure", "some total=-4\n"),
        ("memory.stat", "workingset_refault_anon x\n"),
        ("memory.current", "many\n"),
        ("memory.swap.current", "\x00\n"),
        ("memory.low", ""),
    ],
)
def test_a_pod_with_garbage_is_left_alone_and_stops_no_other(node: Node, file: str, text: str) -> None:
    broken, other = node.pod("a"), node.pod("b")
    (node.cgroups / broken / file).write_text(text)
    node.turns(4)
    assert {path for path, _ in node.kernel.pieces} == {other}
    assert node.holds()["a"] == "Unreadable"


def test_a_pod_that_is_gone_is_skipped(node: Node) -> None:
    gone, other = node.pod("a"), node.pod("b")
    node.turns(1)
    for file in (node.cgroups / gone).iterdir():
        file.unlink()
    (node.cgroups / gone).rmdir()
    node.turns(3)
    assert {path for path, _ in node.kernel.pieces} == {other}


def test_startup_begins_late_and_ends_for_the_next_agent_too(node: Node) -> None:
    path = node.pod("a", STARTUP)
    assert node.made.turn() == reclaim.STARTUP_SECONDS
    node.now += reclaim.STARTUP_SECONDS
    node.turns(3)
    assert node.kernel.pieces
    (node.cgroups / path / "memory.pressure").write_text("some total=99999999\n")
    node.turns(1)
    assert node.holds() == {"a": "Stalled"}
    pieces = len(node.kernel.pieces)
    node.start(startup=0.0)
    node.turns(3)
    assert node.holds() == {"a": "Done"}
    assert len(node.kernel.pieces) == pieces
    # A new container has new memory.
    node.targets = [msgspec.structs.replace(node.targets[0], containers=frozenset({"a-1", "a-2"}))]
    node.order()
    node.turns(3)
    assert len(node.kernel.pieces) > pieces


def test_the_next_agent_knows_the_writes_of_a_day(node: Node) -> None:
    node.order(BOUNDS)
    path = node.pod("a", current=GIB)
    small = state.ReclaimSettings(1, 6, 10, 0, 50 * MIB)
    node.order(small)
    node.turns(4)
    assert node.number(path, "memory.swap.current") == 50 * MIB
    node.start()
    node.order(small)
    node.turns(4)
    assert node.holds() == {"a": "WritesSpent"}
    assert node.number(path, "memory.swap.current") == 50 * MIB


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\xff", b"[]", b'{"slots": [[1e999, 5]]}', b'{"slots": [[5, -5]]}', b'{"done": {"a": 5}}', b"[" * 9999],
)
def test_a_record_that_is_garbage_counts_as_none(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / reclaimer.FILE).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        past = reclaimer.History(tmp_path, 100.0)
    assert past.writes.slots == []
    assert past.done == {}
    past.writes.spend(5, 100.0)
    past.save()
    assert reclaimer.History(tmp_path, 100.0).writes.left(100.0, 10) == 5
    past.close()


def test_a_record_of_another_boot_counts_as_none(tmp_path: Path) -> None:
    past = reclaimer.History(tmp_path, 5000.0)
    past.writes.spend(5, 5000.0)
    past.done["a"] = frozenset({"one"})
    past.save()
    past.close()
    assert reclaimer.History(tmp_path, 5001.0).done == {"a": frozenset({"one"})}
    later = reclaimer.History(tmp_path, 10.0)
    assert (later.writes.slots, later.done) == ([], {})


@pytest.mark.parametrize("takes", [True, False])
def test_the_argument_is_used_where_the_kernel_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, takes: bool
) -> None:
    """An older kernel refuses it once."""
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod/memory.reclaim").touch()
    files = cgroupfs.ReclaimFiles(str(tmp_path), 4096)
    written: list[str] = []

    def write(_: int, data: bytes) -> int:
        written.append(data.decode().strip())
        if not takes and b"swappiness" in data:
            raise OSError(errno.EINVAL, "Invalid argument")
        return len(data)

    monkeypatch.setattr(os, "write", write)
    files.reclaim("pod", 8192)
    files.reclaim("pod", 4096)
    monkeypatch.undo()
    files.close()
    both = ["8192 swappiness=200", "4096 swappiness=200"]
    assert written == (both if takes else [both[0], "8192", "4096"])


def test_less_than_asked_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod/memory.reclaim").touch()
    files = cgroupfs.ReclaimFiles(str(tmp_path), 4096)

    def write(_: int, __: bytes) -> int:
        raise OSError(errno.EAGAIN, "Try again")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(cgroupfs.LessError):
        files.reclaim("pod", 4096)
    monkeypatch.undo()
    assert files.takes_swappiness
    files.close()


SETTINGS = state.ReclaimSettings(1, 6, 1, 0, 0)


def pod(uid: str, *containers: str) -> records.Pod:
    made = records.Pod(f"{ROOT}/pod{uid}", uid, 1, resolve.Origin.APPEARED, 0.0)
    made.containers = {name: records.Container(f"{made.path}/{name}", made, name, math.inf) for name in containers}
    return made


def node_spec(mode: names.Mode = names.Mode.ENFORCE, **fields: Any) -> spec.NodeSpec:
    asks = spec.PodEntry({}, {}, reclaim=names.ReclaimMode.CONTINUOUS)
    made = spec.NodeSpec("u", 1, mode, names.BeforePlan.NO_SWAP, None, {"a": asks, "b": spec.PodEntry({}, {})})
    return msgspec.structs.replace(made, **{"reclaim": SETTINGS, **fields})


class Made:
    def __init__(self, folder: pathlib.Path) -> None:
        (folder / "cgroups" / ROOT).mkdir(parents=True)
        (folder / "run").mkdir()
        self.cgroups = cgroupfs.Cgroups(str(folder / "cgroups"), 4096)
        self.board = board.Board()
        self.run = folder / "run"
        self.runner = reclaimer.Runner(self.cgroups, folder / "proc", self.run, self.board)

    def follow(self, desired: spec.NodeSpec | None, *pods: records.Pod, root: str | None = ROOT) -> None:
        self.runner.follow(desired, root, pods)


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "reclaim"]


def with_loop(folder: pathlib.Path, do: Callable[[Made], None]) -> None:
    async def main() -> None:
        made = Made(folder)
        try:
            do(made)
        finally:
            made.runner.close()
            made.cgroups.close()

    asyncio.run(main())
    assert threads() == []


def test_there_is_a_thread_only_where_a_pod_asks(tmp_path: pathlib.Path) -> None:
    def do(made: Made) -> None:
        made.follow(None, pod("a", "1"))
        made.follow(node_spec(), pod("b", "1"), pod("c", "1"))
        made.follow(node_spec(), pod("a"))
        made.follow(node_spec(), pod("a", "1"), root=None)
        made.follow(node_spec(names.Mode.AUDIT), pod("a", "1"))
        made.follow(node_spec(names.Mode.RESTORE), pod("a", "1"))
        made.follow(node_spec(reclaim=None), pod("a", "1"))
        assert threads() == []
        made.follow(node_spec(), pod("a", "1"), pod("b", "1"))
        assert len(threads()) == 1

    with_loop(tmp_path, do)


def test_a_pod_that_drains_is_left_alone(tmp_path: pathlib.Path) -> None:
    def do(made: Made) -> None:
        one = pod("a", "1")
        one.file.status = msgspec.structs.replace(one.file.status, draining=True)
        made.follow(node_spec(), one)
        assert threads() == []

    with_loop(tmp_path, do)


def test_a_kernel_without_it_is_a_problem_of_the_node_while_pods_ask(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewed = threading.Event()
    turn = reclaimer.Reclaimer.turn

    def seen(turns: reclaimer.Reclaimer) -> float:
        try:
            return turn(turns)
        finally:
            viewed.set()

    monkeypatch.setattr(reclaimer.Reclaimer, "turn", seen)

    def do(made: Made) -> None:
        asks = node_spec(), pod("a", "1")
        made.follow(*asks)
        assert viewed.wait(30)
        made.follow(*asks)
        (problem,) = made.board.reclaim.problems
        assert (problem.name, problem.reason) == ("reclaim", names.Problem.NOT_SUPPORTED)
        assert "Linux 5.19" in problem.message
        assert [each.pod for each in made.board.reclaimed] == ["a"]
        revision = made.board.revision
        made.follow(*asks)
        assert made.board.revision == revision
        made.follow(node_spec(reclaim=None), pod("a", "1"))
        assert made.board.reclaim.problems == ()
        assert made.board.reclaimed == ()

    with_loop(tmp_path, do)


def test_an_uninstalled_agent_leaves_no_file(tmp_path: pathlib.Path) -> None:
    def do(made: Made) -> None:
        (made.run / reclaimer.FILE).write_bytes(b"{}")
        made.follow(node_spec(), pod("a", "1"))
        made.runner.remove()
        assert list(made.run.iterdir()) == []

    with_loop(tmp_path, do)
