"""A stand-in for a node: plays the kubelet's, containerd's and systemd's part in what concerns cgroups and pod status.

It registers a Node, makes cgroups for the pods bound to it, gives containers the kubelet's swap limit, writes `max`
back to pod slices as systemd does, runs a process (or a memory hog) in each container, reports status, and takes all
away again. Test equipment: standard library only, run as `python -S -m testbed.standin.node` with the work tree on
PYTHONPATH.

Signals: SIGTERM ends it and removes its cgroups; SIGUSR1 does to all files what `systemctl daemon-reload` does.
Pod annotations: `testbed/hog: "40"` runs a hog of 40 MiB in the first container, `testbed/hog-pace` sets its MiB/s.
"""

import argparse
import contextlib
import dataclasses
import heapq
import itertools
import os
import platform
import queue
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from testbed.standin import nodeapi, nodetree

Json = dict[str, Any]
Steps = Generator[float, None, None]

CRITICAL_PRIORITY = 2_000_000_000
IDLE = 0.1
INIT_SECONDS = 0.05
FIRST_RESTART_DELAY, LONGEST_RESTART_DELAY = 1.0, 60.0
BUSY_DELAY = 0.05
_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_IN_KERNEL_VM = Path("/run/testbed/boot.conf")


def to_bytes(quantity: str | None) -> int:
    """Bytes of a Kubernetes quantity; 0 for none."""
    if not quantity:
        return 0
    number = quantity.rstrip("kKMGTi")
    return int(float(number) * _UNITS.get(quantity[len(number) :], 1))


def now() -> str:
    """The time as the API writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def swap_limit(request: int, limit: int, memory: int, swap: int, *, limited: bool, qos: str, critical: bool) -> str:
    """What the kubelet writes to a container's memory.swap.max (its kuberuntime_container_linux.go); all in bytes."""
    if not limited or critical or qos != "burstable" or request in {0, limit} or request > memory:
        return "0"
    return str(int(float(request) / float(memory) * float(swap)))


@dataclasses.dataclass(slots=True)
class Container:
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
        """Whether it runs."""
        return "running" in self.state

    def memory(self, which: str) -> int:
        """Its memory `requests` or `limits`, in bytes."""
        return to_bytes(self.spec.get("resources", {}).get(which, {}).get("memory"))

    def status(self) -> Json:
        """Its entry in the pod's status."""
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


class Pod:
    """A pod on this node."""

    def __init__(self, found: Json) -> None:
        metadata = found["metadata"]
        self.namespace: str = metadata["namespace"]
        self.name: str = metadata["name"]
        self.uid: str = metadata["uid"]
        self.annotations: Json = metadata.get("annotations", {})
        spec = found["spec"]
        # The kubelet names the cgroup of a static pod after the hash of its file.
        self.cgroup_uid: str = self.annotations.get("kubernetes.io/config.hash", self.uid)
        self.qos: str = found["status"]["qosClass"].lower()
        self.restart_policy: str = spec["restartPolicy"]
        mirror = "kubernetes.io/config.mirror" in self.annotations
        self.critical = mirror or spec.get("priority", 0) >= CRITICAL_PRIORITY
        self.containers = [
            Container(one, "sidecar" if one.get("restartPolicy") == "Always" else "init")
            for one in spec.get("initContainers", [])
        ] + [Container(one, "app") for one in spec["containers"]]
        self.started = now()
        self.folder = Path()
        self.sandbox = ""
        self.over = False  # no container will run any more
        self.ending = False

    @property
    def apps(self) -> list[Container]:
        """The containers that the pod is there for."""
        return [one for one in self.containers if one.kind == "app"]

    def memory_limit(self) -> str:
        """The pod cgroup's memory.max: the kubelet sets one only if every container has a limit."""
        if not all(one.memory("limits") for one in self.containers):
            return "max"
        side = sum(one.memory("limits") for one in self.containers if one.kind != "init")
        return str(max([side, *(one.memory("limits") for one in self.containers if one.kind == "init")]))

    def phase(self) -> str:
        """The pod's phase."""
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
        """What is reported; the API server keeps the QoS class itself."""
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


