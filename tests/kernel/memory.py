"""Cgroups for experiments with memory, and processes that are throttled in them. Plain files, without an agent."""

from __future__ import annotations

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
# Prints how long a cgroup's first process slept since more than so many bytes were in use, until it is dead.
FOLLOW = """
import contextlib, pathlib, sys, time
pod, procs, high = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2], "cgroup.procs"), int(sys.argv[3])
print(0.0, flush=True)
while not (pids := procs.read_text().split()):
    time.sleep(0.01)
process, begun = pathlib.Path("/proc", pids[0]), None
with contextlib.suppress(OSError):
    while True:
        used = int((pod / "memory.current").read_text())
        computed, waited, _ = map(int, (process / "schedstat").read_text().split())
        slept = time.monotonic() - (computed + waited) / 1e9
        if "Z" in (process / "stat").read_text().rpartition(")")[2]:
            break
        if begun is None and used > high:
            begun = slept
        if begun is not None:
            print(slept - begun, flush=True)
        time.sleep(0.02)
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

    def hog(self, name: str, mib: int, *options: str, cpus: str = "") -> GuestProcess:
        """Have a process take so much memory, on these CPUs only if they are given."""
        argv = [sys.executable, hog.__file__, str(mib), "--cgroup", str(self.root / name), "--pace", PACE, *options]
        pinned = ["taskset", "-c", cpus] if cpus else []
        return self.vm.spawn([*pinned, *argv], log=f"{self.root.name}-{name.replace('/', '-')}")

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

    def stalled(self, name: str) -> float:
        """Return the seconds in which a task waited for memory: the kernel's own count, with its waits for a CPU.

        Of one that moves between two CPUs it may count half: it takes a mean over the CPUs (collect_percpu_times).
        """
        return int(self.vm.read(self.root / name / "memory.pressure").partition("total=")[2].split()[0]) / 1e6

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


class Walk:
    """A process on its way over memory.high, without the time in which it computes or waits for a CPU."""

    def __init__(
        self, vm: KernelVM, path: Path, high: int, begin: Callable[[], GuestProcess], runs_in: Path | None = None
    ) -> None:
        """`begin` starts the process, in the cgroup at `runs_in` if not in that at `path`. `high` is in bytes.

        A program in the guest follows it: a busy machine delays the host's requests.
        """
        argv = [sys.executable, "-c", FOLLOW, str(path), str(runs_in or path), str(high)]
        self._following = vm.spawn(argv, log=f"walk-{uuid.uuid4().hex[:8]}")
        until(self._following.output, "it is followed")
        self._running = begin()
        self.blocked = 0.0
        """Seconds in which it slept since more than memory.high was in use."""
        self.ended = False

    def look(self) -> bool:
        """Return whether it has ended: it is through, or dead."""
        if not self.ended:
            dead = self._running.poll() is not None
            if dead:
                self._following.wait(PATIENCE)
            self.blocked = float(self._following.output().rpartition("\n")[0].split()[-1])
            self.ended = dead or "round 1:" in self._running.output()
        return self.ended


def walk_seconds(high: int, limit: int) -> float:
    """Return the time that one thread without swap needs from memory.high to its limit (policy/memory/qos.py); MiB."""
    return 85.0 * ((limit - high) / high) ** 3 * high
