"""Containers of a node stand-in as cgroups and processes. Standard library only."""

import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.standin import nodetree, pods

BUSY_DELAY = 0.05


class Containers:
    """Running containers. MEMORY and SWAP are the node's, in bytes; LIMITED: the kubelet gives LimitedSwap."""

    def __init__(self, tree: nodetree.Tree, memory: int, swap: int, *, limited: bool) -> None:
        self._tree = tree
        self.memory = memory
        self.swap = swap
        self._limited = limited
        self._by_pid: dict[int, tuple[pods.NodePod, pods.NodeContainer]] = {}
        self._sleep = shutil.which("sleep") or "/bin/sleep"

    def run(self, pod: pods.NodePod, container: pods.NodeContainer) -> None:
        """Start one: its cgroup and, where cgroups are real, a process in it."""
        container.identifier = secrets.token_hex(32)
        container.folder = self._tree.container(pod.folder, container.identifier)
        self._tree.make(container.folder, self.limits(pod, container))
        if self._tree.real:
            container.pid = self._spawn(pod, container)
            self._by_pid[container.pid] = pod, container
        container.state = {"running": {"startedAt": pods.now()}}

    def limits(self, pod: pods.NodePod, container: pods.NodeContainer) -> dict[str, str]:
        """Return the kubelet's value for its cgroup."""
        swap = pods.swap_limit(
            container.memory("requests"),
            container.memory("limits"),
            self.memory,
            self.swap,
            limited=self._limited,
            qos=pod.qos,
            critical=pod.critical,
        )
        return {"memory.max": str(container.memory("limits") or "max"), "memory.swap.max": swap}

    def of_pod(self, pod: pods.NodePod) -> str:
        """Return the number of a kubelet that also limits pods: the sum of its containers'."""
        each = (int(self.limits(pod, one)["memory.swap.max"]) for one in pod.containers if one.kind != "init")
        return str(sum(each))

    def _spawn(self, pod: pods.NodePod, container: pods.NodeContainer) -> int:
        hog = pod.annotations.get("testbed/hog")
        if hog and container is pod.apps[0]:
            script = str(Path(__file__).with_name("hog.py"))
            argv = [sys.executable, "-I", "-S", script, hog, "--cgroup", str(container.folder)]
            argv += ["--pace", pod.annotations.get("testbed/hog-pace", "64")]
        else:
            argv = [self._sleep, "infinity"]
        pid = os.posix_spawn(argv[0], argv, os.environ)
        if argv[0] == self._sleep and container.folder:
            self._tree.write(container.folder / "cgroup.procs", str(pid))
        return pid

    def finish(self, container: pods.NodeContainer, code: int, reason: str) -> None:
        """Record how a container ended, and remove its cgroup."""
        started = container.state.get("running", {}).get("startedAt", pods.now())
        how = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": pods.now()}
        container.state = {"terminated": {**how, "containerID": f"containerd://{container.identifier}"}}
        if container.pid:
            self._by_pid.pop(container.pid, None)
        if container.folder:
            self._tree.kill(container.folder)
            while not self._tree.remove(container.folder):
                time.sleep(BUSY_DELAY / 10)

    def ended(self) -> Iterator[tuple[pods.NodePod, pods.NodeContainer, int]]:
        """Yield those whose process has ended since, with its exit code (negative: the signal)."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self._by_pid:
                yield *self._by_pid.pop(pid), os.waitstatus_to_exitcode(status)
