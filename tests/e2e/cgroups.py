"""Reads the kernel's files of a node's pods, and a recorder's samples of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from testbed.product import helm
from testbed.vm.nodevm import Sample
from tests.e2e.provider import Node, Provider

MIB = 1 << 20
PAGE = 4096
TIMEOUT = 120.0


@dataclasses.dataclass(frozen=True)
class Window:
    """When a cgroup's memory.swap.max was above 0, in seconds of the node's clock; `end` is None while it lasts."""

    start: float
    end: float | None
    highest: int | None

    def __str__(self) -> str:
        lasted = "and still is" if self.end is None else f"for {(self.end - self.start) * 1000:.1f} ms"
        return f"at {self.start:.3f} {lasted}: {'max' if self.highest is None else self.highest}"


def meminfo(node: Node, name: str) -> int:
    """A line of /proc/meminfo, in bytes."""
    lines = dict(line.split(":") for line in node.read("/proc/meminfo").splitlines())
    return int(lines[name].removesuffix("kB")) * 1024


def find(node: Node, name: str) -> Path:
    """The one cgroup below kubepods whose name ends with NAME."""
    argv = ["find", str(node.kubepods), "-type", "d", "-name", f"*{name}"]
    # It fails if a cgroup is removed during the search.
    found = node.run(argv, timeout=TIMEOUT, check=False).stdout.split()
    assert len(found) == 1, f"{name}: {found}"
    return Path(found[0])


def slice_of(uid: str) -> str:
    """The end of the name of a pod's cgroup under systemd."""
    return f"pod{uid.replace('-', '_')}.slice"


def of_pod(node: Node, pod: Any) -> Path:
    """A pod's cgroup."""
    return find(node, slice_of(pod["metadata"]["uid"]))


def container_id(pod: Any, name: str = "main") -> str:
    """The id of one of the pod's containers, as its cgroup carries it."""
    statuses = [*pod["status"].get("initContainerStatuses", []), *pod["status"]["containerStatuses"]]
    (found,) = [each["containerID"] for each in statuses if each["name"] == name]
    return str(found).partition("://")[2]


def of_container(node: Node, pod: Any, name: str = "main") -> Path:
    """The cgroup of one of the pod's containers."""
    return find(node, f"{container_id(pod, name)}.scope")


def first_process(node: Node, folder: Path) -> str:
    """The id of the process that came first into a container's cgroup."""
    return node.read(folder / "cgroup.procs").split()[0]


def status_of(node: Node, process: str) -> dict[str, str]:
    """Return the kernel's fields of a process by name: capabilities, user, and so on (proc_pid_status(5))."""
    lines = node.read(f"/proc/{process}/status").splitlines()
    return dict(line.split(":\t") for line in lines if ":\t" in line)


def swap_max(node: Node, folder: Path) -> str:
    """Return a cgroup's memory.swap.max."""
    return node.read(folder / "memory.swap.max").strip()


def swap_used(node: Node, folder: Path) -> int:
    """Return a cgroup's swap in use, in bytes."""
    return int(node.read(folder / "memory.swap.current"))


def unswap(cluster: Provider, node: Node) -> None:
    """Bring all pages back to memory: idle processes that were swapped keep theirs out, and their pods drain for ever.

    Swap that is not the suite's own is left alone.
    """
    if not cluster.owns_swap:
        return
    devices = [line.split()[0] for line in node.read("/proc/swaps").splitlines()[1:]]
    try:
        node.run(["swapoff", *devices], timeout=TIMEOUT)
    finally:
        node.run(["swapon", *devices], timeout=TIMEOUT)


def events(node: Node, folder: Path) -> dict[str, int]:
    """A cgroup's memory.events, those of the cgroups below it included."""
    words = node.read(folder / "memory.events").split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def now(node: Node) -> float:
    """The node's clock, as recorders write it: seconds since 1970."""
    return float(node.run(["date", "+%s.%N"], timeout=TIMEOUT).stdout)


