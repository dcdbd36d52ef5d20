"""A profile's limits for the node's own slices and services, on a node whose systemd has other values."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.product import part
from tests.e2e import cgroups
from tests.e2e.cgroups import TIMEOUT
from tests.e2e.conftest import Wait
from tests.e2e.provider import Node
from tests.e2e.release import Release

CGROUPS = Path("/sys/fs/cgroup")
SLICE = CGROUPS / "system.slice"
TARGET = "target=25000"


def repairs(swapwarden: Release) -> float:
    """How often the present agent wrote a unit's limit again."""
    text = swapwarden.metrics(swapwarden.agent()["metadata"]["name"], "agent")
    return part.total(text, "swapwarden_agent_repairs_total", kind="system")


def test_a_slice_and_a_service_have_no_swap_whatever_systemd_writes(
    node: Node, swapwarden: Release, eventually: Wait
) -> None:
    said = node.run(["find", str(CGROUPS), "-type", "d", "-name", "kubelet.service"], timeout=TIMEOUT).stdout
    cgroups_of_units = [SLICE, Path(said.split()[0])]

    def limits() -> list[str]:
        return [cgroups.swap_max(node, unit) for unit in cgroups_of_units]

    assert limits() == ["max", "max"]
    units = [{"name": name, "swap": {"policy": "Disabled"}} for name in (SLICE.name, "kubelet.service")]
    with swapwarden.profile("e2e-system", systemUnits=units) as apply:
        apply(behavior="Kubelet")
        eventually(lambda: limits() == ["0", "0"], "both hold 0")
        before = repairs(swapwarden)
        node.daemon_reload()
        eventually(lambda: repairs(swapwarden) > before, "systemd wrote, and it was undone")
        eventually(lambda: limits() == ["0", "0"], "both hold 0 again")
        # A service that starts again has a cgroup of its own.
        node.restart("kubelet")
        eventually(lambda: limits() == ["0", "0"], "the kubelet holds 0 after its restart")
    eventually(lambda: limits() == ["max", "max"], "the earlier values are restored")


def test_a_slice_waits_for_the_disk_no_longer_than_it_should(node: Node, swapwarden: Release, eventually: Wait) -> None:
    node.run(["systemctl", "set-property", "--runtime", SLICE.name, "IOAccounting=yes"], timeout=TIMEOUT)
    file = SLICE / "io.latency"
    if node.run(["test", "-e", str(file)], timeout=TIMEOUT, check=False).rc:
        pytest.skip("this node's kernel has no io.latency (CONFIG_BLK_CGROUP_IOLATENCY)")
    assert TARGET not in node.read(file)
    units = [{"name": SLICE.name, "io": {"latencyTargetMilliseconds": 25}}]
    with swapwarden.profile("e2e-latency", systemUnits=units) as apply:
        apply(behavior="Kubelet")
        eventually(lambda: TARGET in node.read(file), "the kernel has the target")
        eventually(lambda: swapwarden.condition("SettingsApplied") == "True/AsSpecified", "nothing falls short")
    eventually(lambda: TARGET not in node.read(file), "it is taken out again")
