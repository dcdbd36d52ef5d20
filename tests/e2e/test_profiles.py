"""A profile that changes its behaviour on a live node with swap in use, held against `swapwarden plan`."""

from __future__ import annotations

from typing import Any

from swapwarden.policy import swap

from testbed import image
from tests.e2e import cgroups
from tests.e2e.cgroups import MIB, PAGE, TIMEOUT
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.planned import differences
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release

LIMIT = 64 * MIB
SWAP_LIMIT = 96 * MIB
# Fills more than its memory, keeps touching all of it, and lets go of most of it when it is told to.
HOG = """
import mmap, os, signal, time
MIB = 1 << 20
size = 96
def let_go(*_):
    global size
    size = 0
signal.signal(signal.SIGUSR1, let_go)
memory = mmap.mmap(-1, size * MIB)
memory.madvise(mmap.MADV_NOHUGEPAGE)
block = os.urandom(MIB)
while size:
    for start in range(0, size * MIB, MIB):
        memory[start : start + MIB] = block
        time.sleep(1 / 32)
memory.close()
while True:
    time.sleep(60)
"""


def test_a_profile_changes_its_behaviour_while_swap_is_in_use(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    limited = {"annotations": {"swapwarden.dev/swap-limit": str(SWAP_LIMIT)}}
    hog = {
        "name": "main",
        "image": image.REFERENCE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", "-c", HOG],
        "resources": {"requests": {"memory": str(LIMIT - MIB)}, "limits": {"memory": str(LIMIT)}},
    }
    total, memory = cgroups.meminfo(node, "SwapTotal"), cgroups.meminfo(node, "MemTotal")
    with swapwarden.profile("e2e-switched") as apply:
        apply(behavior="WorkloadControlled", systemReserved="10%", workloadControlled={"maxPerContainer": "80Mi"})
        namespace.create_pod("hog", metadata=limited, containers=[hog])
        namespace.create_pod("asks", metadata=limited, resources={"requests": {"memory": "32Mi"}})
        namespace.create_pod("silent", resources={"requests": {"memory": "48Mi"}, "limits": {"memory": "64Mi"}})
        pressed, asks, silent = pods = [namespace.wait_ready(name) for name in ("hog", "asks", "silent")]
        folder = cgroups.of_pod(node, pressed)

        def used() -> int:
            return cgroups.swap_used(node, folder)

        def in_force(which: list[Any]) -> None:
            eventually(lambda: not differences(cluster, node, which), "the kernel holds what the plan says")

        def is_draining(wanted: str | None = None) -> bool:
            found = [each for each in swapwarden.violations(pressed["metadata"]["uid"]) if each["reason"] == "Draining"]
            return any(each["swapBytes"] > 0 and wanted in {None, each["wanted"]} for each in found)

        # WorkloadControlled: the pod's own limit, within the profile's bounds; nothing for who names none.
        in_force(pods)
        assert cgroups.swap_max(node, cgroups.of_pod(node, asks)) == str(SWAP_LIMIT)
        assert cgroups.swap_max(node, cgroups.of_container(node, asks)) == str(80 * MIB)
        assert cgroups.swap_max(node, cgroups.of_pod(node, silent)) == "0"
        eventually(lambda: used() >= 24 * MIB, "the hog has swap in use")

        # LimitedSwap gives the hog less than it has in use.
        apply(behavior="LimitedSwap", systemReserved="10%")
        usable = total - total // 10
        eventually(is_draining, "the hog is reported as draining under LimitedSwap")
        in_force([asks, silent])
        assert cgroups.swap_max(node, node.kubepods) == str(swap.floor_to_page(usable, PAGE))
        share = swap.floor_to_page(swap.container_swap(48 * MIB, 64 * MIB, memory, usable), PAGE)
        assert cgroups.swap_max(node, cgroups.of_container(node, silent)) == str(share)
        assert int(cgroups.swap_max(node, folder)) >= used()

        # NoSwap: as much as is in use, and never more again.
        apply(behavior="NoSwap")
        in_force([asks, silent])
        eventually(is_draining, "the hog is reported as draining under NoSwap")

        # Kubelet: the pod's own limit; the container's is the kubelet's again, less than the hog has in use.
        apply(behavior="Kubelet")
        in_force(pods)
        assert cgroups.swap_max(node, folder) == str(SWAP_LIMIT)
        assert cgroups.swap_max(node, node.kubepods) == "max"
        kubelets = swap.floor_to_page(swap.container_swap(LIMIT - MIB, LIMIT, memory, total), PAGE)
        eventually(lambda: is_draining(str(kubelets)), "the hog drains to the kubelet's number")

        # NoSwap once more, and the hog lets go: draining ends.
        apply(behavior="NoSwap")
        eventually(is_draining, "the hog is reported as draining once more")
        hogs = node.read(cgroups.of_container(node, pressed) / "cgroup.procs").split()
        node.run(["kill", "-USR1", hogs[0]], timeout=TIMEOUT)
        eventually(lambda: cgroups.swap_max(node, folder) == "0", "the hog holds 0 when its memory is free")
        # Pages of the interpreter that nobody touches stay on the disk for as long as it runs, and are named.
        assert used() < LIMIT // 8
        eventually(lambda: is_draining() == (used() > 0), "what is left is named")
        in_force(pods)

        for pod in pods:
            assert cgroups.events(node, cgroups.of_pod(node, pod))["oom_kill"] == 0
        namespace.delete_pod("hog")
        eventually(lambda: not is_draining(), "draining ends with the pod at the latest")
    folder = cgroups.of_pod(node, asks)
    eventually(lambda: cgroups.swap_max(node, folder) == str(SWAP_LIMIT), "without a profile the pod's limit is left")
