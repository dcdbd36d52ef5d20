"""Pods and containers of a node stand-in: their data and their status. Standard library only."""

import dataclasses
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]

CRITICAL_PRIORITY = 2_000_000_000
_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def to_bytes(quantity: str | None) -> int:
    """Return the bytes of a Kubernetes quantity; 0 for none."""
    if not quantity:
        return 0
    number = quantity.rstrip("kKMGTi")
    return int(float(number) * _UNITS.get(quantity[len(number) :], 1))


def now() -> str:
    """Return the time as the API writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def swap_limit(request: int, limit: int, memory: int, swap: int, *, limited: bool, qos: str, critical: bool) -> str:
    """Return the kubelet's value for a container's memory.swap.max (kuberuntime_container_linux.go); all in bytes."""
    if not limited or critical or qos != "burstable" or request in {0, limit} or request > memory:
        return "0"
    return str(int(float(request) / float(memory) * float(swap)))


@dataclasses.dataclass(slots=True)
class NodeContainer:
    """A container of a pod on this node. KIND is `init`, `sidecar` or `app`."""

    spec: Json
    kind: str
    identifier: str = ""
    folder: Path | None = None
    pid: int | None = None
    restarts: int = 0
    state: Json = dataclasses.field(default_factory=lambda: {"waiting": {"reason": "PodInitializing"}})
    last_state: Json = dataclasses.field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Return whether it runs."""
        return "running" in self.state

    def memory(self, which: str) -> int:
        """Return its memory `requests` or `limits`, in bytes."""
        return to_bytes(self.spec.get("resources", {}).get(which, {}).get("memory"))

    def status(self) -> Json:
        """Return its entry in the pod's status."""
        status: Json = {
            "name": self.spec["name"],
            "image": self.spec["image"],
            "imageID": f"testbed/{self.spec['image']}",
            "ready": self.running,
            "started": self.running,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state,
        }
        if self.identifier:
            status["containerID"] = f"containerd://{self.identifier}"
            status["resources"] = self.spec.get("resources", {})
        return status


class NodePod:
    """A pod on this node."""

    def __init__(self, found: Json) -> None:
        metadata = found["metadata"]
        self.namespace: str = metadata["namespace"]
        self.name: str = metadata["name"]
        self.uid: str = metadata["uid"]
        self.annotations: Json = metadata.get("annotations", {})
        spec = found["spec"]
        self.qos: str = found["status"]["qosClass"].lower()
        self.restart_policy: str = spec["restartPolicy"]
        mirror = "kubernetes.io/config.mirror" in self.annotations
        self.critical = mirror or spec.get("priority", 0) >= CRITICAL_PRIORITY
        self.containers = [
            NodeContainer(one, "sidecar" if one.get("restartPolicy") == "Always" else "init")
            for one in spec.get("initContainers", [])
        ] + [NodeContainer(one, "app") for one in spec["containers"]]
        self.started = now()
        self.folder = Path()
        self.over = False  # No container will run any more.
        self.ending = False

    @property
    def cgroup_uid(self) -> str:
        """Return the id in the name of its cgroup: for a static pod, the hash of its file."""
        return str(self.annotations.get("kubernetes.io/config.hash", self.uid))

    @property
    def apps(self) -> list[NodeContainer]:
        """Return the containers that are the pod's purpose."""
        return [one for one in self.containers if one.kind == "app"]

    def memory_limit(self) -> str:
        """Return the pod cgroup's memory.max: the kubelet sets one only if every container has a limit."""
        if not all(one.memory("limits") for one in self.containers):
            return "max"
        side = sum(one.memory("limits") for one in self.containers if one.kind != "init")
        return str(max([side, *(one.memory("limits") for one in self.containers if one.kind == "init")]))

    def phase(self) -> str:
        """Return the pod's phase."""
        states = [one.state for one in self.apps]
        if self.over:
            failed = any(state.get("terminated", {}).get("exitCode", 0) for state in states)
            return "Failed" if failed else "Succeeded"
        return (
            "Pending"
            if any("waiting" in state and not one.restarts for state, one in zip(states, self.apps, strict=True))
            else "Running"
        )

    def status(self) -> Json:
        """Return the status to report; the API server keeps the QoS class itself."""
        phase = self.phase()
        ready = "True" if phase == "Running" and all(one.running for one in self.apps) else "False"
        conditions = [{"type": kind, "status": ready} for kind in ("Ready", "ContainersReady")]
        conditions += [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized")]
        return {
            "phase": phase,
            "startTime": self.started,
            "conditions": conditions,
            "initContainerStatuses": [one.status() for one in self.containers if one.kind != "app"],
            "containerStatuses": [one.status() for one in self.apps],
        }
