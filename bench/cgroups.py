"""Pods as cgroups in the kernel VM, changes of their limits, and the costs of a process. Runs in the guest."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from testbed.standin import hog
from testbed.standin.churn import write
from testbed.vm.kernelvm import CGROUPS

ROOT: Final = CGROUPS / "bench"
LEVEL: Final = ROOT / "kubepods.slice" / "kubepods-burstable.slice"
PRESSED: Final = CGROUPS / "bench-pressure"
MIB: Final = 1 << 20
PATIENCE: Final = 120.0


def uids(count: int) -> list[str]:
    return [str(uuid.UUID(int=number + 1)) for number in range(count)]


def pod_path(uid: str) -> Path:
    return LEVEL / f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"


def limit_file(uid: str) -> Path:
    return pod_path(uid) / "memory.swap.max"


def scope(pod: Path) -> Path:
    return pod / f"cri-containerd-{'0' * 64}.scope"


def make_pods(pods: Sequence[str]) -> None:
    """Make so many pods, with a container each, and no limit."""
    for parent in (CGROUPS, ROOT, LEVEL.parent, LEVEL):
        parent.mkdir(exist_ok=True)
        write(parent / "cgroup.subtree_control", "+memory")
    for uid in pods:
        scope(pod_path(uid)).mkdir(parents=True, exist_ok=True)
        write(limit_file(uid), "max")


def remove(pods: Sequence[str]) -> None:
    for uid in pods:
        scope(pod_path(uid)).rmdir()
        pod_path(uid).rmdir()


def floor(program: str, mode: str, pods: Sequence[str], value: str) -> subprocess.Popen[str]:
    running = subprocess.Popen([program, mode, value], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert running.stdin is not None  # noqa: S101 it was asked for
    running.stdin.write("".join(f"{limit_file(uid)}\n" for uid in pods))
    running.stdin.close()
    return running


def reach(file: Path, limit: int, begun: float | None = None) -> float:
    """Wait until the file holds that; return the seconds since `begun`."""
    since = time.perf_counter() if begun is None else begun
    data = b"%d\n" % limit
    while True:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(file, os.O_RDONLY)
            try:
                if os.read(descriptor, 64) == data:
                    return time.perf_counter() - since
            finally:
                os.close(descriptor)
        if time.perf_counter() - since > PATIENCE:
            sys.exit(f"{file} never came to hold {limit}")
        time.sleep(0)


@contextlib.contextmanager
def pressure() -> Iterator[None]:
    """Run two processes that swap all the time."""
    PRESSED.mkdir()
    write(PRESSED / "memory.max", str(96 * MIB))
    argv = [sys.executable, hog.__file__, "96", "--cgroup", str(PRESSED), "--pace", "64"]
    hogs = [subprocess.Popen(argv, stdout=subprocess.DEVNULL) for _ in range(2)]
    time.sleep(5)
    try:
        yield
    finally:
        for each in hogs:
            each.kill()
            each.wait()
        PRESSED.rmdir()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process in all its threads; stat would count in steps of 10 ms."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text(encoding="ascii").split()[0]) for file in threads) / 1e9
