"""Pods that start and end with too little memory, while others overwrite their limits. Runs in a guest, as a script.

    python churn.py PLAN REPORT

PLAN is JSON: `folder` (the cgroup of the pods), `seconds`, `device` (a block device to read from), `metrics` (the
agent's address), and `pods`: by UID `slot`, `disabled`, `spared` and `full`. In each slot one pod after the other lives
for some seconds: made like kubelet, systemd and runc make it, with the limit set back to `max` before the first
container. Then a process presses against the pod's memory limit. Either it uses more memory than the limit, and is
restarted when the kernel has killed it. Or, if the pod is `full`, it uses nearly as much, and reads files, so that the
kernel has to choose all the time which pages to reclaim. Every few seconds systemd reloads: all limits are `max` again,
except for pods that are `spared`.

REPORT gets the history of each pod, with its figures in the agent's metrics (`published`) when its process has ended
and its limit is back. REPORT with the suffix `.samples` gets in its first line the seconds between looks at the pods
that must not swap, and then a line for each look at one that has some swap, or may have it: the two times between which
the values were read, the UID, memory.swap.current, memory.swap.max. Times are monotonic; `clock` is the difference from
the node's clock. Standard library only.
"""

import array
import contextlib
import dataclasses
import hashlib
import heapq
import http.client
import itertools
import json
import mmap
import os
import random
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

MIB: Final = 1 << 20
MEMORY: Final = 12 * MIB
WANTED: Final = 18 * MIB
NEARLY: Final = 10 * MIB
FILES: Final = 6 * MIB
PACE: Final = 2 * MIB
"""Bytes that each process touches in a second."""
LIFE_SECONDS: Final = (12.0, 24.0)
RELOAD_SECONDS: Final = 6.0
METRICS_SECONDS: Final = 1.1
"""The agent's metrics may be nearly that old: FRESH_SECONDS in agent/node/swap_metrics.py."""
SAMPLE_SECONDS: Final = 0.01
PATIENCE: Final = 90.0
"""Seconds to wait for the final limit at the end of a pod."""

PUBLISHED: Final = {
    "exposures": "swapwarden_agent_pod_exposures_total",
    "seconds": "swapwarden_agent_pod_exposed_seconds_total",
    "bytes": "swapwarden_agent_pod_exposed_swap_bytes_total",
}

Steps = Generator[float, None, None]
"""Do one thing after the other; yield the seconds until the next."""


@dataclasses.dataclass
class ChurnPod:
    """One pod and its history."""

    uid: str
    folder: Path
    disabled: bool
    spared: bool
    full: bool
    slot: int
    attacks: list[float] = dataclasses.field(default_factory=list)
    runs: int = 0
    limit_at_end: str = ""
    published: dict[str, float] = dataclasses.field(default_factory=dict)
    child: int = 0

    @property
    def scope(self) -> Path:
        """Return the container's cgroup."""
        return self.folder / f"cri-containerd-{hashlib.sha256(self.uid.encode()).hexdigest()}.scope"

    def attack(self) -> None:
        """Make the pod's cgroup like systemd."""
        self.attacks.append(time.monotonic())
        write(self.folder / "memory.swap.max", "max")


def write(file: Path, text: str) -> None:
    """Write in one call, as kernel files require."""
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def hog(scope: Path, device: str, slot: int, *, full: bool) -> int:
    """Start a process in the cgroup that keeps touching more than fits, or as much as a `full` pod; return its PID."""
    child = os.fork()
    if child:
        return child
    with contextlib.suppress(BaseException):
        write(scope / "cgroup.procs", str(os.getpid()))
        wanted = NEARLY if full else WANTED
        memory = mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        block = os.urandom(64 * 1024)
        # Page cache is charged to the first reader: each slot has a part of the disk to itself.
        begin = slot * FILES
        disk = os.open(device, os.O_RDONLY)
        os.posix_fadvise(disk, begin, FILES, os.POSIX_FADV_DONTNEED)
        for at in itertools.count(0, len(block)):
            memory[at % wanted : at % wanted + len(block)] = block
            if full:
                os.pread(disk, len(block), begin + at % FILES)
            time.sleep(len(block) / PACE)
    os._exit(1)


