"""A kubelet that limits the swap of pods itself, before and after the state arrives, and at a resize."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testbed.base import process
from testbed.controlplane.servers import ControlPlane
from testbed.standin import start
from tests.integration import needs
from tests.integration.agent.agent_process import AgentProcess, until
from tests.unit.agent.cgroup_tree import PROC, swap_max

MIB = 1 << 20
STATES = "/apis/swapwarden.dev/v1alpha1/nodeswapstates"
NODE = ["--memory-bytes", str(2048 * MIB), "--swap-bytes", str(1024 * MIB), "--swap-behavior", "LimitedSwap"]
LIMIT = 32 * MIB
"""The kubelet's number for a pod that requests 64 MiB."""


class Kubelet:
    """A stand-in of a node whose kubelet limits pods, with an agent."""

    def __init__(self, cluster: ControlPlane, folder: pathlib.Path, name: str, standin: process.Process) -> None:
        self.cluster = cluster
        self.folder = folder
        self.name = name
        self.standin = standin
        self.pods = f"/api/v1/namespaces/{name}/pods"

    def agent(self) -> AgentProcess:
        proc = self.folder / "proc"
        for name, text in PROC.items():
            (proc / name).parent.mkdir(parents=True, exist_ok=True)
            (proc / name).write_text(text)
        kubeconfig = self.cluster.kubeconfig_for(self.cluster.token(self.name, "default"), self.name)
        return AgentProcess(self.folder, self.folder / "cgroup", proc, kubeconfig, node=self.name)

    def bind(self) -> tuple[str, Callable[[], str | None]]:
        """Create a pod on the node. Return its UID, and what reads its limit (None without a cgroup)."""
        resources = {"requests": {"memory": "64Mi"}, "limits": {"memory": "512Mi"}}
        containers = [{"name": "main", "image": "none", "resources": resources}]
        spec = {"nodeName": self.name, "containers": containers}
        uid = self.cluster.create(self.pods, {"metadata": {"name": "web"}, "spec": spec})["metadata"]["uid"]

        def limit() -> str | None:
            found = list((self.folder / "cgroup").rglob(f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"))
            return swap_max(found[0]) if found else None

        return uid, limit

    def running(self) -> bool:
        return bool(self.cluster.get(f"{self.pods}/web")["status"]["phase"] == "Running")

    def resize(self, request: str) -> None:
        """Resize the pod in place, and wait until the kubelet has."""
        resources = {"requests": {"memory": request}, "limits": {"memory": "512Mi"}}
        change = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
        kind = "application/strategic-merge-patch+json"
        assert self.cluster.request("PATCH", f"{self.pods}/web/resize", change, content_type=kind)[0] == 200

        def in_force() -> bool:
            (found,) = self.cluster.get(f"{self.pods}/web")["status"]["containerStatuses"]
            return bool(found["resources"]["requests"]["memory"] == request)

        until(in_force, "the resize is in force")

    def put(self, uid: str, entry: dict[str, Any]) -> None:
        """Write the state as a controller would."""
        spec = {"profileRef": {"name": "(built-in)"}, "defaultReason": "KubeletDecides", "pods": {uid: entry}}
        kind = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapState", "metadata": {"name": self.name}}
        if self.cluster.request("PATCH", f"{STATES}/{self.name}", {"spec": spec})[0] == 404:
            self.cluster.create(STATES, {**kind, "spec": spec})


@pytest.fixture(params=["systemd", "past-systemd"])
def kubelet(
    ruled: ControlPlane, fresh_namespace: str, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> Iterator[Kubelet]:
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "namespace": fresh_namespace, "name": "default"}
    ruled.create(
        f"/apis/{group}/v1/clusterrolebindings",
        {
            "metadata": {"name": fresh_namespace},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "swapwarden-agent"},
            "subjects": [subject],
        },
    )
    options = [*NODE, f"--pod-limits={request.param}", "--late-limit-delay=0.3"]
    with start.on_host(ruled, tmp_path, fresh_namespace, options) as standin:
        yield Kubelet(ruled, tmp_path, fresh_namespace, standin)


@needs.RESIZES
@pytest.mark.parametrize(
    ("entry", "shown"),
    [({}, [32, 64, 16]), ({"swapAtMost": str(48 * MIB)}, [32, 48, 16])],
    ids=["no limit", "a limit"],
)
def test_a_pod_has_the_kubelets_limit_and_at_most_its_own(
    kubelet: Kubelet, entry: dict[str, Any], shown: list[int]
) -> None:
    with kubelet.agent().wait_ready() as agent:
        uid, limit = kubelet.bind()
        until(lambda: limit() is not None and kubelet.running(), "the pod runs")
        until(lambda: limit() == "0", "it has no swap before a state names it")
        kubelet.put(uid, entry)
        until(lambda: limit() == str(shown[0] * MIB), "the kubelet's limit")
        for request, wanted in zip(("128Mi", "32Mi"), shown[1:], strict=True):
            kubelet.resize(request)
            until(lambda wanted=wanted: limit() == str(wanted * MIB), "the limit after the resize")  # type: ignore[misc]  # bound on purpose
        agent.kill()
        kubelet.resize("128Mi")
        with kubelet.agent().wait_ready():
            until(lambda: limit() == str(shown[1] * MIB), "the limit after a restart")
            kubelet.put(uid, {"swapMax": "0", "swapAtMost": None, "reason": "PolicyDisabled"})
            until(lambda: limit() == "0", "no swap")
            kubelet.resize("64Mi")
            until(lambda: limit() == "0", "no swap after a resize")
            kubelet.put(uid, {**entry, "swapMax": None, "reason": None})
            until(lambda: limit() == str(shown[0] * MIB), "the kubelet's limit of the resize")


def test_a_reload_leaves_what_systemd_has(kubelet: Kubelet, request: pytest.FixtureRequest) -> None:
    past = "past-systemd" in request.node.name
    with kubelet.agent().wait_ready():
        uid, limit = kubelet.bind()
        kubelet.put(uid, {})
        until(lambda: kubelet.running() and limit() == str(LIMIT), "the kubelet's limit")
        kubelet.standin.send_signal(signal.SIGUSR1)
        until(lambda: "daemon-reload" in (kubelet.folder / "node.log").read_text(), "systemd reloads")
        until(lambda: limit() == ("max" if past else str(LIMIT)), "systemd's value")
