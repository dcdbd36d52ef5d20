"""A kubelet that evicts, and a kernel that swaps: first is what the check of the node names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from swapwarden.agent.host import cgroupfs
from swapwarden.api.conditions import ConditionType

from deploy.build import image
from hack.docs import commands
from testbed.base import term
from tests.e2e import cgroups, kubelets
from tests.e2e.cgroups import MIB, PAGE
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.kubelets import Configure
from tests.e2e.provider import Node, Provider, ProviderError
from tests.e2e.release import Release
from tests.e2e.test_pressure import BRIEF, GROW, condition, kills

ME = "tests/e2e/test_eviction.py"
NODE, PODS, NEITHER = "NodeThreshold", "AllocatableThreshold", ""
"""Why the kubelet evicts before the kernel swaps."""
SCALE = Path("/proc/sys/vm/watermark_scale_factor")
APART = 1000
"""The kernel's low watermarks are a tenth of memory above the min ones: more than pods take between two looks of the
kubelet, ten seconds apart."""
FAR = 300
"""MiB between the size at which the kubelet evicts and that at which the kernel swaps, where the former is first."""
GAP = 60
"""MiB before the first of both sizes, where growth becomes slow."""
PACE = 8
"""MiB a second."""
REQUEST = 1024
"""MiB: less than the load takes, so that it is evicted; a third of memory, so the kubelet gives a third of swap."""
LITTLE, MUCH = 4, 64
"""MiB of swap."""
SLACK = 2 * PACE
"""MiB between two samples."""


class Sample(NamedTuple):
    """Sizes in MiB."""

    available: int
    """memory.available of the node, as the kubelet computes it."""
    left: int
    """That of all pods."""
    swapped: int
    """Written to swap since the kernel started."""


def sample(node: Node) -> Sample:
    of_node, of_pods = (
        cgroupfs.counts(node.read(each / "memory.stat")) for each in (node.kubepods.parent, node.kubepods)
    )
    limit, used = (int(node.read(node.kubepods / name)) for name in ("memory.max", "memory.current"))
    memory = cgroups.meminfo(node, "MemTotal") - of_node["anon"] - of_node["file"] + of_node["inactive_file"]
    swapped = cgroupfs.counts(node.read("/proc/vmstat"))["pswpout"] * PAGE
    return Sample(memory // MIB, (limit - used + of_pods["inactive_file"]) // MIB, swapped // MIB)


def check(cluster: Provider, swapwarden: Release) -> str:
    """Return the output of the check in an agent's pod; ProviderError while the kubelet starts."""
    (block,) = commands.run_by(ME, "docs/node-check.md")
    command = block.text.replace("POD", swapwarden.agent()["metadata"]["name"])
    done = cluster.shell(f"{command} --kubelet-config=/host/kubelet/config")
    if done.returncode:
        raise ProviderError(done.stdout)
    return done.stdout


def size(said: str, row: str) -> int:
    """Return the MiB in a row of the check."""
    found = re.search(rf"^{row} .*?(\d+) MiB", said, re.MULTILINE)
    assert found, said
    return int(found[1])


@pytest.fixture(scope="module")
def configure(node: Node, swapwarden: Release, cluster: Provider, eventually: Wait) -> Iterator[Configure]:
    """Changes the kubelet's configuration, which the agent reads, on a node whose watermarks are far apart."""
    with kubelets.configured(node) as change:
        before = node.read(SCALE)
        try:
            node.write(SCALE, str(APART))
            swapwarden.upgrade(**{"agent.kubeletConfig": kubelets.FILE, "agent.resyncInterval": "5"})
            yield change
        finally:
            node.write(SCALE, before)
            swapwarden.upgrade()
    eventually(lambda: condition(cluster, "MemoryPressure")["status"] == "False", "the kubelet reports no pressure")


def conditions(swapwarden: Release) -> dict[str, tuple[str, str]]:
    """Return reason and message of the conditions of the node's state, by type."""
    found = swapwarden.state()["status"].get("conditions", [])
    return {each["type"]: (each["reason"], each.get("message", "")) for each in found}


@pytest.mark.usefixtures("nobody_else")
@pytest.mark.parametrize("reason", [NODE, PODS, NEITHER], ids=["node", "pods", "swap"])
def test_the_check_knows_whether_the_kubelet_evicts_before_the_kernel_swaps(
    cluster: Provider,
    node: Node,
    swapwarden: Release,
    configure: Configure,
    namespace: Namespace,
    eventually: Wait,
    reason: str,
) -> None:
    node.write("/proc/sys/vm/drop_caches", "3")
    said = check(cluster, swapwarden)
    swaps, least, of_pods = (size(said, row) for row in ("kernel swaps", "kernel kills", "kernel swaps by pods"))
    threshold = swaps + FAR if reason == NODE else swaps - (swaps - least) // 4
    total = cgroups.meminfo(node, "MemTotal") // MIB
    reserved = total - threshold - (of_pods - FAR) if reason == PODS else 0
    configure(f"{BRIEF}systemReserved: {{memory: {reserved}Mi}}\n", evict_below=f"{threshold}Mi")
    kind = str(ConditionType.EVICTION_BEFORE_SWAP)
    eventually(lambda: conditions(swapwarden).get(kind, ("", ""))[0] == reason, f"the agent says {reason or 'nothing'}")
    message = conditions(swapwarden).get(kind, ("", ""))[1]
    row = "swapping, then evictions" if reason == NEITHER else "evictions before swapping"
    eventually(lambda: row in check(cluster, swapwarden), row)
    said = check(cluster, swapwarden)
    assert (kind in said) is (reason != NEITHER)
    assert str(ConditionType.OOM_KILL_BEFORE_EVICTION) not in said
    limit = int(node.read(node.kubepods / "memory.max")) / MIB
    sizes = {NODE: f"below {threshold} MiB of memory.available", PODS: f"when pods use {limit - threshold:.0f} MiB"}
    assert sizes.get(reason, "") in message

    start, killed = sample(node), kills(node)
    first = min(start.available - max(threshold, swaps), start.left - threshold) - GAP
    container = {
        "name": "main",
        "image": image.REFERENCE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", "-c", GROW, str(first), str(PACE)],
        "resources": {"requests": {"memory": f"{REQUEST}Mi"}},
    }
    namespace.create_pod("grows", containers=[container], restartPolicy="Never")
    seen = [start]

    def ended() -> bool:
        seen.append(sample(node))
        return bool(namespace.pod("grows")["status"]["phase"] == "Failed")

    eventually(ended, "the pod ends")
    assert (namespace.pod("grows")["status"]["reason"], kills(node) - killed) == ("Evicted", 0)
    crossed = next(each for each in seen if min(each.available, each.left) < threshold)
    swapping = next((each.available for each in seen if each.swapped - start.swapped > LITTLE), None)
    term.say(f"evicted below {threshold} MiB, first seen: {crossed}; swaps at {swapping}, expected from {swaps} on")
    assert (crossed.available < threshold, crossed.left < threshold) == (reason != PODS, reason == PODS)
    if reason == NEITHER:
        assert crossed.swapped - start.swapped > MUCH
        assert swapping is not None
        assert swapping > swaps - SLACK
    else:
        assert swapping is None
