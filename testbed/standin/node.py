"""A stand-in for a node: imitate kubelet, containerd and systemd as far as cgroups and pod status are concerned.

It registers a Node, makes cgroups for the pods bound to it, gives containers the kubelet's swap limit, writes `max`
back to pod slices like systemd, runs a process (or a memory hog) in each container, reports status, and removes
everything again. Test equipment: standard library only, run as `python -S -m testbed.standin.node` with the work tree
on PYTHONPATH.

Signals: SIGTERM ends it and removes its cgroups; SIGUSR1 has the effect of `systemctl daemon-reload` on all files. Pod
annotations: `testbed/hog: "40"` runs a hog of 40 MiB in the first container, `testbed/hog-pace` sets its MiB/s.
"""

import argparse
import contextlib
import heapq
import itertools
import os
import platform
import queue
import secrets
import signal
import sys
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

from testbed.standin import containers, nodeapi, nodetree, pods
from testbed.standin.containers import BUSY_DELAY
from testbed.standin.pods import NodeContainer, NodePod

Json = dict[str, Any]
Steps = Generator[float, None, None]

IDLE = 0.1
REWRITE_DELAYS = (0.005, 0.015, 0.01)
"""Seconds before each rewrite of a new pod slice's memory.swap.max to `max`, under systemd's naming."""
SANDBOX_DELAY, CONTAINER_DELAY, INIT_SECONDS = 0.01, 0.1, 0.05
FIRST_RESTART_DELAY, LONGEST_RESTART_DELAY = 1.0, 60.0
_IN_KERNEL_VM = Path("/run/testbed/boot.conf")