def first_start(samples: Iterable[Sample], pod: str, container: str) -> float:
    """When the cgroup of a pod's container was made, before anything ran in it."""
    (found,) = [each.at for each in samples if pod in each.path and container in each.path and each.event == "created"]
    return found


def windows(samples: Iterable[Sample], pod: str, start: float, end: float = float("inf")) -> list[Window]:
    """When the cgroup POD itself was above 0, between START and END."""
    found: list[Window] = []
    since: float | None = None
    highest: int | None = 0
    for sample in samples:
        if not sample.path.endswith(pod) or sample.at > end:
            continue
        above = sample.event != "gone" and sample.max_bytes != 0
        if above:
            since = sample.at if since is None else since
            highest = None if sample.max_bytes is None or highest is None else max(highest, sample.max_bytes)
        elif since is not None:
            if sample.at > start:
                found.append(Window(max(since, start), sample.at, highest))
            since, highest = None, 0
    return [*found, Window(max(since, start), None, highest)] if since is not None else found


MAKING_SECONDS = 1.0
"""Within so long systemd gives a new container's cgroup its values, before anything runs in it."""


def in_effect(samples: Sequence[Sample], pod: str, start: float, end: float = float("inf")) -> list[Window]:
    """When a container of a pod could swap, between START and END: its own cgroup and that of POD were above 0.

    The pod's first scope is its sandbox, which counts for none. It must have been made during the recording.
    """
    mine = [each for each in samples if pod in each.path]
    sandbox = next((each.path for each in mine if each.event == "created" and each.path.endswith(".scope")), "")
    above: dict[str, bool] = {}
    found: list[Window] = []
    since: float | None = None
    for number, each in enumerate(mine):
        if each.at > end or each.path == sandbox:
            continue
        if each.event == "created" and not each.path.endswith(pod):
            later = (one for one in mine[number + 1 :] if one.path == each.path)
            if any(one.at <= each.at + MAKING_SECONDS for one in later):
                continue
        above[each.path] = each.event != "gone" and each.max_bytes != 0
        now = any(value for path, value in above.items() if path.endswith(pod))
        now = now and any(value for path, value in above.items() if not path.endswith(pod))
        if now and since is None:
            since = each.at
        elif not now and since is not None:
            if each.at > start:
                found.append(Window(max(since, start), each.at, None))
            since = None
    return [*found, Window(max(since, start), None, None)] if since is not None else found


def dump(node: Node) -> str:
    """The swap limits and the swap in use of all pods, a line for each cgroup."""
    script = """
        find "$0" -name memory.swap.max | sort | while read -r file; do
            echo "${file%/*} $(cat "$file") $(cat "${file%/*}/memory.swap.current")"
        done"""
    return node.run(["sh", "-c", script, str(node.kubepods)], timeout=TIMEOUT).stdout


def agent_log(node: Node, uid: str) -> list[dict[str, Any]]:
    """Return the log lines about a pod and its cgroup from the current agent and those before it in the same pod.

    A line of the node's files begins with time, stream and whether it is whole (k/k: pkg/kubelet/kuberuntime/logs).
    """
    script = """
        for file in /var/log/pods/"$0"_*/agent/*; do
            zcat -f "$file"
        done | grep -F -e "$1" -e "$2" """
    argv = ["sh", "-c", script, helm.NAMESPACE, f'"{uid}"', f'{slice_of(uid)}"']
    lines = node.run(argv, timeout=TIMEOUT, check=False).stdout.splitlines()
    return [json.loads(line.split(" ", 3)[3]) for line in lines]


def container_logs(node: Node) -> str:
    """The end of what the containers of Swapwarden wrote, from the node's own files."""
    script = """
        for file in /var/log/pods/"$0"_*/*/*.log; do
            echo "--- $file"
            tail -n 60 "$file"
        done"""
    return node.run(["sh", "-c", script, helm.NAMESPACE], timeout=TIMEOUT, check=False).stdout
