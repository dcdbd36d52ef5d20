"""Cgroups for experiments with memory, and processes that are throttled in them. Plain files, without an agent."""

from __future__ import annotations

import dataclasses
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from testbed.standin import hog
from testbed.vm.kernelvm import CGROUPS, GuestProcess, KernelVM

MIB = 1 << 20
PATIENCE = 120.0
PACE = "96"

Files = Mapping[str, int | str]
"""Values by the kernel's names; numbers are MiB."""

# Runs in the guest, before a script: it finds its cgroup and more arguments in sys.argv.
ENTER = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
"""
# Prints how long it took to get 1 MiB of memory once a file exists.
WAITS = """
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
begun = time.monotonic()
held = os.urandom(1 << 20)
print(time.monotonic() - begun, flush=True)
time.sleep(3600)
"""
# Charges memory on one CPU again and again.
BUSY = """
import mmap
os.sched_setaffinity(0, {int(sys.argv[2])})
while True:
    taken = mmap.mmap(-1, 64 << 10, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(taken), 4096):
        taken[at] = 1
    taken.close()
    time.sleep(0.002)
"""


class Lab:
    """Cgroups for experiments, and processes in them."""

    def __init__(self, vm: KernelVM) -> None:
        self.vm = vm
        self.root = CGROUPS / f"test-{uuid.uuid4().hex[:8]}"
        self._made: list[Path] = []
        self.make({"": {}})

    def make(self, tree: Mapping[str, Files]) -> None:
        """Make cgroups below the root, parents first; only the last ones of a path have processes."""
        for name, files in tree.items():
            path = self.root / name
            self.vm.write(path.parent / "cgroup.subtree_control", "+memory")
            self.vm.mkdir(path)
            self._made.append(path)
            for file, value in files.items():
                self.vm.write(path / file, value if isinstance(value, str) else str(value * MIB))

    def hog(self, name: str, mib: int, *options: str) -> GuestProcess:
        argv = [sys.executable, hog.__file__, str(mib), "--cgroup", str(self.root / name), "--pace", PACE, *options]
        return self.vm.spawn(argv, log=f"{self.root.name}-{name.replace('/', '-')}")

    def run(self, name: str, script: str, *arguments: object) -> GuestProcess:
        """Run a script in a cgroup."""
        argv = [sys.executable, "-c", ENTER + script, str(self.root / name), *map(str, arguments)]
        return self.vm.spawn(argv, log=f"{self.root.name}-{name.replace('/', '-')}-script")

    def keep_busy(self) -> None:
        """Have another cgroup on each CPU charge memory all the time."""
        for cpu in range(2):
            self.make({f"busy-{cpu}": {}})
            self.run(f"busy-{cpu}", BUSY, cpu)

    def number(self, name: str, file: str = "memory.current") -> int:
        return int(self.vm.read(self.root / name / file))

    def events(self, name: str) -> dict[str, int]:
        words = self.vm.read(self.root / name / "memory.events").split()
        return {key: int(value) for key, value in zip(words[::2], words[1::2], strict=True)}

    def close(self) -> None:
        self.vm.write(self.root / "cgroup.kill", "1")
        self.vm.wait_for(self.root / "cgroup.events", lambda text: "populated 0" in text, PATIENCE)
        for path in reversed(self._made):
            self.vm.rmdir(path)


def until(holds: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.1)


@dataclasses.dataclass
class Walk:
    """A process on its way over memory.high, without the time in which it computes or waits for a CPU."""

    path: Path
    high: int
    """Bytes."""
    running: GuestProcess
    over: tuple[float, float] | None = None
    """When more than memory.high was in use first, and the seconds that it had computed or waited for a CPU by then."""
    blocked: float = 0.0
    """Seconds in which it slept since then."""
    ended: bool = False

    def look(self, vm: KernelVM) -> bool:
        """Return whether it has ended: it is through, or dead."""
        if self.ended:
            return True
        used = int(vm.read(self.path / "memory.current"))
        try:
            computed, waited, _ = map(int, vm.read(f"/proc/{self.running.pid}/schedstat").split())
        except OSError:  # it was killed
            computed = waited = 0
        seen = time.monotonic(), (computed + waited) / 1e9
        if used > self.high and self.over is None:
            self.over = seen
        self.ended = self.running.poll() is not None or "round 1:" in self.running.output()
        if computed and self.over and not self.ended:
            self.blocked = seen[0] - self.over[0] - (seen[1] - self.over[1])
        return self.ended


def walk_seconds(high: int, limit: int) -> float:
    """Return the time that one thread without swap needs from memory.high to its limit (policy/memory/qos.py); MiB."""
    return 85.0 * ((limit - high) / high) ** 3 * high
