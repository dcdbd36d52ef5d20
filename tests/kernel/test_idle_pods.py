"""Idle memory in swap: the memory that a node full of pods without visitors gains, and their first request after it.

`make bench-idle-pods` runs it, and prints a table. docs/design/measurements.md has one.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests
from testbed.vm.kernelvm import GuestProcess, KernelVM
from tests.kernel import test_agent
from tests.kernel.test_reclaim import metrics

pytestmark = pytest.mark.skipif(
    "IDLE_PODS" not in os.environ, reason="an experiment that takes minutes: `make bench-idle-pods` runs it"
)

MIB = 1 << 20
PODS = int(os.environ.get("IDLE_PODS") or 200)
HELD, ASKED, HOT = 5 * MIB, MIB, 64 << 10
"""Bytes of each pod: all, those that a request touches, and those that it touches every TOUCHES seconds."""
TOUCHES = 5
IDLE = 20.0
"""Seconds without a request before one is measured."""
STEP_PERCENT = 10
BOUNDS = {
    "maxStallPermille": 20,
    "intervalSeconds": 2,
    "stepPercent": STEP_PERCENT,
    "keepSwapFreeBytes": 16 * MIB,
    "writesPerDayBytes": 8 << 30,
}
HOUR_STEPS = 57
"""Steps of 10 % that leave what 600 steps of 1 % leave, an hour at the defaults: about a 410th."""

# Runs in the guest: makes pods by a list of their containers, with a process in each. SIGUSR1 has each pod asked three
# times, one pod after the other.
PROGRAM = """
import gc, json, mmap, os, pathlib, select, signal, sys, time
held, asked, hot, touches, limit = map(int, sys.argv[2:])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
block = os.urandom(1 << 20)

