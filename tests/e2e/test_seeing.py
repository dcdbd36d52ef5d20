"""`kubectl swap` on a pod that swaps, with the figures of live agents and the kernel."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest
from swapwarden.api.conditions import ConditionType

from tests.e2e import cgroups
from tests.e2e.cgroups import MIB, TIMEOUT
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release
from tests.e2e.test_disabled import LIMIT, greedy
from tests.integration import scrapes

MEMORY = {"requests": {"memory": "32Mi"}, "limits": {"memory": "64Mi"}}
WANTED_MIB = 72
SLOWLY = 12.0
"""MiB a second: the container needs swap after five seconds."""
ALLOWED = {"annotations": {"swapwarden.dev/swap-limit": str(LIMIT)}}


def test_a_pod_that_swaps(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    def shown() -> Any:
        said = cluster.swap("top", "pods", f"--namespace={namespace.name}", "--output=json")
        (found,) = json.loads(said.stdout)["items"]
        return found

    with swapwarden.profile("e2e-seen") as apply:
        apply(behavior="WorkloadControlled")
        # Slow at first: for three seconds the container has what the kubelet gave it (docs/agent.md), which is less.
        namespace.create_pod("queue", metadata=ALLOWED, containers=[greedy(WANTED_MIB, MEMORY, SLOWLY, 64)])
        folder = cgroups.of_pod(node, namespace.wait_ready("queue"))
        eventually(lambda: int(node.read(folder / "memory.swap.current")) > MIB, "it swaps")
        eventually(lambda: (shown()["swapBytes"] or 0) > MIB, "its agent says so")
        assert shown()["limitBytes"] == LIMIT
        table = cluster.swap("top", "pods", f"--namespace={namespace.name}", "--no-headers").stdout.split()
        assert (table[0], table[-2]) == ("queue", f"{LIMIT // MIB}Mi")
        explained = cluster.swap("explain", "queue", f"--namespace={namespace.name}").stdout
        assert "e2e-seen" in explained
        assert f"{LIMIT // MIB}Mi" in explained
        assert cluster.node_name in cluster.swap("nodes", "--no-headers").stdout
        if folder_of_pictures := os.environ.get("E2E_SHOW"):
            show(cluster, Path(folder_of_pictures), namespace.name)

        def used() -> int:
            said = cluster.swap("top", "nodes", cluster.node_name, "--output=json").stdout
            return int(json.loads(said)["items"][0]["swapBytes"] or 0)

        # The kubelet's figure of the node is some seconds older than the agent's of the pod.
        eventually(lambda: used() > MIB, "so does the figure of the node")


def show(cluster: Provider, folder: Path, namespace: str) -> None:
    """Write the input of `make pictures`: commands with their output in colour, and below it the date and place."""
    node = cluster.get(f"/api/v1/nodes/{cluster.node_name}")["status"]["nodeInfo"]
    where = f"{datetime.date.today()}, Kubernetes {node['kubeletVersion']}, Linux {node['kernelVersion']}"  # noqa: DTZ011 the day here
    folder.mkdir(parents=True, exist_ok=True)
    for name, argv in {"explain": ["explain", "queue"], "top": ["top", "pods"], "nodes": ["nodes"]}.items():
        of_namespace = [] if name == "nodes" else ["-n", namespace]
        said = cluster.swap(*argv, *of_namespace, "--color=always").stdout
        text = f"$ kubectl swap {' '.join([*argv, *of_namespace])}\n{said}# {where}\n"
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


@pytest.mark.usefixtures("swapwarden")
def test_a_readiness_gate_opens_once_the_policy_is_in_force(namespace: Namespace) -> None:
    gate = ConditionType.SWAP_POLICY_ENFORCED
    refused = {"annotations": {"swapwarden.dev/swap-policy": "Disabled"}}
    namespace.create_pod("gated", metadata=refused, readinessGates=[{"conditionType": gate}])
    (found,) = (each for each in namespace.wait_ready("gated")["status"]["conditions"] if each["type"] == gate)
    assert (found["status"], found["reason"]) == ("True", "PolicyDisabled")


@pytest.mark.parametrize("component", ["controller", "webhook", "agent"])
def test_metrics_of_a_real_run_are_as_prometheus_wants_them_and_as_documented(
    swapwarden: Release, component: str
) -> None:
    for pod in swapwarden.pods(component):
        series = scrapes.check(swapwarden.metrics(pod["metadata"]["name"], component), component)
        assert len(series) > 10


def test_the_agent_reports_the_nodes_pressure(node: Node, swapwarden: Release) -> None:
    text = swapwarden.metrics(swapwarden.agent()["metadata"]["name"], "agent")
    has_pressure = node.run(["test", "-e", "/proc/pressure/memory"], timeout=TIMEOUT, check=False).rc == 0
    assert ("swapwarden_node_pressure_stalled_seconds_total{" in text) is has_pressure
