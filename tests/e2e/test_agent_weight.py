"""The agent's own share of the CPU, which systemd takes back with each reload."""

from __future__ import annotations

from tests.e2e import cgroups
from tests.e2e.conftest import Wait
from tests.e2e.provider import Node
from tests.e2e.release import Release


def test_the_agents_pod_keeps_its_weight_after_a_daemon_reload(
    swapwarden: Release, node: Node, eventually: Wait
) -> None:
    file = cgroups.of_pod(node, swapwarden.agent()) / "cpu.weight"
    eventually(lambda: node.read(file).strip() == "1000", "the agent has its weight")
    before = swapwarden.total("agent", "swapwarden_agent_cpu_weight_rewrites_total")
    node.daemon_reload()
    eventually(
        lambda: swapwarden.total("agent", "swapwarden_agent_cpu_weight_rewrites_total") > before,
        "systemd has written the kubelet's",
    )
    eventually(lambda: node.read(file).strip() == "1000", "the agent has its weight again")
    assert swapwarden.total("agent", "swapwarden_agent_cpu_weight_failures_total") == 0
