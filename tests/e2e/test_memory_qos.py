"""Memory QoS on a real kubelet: values appear, survive reloads of systemd and a resize, and go with their profile."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from tests.e2e import cgroups
from tests.e2e.cgroups import MIB
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release
from tests.e2e.test_strict import is_resized, resize

REQUEST: Final = 64 * MIB
LIMIT: Final = 72 * MIB
HIGH: Final = 68 * MIB
"""In the middle, and more than the limit less the swap that LimitedSwap gives."""
MORE_CPU: Final = {"requests": {"cpu": "150m"}}
BURSTABLE: Final = "kubepods-burstable.slice"
SYSTEM: Final = Path("/sys/fs/cgroup/system.slice")


def values(node: Node, *files: Path) -> list[str]:
    """Return what these files hold."""
    return [node.read(file).strip() for file in files]


def test_memory_is_protected_and_throttled_while_a_profile_asks_for_it(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    above = [node.kubepods / "memory.low", node.kubepods / BURSTABLE / "memory.low", SYSTEM / "memory.low"]
    before = values(node, *above)
    namespace.create_pod("idle", resources={"requests": {"memory": str(REQUEST)}, "limits": {"memory": str(LIMIT)}})
    pod = namespace.wait_ready("idle")
    folder = cgroups.of_pod(node, pod)
    own = [folder / "memory.low", folder / "memory.high"]
    earlier = values(node, *own)
    expected = [str(REQUEST), str(HIGH)]

    def held() -> bool:
        sums = values(node, *above)
        return values(node, *own) == expected and all(int(each) >= REQUEST for each in sums[:2]) and int(sums[2]) > 0

    with swapwarden.profile("e2e-memory", memoryQoS={"reservationPolicy": "Soft", "throttlingPercent": 50}) as apply:
        apply(behavior="LimitedSwap")
        eventually(held, "the pod, and all above it, have their values")
        node.daemon_reload()
        eventually(held, "they have them again after systemd wrote its own")
        resize(cluster, namespace, "idle", MORE_CPU)
        eventually(functools.partial(is_resized, namespace, "idle", MORE_CPU), "the kubelet has resized the pod")
        eventually(held, "they have them after the kubelet wrote its own")
    eventually(lambda: values(node, *own, *above) == [*earlier, *before], "all of it holds its earlier values")
