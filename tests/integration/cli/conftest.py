"""A cluster with nodes, states and agents as `kubectl swap` meets them, and people with more and fewer rights."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from testbed.controlplane import ControlPlane

API = "/apis/swapwarden.dev/v1alpha1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Plugin:
    """Runs the real command as a process."""

    kubeconfig: Path

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 our own words
            [sys.executable, "-m", "swapwarden.cli.kubectl", *arguments],
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig)} | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def rows(self, *arguments: str) -> list[list[str]]:
        """The table without its header, in cells; nothing may be said beside it."""
        done = self(*arguments, "--no-headers")
        assert (done.returncode, done.stderr) == (0, "")
        return [line.split() for line in done.stdout.splitlines()]


class Cluster:
    """Objects in a real API server; each cluster's nodes have a label and a namespace of their own."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane
        self.id = uuid.uuid4().hex[:8]
        self.selector = f"test={self.id}"
        self.namespace = f"test-{self.id}"
        control_plane.create_namespace(self.namespace)

    @property
    def admin(self) -> Plugin:
        return Plugin(self.control_plane.kubeconfig)

    def name(self, short: str) -> str:
        return f"{short}-{self.id}"

    def node(self, short: str, labels: dict[str, str] | None = None, swap: int = 0) -> None:
        name = self.name(short)
        self.control_plane.create(
            "/api/v1/nodes", {"metadata": {"name": name, "labels": {"test": self.id, **(labels or {})}}}
        )
        info = dict.fromkeys(
            ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"), "x"
        )
        info |= {"kubeletVersion": "v1.34.0", "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "x"}
        status = {"nodeInfo": {**info, **({"swap": {"capacity": swap}} if swap else {})}}
        self.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def state(self, short: str, spec: dict[str, Any], status: dict[str, Any] | None = None) -> None:
        name = self.name(short)
        self.control_plane.create(
            f"{API}/nodeswapstates",
            {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapState", "metadata": {"name": name}}
            | {"spec": spec},
        )
        if status:
            self.patch(f"{API}/nodeswapstates/{name}/status", {"status": status})

    def patch(self, path: str, body: dict[str, Any]) -> None:
        status, answer = self.control_plane.request("PATCH", path, body)
        assert status == 200, answer

    def user(self, rules: list[dict[str, Any]], *, everywhere: bool = False) -> Plugin:
        """Somebody with these rights in the cluster's namespace, or everywhere."""
        name = f"user-{uuid.uuid4().hex[:8]}"
        kind = "ClusterRole" if everywhere else "Role"
        path = RBAC if everywhere else f"{RBAC}/namespaces/{self.namespace}"
        meta = {"metadata": {"name": name}}
        self.control_plane.create(f"{path}/{kind.lower()}s", {**meta, "rules": rules})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
        self.control_plane.create(
            f"{path}/{kind.lower()}bindings", {**meta, "roleRef": reference, "subjects": [subject]}
        )
        return Plugin(self.control_plane.kubeconfig_as(name))


def healthy(profile: str, swap: int, *devices: dict[str, Any], **conditions: tuple[str, str, str]) -> dict[str, Any]:
    """The status of a node on which all is well, but for these conditions (status, reason, message)."""
    found = {
        "Compatible": ("True", "Compatible", ""),
        "Applied": ("True", "AsSpecified", ""),
        "Degraded": ("False", "AsExpected", ""),
        **conditions,
    }
    return {
        "observedGeneration": 1,
        "profile": {"name": profile, "generation": 1},
        "facts": {
            "cgroupVersion": 2,
            "swapController": True,
            "swapBytes": swap,
            "memoryBytes": 8 * GIB,
            "devices": list(devices),
        },
        "conditions": [
            {"type": kind, "status": status, "reason": reason, "message": message}
            for kind, (status, reason, message) in found.items()
        ],
    }


@pytest.fixture
def cluster(crds: ControlPlane) -> Cluster:
    """A cluster of the test's own in the session's API server."""
    return Cluster(crds)