class Node:
    """The stand-in's one event loop. Every slow task is a generator that yields the seconds to wait."""

    def __init__(self, options: argparse.Namespace, tree: nodetree.Tree) -> None:
        self._options = options
        self._tree = tree
        self._access = nodeapi.Access(options.server, options.ca_file, options.token_file)
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=10_000)
        self._writer = nodeapi.PodWriter(self._access)
        self._pods: dict[str, NodePod] = {}
        self._steps: list[tuple[float, int, NodePod, Steps]] = []
        self._counter = itertools.count()
        self._stopping = False
        self._reload = False
        memory = options.memory_bytes or _meminfo("MemTotal")
        swap = options.swap_bytes if options.swap_bytes is not None else _meminfo("SwapTotal")
        limited = options.swap_behavior == "LimitedSwap"
        self._containers = containers.Containers(tree, memory, swap, limited=limited)

    # --- the loop ---

    def run(self) -> None:
        """Register, follow pods until SIGTERM, and remove everything."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_signal)
        self._tree.prepare()
        try:
            _register(
                self._access, self._options.name, self._options.label, self._containers.memory, self._containers.swap
            )
            self._writer.start()
            nodeapi.PodWatch(self._access, self._options.name, self._events).start()
            while not self._stopping:
                self._turn()
        finally:
            while not self._tree.close():
                time.sleep(BUSY_DELAY)
        nodeapi.log("ended; its cgroups are removed")

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGUSR1:
            self._reload = True
        else:
            self._stopping = True

    def _turn(self) -> None:
        wait = IDLE
        if self._steps:
            wait = max(0.0, min(IDLE, self._steps[0][0] - time.monotonic()))
        with contextlib.suppress(queue.Empty):
            kind, content = self._events.get(timeout=wait)
            if kind == "SYNC":
                self._sync(content)
            else:
                self._see(kind, content)
        if self._reload:
            self._reload = False
            self._daemon_reload()
        self._advance()
        for pod, container, status in self._containers.ended():
            self._exited(pod, container, status)

    def _go(self, pod: NodePod, steps: Steps, delay: float = 0.0) -> None:
        heapq.heappush(self._steps, (time.monotonic() + delay, next(self._counter), pod, steps))

    def _advance(self) -> None:
        while self._steps and self._steps[0][0] <= time.monotonic():
            _, _, pod, steps = heapq.heappop(self._steps)
            try:
                self._go(pod, steps, next(steps))
            except StopIteration:
                continue
            except OSError as error:
                if not pod.ending:
                    nodeapi.log(f"pod {pod.namespace}/{pod.name}: {error}")

    def _sync(self, listed: list[Json]) -> None:
        there = {found["metadata"]["uid"] for found in listed}
        for uid in [uid for uid in self._pods if uid not in there]:
            self._end(self._pods[uid])
        for found in listed:
            self._see("ADDED", found)
        if self._options.once_ready_file and not self._options.once_ready_file.exists():
            self._options.once_ready_file.write_text("ready\n", encoding="ascii")
            nodeapi.log(f"{self._options.name} is ready, with {len(listed)} pods")

    def _see(self, kind: str, found: Json) -> None:
        uid = found["metadata"]["uid"]
        pod = self._pods.get(uid)
        leaving = kind == "DELETED" or "deletionTimestamp" in found["metadata"]
        if pod and leaving:
            self._end(pod)
        elif pod:
            self._resize(pod, found)
        elif leaving:
            if kind != "DELETED":  # It was never started here.
                self._writer.confirm_deletion(found["metadata"]["namespace"], found["metadata"]["name"], uid)
        elif found["status"].get("phase") not in {"Succeeded", "Failed"}:
            self._pods[uid] = pod = NodePod(found)
            self._go(pod, self._start(pod))

    # --- what happens to a pod ---

    def _start(self, pod: NodePod) -> Steps:
        pod.folder = self._tree.pod(pod.cgroup_uid, pod.qos)
        self._tree.make(pod.folder, {"memory.max": pod.memory_limit()})
        self._limit(pod)
        if self._tree.systemd:
            # systemd sets the slice's own properties again, two or three times, before the first scope appears.
            for delay in REWRITE_DELAYS:
                yield delay
                self._tree.write(pod.folder / "memory.swap.max", self._unit_value(pod))
        yield self._options.late_limit_delay
        self._limit(pod)
        yield SANDBOX_DELAY
        self._tree.make(self._tree.container(pod.folder, secrets.token_hex(32)))
        yield CONTAINER_DELAY
        for container in pod.containers:
            self._containers.run(pod, container)
            if container.kind == "init":
                self._report(pod)
                yield INIT_SECONDS
                self._containers.finish(container, 0, "Completed")
        self._report(pod)

    def _unit_value(self, pod: NodePod) -> str:
        """Return the value that systemd has for a pod's slice."""
        return self._containers.of_pod(pod) if self._options.pod_limits == "systemd" else "max"

    def _limit(self, pod: NodePod) -> None:
        """Write the kubelet's limit of a pod, if it limits pods."""
        if self._options.pod_limits != "none":
            self._tree.write(pod.folder / "memory.swap.max", self._containers.of_pod(pod))

    def _exited(self, pod: NodePod, container: NodeContainer, status: int) -> None:
        if pod.ending or not container.folder:
            return
        killed = self._tree.oom_kills(container.folder) > 0
        code = 128 - status if status < 0 else status
        self._containers.finish(container, code, "OOMKilled" if killed else ("Error" if code else "Completed"))
        nodeapi.log(
            f"pod {pod.namespace}/{pod.name}: {container.spec['name']} {container.state['terminated']['reason']}"
        )
        policy = pod.restart_policy
        if container.kind == "sidecar" or policy == "Always" or (policy == "OnFailure" and code):
            self._go(pod, self._restart(pod, container))
        elif not any(one.running or "waiting" in one.state for one in pod.apps):
            pod.over = True
            self._go(pod, self._clear(pod))
        self._report(pod)

    def _restart(self, pod: NodePod, container: NodeContainer) -> Steps:
        yield min(FIRST_RESTART_DELAY * 2**container.restarts, LONGEST_RESTART_DELAY)
        if not pod.ending:
            container.last_state = container.state
            container.restarts += 1
            self._containers.run(pod, container)
            self._report(pod)

    def _resize(self, pod: NodePod, found: Json) -> None:
        """In-place resize: new values in the containers' cgroups, the pod's rewritten, the status afterwards."""
        specs = {one["name"]: one for one in [*found["spec"].get("initContainers", []), *found["spec"]["containers"]]}
        changed = False
        for container in pod.containers:
            new = specs[container.spec["name"]]
            if new.get("resources") == container.spec.get("resources"):
                continue
            container.spec, changed = new, True
            if container.running and container.folder:
                if self._tree.systemd:
                    self._tree.write(container.folder / "memory.swap.max", "0")
                for name, value in self._containers.limits(pod, container).items():
                    self._tree.write(container.folder / name, value)
        if changed and pod.folder.name:
            self._tree.write(pod.folder / "memory.max", pod.memory_limit())
            if self._tree.systemd:
                self._tree.write(pod.folder / "memory.swap.max", self._unit_value(pod))
            self._limit(pod)
            self._report(pod)

    def _daemon_reload(self) -> None:
        """Write values back like systemd: the kubelet's number to container scopes, `max` or its number to slices."""
        for pod in self._pods.values():
            if pod.ending or not pod.folder.name:
                continue
            self._tree.write(pod.folder / "memory.swap.max", self._unit_value(pod))
            for container in pod.containers:
                if container.running and container.folder:
                    self._tree.write(
                        container.folder / "memory.swap.max", self._containers.limits(pod, container)["memory.swap.max"]
                    )
        nodeapi.log("daemon-reload")

    def _end(self, pod: NodePod) -> None:
        if not pod.ending:
            pod.ending = True
            self._steps = [entry for entry in self._steps if entry[2] is not pod]
            heapq.heapify(self._steps)
            self._go(pod, self._clear(pod, confirm=True))

    def _clear(self, pod: NodePod, *, confirm: bool = False) -> Steps:
        if pod.folder.name:
            self._tree.kill(pod.folder)
            while not self._tree.remove(pod.folder):
                yield BUSY_DELAY
        if confirm:
            self._pods.pop(pod.uid, None)
            self._writer.confirm_deletion(pod.namespace, pod.name, pod.uid)

    def _report(self, pod: NodePod) -> None:
        if not pod.ending:
            self._writer.status(pod.namespace, pod.name, pod.uid, pod.status())


