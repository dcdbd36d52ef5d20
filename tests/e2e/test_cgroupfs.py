"""A node whose kubelet and runtime use the cgroup driver cgroupfs: no systemd holds a limit there, or puts one back.

The suite's node is switched, with a reboot, and switched back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import cgroups, kubelets
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release
from tests.e2e.test_disabled import DISABLED, QOS
from tests.e2e.test_nri import FIRST_LINE, is_connected

CONTAINERD = "/etc/containerd/config.toml"
SWITCHES = {
    CONTAINERD: ("SystemdCgroup = true", "SystemdCgroup = false"),
    kubelets.FILE: ("cgroupDriver: systemd", "cgroupDriver: cgroupfs"),
}
KUBEPODS = Path("/sys/fs/cgroup/kubepods")


@pytest.fixture
def cgroupfs(cluster: Provider, node: Node, swapwarden: Release, eventually: Wait) -> Iterator[Release]:
    """Swapwarden on the switched node."""
    before = {file: node.read(file) for file in SWITCHES}
    try:
        for file, (old, new) in SWITCHES.items():
            assert old in before[file], file
            node.write(file, before[file].replace(old, new))
        _reboot(cluster, node, swapwarden, eventually)
        yield swapwarden
    finally:
        for file, text in before.items():
            node.write(file, text)
        _reboot(cluster, node, swapwarden, eventually)


def _reboot(cluster: Provider, node: Node, swapwarden: Release, eventually: Wait) -> None:
    """Reboot the node. Containers are started again, in cgroups of the driver."""
    boot = _boot(cluster)
    node.run(["sync"], timeout=cgroups.TIMEOUT)
    node.reboot()
    eventually(lambda: _boot(cluster) != boot, "the kubelet reports the reboot")
    eventually(lambda: is_connected(swapwarden), "the runtime has the plugin after the reboot")


def _boot(cluster: Provider) -> str:
    return str(cluster.get(f"/api/v1/nodes/{cluster.node_name}")["status"]["nodeInfo"]["bootID"])


def _limits(node: Node, pod: Any) -> tuple[str, str]:
    """Return the limits of the pod's cgroup and of its container's."""
    uid = pod["metadata"]["uid"]
    found = node.run(["find", str(KUBEPODS), "-name", f"pod{uid}"], timeout=cgroups.TIMEOUT).stdout.split()
    assert len(found) == 1, found
    folder = Path(found[0])
    return cgroups.swap_max(node, folder), cgroups.swap_max(node, folder / cgroups.container_id(pod))


def test_a_container_is_held_from_its_start_and_given_back(
    node: Node, cgroupfs: Release, namespace: Namespace, eventually: Wait
) -> None:
    def is_created(name: str) -> bool:
        namespace.create_pod(name, metadata=DISABLED, command=FIRST_LINE, resources=QOS[name])
        return True

    for name in QOS:
        eventually(lambda name=name: is_created(name), "the webhook answers again")  # type: ignore[misc]  # mypy infers no lambda with defaults
    namespace.create_pod("plain", command=FIRST_LINE, resources=QOS["burstable"])
    pods = {name: namespace.wait_ready(name) for name in QOS}
    plain = namespace.wait_ready("plain")
    assert {name: namespace.logs(name).strip() for name in QOS} == dict.fromkeys(QOS, "0")
    for name, pod in pods.items():
        eventually(lambda pod=pod: _limits(node, pod) == ("0", "0"), f"{name} holds 0")  # type: ignore[misc]  # as above
    number = _limits(node, plain)[1]
    assert int(number) > 0

    for unit in ("containerd", "kubelet", ""):
        if unit:
            node.restart(unit)
        else:
            node.daemon_reload()
        eventually(lambda: is_connected(cgroupfs), "the runtime has the plugin")
        for name, pod in pods.items():
            assert namespace.pod(name)["status"]["containerStatuses"][0]["restartCount"] == 0
            assert _limits(node, pod) == ("0", "0"), name

    # Under a profile that only audits, the runtime restores the earlier values.
    with cgroupfs.profile("e2e-audit", mode="Audit") as apply:
        apply(behavior="NoSwap")
        eventually(lambda: _limits(node, pods["burstable"]) == ("max", number), "it has the kubelet's number again")
    eventually(lambda: _limits(node, pods["burstable"]) == ("0", "0"), "it is held again")
    eventually(lambda: cgroupfs.condition("Applied") == "True/AsSpecified", "the plan is in force")
