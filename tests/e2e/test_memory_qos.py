"""Memory QoS on a real kubelet: values appear, return after other writers reset them, and end with their profile.

Where the kubelet has a policy of its own, its values are those of `swapwarden plan --as-kubelet`, and are left to it.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from tests.e2e import cgroups, kubelets
from tests.e2e.cgroups import MIB
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.kubelets import BURSTABLE, values
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release
from tests.e2e.test_strict import is_resized, resize

REQUEST: Final = 64 * MIB
LIMIT: Final = 72 * MIB
HIGH: Final = 68 * MIB
"""In the middle, and more than the limit less the swap that LimitedSwap gives."""
RESOURCES: Final = {"requests": {"memory": str(REQUEST)}, "limits": {"memory": str(LIMIT)}}
GUARANTEED: Final = {"limits": {"cpu": "20m", "memory": str(REQUEST)}}
MORE_CPU: Final = {"requests": {"cpu": "150m"}}
SYSTEM: Final = Path("/sys/fs/cgroup/system.slice")
LOOK_SECONDS: Final = 5
"""How often the agent reads the kubelet's configuration in these tests."""


def repairs(swapwarden: Release) -> float:
    return swapwarden.total("agent", "swapwarden_agent_memory_repairs_total")


def test_memory_is_protected_and_throttled_while_a_profile_asks_for_it(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    sums = [node.kubepods / "memory.low", node.kubepods / BURSTABLE / "memory.low"]
    above = [*sums, SYSTEM / "memory.low"]
    before = values(node, *above)
    namespace.create_pod("idle", resources=RESOURCES)
    pod = namespace.wait_ready("idle")
    folder = cgroups.of_pod(node, pod)
    own = [folder / "memory.low", folder / "memory.high"]
    earlier = values(node, *own)
    expected = [str(REQUEST), str(HIGH)]

    def held() -> bool:
        low = values(node, *above)
        return values(node, *own) == expected and all(int(each) >= REQUEST for each in low[:2]) and int(low[2]) > 0

    with swapwarden.profile("e2e-memory", memoryQoS={"reservationPolicy": "Soft", "throttlingPercent": 50}) as apply:
        apply(behavior="LimitedSwap")
        eventually(held, "the pod, and all above it, have their values")
        node.daemon_reload()
        eventually(held, "they have them again after systemd wrote its own")
        resize(cluster, namespace, "idle", MORE_CPU)
        eventually(functools.partial(is_resized, namespace, "idle", MORE_CPU), "the kubelet has resized the pod")
        eventually(held, "they have them after the kubelet wrote its own")
        repaired = repairs(swapwarden)
        node.restart("kubelet")
        eventually(lambda: repairs(swapwarden) > repaired, "the kubelet wrote zeros when it started")
        eventually(held, "they have them after the kubelet has restarted")
        node.restart("containerd")
        # The kubelet writes to the QoS classes before it makes a pod's cgroup, and after it has removed one.
        alone = [int(each) for each in values(node, *sums)]
        namespace.create_pod("more", resources=RESOURCES)
        namespace.wait_ready("more")
        both = [str(each + REQUEST) for each in alone]
        eventually(lambda: values(node, *sums) == both, "the sums have the new pod")
        namespace.delete_pod("more")
        eventually(lambda: [int(each) for each in values(node, *sums)] == alone, "and no longer have it")
        assert held()
    eventually(lambda: values(node, *own, *above) == [*earlier, *before], "all of it holds its earlier values")


def test_the_kubelets_values_are_left_to_it_while_it_has_a_policy(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    """Swapwarden first sees the numbers only, then the kubelet's configuration too."""
    sums = [node.kubepods / "memory.low", node.kubepods / BURSTABLE / "memory.low"]
    namespace.create_pod("early", resources=RESOURCES)
    early = cgroups.of_pod(node, namespace.wait_ready("early"))
    mine = {"memory.min": "0", "memory.low": str(REQUEST // 2), "memory.high": str(HIGH)}

    def held() -> bool:
        spec = swapwarden.state()["spec"]
        planned = [spec[name]["memoryLow"] for name in ("kubepods", "burstable")]
        return kubelets.of_memory(node, early) == mine and values(node, *sums) == planned

    memory = {"reservationPolicy": "Soft", "reservationPercent": 50, "throttlingPercent": 50}
    try:
        with kubelets.configured(node) as configure:
            with swapwarden.profile("e2e-memory", memoryQoS=memory) as apply:
                apply(behavior="LimitedSwap")
                eventually(held, "the pod, and all above it, have their values")
                configure(kubelets.POLICY)
                kinds = {"guaranteed": GUARANTEED, "burstable": RESOURCES, "besteffort": {}}
                for name, resources in kinds.items():
                    namespace.create_pod(name, resources=resources)
                late = [namespace.wait_ready(name) for name in kinds]
                kubelets_own = functools.partial(kubelets.differences, cluster, node, late)
                eventually(lambda: not kubelets_own(), "the kubelet has written the planned values")
                owned = "False/KubeletOwned"
                eventually(lambda: swapwarden.condition("MemoryQoS") == owned, "the agent says whose they are")
                look = {"agent.extraArgs[1]": f"--resync-interval={LOOK_SECONDS}"}
                swapwarden.upgrade(**look, **{"agent.kubeletConfig": kubelets.FILE})
                guaranteed = cgroups.of_pod(node, late[0])
                low = [early / "memory.low", guaranteed / "memory.low"]
                eventually(lambda: values(node, *low) == ["0", "0"], "what it wrote of the kubelet's files is undone")
                eventually(lambda: swapwarden.condition("MemoryQoS") == owned, "the agent still says so")
                assert "memoryReservationPolicy" in cluster.swap("explain", "early", f"-n={namespace.name}").stdout
                # After the end of a pod the kubelet writes its sums, the agent's new pod in them.
                namespace.delete_pod("besteffort")
                del late[2:]
                eventually(lambda: not kubelets_own(), "the kubelet's values are still there")
                configure(kubelets.GATE_OFF)
                namespace.delete_pod("burstable")
                eventually(held, "the agent has written its values again")
            left = {"memory.min": "0", "memory.low": "0", "memory.high": "max"}
            eventually(lambda: kubelets.of_memory(node, early) == left, "its earlier values are restored")
            kept = {**left, "memory.min": str(REQUEST)}
            eventually(lambda: kubelets.of_memory(node, guaranteed) == kept, "the kubelet's value stays")
    finally:
        swapwarden.upgrade()
