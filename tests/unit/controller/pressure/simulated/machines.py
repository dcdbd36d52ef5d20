"""Nodes with their pods and their NodeSwapStates, as the API server has them."""

from __future__ import annotations

import collections
from typing import Any, Final

import msgspec
from swapwarden.api import state
from swapwarden.policy.observed import nodes

MI: Final = 2**20
MEMORY, SWAP = 8192 * MI, 1024 * MI
BELOW, CLEAR = MEMORY * 5 // 100, MEMORY * 10 // 100
Json = dict[str, Any]


class Pod(msgspec.Struct):
    """A pod. Sizes in MiB; without a limit, half of its node's swap per memory is its own."""

    name: str
    node: str
    request: int
    memory: int
    swap: int = 0
    namespace: str = "a"
    kind: str = "ReplicaSet"
    critical: bool = False
    kept: bool = False
    budget: bool = False
    """Whether a disruption budget keeps it."""
    evicted: bool = False
    ends: float | None = None

    @property
    def uid(self) -> str:
        return f"uid-{self.name}"

    @property
    def usage(self) -> int:
        return self.memory + self.swap

    def spared(self) -> bool:
        """Return whether its kind or its owner forbids an eviction: written down apart from the product's rules."""
        forbidden = self.critical or self.kept or self.budget
        return forbidden or self.namespace == "kube-system" or self.kind != "ReplicaSet"

    def grant(self) -> int:
        return self.request + self.request * SWAP // MEMORY

    def wire(self) -> Json:
        metadata: Json = {"name": self.name, "namespace": self.namespace, "uid": self.uid}
        if self.kind:
            metadata["ownerReferences"] = [{"kind": self.kind, "controller": True}]
        if self.kept:
            metadata["annotations"] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
        if self.ends is not None:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        resources = {"requests": {"memory": f"{self.request}Mi"}}
        spec: Json = {"nodeName": self.node, "containers": [{"name": "app", "resources": resources}]}
        if self.critical:
            spec["priority"] = 2_000_000_000
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


class Machine:
    """A node: its pods, and its state at the API server."""

    def __init__(self, name: str, pool: str, spec: state.StateSpec) -> None:
        self.name, self.pool = name, pool
        self.pods: dict[str, Pod] = {}
        self.spec: Json = msgspec.to_builtins(spec)
        self.version = self.generation = self.seq = 1
        self.pressure: Json | None = None
        self.reports: collections.deque[tuple[float, dict[str, int]]] = collections.deque(maxlen=8)
        """When one arrived, and the usage in it by UID."""
        self.arrived: dict[int, float] = {}
        self.terminated = -1e9
        """When the last pod that was evicted was gone."""

    @property
    def row(self) -> nodes.NodeRow:
        labels = {"pool": self.pool}
        return nodes.NodeRow(self.name, f"uid-of-{self.name}", labels, SWAP, MEMORY)

    @property
    def victim(self) -> str | None:
        found = self.spec["pressure"].get("victim")
        return found["uid"] if found else None

    def free(self) -> int:
        return MEMORY - sum(pod.memory for pod in self.pods.values()) * MI

    def wire(self) -> bytes:
        applied = {"type": "Applied", "status": "True", "reason": "AsSpecified", "lastTransitionTime": "x"}
        status: Json = {
            "observedGeneration": self.generation,
            "profileRef": self.spec["profileRef"],
            "conditions": [applied],
        }
        if self.pressure is not None:
            status["pressure"] = self.pressure
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": f"uid-of-{self.name}"}
        metadata = {
            "name": self.name,
            "uid": f"uid-of-state-{self.name}",
            "generation": self.generation,
            "resourceVersion": str(self.version),
            "ownerReferences": [owner],
        }
        return msgspec.json.encode({"metadata": metadata, "spec": self.spec, "status": status})
