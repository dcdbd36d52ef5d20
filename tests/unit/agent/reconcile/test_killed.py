"""The agent is killed at each write, rename and unlink of a whole life, and another one restores all values."""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.host import cgroupfs, systemd_dropins
from swapwarden.agent.ledger import ledger, replaced_file
from swapwarden.agent.node import swap_devices
from swapwarden.api import names

from tests.unit.agent.agent_node import MIB, Node, apply, compare, recorded, state
from tests.unit.agent.cgroup_tree import swap_max, write

T = TypeVar("T")


class Killed(BaseException):
    """No handler of the agent's sees this one, as with SIGKILL."""


class Killer:
    """Stands where a module has `os`, counts what changes something, and kills at one of these calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.at = -1
        self.dead = False
        """Whether it was killed just now: of a process that is gone, nothing is done in `finally` either."""
        self.torn = False
        """Whether half of the bytes are written then: the kernel takes a value whole, a file may not."""
        self.can_tear: list[int] = []
        """Calls that were written to a file."""
        self._ledger_fds: set[int] = set()
        for module in (ledger, replaced_file, cgroupfs, systemd_dropins):
            monkeypatch.setattr(module, "os", self)
        for name in ("replace", "unlink"):
            monkeypatch.setattr(pathlib.Path, name, self._on_path(getattr(pathlib.Path, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, *args: Any, **more: Any) -> int:
        if not flags & os.O_CREAT:
            return os.open(path, flags, *args, **more)
        fd = self._step(lambda: os.open(path, flags, *args, **more))
        self._ledger_fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._ledger_fds.discard(fd)
        os.close(fd)

    def write(self, fd: int, data: bytes) -> int:
        half = (lambda: os.write(fd, data[: len(data) // 2])) if fd in self._ledger_fds else None
        return self._step(lambda: os.write(fd, data), half)

    def _on_path(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda path, *args, **more: self._step(lambda: real(path, *args, **more))

    def _step(self, call: Callable[[], T], half: Callable[[], object] | None = None) -> T:
        if self.dead:
            raise Killed
        here = self.calls
        self.calls += 1
        if half is not None:
            self.can_tear.append(here)
        if here != self.at:
            return call()
        if self.torn and half is not None:
            half()
        self.dead = True
        raise Killed


FIRST = {1: {"app": spec.FileSetting(MIB, at_most=False)}}
LIFE = (
    state({1: 0, 2: MIB}, kubepods=64 * MIB, containers=FIRST),
    state({1: MIB, 2: 0}, kubepods=32 * MIB, each=2 * MIB, generation=2),
    None,
    state({1: cgroupfs.NO_LIMIT, 2: MIB}, generation=3),
    state({1: 0, 2: 0}, kubepods=MIB, mode=names.Mode.RESTORE, generation=4),
)
"""States in turn; None stands for another writer in between."""


NAMED = {"system.slice": spec.UnitEntry(0, 25_000, 800)}
UNITS_LIFE = (
    msgspec.structs.replace(state(), units=NAMED),
    msgspec.structs.replace(state(generation=2), units={"system.slice": spec.UnitEntry(None, 50_000)}),
    None,
    state(mode=names.Mode.RESTORE, generation=3),
)
"""The same of a slice of the node, and its I/O."""
DISK = "254:0"


def live(node: Node, killer: Killer, life: tuple[spec.NodeSpec | None, ...], another: Callable[[], None]) -> int:
    """Play the life, with a new agent after each death; gives how many there were."""
    deaths = 0
    cached: spec.NodeSpec | None = None
    steps = list(life)
    running = False
    while steps:
        try:
            if not running:
                agent = node.start(cached)
                running = True
                agent.look(swap_devices.Disks((DISK,)))
            if steps[0] is None:
                # The value to restore from now on. Only the agent is killed, the other writer is not.
                another()
                compare(agent)
            else:
                cached = steps[0]
                apply(agent, cached)
                if cached.mode is names.Mode.RESTORE:
                    node.ledger.remove()
            steps.pop(0)
        except Killed:
            deaths += 1
            killer.at, killer.dead = -1, False
            node.stop()
            running = False
    node.stop()
    return deaths


async def test_killed_at_each_write(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each call, which is after the one before it, and in the midst of each line of the ledger."""
    monkeypatch.setattr(ledger, "COMPACT_BYTES", 400)
    killer = Killer(monkeypatch)

    def lived(at: int, *, torn: bool = False) -> int:
        folder = tmp_path / f"{at} {torn}"
        folder.mkdir()
        node = Node(folder)
        pods = [node.tree.pod(1, memory_swap_max=f"{8 * MIB}\n"), node.tree.pod(2)]
        app = node.tree.container(pods[0], "app", memory_swap_max="0\n")
        files = [node.tree.kubepods, *pods, app]
        killer.calls, killer.at, killer.torn, killer.can_tear = 0, at, torn, []
        deaths = live(node, killer, LIFE, lambda: write(files[2], "4096"))
        assert [swap_max(path) for path in files] == ["max", str(8 * MIB), "4096", "0"], (at, torn)
        return deaths

    assert lived(-1) == 0
    calls, lines = killer.calls, killer.can_tear
    # Each value, and the line that records it before.
    assert calls > len(lines) > 20
    for at in range(calls):
        assert lived(at) == 1
    for at in lines:
        assert lived(at, torn=True) == 1