def _register(access: nodeapi.Access, name: str, given: Iterable[str], memory: int, swap: int) -> None:
    """Create the Node or take it over, with labels (KEY=VALUE), and report that it is ready; sizes in bytes."""
    client = nodeapi.Client(access)
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    labels |= dict(label.split("=", 1) for label in given)
    try:
        client.request("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    except nodeapi.ApiError as error:
        if "already exists" not in str(error):
            raise
        client.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}}, nodeapi.MERGE_PATCH)
    client.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": _node_status(memory, swap)}, nodeapi.MERGE_PATCH)


def _node_status(memory: int, swap: int) -> Json:
    capacity = {"cpu": str(os.cpu_count()), "memory": f"{memory // 1024}Ki", "pods": "1000"}
    info: Json = {
        "machineID": "testbed",
        "systemUUID": "testbed",
        "bootID": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        "kernelVersion": platform.release(),
        "osImage": "testbed",
        "containerRuntimeVersion": "containerd://testbed",
        "kubeletVersion": "v1.36.3",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
        # The kubelet leaves it out on a node without swap.
        "swap": {"capacity": swap} if swap else None,
    }
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "node stand-in"}
    ready |= {"lastHeartbeatTime": pods.now(), "lastTransitionTime": pods.now()}
    return {"capacity": capacity, "allocatable": capacity, "nodeInfo": info, "conditions": [ready]}


def _meminfo(key: str) -> int:
    """Return a figure of /proc/meminfo, in bytes."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.standin.node", description="A stand-in for a node.")
    parser.add_argument("--name", required=True, help="the Node's name")
    parser.add_argument("--root", type=Path, required=True, help="where its cgroups go: a cgroup v2 mount or a folder")
    parser.add_argument(
        "--naming", choices=["systemd", "cgroupfs"], default="systemd", help="the kubelet's cgroup driver"
    )
    parser.add_argument("--server", required=True, help="the API server's URL")
    parser.add_argument("--ca-file", type=Path, required=True)
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--swap-behavior", choices=["NoSwap", "LimitedSwap"], default="NoSwap")
    parser.add_argument(
        "--pod-limits",
        choices=["none", "systemd", "past-systemd"],
        default="none",
        help="whether the kubelet limits the swap of pods, as a property of their slice or only in the file",
    )
    parser.add_argument(
        "--late-limit-delay", type=float, default=0.0, help="seconds before the kubelet limits a new pod once more"
    )
    parser.add_argument("--memory-bytes", type=int, help="what the Node claims to have; default: what the machine has")
    parser.add_argument("--swap-bytes", type=int, help="the same for swap")
    parser.add_argument(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="a label of the Node; repeatable"
    )
    parser.add_argument("--once-ready-file", type=Path, help="written when pods are served")
    options = parser.parse_args()
    tree = nodetree.Tree(options.root, options.naming)
    if tree.real and not _IN_KERNEL_VM.exists():
        sys.exit(
            f"{options.root} is a real cgroup file system outside the testbed's VM: its cgroups are not ours to touch"
        )
    if tree.kubepods.exists():
        sys.exit(f"{tree.kubepods} exists: another kubelet, or another stand-in, has its pods there")
    Node(options, tree).run()


if __name__ == "__main__":
    main()
