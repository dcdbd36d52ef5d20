"""memory.low and memory.high on a real kernel: they keep, they slow down, and no repair waits for them."""

from __future__ import annotations

import json
import sys
import time

import pytest

from tests.kernel import test_agent

MIB = 1 << 20
NODE = 128
"""MiB of memory for all pods of a test."""
VICTIM = 48
HOG = 112
BUSY = 300
REWRITES = 600
WINDOW = 6
SLACK = 10
"""Seconds, on an emulated CPU."""
WAIT = 2.0
"""Seconds."""


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


def test_repairs_wait_for_no_reclaim_of_memory_high(node: test_agent.Node, capsys: pytest.CaptureFixture[str]) -> None:
    busy, other = node.pod("busy"), node.pod("other")
    plain = {"swapMax": "max"}
    pods = {busy.uid: plain, other.uid: {"swapMax": "0"}}
    generation = node.put({"pods": pods})
    node.start()
    for pod in (busy, other):
        pod.make()
    node.vm.write(busy.path / "memory.max", "max")
    node.applied(generation)
    running = busy.hog(BUSY, "--then", "1000")
    test_agent.until(lambda: "round 2:" in running.output(), "the pod is busy")
    writing = node.vm.spawn(
        [sys.executable, "-c", test_agent.REWRITE, str(other.path / "memory.swap.max"), str(REWRITES)], log="rewrites"
    )
    node.put({"pods": {**pods, busy.uid: {**plain, "memoryHigh": str(50 * MIB)}}})
    seen, deadline = ["max"], time.monotonic() + test_agent.PATIENCE
    while seen[-1] != str(50 * MIB):
        assert time.monotonic() < deadline, seen
        if (value := node.vm.read(busy.path / "memory.high").strip()) != seen[-1]:
            assert writing.poll() is None, "the other pod's file is written all the time"
            seen.append(value)
    steps = [int(value) for value in seen[1:-1]]
    assert steps, "no write has the kernel reclaim all of it"
    assert steps == sorted(steps, reverse=True)
    assert writing.wait(test_agent.PATIENCE) == 0, writing.tail()
    times: list[float] = sorted(json.loads(writing.output().splitlines()[-1]))
    with capsys.disabled():
        sys.stdout.write(
            f"\n{REWRITES} rewrites while memory.high of a busy pod of {BUSY} MiB is lowered: 99 of 100 repaired within"
            f" {times[len(times) * 99 // 100] * 1000:.1f} ms, all within {times[-1] * 1000:.1f} ms\n"
        )
    assert times[-1] < WAIT


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


def test_a_pod_that_stands_still_at_memory_high_is_released_and_continues(node: test_agent.Node) -> None:
    """Without swap nothing of it can be reclaimed: on its way to its limit it would sleep for minutes."""
    pod = node.pod("stuck")
    entry = {"swapMax": "0", "memoryHigh": str(32 * MIB)}
    generation = node.put({"memoryGuard": {"windowSeconds": WINDOW}, "pods": {pod.uid: entry}})
    node.start()
    pod.make()
    node.applied(generation)
    running = pod.hog(56)
    test_agent.until(lambda: pod.number("memory.current") > 33 * MIB, "it is above memory.high")
    begun = time.monotonic()
    test_agent.until(lambda: node.vm.read(pod.path / "memory.high").strip() == "max", "it is released")
    assert time.monotonic() - begun < WINDOW + SLACK
    test_agent.until(lambda: "round 1:" in running.output(), "it continues", seconds=SLACK)
    test_agent.until(
        lambda: [each["reason"] for each in node.status.get("violations", [])] == ["ThrottlingEased"], "it is reported"
    )
    assert pod.oom_kills == 0