class Node:
    """The stand-in's one event loop. Everything that takes time is a generator that yields how long to wait."""

    def __init__(self, options: argparse.Namespace, tree: nodetree.Tree) -> None:
        self._options = options
        self._tree = tree
        self._access = nodeapi.Access(options.server, options.ca_file, options.token_file)
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=10_000)
        self._writer = nodeapi.PodWriter(self._access)
        self._pods: dict[str, Pod] = {}
        self._steps: list[tuple[float, int, Pod, Steps]] = []
        self._counter = itertools.count()
        self._by_pid: dict[int, tuple[Pod, Container]] = {}
        self._stopping = False
        self._reload = False
        self._memory = options.memory_bytes or _meminfo("MemTotal")
        self._swap = options.swap_bytes if options.swap_bytes is not None else _meminfo("SwapTotal")
        self._sleep = shutil.which("sleep") or "/bin/sleep"

    # --- the loop ---

    def run(self) -> None:
        """Register, follow pods until SIGTERM, and take all away."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_signal)
        self._tree.prepare()
        try:
            self._register()
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
        self._reap()

    def _go(self, pod: Pod, steps: Steps, delay: float = 0.0) -> None:
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
            if kind != "DELETED":  # never started here
                self._writer.confirm_deletion(found["metadata"]["namespace"], found["metadata"]["name"], uid)
        elif found["status"].get("phase") not in {"Succeeded", "Failed"}:
            self._pods[uid] = pod = Pod(found)
            self._go(pod, self._start(pod))

    # --- what happens to a pod ---

    def _start(self, pod: Pod) -> Steps:
        pod.folder = self._tree.pod(pod.cgroup_uid, pod.qos)
        self._tree.make(pod.folder, {"memory.max": pod.memory_limit()})
        if self._tree.systemd:
            # systemd sets the slice's own properties again, two or three times, before the first scope appears.
            for delay in self._options.rewrite_delays:
                yield delay
                self._tree.write(pod.folder / "memory.swap.max", "max")
        yield self._options.sandbox_delay
        pod.sandbox = secrets.token_hex(32)
        self._tree.make(self._tree.container(pod.folder, pod.sandbox))
        yield self._options.container_delay
        for container in pod.containers:
            self._run(pod, container)
            if container.kind == "init":
                self._report(pod)
                yield INIT_SECONDS
                self._finish(container, 0, "Completed")
        self._report(pod)

    def _run(self, pod: Pod, container: Container) -> None:
        container.identifier = secrets.token_hex(32)
        container.folder = self._tree.container(pod.folder, container.identifier)
        self._tree.make(container.folder, self._limits(pod, container))
        if self._tree.real:
            container.pid = self._spawn(pod, container)
            self._by_pid[container.pid] = pod, container
        container.state = {"running": {"startedAt": now()}}

    def _limits(self, pod: Pod, container: Container) -> dict[str, str]:
        swap = swap_limit(
            container.memory("requests"),
            container.memory("limits"),
            self._memory,
            self._swap,
            limited=self._options.swap_behavior == "LimitedSwap",
            qos=pod.qos,
            critical=pod.critical,
        )
        return {"memory.max": str(container.memory("limits") or "max"), "memory.swap.max": swap}

    def _spawn(self, pod: Pod, container: Container) -> int:
        hog = pod.annotations.get("testbed/hog")
        if hog and container is pod.apps[0]:
            script = str(Path(__file__).with_name("hog.py"))
            argv = [sys.executable, "-I", "-S", script, hog, "--cgroup", str(container.folder)]
            argv += ["--pace", pod.annotations.get("testbed/hog-pace", "64")]
        else:
            argv = [self._sleep, "infinity"]
        pid = os.posix_spawn(argv[0], argv, os.environ)
        if argv[0] == self._sleep and container.folder:
            self._tree.join(container.folder, pid)
        return pid

    def _finish(self, container: Container, code: int, reason: str) -> None:
        """A container has ended: remember how, and remove its cgroup."""
        started = container.state.get("running", {}).get("startedAt", now())
        how = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now()}
        container.state = {"terminated": {**how, "containerID": f"containerd://{container.identifier}"}}
        if container.pid:
            self._by_pid.pop(container.pid, None)
        if container.folder:
            self._tree.kill(container.folder)
            self._wait_removed(container.folder)

    def _wait_removed(self, folder: Path) -> None:
        while not self._tree.remove(folder):
            time.sleep(BUSY_DELAY / 10)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self._by_pid:
                pod, container = self._by_pid.pop(pid)
                self._exited(pod, container, os.waitstatus_to_exitcode(status))

    def _exited(self, pod: Pod, container: Container, status: int) -> None:
        if pod.ending or not container.folder:
            return
        killed = self._tree.oom_kills(container.folder) > 0
        code = 128 - status if status < 0 else status
        self._finish(container, code, "OOMKilled" if killed else ("Error" if code else "Completed"))
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

    def _restart(self, pod: Pod, container: Container) -> Steps:
        yield min(FIRST_RESTART_DELAY * 2**container.restarts, LONGEST_RESTART_DELAY)
        if not pod.ending:
            container.last_state = container.state
            container.restarts += 1
            self._run(pod, container)
            self._report(pod)

    def _resize(self, pod: Pod, found: Json) -> None:
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
                for name, value in self._limits(pod, container).items():
                    self._tree.write(container.folder / name, value)
        if changed and pod.folder.name:
            self._tree.write(pod.folder / "memory.max", pod.memory_limit())
            if self._tree.systemd:
                self._tree.write(pod.folder / "memory.swap.max", "max")
            self._report(pod)

    def _daemon_reload(self) -> None:
        """What systemd writes back: `max` to pod slices, the kubelet's number to container scopes."""
        for pod in self._pods.values():
            if pod.ending or not pod.folder.name:
                continue
            self._tree.write(pod.folder / "memory.swap.max", "max")
            for container in pod.containers:
                if container.running and container.folder:
                    self._tree.write(
                        container.folder / "memory.swap.max", self._limits(pod, container)["memory.swap.max"]
                    )
        nodeapi.log("daemon-reload")

    def _end(self, pod: Pod) -> None:
        if not pod.ending:
            pod.ending = True
            self._steps = [entry for entry in self._steps if entry[2] is not pod]
            heapq.heapify(self._steps)
            self._go(pod, self._clear(pod, confirm=True))

    def _clear(self, pod: Pod, *, confirm: bool = False) -> Steps:
        if pod.folder.name:
            self._tree.kill(pod.folder)
            while not self._tree.remove(pod.folder):
                yield BUSY_DELAY
        if confirm:
            self._pods.pop(pod.uid, None)
            self._writer.confirm_deletion(pod.namespace, pod.name, pod.uid)

    def _report(self, pod: Pod) -> None:
        if not pod.ending:
            self._writer.status(pod.namespace, pod.name, pod.uid, pod.status())

    # --- the Node object ---

    def _register(self) -> None:
        client = nodeapi.Client(self._access)
        name = self._options.name
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        labels |= dict(label.split("=", 1) for label in self._options.label)
        try:
            client.request("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        except nodeapi.ApiError as error:
            if "already exists" not in str(error):
                raise
            client.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}}, nodeapi.MERGE_PATCH)
        client.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": self._node_status()}, nodeapi.MERGE_PATCH)

    def _node_status(self) -> Json:
        capacity = {"cpu": str(os.cpu_count()), "memory": f"{self._memory // 1024}Ki", "pods": "1000"}
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
            "swap": {"capacity": self._swap} if self._swap else None,
        }
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "node stand-in"}
        ready |= {"lastHeartbeatTime": now(), "lastTransitionTime": now()}
        return {"capacity": capacity, "allocatable": capacity, "nodeInfo": info, "conditions": [ready]}


def _meminfo(key: str) -> int:
    """A figure of /proc/meminfo, in bytes."""
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
    parser.add_argument("--memory-bytes", type=int, help="what the Node claims to have; default: what the machine has")
    parser.add_argument("--swap-bytes", type=int, help="the same for swap")
    parser.add_argument(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="a label of the Node; repeatable"
    )
    parser.add_argument(
        "--rewrite-delays",
        type=lambda text: [float(part) for part in text.split(",") if part],
        default=[0.005, 0.015, 0.01],
        metavar="SECONDS,...",
        help="systemd naming: waits before each rewrite of a new pod slice's memory.swap.max to max",
    )
    parser.add_argument(
        "--sandbox-delay", type=float, default=0.01, help="seconds from the last rewrite to the sandbox"
    )
    parser.add_argument("--container-delay", type=float, default=0.1, help="seconds from the sandbox to the containers")
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