async def test_units_and_their_io_killed_at_each_write(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killer = Killer(monkeypatch)

    def lived(at: int) -> int:
        folder = tmp_path / f"{at}"
        folder.mkdir()
        node = Node(folder)
        shutil.rmtree(node.tree.root / "system.slice")
        system = node.tree.group(node.tree.root / "system.slice", memory_swap_max=f"{8 * MIB}\n")
        (system / "io.latency").write_text(f"{DISK} target=70000\n")
        (system / "io.weight").write_text("default 100\n")
        killer.calls, killer.at = 0, at
        deaths = live(node, killer, UNITS_LIFE, lambda: write(system, f"{DISK} target=90", "io.latency"))
        held = [(system / name).read_text().strip() for name in ("memory.swap.max", "io.latency")]
        assert held == [str(8 * MIB), f"{DISK} target=90"], at
        # The kernel shows no line for a disk of which this was written.
        assert (system / "io.weight").read_text().strip() in {f"{DISK} default", "default 100"}, at
        calls = killer.calls
        assert recorded(folder) == [], at
        killer.calls = calls  # those of the test are none of the life's
        return deaths

    assert lived(-1) == 0
    calls = killer.calls
    assert calls > 12
    for at in range(calls):
        assert lived(at) == 1


def test_drop_ins_killed_at_each_write(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd may read them at any moment: each is whole, the old one or the new one."""
    killer = Killer(monkeypatch)
    other = b"[Slice]\nMemorySwapMax=1G\n"

    def lived(at: int) -> int:
        folder = tmp_path / f"{at}"
        names = [*systemd_dropins.folders("kubepods"), "system.slice.d"]
        for name in names:
            (folder / name).mkdir(parents=True)
        files = [folder / name / systemd_dropins.FILE for name in names]
        files[0].write_bytes(other)
        killer.calls, killer.at = 0, at
        work = (systemd_dropins.install, systemd_dropins.remove)
        steps = [functools.partial(do, folder / name) for do in work for name in names]
        deaths = 0
        while steps:
            try:
                steps[0]()
            except Killed:
                deaths += 1
                killer.at, killer.dead = -1, False
                assert {file.read_bytes() for file in files if file.exists()} <= {systemd_dropins.CONTENT, other}, at
                continue
            steps.pop(0)
            if len(steps) == len(names):
                assert [file.read_bytes() for file in files] == [systemd_dropins.CONTENT] * 3, at
        assert not [file for name in names for file in (folder / name).iterdir()], at
        return deaths

    assert lived(-1) == 0
    calls = killer.calls
    assert calls > 12
    for at in range(calls):
        assert lived(at) == 1
