"""A control plane with what the controller needs, and shorthands for its objects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from testbed.controlplane.servers import ControlPlane
from testbed.product import helm, manifests

API = "/apis/swapwarden.dev/v1alpha1"
STATES, PROFILES = f"{API}/nodeswapstates", f"{API}/nodeswapprofiles"
FACTS = {"cgroupVersion": 2, "swapController": True, "swapBytes": 2**30, "memoryBytes": 2**32}
FAST = "--lease-duration=3"


def limit(entry: dict[str, Any]) -> str:
    """Return the limit of a pod in a state: "max" if it has none."""
    return str(entry.get("swapMax", entry.get("swapAtMost", "max")))


class Cluster:
    """A control plane with the product's kinds and rights, and shorthands."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.cp = control_plane

    @contextlib.contextmanager
    def granted(self, value: str, *templates: str) -> Iterator[None]:
        """With the controller's rights and policies (templates of the chart) that come with a value of the chart."""
        only = [f"--show-only=templates/controller/{name}.yaml" for name in ("rbac", *templates)]
        objects = helm.render("--no-hooks", f"--set={value}", *only)
        self.cp.apply(objects)
        self.cp.wait_for_policies()
        yield
        self.cp.kubectl("delete", "--wait=false", "-f", "-", text=objects)
        self.cp.apply(*manifests.other_manifests())
        self.cp.wait_for_policies()

    def clear(self) -> None:
        """Delete all profiles, states, nodes and pods."""
        for item in self.cp.get(PROFILES)["items"]:
            path = f"{PROFILES}/{item['metadata']['name']}"
            self.cp.request("DELETE", path)
            # No controller runs that would.
            self.cp.request("PATCH", path, {"metadata": {"finalizers": None}})
        for path in ("/api/v1/namespaces/default/pods", "/api/v1/nodes", STATES):
            self.cp.request("DELETE", f"{path}?gracePeriodSeconds=0")

    def node(self, name: str, labels: dict[str, str] | None = None, swap: int = 2**30) -> dict[str, Any]:
        # Where there is not one annotation, as on no real node, nfd-master's patch of a node is refused.
        annotations = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
        metadata = {"name": name, "labels": labels or {"group": name}, "annotations": annotations}
        self.cp.create("/api/v1/nodes", {"metadata": metadata})
        info = {"swap": {"capacity": swap}} if swap else {}
        capacity = {"memory": str(2**32), "cpu": "1", "pods": "100"}
        fields = ["machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"]
        fields += ["kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"]
        status = {"capacity": capacity, "nodeInfo": {**dict.fromkeys(fields, ""), **info}}
        self.cp.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})
        # The API server makes each node not-ready, and a controller that does not run here takes that away again.
        self.cp.request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
        found: dict[str, Any] = self.cp.get(f"/api/v1/nodes/{name}")
        return found

    def taint(self, node: str, *taints: dict[str, Any]) -> None:
        """Have a node carry these taints only; a new one has `node.kubernetes.io/not-ready`."""
        assert self.cp.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": list(taints)}})[0] == 200

    def taints(self, node: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.cp.get(f"/api/v1/nodes/{node}")["spec"].get("taints", [])
        return [{key: value for key, value in each.items() if key != "timeAdded"} for each in found]

    def knows_swap(self) -> bool:
        """Whether the API server keeps what Nodes say of their swap (status.nodeInfo.swap); older ones do not."""
        return self.cp.version() >= (1, 33)

    def pod(self, node: str, name: str, annotations: dict[str, str] | None = None, **memory: str) -> dict[str, Any]:
        container = {"name": "app", "image": "none", "resources": {"requests": memory} if memory else {}}
        body = {
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"nodeName": node, "containers": [container]},
        }
        made: dict[str, Any] = self.cp.create("/api/v1/namespaces/default/pods", body)
        return made

    def profile(self, name: str, selector: dict[str, str], **spec: Any) -> dict[str, Any]:
        body = {
            "apiVersion": "swapwarden.dev/v1alpha1",
            "kind": "NodeSwapProfile",
            "metadata": {"name": name},
            "spec": {"nodeSelector": {"matchLabels": selector}, **spec},
        }
        made: dict[str, Any] = self.cp.create(PROFILES, body)
        return made

    def now(self) -> str:
        """The API server's time, as it stands in a creationTimestamp."""
        path = "/api/v1/namespaces/default/configmaps?dryRun=All"
        made: dict[str, Any] = self.cp.create(path, {"metadata": {"name": "clock"}})
        return str(made["metadata"]["creationTimestamp"])

    def state(self, node: str) -> dict[str, Any]:
        status, found = self.cp.request("GET", f"{STATES}/{node}")
        return found if status == 200 else {}

    def spec(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = self.state(node).get("spec", {})
        return found

    def swap_max(self, node: str, pod: dict[str, Any]) -> str | None:
        """Return the limit in the state for a pod: "max" if it has none, None if the state does not name the pod."""
        found = self.spec(node).get("pods", {}).get(pod["metadata"]["uid"])
        return None if found is None else limit(found)

    def conditions(self, profile: str) -> dict[str, tuple[str, str]]:
        status = self.cp.get(f"{PROFILES}/{profile}").get("status", {})
        return {one["type"]: (one["status"], one["reason"]) for one in status.get("conditions", [])}

    def report(self, node: str, *others: dict[str, Any], applied: str = "True", **facts: int) -> None:
        """Be the node's agent; `others` are conditions besides Applied, `facts` differ from FACTS."""
        found = self.state(node)
        generation = found["metadata"]["generation"]
        condition = {"type": "Applied", "status": applied, "reason": "AsSpecified", "observedGeneration": generation}
        status = {
            "observedGeneration": generation,
            "profileRef": {"generation": 0, **found["spec"]["profileRef"]},
            "facts": {**FACTS, **facts},
            "conditions": [condition, *others],
        }
        code, answer = self.cp.request("PATCH", f"{STATES}/{node}/status", {"status": status})
        assert code == 200, answer