class Sampler:
    """A process of its own, which no other work delays."""

    def __init__(self, report: Path) -> None:
        self.file = report.with_suffix(".samples")
        read, self._pipe = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._pipe)
            with contextlib.suppress(BaseException):
                os.nice(-15)
                self._run(read)
            os._exit(0)
        os.close(read)

    def follow(self, pod: ChurnPod) -> None:
        """Watch the pod from now on."""
        os.write(self._pipe, f"{pod.uid} {pod.folder}\n".encode())

    def end(self) -> None:
        """End; all samples are written on return."""
        os.close(self._pipe)
        os.waitpid(self._child, 0)

    def _run(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        followed: dict[int, tuple[int, int]] = {}
        uids: list[str] = []
        samples = array.array("d")  # Of five each: many, in a guest with little memory.
        gaps: list[float] = []
        began = time.monotonic()
        rest, last, due = b"", time.monotonic(), time.monotonic()
        while True:
            with contextlib.suppress(BlockingIOError):
                told = os.read(pipe, 65536)
                if not told:
                    break
                *lines, rest = (rest + told).split(b"\n")
                for uid, folder in (line.decode().split() for line in lines):
                    files = (f"{folder}/memory.swap.current", f"{folder}/memory.swap.max")
                    followed[len(uids)] = (os.open(files[0], os.O_RDONLY), os.open(files[1], os.O_RDONLY))
                    uids.append(uid)
            for number, (current, highest) in list(followed.items()):
                try:
                    used, may = os.pread(current, 32, 0), os.pread(highest, 32, 0)
                except OSError:  # The pod has been removed.
                    for descriptor in followed.pop(number):
                        os.close(descriptor)
                    continue
                if (used, may) != (b"0\n", b"0\n"):
                    limit = float("inf") if may == b"max\n" else float(may)
                    samples.extend((began, time.monotonic(), number, float(used), limit))
            now = time.monotonic()
            gaps.append(now - last)
            last = now
            due = max(due + SAMPLE_SECONDS, now)
            time.sleep(due - now)
            began = time.monotonic()
        with self.file.open("w", encoding="ascii") as file:
            file.write(json.dumps(sorted(gaps)) + "\n")
            for at in range(0, len(samples), 5):
                since, until, which, held, most = samples[at : at + 5]
                file.write(f"{since} {until} {uids[int(which)]} {held:.0f} {most:.0f}\n")


class Churn:
    """All slots."""

    def __init__(self, plan: dict[str, Any], report: Path) -> None:
        self._seconds: float = plan["seconds"]
        self._device: str = plan["device"]
        self._metrics: str = plan["metrics"]
        self._chance = random.Random(3)  # noqa: S311 it is no secret
        self._sampler = Sampler(report)
        self._alive: dict[str, ChurnPod] = {}
        self._unpublished: list[ChurnPod] = []
        self._asking, self._fault = threading.Thread(), ""
        self.ended: list[ChurnPod] = []
        self._slots: dict[int, list[ChurnPod]] = {}
        for uid, entry in plan["pods"].items():
            folder = Path(plan["folder"], f"kubepods-burstable-pod{uid.replace('-', '_')}.slice")
            self._slots.setdefault(entry["slot"], []).append(ChurnPod(uid, folder, **entry))

    def run(self) -> dict[str, Any]:
        """Run until the time is over and the last pod has been removed; return the report."""
        self._until = time.monotonic() + self._seconds
        now = time.monotonic()
        due: list[tuple[float, int, Steps]] = [(now, -1, self._reloads())]
        due += [(now + self._chance.uniform(0, 5), slot, self._lives(pods)) for slot, pods in self._slots.items()]
        heapq.heapify(due)
        while due:
            when, slot, steps = heapq.heappop(due)
            time.sleep(max(0.0, when - time.monotonic()))
            with contextlib.suppress(StopIteration):
                heapq.heappush(due, (time.monotonic() + next(steps), slot, steps))
        self._sampler.end()
        pods = {pod.uid: {**dataclasses.asdict(pod), "folder": str(pod.folder)} for pod in self.ended}
        return {"pods": pods, "clock": time.time() - time.monotonic()}

    def _reloads(self) -> Steps:
        while time.monotonic() < self._until:
            yield RELOAD_SECONDS
            for pod in self._alive.values():
                if not pod.spared:
                    pod.attack()

    def _lives(self, pods: list[ChurnPod]) -> Steps:
        for pod in pods:
            if time.monotonic() < self._until:
                yield from self._life(pod)

    def _life(self, pod: ChurnPod) -> Steps:
        pod.folder.mkdir()
        if pod.disabled:
            self._sampler.follow(pod)
        write(pod.folder / "memory.max", str(MEMORY))
        write(pod.folder / "cgroup.subtree_control", "+memory")
        for _ in range(self._chance.randint(2, 3)):
            yield self._chance.uniform(0.005, 0.03)
            pod.attack()
        yield self._chance.uniform(0.003, 0.02)
        pod.scope.mkdir()
        self._begin(pod)
        self._alive[pod.uid] = pod
        end = min(self._until, time.monotonic() + self._chance.uniform(*LIFE_SECONDS))
        while time.monotonic() < end:
            yield 0.5
            if os.waitpid(pod.child, os.WNOHANG)[0]:
                self._begin(pod)
        del self._alive[pod.uid]
        os.kill(pod.child, signal.SIGKILL)
        os.waitpid(pod.child, 0)
        patience = time.monotonic() + PATIENCE
        while pod.disabled and pod.limit_at_end != "0" and time.monotonic() < patience:
            yield 0.2
            pod.limit_at_end = (pod.folder / "memory.swap.max").read_text(encoding="ascii").strip()
        if pod.disabled:
            yield METRICS_SECONDS
            yield from self._figures(pod)
        pod.scope.rmdir()
        pod.folder.rmdir()
        self.ended.append(pod)

    def _figures(self, pod: ChurnPod) -> Steps:
        """Wait for the pod's figures in the agent's metrics: after its end, they no longer include it.

        One client asks for all: twenty at once kept each other from their answers where CPUs were busy.
        """
        self._unpublished.append(pod)
        while not pod.published:
            if not self._asking.is_alive():
                if self._fault:
                    raise TimeoutError(self._fault)
                self._asking = threading.Thread(target=self._ask, args=[self._unpublished])
                self._unpublished = []
                self._asking.start()
            yield 0.05

    def _ask(self, pods: list[ChurnPod]) -> None:
        patience = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=PATIENCE) as answer:
                    lines = answer.read().decode().splitlines()
                break
            except (OSError, http.client.HTTPException) as error:  # Memory may be short.
                if time.monotonic() > patience:
                    self._fault = f"no metrics within {PATIENCE} s: {error}"
                    return
                time.sleep(0.1)
        found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        for pod in pods:
            figures = {key: found.get(f'{name}{{pod_uid="{pod.uid}"}}', 0) for key, name in PUBLISHED.items()}
            pod.published = {key: float(value) for key, value in figures.items()}

    def _begin(self, pod: ChurnPod) -> None:
        pod.child = hog(pod.scope, self._device, pod.slot, full=pod.full)
        pod.runs += 1


def main() -> None:
    """See the module."""
    plan, report = Path(sys.argv[1]), Path(sys.argv[2])
    found = Churn(json.loads(plan.read_text(encoding="ascii")), report).run()
    report.write_text(json.dumps(found), encoding="ascii")


if __name__ == "__main__":
    main()
