"""A cluster with nodes, states and agents as `kubectl swap` meets them, and people with more and fewer rights."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from swapwarden.api import names

from testbed.controlplane.servers import ControlPlane
from tests.integration import preloaded
from tests.integration.cli.front import Front

API = "/apis/swapwarden.dev/v1alpha1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
GIB = 1 << 30
RELEASE = "swapwarden-system"
EVERYTHING = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]


@dataclasses.dataclass(frozen=True)
class Plugin:
    """Runs the real command as a process."""

    kubeconfig: Path

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "swapwarden.cli.kubectl", *arguments]
        env = os.environ | {"KUBECONFIG": str(self.kubeconfig)} | environment
        return preloaded.run(argv, timeout=120, env=env, check=False)

    def rows(self, *arguments: str) -> list[list[str]]:
        """The table without its header, in cells; nothing may be said beside it."""
        done = self(*arguments, "--no-headers")
        assert (done.returncode, done.stderr) == (0, "")
        return [line.split() for line in done.stdout.splitlines()]


class Cluster:
    """Objects in a real API server; each cluster's nodes have a label and a namespace of their own."""

    def __init__(self, control_plane: ControlPlane, front: Front, name: str = "") -> None:
        """NAME: of its namespace, where it has the API server to itself; names of nodes have nothing added then."""
        self.control_plane = control_plane
        self.front = front
        self.id = "" if name else uuid.uuid4().hex[:8]
        self.selector = f"test={self.id}"
        self.namespace = name or f"test-{self.id}"
        control_plane.create_namespace(self.namespace)

    @property
    def admin(self) -> Plugin:
        return Plugin(self.control_plane.kubeconfig)

    def namespaced(self, namespace: str = "") -> str:
        return f"/api/v1/namespaces/{namespace or self.namespace}"

    def name(self, short: str) -> str:
        return f"{short}-{self.id}" if self.id else short

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

    def pod(
        self,
        short: str,
        node: str,
        *containers: str,
        namespace: str = "",
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        memory: str = "",
    ) -> str:
        """A running pod on one of the nodes, and Ready; its UID. Its containers have their names as their ids."""
        path = f"{self.namespaced(namespace)}/pods"
        running = containers or ("app",)
        resources = {"resources": {"requests": {"memory": memory}}} if memory else {}
        made = self.control_plane.create(
            path,
            {
                "metadata": {"name": short, "labels": labels or {}, "annotations": annotations or {}},
                "spec": {
                    "nodeName": self.name(node),
                    "containers": [{"name": name, "image": "x", **resources} for name in running],
                },
            },
        )
        statuses = [
            {"name": name, "containerID": f"containerd://{name}", "state": {"running": {}}, "ready": True}
            | {"restartCount": 0, "image": "x", "imageID": "x"}
            for name in running
        ]
        status = {"phase": "Running", "containerStatuses": statuses}
        status |= {"conditions": [{"type": "Ready", "status": "True"}]}
        self.patch(f"{path}/{short}/status", {"status": status})
        return str(made["metadata"]["uid"])

    def agent(self, node: str, metrics: str | None = None) -> str:
        """The agent of one of the nodes, which answers with these metrics; its pod's UID."""
        name = self.name(f"agent-{node}")
        if metrics is not None:
            self.front.metrics[name] = metrics
        return self.pod(name, node, "agent", namespace=RELEASE, labels=names.AGENT_LABELS)

    def user(
        self, rules: list[dict[str, Any]], *, everywhere: bool = False, in_release: list[dict[str, Any]] | None = None
    ) -> Plugin:
        """Somebody with these rights in the cluster's namespace, which is the context's, or everywhere.

        IN_RELEASE: rights in the namespace that agents are in.
        """
        name = f"user-{uuid.uuid4().hex[:8]}"
        self.control_plane.create(f"{self.namespaced()}/serviceaccounts", {"metadata": {"name": name}})
        self._grant(name, "" if everywhere else self.namespace, rules)
        if in_release:
            self._grant(name, RELEASE, in_release)
        token = self.control_plane.token(self.namespace, name)
        kubeconfig = self.control_plane.kubeconfig_for(token, name, server=self.front.url)
        content = json.loads(kubeconfig.read_text())
        content["contexts"][0]["context"]["namespace"] = self.namespace
        kubeconfig.write_text(json.dumps(content))
        return Plugin(kubeconfig)

    def _grant(self, account: str, namespace: str, rules: list[dict[str, Any]]) -> None:
        """Rights for an account of the cluster's namespace, in NAMESPACE or everywhere ("")."""
        kind = "Role" if namespace else "ClusterRole"
        path = f"{RBAC}/namespaces/{namespace}" if namespace else RBAC
        meta = {"metadata": {"name": account}}
        self.control_plane.create(f"{path}/{kind.lower()}s", {**meta, "rules": rules})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": account}
        subject = {"kind": "ServiceAccount", "namespace": self.namespace, "name": account}
        self.control_plane.create(
            f"{path}/{kind.lower()}bindings", {**meta, "roleRef": reference, "subjects": [subject]}
        )


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
        "profileRef": {"name": profile, "generation": 1},
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


@pytest.fixture(scope="session")
def release(crds: ControlPlane) -> ControlPlane:
    """The session's control plane, with the namespace that agents are in."""
    if crds.request("GET", f"/api/v1/namespaces/{RELEASE}/serviceaccounts/default")[0] != 200:
        crds.request("POST", "/api/v1/namespaces", {"metadata": {"name": RELEASE}})
        crds.create(f"/api/v1/namespaces/{RELEASE}/serviceaccounts", {"metadata": {"name": "default"}})
    return crds


@pytest.fixture
def cluster(release: ControlPlane) -> Iterator[Cluster]:
    """A cluster of the test's own in the session's API server."""
    with Front(release) as front:
        made = Cluster(release, front)
        yield made
        # Agents are looked for everywhere, and the next test has some of its own.
        path = f"/api/v1/namespaces/{RELEASE}/pods"
        for pod in release.get(path)["items"]:
            release.request("DELETE", f"{path}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
