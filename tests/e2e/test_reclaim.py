"""Idle memory moves to swap on a real node, of the pod that asks for it, until the pod needs it again."""

from __future__ import annotations

import time
from typing import Any

from swapwarden.agent.desired import reclaim
from swapwarden.api import names

from deploy.build import image
from tests.e2e import cgroups, release
from tests.e2e.cgroups import MIB
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node
from tests.e2e.release import Release
from tests.e2e.test_pressure import HOLDS

HELD = 160
"""MiB of each pod."""
RECLAIM = {"mode": "Continuous", "maxStallPermille": 20, "intervalSeconds": 2, "stepPercent": 10}
METRIC = "swapwarden_agent_reclaim_"
NEEDED = "tmp/needed"
IDLE = f"""
import os, sys, time
block, held, size = bytes(1 << 20), os.memfd_create("held"), int(sys.argv[1])
for _ in range(size):
    os.write(held, block)
open("/tmp/held", "w").close()
while not os.path.exists("/{NEEDED}"):
    time.sleep(1)
while True:
    for place in range(size):
        os.pread(held, 1 << 20, place << 20)
    time.sleep(0.2)
"""
"""Without a page fault for each page: in user mode they take most of the time."""


def idle() -> dict[str, Any]:
    """A container that fills its memory, and touches it as soon as, and as long as, there is a file."""
    return {
        "name": "main",
        "image": image.REFERENCE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", "-c", IDLE, str(HELD)],
        "resources": {"requests": {"memory": "16Mi"}},
        "startupProbe": {**HOLDS, "failureThreshold": 120},
    }


def test_an_idle_pod_shrinks_until_it_needs_its_memory(
    node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    def metric(name: str) -> float:
        return swapwarden.total("agent", f"{METRIC}{name}_bytes_total")

    def stops() -> float:
        text = swapwarden.metrics(swapwarden.agent()["metadata"]["name"], "agent")
        looks = release.series(text, f"{METRIC}looks_total")
        return sum(looks[f'result="{hold}"'] for hold in (names.ReclaimHold.REFAULTS, names.ReclaimHold.STALLED))

    granted = {"swapwarden.dev/swap-limit": f"{2 * HELD}Mi"}
    asks = {"swapwarden.dev/reclaim": "Continuous"}
    with swapwarden.profile("e2e-reclaim", reclaim=RECLAIM) as apply:
        apply(behavior="WorkloadControlled")
        moved = metric("moved")
        for name, annotations in {"silent": granted, "asks": {**granted, **asks}}.items():
            namespace.create_pod(name, metadata={"annotations": annotations}, containers=[idle()])
        pods = {name: namespace.wait_ready(name) for name in ("silent", "asks")}
        silent, folder = (cgroups.of_pod(node, pod) for pod in pods.values())

        def current() -> int:
            return int(node.read(folder / "memory.current"))

        eventually(lambda: current() < HELD * MIB * 6 // 10, "the idle pod shrinks")
        assert cgroups.swap_used(node, folder) > HELD * MIB // 4
        assert metric("moved") - moved > HELD * MIB // 4
        assert int(node.read(silent / "memory.current")) > (HELD - 4) * MIB
        assert cgroups.swap_used(node, silent) == 0

        before, refaulted = stops(), metric("refaulted")
        process = cgroups.first_process(node, cgroups.of_container(node, pods["asks"]))
        node.write(f"/proc/{process}/root/{NEEDED}", "")
        eventually(lambda: current() > HELD * MIB * 9 // 10, "the pod has its memory again")
        eventually(lambda: stops() > before, "the agent sees that it is needed")
        begun, seen, moved = time.monotonic(), stops(), metric("moved")
        assert metric("refaulted") - refaulted > HELD * MIB // 8
        eventually(lambda: stops() > seen, "after a minute it tries once more, and sees it again")
        assert time.monotonic() - begun > reclaim.WAIT_SECONDS / 2
        assert metric("moved") - moved < HELD * MIB // 2, "a few steps, where a minute has room for thirty"
        assert current() > HELD * MIB * 8 // 10
        assert cgroups.events(node, folder)["oom_kill"] == 0
