"""A profile that changes its behaviour on a live node with swap in use, held against `swapwarden plan`."""

from __future__ import annotations

from typing import Any

from swapwarden.policy.swap import limits

from deploy.build import image
from tests.e2e import cgroups
from tests.e2e.cgroups import MIB, PAGE, TIMEOUT
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.planned import differences
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release

LIMIT = 64 * MIB
SWAP_LIMIT = 96 * MIB
# On SIGUSR2, fills more than its memory and keeps touching all of it, until SIGUSR1, on which it frees everything.
HOG = """
import contextlib, mmap, os, signal, sys, time
MIB = 1 << 20
SIZE = 96 * MIB
def let_go(*_):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    os.execv(sys.executable, ["python3", "-I", "-S", "-c", "import time; time.sleep(86400)"])
signal.signal(signal.SIGUSR1, let_go)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
signal.sigwait([signal.SIGUSR2])
memory = mmap.mmap(-1, SIZE)
with contextlib.suppress(OSError):  # a kernel may have none
    memory.madvise(mmap.MADV_NOHUGEPAGE)
block = os.urandom(MIB)
while True:
    for start in range(0, SIZE, MIB):
        memory[start : start + MIB] = block
        time.sleep(1 / 32)
"""
# The kernel keeps up to 64 freed pages of swap for each CPU, and counts them as their last owner's until others swap
# there (mm/swap_slots.c).
SWAP_A_LITTLE = """
for cpu in $(seq 0 $(($(nproc) - 1))); do
    systemd-run --quiet --wait --property=MemoryMax=16M --property=AllowedCPUs="$cpu" \
        sh -c 'head --bytes=32M /dev/urandom > /dev/shm/e2e-swap; rm /dev/shm/e2e-swap'
done"""


def create_pods(namespace: Namespace, busybox: str) -> list[Any]:
    """The hog and one that asks for swap, then pods that do not; all Ready."""
    limited = {"annotations": {"swapwarden.dev/swap-limit": str(SWAP_LIMIT)}}
    hog = {
        "name": "main",
        "image": image.REFERENCE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", "-c", HOG],
        "resources": {"requests": {"memory": str(LIMIT - MIB)}, "limits": {"memory": str(LIMIT)}},
    }
    # If all containers have a limit, the pod also has one, and pages of its sandbox would be swapped out with those of
    # the hog: nothing ever touches them again.
    idle = {
        "name": "idle",
        "image": busybox,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "86400"],
    }
    namespace.create_pod("hog", metadata=limited, containers=[hog, idle])
    namespace.create_pod("asks", metadata=limited, resources={"requests": {"memory": "32Mi"}})
    namespace.create_pod("silent", resources={"requests": {"memory": "48Mi"}, "limits": {"memory": "64Mi"}})
    namespace.create_pod("guaranteed", resources={"limits": {"cpu": "200m", "memory": "64Mi"}})
    namespace.create_pod("besteffort")
    return [namespace.wait_ready(name) for name in ("hog", "asks", "silent", "guaranteed", "besteffort")]


def test_a_profile_changes_its_behaviour_while_swap_is_in_use(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    total, memory = cgroups.meminfo(node, "SwapTotal"), cgroups.meminfo(node, "MemTotal")
    with swapwarden.profile("e2e-switched") as apply:
        apply(behavior="WorkloadControlled", reserved="10%", workloadControlled={"maxPerContainer": "80Mi"})
        pressed, asks, silent, *_ = pods = create_pods(namespace, cluster.busybox)
        folder = cgroups.of_pod(node, pressed)

        def used() -> int:
            return cgroups.swap_used(node, folder)

        def in_force(which: list[Any]) -> None:
            eventually(lambda: not differences(cluster, node, which), "the kernel holds what the plan says")

        def is_draining(desired: str | None = None) -> bool:
            found = [each for each in swapwarden.violations(pressed["metadata"]["uid"]) if each["reason"] == "Draining"]
            return any(each["swapBytes"] > 0 and desired in {None, each["desired"]} for each in found)

        # WorkloadControlled: the pod's own limit, within the profile's bounds; nothing for who names none.
        in_force(pods)
        assert cgroups.swap_max(node, cgroups.of_pod(node, asks)) == str(SWAP_LIMIT)
        assert cgroups.swap_max(node, cgroups.of_container(node, asks)) == str(80 * MIB)
        assert cgroups.swap_max(node, cgroups.of_pod(node, silent)) == "0"

        def tell(signal: str) -> None:
            processes = node.read(cgroups.of_container(node, pressed) / "cgroup.procs").split()
            node.run(["kill", f"-{signal}", processes[0]], timeout=TIMEOUT)

        def is_swapping() -> bool:
            # It may not have been there yet to hear it.
            tell("USR2")
            return used() >= 24 * MIB

        eventually(is_swapping, "the hog has swap in use")

        # LimitedSwap gives the hog less than it has in use.
        apply(behavior="LimitedSwap", reserved="10%")
        usable = total - total // 10
        eventually(is_draining, "the hog is reported as draining under LimitedSwap")
        in_force(pods[1:])
        assert cgroups.swap_max(node, node.kubepods) == str(limits.floor_to_page(usable, PAGE))
        share = limits.floor_to_page(limits.container_swap(48 * MIB, 64 * MIB, memory, usable), PAGE)
        assert cgroups.swap_max(node, cgroups.of_container(node, silent)) == str(share)
        assert int(cgroups.swap_max(node, folder)) >= used()

        # NoSwap: as much as is in use, and never more again.
        apply(behavior="NoSwap")
        in_force(pods[1:])
        eventually(is_draining, "the hog is reported as draining under NoSwap")

        # Kubelet: the pod's own limit; the container's is the kubelet's again, less than the hog has in use.
        apply(behavior="Kubelet")
        in_force(pods)
        assert cgroups.swap_max(node, folder) == str(SWAP_LIMIT)
        assert cgroups.swap_max(node, node.kubepods) == "max"
        kubelets = limits.floor_to_page(limits.container_swap(LIMIT - MIB, LIMIT, memory, total), PAGE)
        eventually(lambda: is_draining(str(kubelets)), "the hog drains to the kubelet's number")

        # NoSwap once more, and the hog lets go: draining ends.
        apply(behavior="NoSwap")
        eventually(is_draining, "the hog is reported as draining once more")
        tell("USR1")
        eventually(lambda: cgroups.swap_max(node, folder) == "0", "the hog holds 0 when its memory is free")

        def is_drained() -> bool:
            node.run(["sh", "-c", SWAP_A_LITTLE], timeout=TIMEOUT)
            return used() == 0 and not is_draining()

        eventually(is_drained, "draining ends")
        cgroups.unswap(cluster, node)  # other pods' pages, which the hog pressed out
        eventually(lambda: swapwarden.condition("Applied") == "True/AsSpecified", "the profile is in force")
        in_force(pods)

        for pod in pods:
            assert cgroups.events(node, cgroups.of_pod(node, pod))["oom_kill"] == 0
    folder = cgroups.of_pod(node, asks)
    eventually(lambda: cgroups.swap_max(node, folder) == str(SWAP_LIMIT), "without a profile the pod's limit is left")
