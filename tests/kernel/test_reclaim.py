"""Idle memory of pods moves to swap on a real kernel, by an agent without capabilities, until the pods need it."""

from __future__ import annotations

import json
import os
import sys

import pytest

from testbed.vm.kernelvm import GuestProcess
from tests.kernel import test_agent

MIB = 1 << 20
HELD = 48
"""MiB of each pod."""
BOUNDS = {
    "maxStallPermille": 20,
    "intervalSeconds": 2,
    "stepPercent": 10,
    "keepSwapFreeBytes": 16 * MIB,
    "writesPerDayBytes": 100 * MIB,
}
# Runs in the guest, where each module costs time.
SCRAPE = r"""
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 30) as client:
    client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    while part := client.recv(65536):
        sys.stdout.buffer.write(part)
"""


def metrics(node: test_agent.Node, agent: GuestProcess) -> dict[str, float]:
    port = next(json.loads(line)["port"] for line in agent.output().splitlines() if '"serving health' in line)
    argv = [sys.executable, "-I", "-S", "-c", SCRAPE, str(port)]
    text = node.vm.run(argv, timeout=60).stdout
    samples = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    name = "swapwarden_agent_reclaim_"
    return {key.removeprefix(name): float(value) for key, _, value in samples if key.startswith(name)}


def test_an_idle_pod_shrinks_until_it_needs_its_memory(node: test_agent.Node) -> None:
    """A frozen pod is idle; thawed, it touches all of its memory again."""
    idle, silent, disabled = node.pod("idle"), node.pod("silent"), node.pod("disabled")
    asks = {"swapMax": "max", "reclaim": "Continuous"}
    pods = {idle.uid: asks, silent.uid: {"swapMax": "max"}, disabled.uid: {**asks, "swapMax": "0"}}
    generation = node.put({"pods": pods, "reclaim": BOUNDS})
    for pod in (idle, silent, disabled):
        pod.make()
    agent = node.start(program=test_agent.BARE)
    node.applied(generation)
    hogs = [pod.hog(HELD) for pod in (idle, silent, disabled)]
    test_agent.until(lambda: all("round 1:" in each.output() for each in hogs), "all have their memory")
    for pod in (idle, silent, disabled):
        node.vm.write(pod.path / "cgroup.freeze", "1")
    test_agent.until(lambda: idle.number("memory.current") < HELD * MIB * 6 // 10, "the idle pod shrinks")
    seen = metrics(node, agent)
    swapped = idle.number("memory.swap.current")
    assert swapped > HELD * MIB // 4
    assert seen["moved_bytes_total"] > HELD * MIB // 4
    assert 0 < seen["seconds_total"] < 60
    assert [pod.number("memory.swap.current") for pod in (silent, disabled)] == [0, 0]
    assert all(pod.number("memory.current") > (HELD - 4) * MIB for pod in (silent, disabled))
    rounds = hogs[0].output().count("round")
    node.vm.write(idle.path / "cgroup.freeze", "0")
    test_agent.until(lambda: hogs[0].output().count("round") >= rounds + 2, "the pod has all of its memory again")
    assert idle.number("memory.current") > HELD * MIB * 9 // 10
    stops = ('looks_total{result="Refaults"}', 'looks_total{result="Stalled"}')

    def stopped() -> bool:
        found = metrics(node, agent)
        more = sum(found[each] for each in stops) > sum(seen[each] for each in stops)
        return more and found["refaulted_bytes_total"] > HELD * MIB // 8

    # The agent looks at the pod some seconds later.
    test_agent.until(stopped, "the agent counts what came back, and stops")
    assert idle.oom_kills == 0


@pytest.mark.skipif("KERNEL_FACTS" not in os.environ, reason="it takes minutes: `make test-kernel-memory` runs it")
def test_a_node_has_no_more_writes_than_its_bound(node: test_agent.Node) -> None:
    """Also over a restart of the agent."""
    pod = node.pod("idle")
    bounds = {**BOUNDS, "writesPerDayBytes": 8 * MIB}
    generation = node.put({"pods": {pod.uid: {"swapMax": "max", "reclaim": "Continuous"}}, "reclaim": bounds})
    pod.make()
    agent = node.start()
    node.applied(generation)
    running = pod.hog(HELD, "--rounds", "1")
    test_agent.until(lambda: "round 1:" in running.output(), "the pod has its memory")
    spent = 'looks_total{result="WritesSpent"}'
    test_agent.until(lambda: metrics(node, agent)[spent] > 0, "the writes are spent")
    swapped = pod.number("memory.swap.current")
    assert 6 * MIB < swapped < 10 * MIB
    agent.stop()
    again = node.start()
    test_agent.until(lambda: metrics(node, again)[spent] > 0, "the next agent knows")
    assert pod.number("memory.swap.current") <= swapped