def serve(cgroup, requests, answers):
    pathlib.Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    memory = mmap.mmap(-1, held, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for start in range(0, held, len(block)):
        memory[start : start + len(block)] = block
    while True:
        os.write(answers, b".")
        while not select.select([requests], [], [], touches)[0]:
            memory[0:hot:4096]
        os.read(requests, 1)
        memory[held - asked : held : 4096]

gc.freeze()
pods = []
for cgroup in map(pathlib.Path, pathlib.Path(sys.argv[1]).read_text().splitlines()):
    cgroup.parent.mkdir()
    pathlib.Path(cgroup.parent, "memory.max").write_text(str(limit))
    pathlib.Path(cgroup.parent, "cgroup.subtree_control").write_text("+memory")
    cgroup.mkdir()
    requests, answers = os.pipe(), os.pipe()
    if not os.fork():
        serve(cgroup, requests[0], answers[1])
    os.read(answers[0], 1)
    os.close(requests[0])
    os.close(answers[1])
    pods.append((requests[1], answers[0]))
print("ready", flush=True)

def took(request, answer):
    begun = time.monotonic()
    os.write(request, b".")
    os.read(answer, 1)
    return time.monotonic() - begun

while signal.sigwait([signal.SIGUSR1]):
    print(json.dumps([[took(*pod) for _ in range(3)] for pod in pods]), flush=True)
"""


class Look(NamedTuple):
    """The node at one time; bytes."""

    available: int
    current: int
    swap: int


@pytest.fixture
def node(control_plane: ControlPlane) -> Iterator[test_agent.Node]:
    """A node with more memory than other tests need. Nothing in it is removed one by one: it ends as a whole."""
    control_plane.apply_crds(test_agent.CRDS)
    control_plane.apply(*manifests.other_manifests())
    with KernelVM(memory_mib=2048, swap_mib=1536) as vm:
        yield test_agent.Node(control_plane, vm, "systemd")


def look(node: test_agent.Node) -> Look:
    available = next(
        int(line.split()[1]) << 10
        for line in node.vm.read("/proc/meminfo").splitlines()
        if line.startswith("MemAvailable:")
    )
    current, swap = (int(node.vm.read(node.kubepods / f"memory{kind}.current")) for kind in ("", ".swap"))
    return Look(available, current, swap)


def asked(running: GuestProcess) -> tuple[list[float], list[float]]:
    """Return how long the first request of each pod took, and the third one, right after it; milliseconds."""
    rounds = running.output().count("\n")
    running.send_signal(signal.SIGUSR1)
    test_agent.until(lambda: running.output().count("\n") > rounds, "all pods have answered")
    first, _, third = zip(*json.loads(running.output().splitlines()[-1]), strict=True)
    return [1000 * each for each in first], [1000 * each for each in third]


def row(name: str, seen: Look, first: list[float], third: list[float]) -> str:
    last = statistics.quantiles(first, n=100, method="inclusive")[98]
    return (
        f"{name}: {seen.available / MIB:.0f} MiB available; pods hold {seen.current / MIB:.0f} MiB,"
        f" {seen.swap / MIB:.0f} in swap; first request {statistics.median(first):.1f} ms,"
        f" p99 {last:.1f}, longest {max(first):.1f};"
        f" the third {statistics.median(third):.1f} ms, longest {max(third):.1f}"
    )


def test_idle_pods_leave_their_node_free_and_answer(node: test_agent.Node, capsys: pytest.CaptureFixture[str]) -> None:
    pods = [node.pod(f"idle-{number}") for number in range(PODS)]
    without, asking = (
        {pod.uid: {"swapMax": "max", **more} for pod in pods} for more in ({}, {"reclaim": "Continuous"})
    )
    generation = node.put({"pods": without})
    agent = node.start(program=test_agent.BARE)
    node.applied(generation)
    cgroups = node.vm.shared / "pods"
    cgroups.write_text("\n".join(str(pod.container) for pod in pods))
    argv = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        PROGRAM,
        str(cgroups),
        *map(str, (HELD, ASKED, HOT, TOUCHES, test_agent.MEMORY)),
    ]
    running = node.vm.spawn(argv, log="idle-pods")
    test_agent.until(lambda: "ready" in running.output(), "all pods have their memory", 300)
    lines = []
    time.sleep(IDLE)
    before = look(node)
    first_before, third_before = asked(running)
    lines.append(row("without reclaim", before, first_before, third_before))

    begun = time.monotonic()
    node.put({"pods": asking, "reclaim": BOUNDS})
    steps = [0.0]

    def through() -> bool:
        """Return whether there was no step for three intervals in which there could be some."""
        time.sleep(3 * 2)
        steps.append(metrics(node, agent)['looks_total{result="Step"}'])
        return steps[-1] > 0 and steps[-1] == steps[-2]

    test_agent.until(through, "no pod has another step", 300)
    seconds, seen = time.monotonic() - begun, metrics(node, agent)
    after = look(node)
    first_after, third_after = asked(running)
    lines.append(row("with reclaim", after, first_after, third_after))
    again = look(node)
    looks = {name: count for name, count in seen.items() if name.startswith("looks_total") and count}
    lines.append(
        f"after these requests: {again.available / MIB:.0f} MiB available; pods hold {again.current / MIB:.0f} MiB"
    )
    lines.append(
        f"{steps[-1] / PODS:.1f} steps a pod in {seconds:.0f} s; {seen['moved_bytes_total'] / MIB:.0f} MiB moved,"
        f" {seen['refaulted_bytes_total'] / MIB:.0f} came back, in {seen['seconds_total']:.1f} s of the kernel; {looks}"
    )
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")
    assert 0 < steps[-1] / PODS <= HOUR_STEPS
    assert before.swap == 0
    assert after.available - before.available > PODS * HELD // 2
    assert "oom_kill 0" in node.vm.read(node.kubepods / "memory.events")
    assert statistics.median(first_after) > statistics.median(first_before)
    assert statistics.median(third_after) < statistics.median(first_after)
