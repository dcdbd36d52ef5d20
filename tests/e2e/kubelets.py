"""Gives the node VM's kubelet another configuration, and holds its values against `swapwarden plan --as-kubelet`."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from testbed.base import process
from tests.e2e import cgroups
from tests.e2e.cgroups import TIMEOUT
from tests.e2e.conftest import POLL
from tests.e2e.provider import Node, Provider

FILE = "/etc/kubernetes/kubelet.yaml"
IS_UP = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:10248/healthz', timeout=10)"
UP_SECONDS = 180.0
FILES = ("memory.min", "memory.low", "memory.high")
BURSTABLE = "kubepods-burstable.slice"
GATE_OFF = "featureGates: {MemoryQoS: false}\n"
POLICY = """\
featureGates: {MemoryQoS: true}
memoryReservationPolicy: TieredReservation
memoryThrottlingFactor: 0.9
"""


class Configure(Protocol):
    """Adds lines to the kubelet's own configuration, in place of those before, and restarts it."""

    def __call__(self, lines: str, *, evict_below: str | None = None) -> None:
        """`evict_below` is the quantity of memory.available below which it evicts."""


@contextlib.contextmanager
def configured(node: Node) -> Iterator[Configure]:
    """Give a function that configures the kubelet; at the end it has its own configuration again."""
    try:
        before = node.read(FILE)
    except FileNotFoundError:
        pytest.skip(f"only the kubelet of the node VM is configured in {FILE}")

    def configure(lines: str, *, evict_below: str | None = None) -> None:
        text, count = re.subn(r"(?<=memory\.available: )\w+", evict_below or r"\g<0>", before)
        assert count == 1, before
        node.write(FILE, text + lines)
        restart(node)

    try:
        yield configure
    finally:
        configure("")


def restart(node: Node) -> None:
    """Restart the kubelet; return once it serves. At its start it counts the node's swap, which tests turn off."""
    node.restart("kubelet")
    deadline = time.monotonic() + UP_SECONDS
    while node.run(["python3", "-I", "-S", "-c", IS_UP], timeout=TIMEOUT, check=False).rc:
        assert time.monotonic() < deadline, f"the kubelet serves nothing after {UP_SECONDS:.0f} s"
        time.sleep(POLL)


def values(node: Node, *files: Path) -> list[str]:
    """Return what these files hold."""
    return [node.read(file).strip() for file in files]


def of_memory(node: Node, folder: Path) -> dict[str, str]:
    """Return the values of a cgroup's FILES by name."""
    return dict(zip(FILES, values(node, *(folder / name for name in FILES)), strict=True))


def plan(cluster: Provider, node: Node) -> dict[str, Any]:
    """Return the values of the suite's kubelet by `swapwarden plan --as-kubelet` for the live cluster."""
    objects = cluster.kubectl("get", "nodes,ns,pods,nsp,nss", "--all-namespaces", "-o=json").stdout
    found = cluster.get(f"/api/v1/nodes/{cluster.node_name}")["status"]["nodeInfo"]["kubeletVersion"]
    version = ".".join(found.removeprefix("v").split(".")[:2])
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(node.read(FILE))
        file.flush()
        argv = [sys.executable, "-m", "swapwarden", "plan", f"--as-kubelet={version}", f"--kubelet-config={file.name}"]
        done = process.run([*argv, "--filename=-", "--output=json"], timeout=TIMEOUT, text=objects)
    (one,) = [each for each in json.loads(done.stdout)["items"] if each["node"] == cluster.node_name]
    answer: dict[str, Any] = one
    return answer


def differences(cluster: Provider, node: Node, pods: list[Any]) -> list[str]:
    """Where the kernel does not hold what the plan says that the kubelet writes: above all pods, or for one of PODS."""
    planned = plan(cluster, node)
    expected = [(node.kubepods, planned["kubepods"]), (node.kubepods / BURSTABLE, planned["burstable"])]
    for pod in pods:
        entry = planned["pods"][f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"]
        folder = cgroups.of_pod(node, pod)
        expected.append((folder, {name: text for name, text in entry.items() if name != "containers"}))
        for name, files in entry["containers"].items():
            expected.append((folder / f"cri-containerd-{cgroups.container_id(pod, name)}.scope", files))
    return [
        f"{folder}/{name}: {held} in place of {text}"
        for folder, files in expected
        for name, text in files.items()
        if name in FILES and (held := node.read(folder / name).strip()) != text
    ]
