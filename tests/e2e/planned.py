"""Compares the plan of `swapwarden plan` for the live cluster with the values in the kernel."""

from __future__ import annotations

import json
import sys
from typing import Any

from testbed.base import process
from tests.e2e import cgroups
from tests.e2e.cgroups import TIMEOUT
from tests.e2e.provider import Node, Provider


def plan(cluster: Provider) -> dict[str, Any]:
    """Return the spec of the suite's node by `swapwarden plan` on the live cluster."""
    objects = cluster.kubectl("get", "nodes,ns,pods,nsp,nss", "--all-namespaces", "-o=json").stdout
    command = [sys.executable, "-m", "swapwarden", "plan", "--filename=-", "--output=json"]
    done = process.run(command, timeout=TIMEOUT, text=objects)
    (node,) = [each for each in json.loads(done.stdout)["items"] if each["metadata"]["name"] == cluster.node_name]
    spec: dict[str, Any] = node["spec"]
    return spec


def least(*values: str) -> str:
    """The limit that rules, of several."""
    numbers = [int(value) for value in values if value != "max"]
    return str(min(numbers)) if numbers else "max"


def limit(entry: dict[str, Any]) -> str:
    """Return the limit of a pod or container in a plan: "max" if it has none."""
    return str(entry.get("swapMax", entry.get("swapAtMost", "max")))


def differences(cluster: Provider, node: Node, pods: list[Any]) -> list[str]:
    """Where the kernel holds for one of the pods or their containers what the plan does not say."""
    found = []
    spec = plan(cluster)
    root = cgroups.swap_max(node, node.kubepods)
    if root != spec.get("kubepods", {}).get("swapMax", "max"):
        found.append(f"all pods: {root} in place of {spec.get('kubepods')}")
    for pod in pods:
        name, planned = pod["metadata"]["name"], spec["pods"][pod["metadata"]["uid"]]
        of_pod = cgroups.swap_max(node, cgroups.of_pod(node, pod))
        if of_pod != limit(planned):  # the suite's kubelet gives pods none
            found.append(f"{name}: {of_pod} in place of {planned}")
        for container, each in planned["containers"].items():
            if each["reason"] == "KubeletDecides" and limit(each) == "max":
                continue
            own = cgroups.swap_max(node, cgroups.of_container(node, pod, container))
            if least(own, of_pod) != least(limit(each), limit(planned)):
                found.append(f"{name}/{container}: {own} in place of {each}")
    return found
