"""memory.low and memory.high on a real kernel: they keep, they slow down, and no repair waits for them."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest
from swapwarden.agent.desired import throttle
from swapwarden.api import names

from testbed.controlplane.servers import ControlPlane
from testbed.product.controller import Controller
from testbed.vm.kernelvm import GuestProcess
from tests.kernel import memory, test_agent
from tests.unit import objects
from tests.unit.policy.memory import test_qos

MIB = 1 << 20
NODE = 128
"""MiB of memory for all pods of a test."""
VICTIM = 48
HOG = 112
BUSY = 300
REWRITES = 200
PAUSE = "0.05"
"""Seconds between two of them: they leave the agent, which has no cgroup of its own here, the CPU to reclaim."""
WINDOW = 4
SAMPLES = 2
"""Seconds between two looks of the guard."""
SLACK = 2
"""Seconds, on an emulated CPU."""
SOON = 20
"""Seconds in which a pod that stood still takes the rest of its memory there."""
TOP = test_agent.MEMORY // MIB
MAX_STALL = 8
PROFILES = "/apis/swapwarden.dev/v1alpha1/nodeswapprofiles"


def low(mib: int) -> dict[str, str]:
    return {"memoryLow": str(mib * MIB)}


def test_memory_low_keeps_the_working_set_of_an_idle_pod_only_with_all_its_ancestors(node: test_agent.Node) -> None:
    """The hog takes the node's memory: both together have 32 MiB more than it."""
    victim, hog = node.pod("victim"), node.pod("hog")
    pods = {victim.uid: {"swapMax": "max", **low(VICTIM + 8)}, hog.uid: {"swapMax": "max"}}
    whole = {"kubepods": low(VICTIM + 8), "burstable": low(VICTIM + 8), "pods": pods}
    generation = node.put(whole)
    node.start()
    for pod in (victim, hog):
        pod.make()
        node.vm.write(pod.path / "memory.max", "max")
    node.applied(generation)
    for path in (node.kubepods, node.burstable, victim.path):
        assert node.vm.read(path / "memory.low").split() == [str((VICTIM + 8) * MIB)]
    node.vm.write(node.root / "memory.max", str(NODE * MIB))
    kept = victim.hog(VICTIM, "--rounds", "1")
    test_agent.until(lambda: "round 1:" in kept.output(), "the victim has its memory")
    greedy = hog.hog(HOG)
    test_agent.until(lambda: "round 2:" in greedy.output(), "the hog has its memory")
    assert victim.number("memory.current") >= (VICTIM - 4) * MIB
    # With ancestors at 0, as the kubelet leaves them, nothing below is protected.
    above = {name: {"memoryLow": None} for name in ("kubepods", "burstable")}
    node.applied(node.put({**whole, **above}))
    assert [node.vm.read(path / "memory.low").split() for path in (node.kubepods, node.burstable)] == [["0"], ["0"]]
    test_agent.until(lambda: victim.number("memory.current") < VICTIM // 2 * MIB, "the victim loses its memory")


# Runs in the guest: prints each thread of a process that is seen while the kernel reclaims for its write.
WRITERS = """
import contextlib, pathlib, sys, time
tasks, seen = pathlib.Path("/proc", sys.argv[1], "task"), set()
while True:
    for task in tasks.iterdir():
        with contextlib.suppress(OSError):
            if "memory_high_write" in (task / "stack").read_text() and task.name not in seen:
                seen.add(task.name)
                print(task.name, flush=True)
    time.sleep(0.005)
"""

# Runs in the guest: prints how many threads of a process have the kernel reclaim for their write.
RECLAIMS = """
import pathlib, sys
stacks = [(task / "stack").read_text() for task in pathlib.Path("/proc", sys.argv[1], "task").iterdir()]
print(sum("memory_high_write" in stack for stack in stacks))
"""


def test_repairs_wait_for_no_reclaim_of_memory_high(node: test_agent.Node, capsys: pytest.CaptureFixture[str]) -> None:
    """Another thread than the one that repairs is in the kernel meanwhile. How long repairs take is said.

    On a slow machine the pod stalls long enough for the guard to release it: here the guard only reports.
    """
    busy, other = node.pod("busy"), node.pod("other")
    plain = {"swapMax": "max"}
    pods = {busy.uid: plain, other.uid: {"swapMax": "0"}}
    generation = node.put({"memoryGuard": {"action": "Report"}, "pods": pods})
    agent = node.start()
    for pod in (busy, other):
        pod.make()
    node.vm.write(busy.path / "memory.max", "max")
    node.applied(generation)
    running = busy.hog(BUSY, "--then", "1000")
    test_agent.until(lambda: "round 2:" in running.output(), "the pod is busy")
    writers = node.vm.spawn([sys.executable, "-c", WRITERS, str(agent.pid)], log="writers")
    rewrite = [sys.executable, "-c", test_agent.REWRITE, str(other.path / "memory.swap.max")]
    first = node.vm.run([*rewrite, str(REWRITES), PAUSE], timeout=test_agent.PATIENCE)
    before: list[float] = sorted(json.loads(first.stdout))
    end = f"/tmp/lowered-{node.name}"  # noqa: S108 it is in the guest
    writing = node.vm.spawn([*rewrite, end, PAUSE], log="rewrites")
    node.put({"pods": {**pods, busy.uid: {**plain, "memoryHigh": str(50 * MIB)}}})
    seen, deadline = ["max"], time.monotonic() + test_agent.PATIENCE
    while seen[-1] != str(50 * MIB):
        assert time.monotonic() < deadline, seen
        if (value := node.vm.read(busy.path / "memory.high").strip()) != seen[-1]:
            seen.append(value)
        time.sleep(0.01)
    # The kernel still reclaims for the last value, and shows it already: it is the agent's own all the same.
    node.put({"pods": {**pods, busy.uid: {**plain, "memoryHigh": None}}})
    test_agent.until(lambda: node.vm.read(busy.path / "memory.high").strip() == "max", "it has the value from before")
    raised = time.monotonic()
    reclaims = [sys.executable, "-c", RECLAIMS, str(agent.pid)]
    test_agent.until(lambda: node.vm.run(reclaims, timeout=60).stdout.split() == ["0"], "no thread reclaims any more")
    raised = time.monotonic() - raised
    node.vm.mkdir(end)
    steps = [int(value) for value in seen[1:-1]]
    assert steps, "no write has the kernel reclaim all of it"
    assert steps == sorted(steps, reverse=True)
    assert writing.wait(test_agent.PATIENCE) == 0, writing.tail()
    writers.stop()
    times: list[float] = sorted(json.loads(writing.output().splitlines()[-1]))
    slowest, least = (each[len(each) * 99 // 100] for each in (times, before))
    with capsys.disabled():
        sys.stdout.write(
            f"\n{REWRITES} rewrites beside a busy pod of {BUSY} MiB: 99 of 100 repaired within {least * 1000:.1f} ms;"
            f" {len(times)} while its memory.high is lowered, within {slowest * 1000:.1f} ms"
            f" ({slowest / least:.2f} times that); the kernel stops {raised:.2f} s after the raise\n"
        )
    threads = writers.output().split()
    assert threads, "the kernel reclaims for a write of some thread"
    assert str(agent.pid) not in threads, "and never for one of the thread that repairs"


def test_a_restore_leaves_the_values_from_before(node: test_agent.Node) -> None:
    mine, theirs = node.pod("mine"), node.pod("theirs")
    entry = {"swapMax": "max", "memoryHigh": str(40 * MIB), "memoryMin": str(4 * MIB), **low(8)}
    spec = {"kubepods": low(16), "burstable": low(16), "pods": {mine.uid: entry, theirs.uid: entry}}
    for pod in (mine, theirs):
        pod.make()
    node.vm.write(theirs.path / "memory.low", str(12 * MIB))
    files = [
        *(node.kubepods / name for name in ("memory.min", "memory.low")),
        node.burstable / "memory.low",
        *(pod.path / name for pod in (mine, theirs) for name in ("memory.min", "memory.low", "memory.high")),
    ]
    before = [node.vm.read(file) for file in files]
    generation = node.put(spec)
    node.start()
    node.applied(generation)
    assert [node.vm.read(mine.path / name).strip() for name in ("memory.min", "memory.low", "memory.high")] == [
        str(4 * MIB),
        str(8 * MIB),
        str(40 * MIB),
    ]
    node.vm.write(node.burstable / "memory.low", "0")
    test_agent.until(lambda: node.vm.read(node.burstable / "memory.low").split() == [str(16 * MIB)], "it is repaired")
    node.applied(node.put({**spec, "mode": "Restore"}), "Restored")
    assert [node.vm.read(file) for file in files] == before


def test_pods_that_stand_still_at_memory_high_are_released_in_time(
    node: test_agent.Node, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without swap nothing of them can be reclaimed. Each then meets its own fate, and none takes others with it."""
    fits, greedy, several = (node.pod(name) for name in ("fits", "greedy", "several"))
    high = {"memoryHigh": str(32 * MIB)}
    pods: dict[str, dict[str, object]] = {pod.uid: {"swapMax": "0", **high} for pod in (fits, greedy)}
    pods[several.uid] = {"swapMax": "0", "containers": {"app": {"id": several.container_id[:13], **high}}}
    files = {pod: pod.path / "memory.high" for pod in (fits, greedy)} | {several: several.container / "memory.high"}
    generation = node.put({"memoryGuard": {"windowSeconds": WINDOW}, "pods": pods})
    node.start()
    for pod in files:
        pod.make()
    node.applied(generation)
    # A second container, of which the state says nothing.
    beside = several.path / f"cri-containerd-{'0' * 64}.scope"
    node.vm.mkdir(beside)
    go = f"/run/{node.name}-go"
    neighbour = node.vm.spawn([sys.executable, "-c", memory.ENTER + memory.WAITS, str(beside), go], log="neighbour")
    hogs = {fits: fits.hog(48, "--rounds", "1"), greedy: greedy.hog(80), several: several.hog(48, "--rounds", "1")}
    over: dict[test_agent.Pod, float] = {}
    released: dict[test_agent.Pod, float] = {}

    def looked() -> bool:
        for pod, file in files.items():
            if pod not in over and pod.number("memory.current") > 33 * MIB:
                over[pod] = time.monotonic()
                if pod is several:
                    node.vm.write(go, "")
            if pod not in released and node.vm.read(file).strip() == "max":
                released[pod] = time.monotonic()
        return len(released) == len(files)

    memory.until(looked, "all are released")
    took = [released[pod] - over[pod] for pod in files]
    test_agent.until(lambda: "round 1:" in hogs[fits].output(), "it continues", seconds=SOON)
    test_agent.until(lambda: greedy.oom_kills, "its limit ends it", seconds=SOON)
    test_agent.until(lambda: "round 1:" in hogs[several].output(), "the container continues", seconds=SOON)
    assert [fits.oom_kills, several.oom_kills] == [0, 0]
    memory.until(neighbour.output, "the container beside one has its memory")
    waited = float(neighbour.output())
    assert waited < 1.0
    neighbour.send_signal(9)
    neighbour.wait(test_agent.PATIENCE)
    node.vm.rmdir(beside)
    reasons = ["ThrottlingEased"] * len(files)
    test_agent.until(lambda: [each["reason"] for each in node.status.get("violations", [])] == reasons, "all are told")
    with capsys.disabled():
        sys.stdout.write(
            f"\nreleased {max(took):.1f} s after they stood still, with a window of {WINDOW} s; 1 MiB of the container"
            f" beside one took {waited * 1000:.0f} ms\n"
        )
    assert max(took) < WINDOW + SAMPLES + SLACK


# Runs in the guest: the agent, whose guard counts ten seconds of a hold and of calm as one hundred.
HASTY = """
import runpy, sys
from swapwarden.agent.desired import throttle
times = throttle.GuardTimes
throttle.GuardTimes = lambda window, hold: times(window, hold / 10)
throttle.CALM_SECONDS /= 10
throttle.CALM_SAMPLE_SECONDS /= 10
sys.argv[0] = "swapwarden"
runpy.run_module("swapwarden", run_name="__main__", alter_sys=True)
"""
HOLD = 30
"""Seconds, before that."""


@pytest.mark.skipif("KERNEL_FACTS" not in os.environ, reason="it takes minutes: `make test-kernel-memory` runs it")
def test_a_released_pod_is_throttled_again_once_it_is_calm_and_after_three_trips_no_more(
    node: test_agent.Node, capsys: pytest.CaptureFixture[str]
) -> None:
    """The constants of the guard are ten times as long; the unit tests have them as they are."""
    pod, plan, took = node.pod("pod"), str(32 * MIB), list[float]()
    spec = {"memoryGuard": {"windowSeconds": WINDOW, "holdSeconds": HOLD}}

    def want(high: str) -> None:
        node.applied(node.put({**spec, "pods": {pod.uid: {"swapMax": "0", "memoryHigh": high}}}))

    def high() -> str:
        return node.vm.read(pod.path / "memory.high").strip()

    def stands_still() -> GuestProcess:
        taking = pod.hog(48, "--rounds", "1")
        memory.until(lambda: pod.number("memory.current") > 33 * MIB, "it stands still")
        begun = time.monotonic()
        memory.until(lambda: high() == "max", "it is released")
        took.append(time.monotonic() - begun)
        test_agent.until(lambda: "round 1:" in taking.output(), "it continues", seconds=SOON)
        return taking

    def frees(taking: GuestProcess) -> float:
        """Have it free its memory; return when."""
        taking.send_signal(9)
        taking.wait(test_agent.PATIENCE)
        return time.monotonic()

    def longest(trips: int) -> float:
        """Seconds until a pod that frees its memory is throttled again at the latest."""
        return ((HOLD << trips - 1) + throttle.CALM_SECONDS + 2 * throttle.CALM_SAMPLE_SECONDS) / 10 + SLACK

    node.start(program=HASTY)
    pod.make()
    want(plan)
    again = []
    for count in (1, 2):
        taking = stands_still()
        if count == 1:
            time.sleep(longest(count))
            assert high() == "max", "all of it is still in use"
        freed = frees(taking)
        memory.until(lambda: high() == plan, "it has its memory.high again")
        again.append(time.monotonic() - freed)
        assert again[-1] < longest(count)
    frees(stands_still())
    test_agent.until(
        lambda: [each.get("guard") for each in node.status.get("throttled", [])] == ["Latched"], "the third is said"
    )
    time.sleep(longest(3))
    assert high() == "max", "it stays so"
    want(str(36 * MIB))
    assert high() == str(36 * MIB), "another plan ends that"
    trips, returns = (", ".join(f"{each:.1f}" for each in found) for found in (took, again))
    with capsys.disabled():
        sys.stdout.write(
            f"\nreleased {trips} s after it stood still, with a window of {WINDOW} s;"
            f" throttled again {returns} s after it freed its memory\n"
        )
    assert max(took) < WINDOW + SAMPLES + SLACK


def test_bounded_ends_in_time_without_an_agent(node: test_agent.Node, capsys: pytest.CaptureFixture[str]) -> None:
    """Once it is killed nobody watches. Other pods on the same CPUs make the way to the limit the longest."""
    pod, others = node.pod("bounded"), memory.Lab(node.vm)
    row = objects.pod(objects.container(limit=TOP * MIB))
    high = test_qos.decided(
        row, swap=0, throttling_percent=10, without_swap=names.WithoutSwap.BOUNDED, max_stall=MAX_STALL
    ).high
    assert high
    generation = node.put({"pods": {pod.uid: {"swapMax": "0", "memoryHigh": str(high)}}})
    agent = node.start()
    pod.make()
    node.applied(generation)
    agent.send_signal(9)
    agent.wait(test_agent.PATIENCE)
    try:
        others.keep_busy()
        walk = memory.Walk(node.vm, pod.path, high, lambda: pod.hog(TOP + 8), pod.container)
        memory.until(walk.look, "its limit ends it")
    finally:
        others.close()
    with capsys.disabled():
        sys.stdout.write(f"\nbounded to {MAX_STALL} s, without an agent: asleep for {walk.blocked:.1f} s\n")
    assert pod.oom_kills == 1
    assert MAX_STALL / 16 < walk.blocked < 1.3 * MAX_STALL


def test_nothing_is_written_beside_a_kubelet_that_protects_nor_by_audit(node: test_agent.Node) -> None:
    pod = node.pod("pod")
    pod.make()
    container = {"id": pod.container_id[:13], "memoryHigh": str(40 * MIB)}
    entry = {"swapMax": str(8 * MIB), "memoryMin": str(4 * MIB), **low(8), "containers": {"app": container}}
    spec = {"kubepods": {**low(16), "memoryMin": str(4 * MIB)}, "burstable": low(16), "pods": {pod.uid: entry}}
    above = [path / name for path in (node.kubepods, node.burstable, pod.path) for name in ("memory.min", "memory.low")]
    files = [*above, pod.container / "memory.high"]

    def values() -> list[str]:
        return [node.vm.read(file).strip() for file in files]

    unset = [*["0"] * len(above), "max"]
    text = "kind: KubeletConfiguration\nmemoryReservationPolicy: TieredReservation\nmemoryThrottlingFactor: 0.9\n"
    (node.files / "kubelet.yaml").write_text(text)
    generation = node.put(spec)
    beside = node.start("kubeconfig", "--kubelet-config", str(node.files / "kubelet.yaml"))
    test_agent.until(lambda: pod.swap_max == str(8 * MIB), "the agent works")
    test_agent.until(lambda: node.status.get("observedGeneration") == generation, "all of the state was taken")
    assert values() == unset
    beside.stop()
    generation = node.put({**spec, "mode": "Audit"})
    node.start()
    node.applied(generation, "Audit")
    node.vm.write(pod.path / "memory.low", "0")
    node.applied(node.put({**spec, "mode": "Audit", "defaultReason": "LimitedSwap"}), "Audit")
    assert values() == unset
    node.applied(node.put({**spec, "mode": "Enforce"}))
    planned = [str(number * MIB) for number in (4, 16, 0, 16, 4, 8, 40)]
    assert values() == planned
    # As systemd and kubelets leave them.
    for file, value in zip(files, unset, strict=True):
        node.vm.write(file, value)
    test_agent.until(lambda: values() == planned, "each is repaired")


def test_protection_above_pods_follows_them(
    node: test_agent.Node, control_plane: ControlPlane, fresh_namespace: str
) -> None:
    """With the controller, which adds up; a pod that has ended counts no more, although its cgroup is still there."""
    pods = f"/api/v1/namespaces/{fresh_namespace}/pods"
    control_plane.request("PATCH", f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {"memory": node.name}}})
    spec = {"nodeSelector": {"matchLabels": {"memory": node.name}}, "memoryQoS": {"reservationPolicy": "Soft"}}
    kind = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapProfile"}
    control_plane.create(PROFILES, {**kind, "metadata": {"name": node.name}, "spec": spec})

    def begin(name: str, mib: int) -> test_agent.Pod:
        containers = [{"name": "app", "image": "none", "resources": {"requests": {"memory": f"{mib}Mi"}}}]
        body = {"metadata": {"name": name}, "spec": {"nodeName": node.name, "containers": containers}}
        made = node.pod(name, control_plane.create(pods, body)["metadata"]["uid"])
        made.make()
        return made

    def protected(mib: int) -> None:
        def holds() -> bool:
            return {node.vm.read(path / "memory.low").strip() for path in (node.kubepods, node.burstable)} == {
                str(mib * MIB)
            }

        test_agent.until(holds, f"{mib} MiB are protected above")

    node.start()
    with Controller(control_plane):
        gone, ended, stays = begin("gone", 8), begin("ended", 16), begin("stays", 4)
        protected(28)
        for pod, mib in ((gone, 8), (ended, 16), (stays, 4)):
            test_agent.until(lambda: pod.number("memory.low") == mib * MIB, "it has its own")  # noqa: B023 called at once
        assert control_plane.request("DELETE", f"{pods}/gone", {"gracePeriodSeconds": 0})[0] == 200
        protected(20)
        control_plane.request("PATCH", f"{pods}/ended/status", {"status": {"phase": "Succeeded"}})
        protected(4)
        begin("next", 32)
        protected(36)
        assert control_plane.request("DELETE", f"{PROFILES}/{node.name}")[0] == 200
        protected(0)
