"""The kubelet's own memory QoS beside Swapwarden's: the same experiments on one node, in one run, as a table.

`make bench-memory-qos` runs it; docs/memory-qos.md has the table. Swap limits are the same throughout: Swapwarden gives
them. Evictions are off. A file system in memory, outside of pods and daemons, takes what an experiment shall not have.
No process takes more than PIECE: a kernel in user mode needs a mapping of its host for each page of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import inspect
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from testbed.base import process
from testbed.controlplane import assets
from testbed.standin import hog
from testbed.vm.guestlink import VMError
from testbed.vm.nodevm import NodeVM
from tests.e2e import cgroups, kubelets
from tests.e2e.cgroups import MIB, TIMEOUT
from tests.e2e.conftest import POLL, Namespace, Wait, new_namespace
from tests.e2e.provider import Node, Provider, ProviderError
from tests.e2e.release import Release
from tests.e2e.test_disabled import greedy

MODES = os.environ.get("E2E_MEMORY_QOS", "").split()
"""Of COLUMNS, in this order."""
NOTHING: Final = "nothing"
OURS: Final = "Swapwarden"
OLD: Final = "1.36"
OLD_VERSION: Final = "1.36.3"
NEW: Final = "1.37"
COLUMNS: Final = {NOTHING: "neither", OLD: f"kubelet {OLD}", NEW: f"kubelet {NEW}", OURS: "Swapwarden"}

PACE: Final = 1 << 12
"""MiB a second: without a pause."""
ROOM: Final = 520 * MIB
"""Memory of the node for an experiment, without swap."""
VICTIM, DAEMON, HOG = 120, 60, 450
"""MiB."""
PIECE: Final = 240
"""MiB that one process takes."""
AFTER_SECONDS: Final = 15.0
"""So long the hog touches its memory again and again before the others are looked at."""
IDLE, CACHE, LEFT = 250, 227, 150
"""MiB: requested without use; page cache; for the programs of the node, without which it stops."""
SMALL, FILE = 80, 160
REQUEST, LIMIT, WANTED, SWAP = 16, 500, 480, 64
SMALL_USE: Final = 10
"""MiB of a Python program without work."""
STUCK_SECONDS: Final = 30.0
SOFT: Final = {"reservationPolicy": "Soft", "throttlingPercent": 90}
WINDOW: Final = 4
WITHOUT_SWAP: Final = {
    **SOFT,
    "withoutSwap": "Bounded",
    "maxStallSeconds": 3600,
    "guard": {"windowSeconds": WINDOW},
}
"""The bound is so wide that memory.high is where the factor 0.9 has it."""
BALLAST: Final = "/run/ballast"
TAKE: Final = """
mount -t ramfs ramfs "$0"
dd if=/dev/zero of="$0/file" bs=1M count="$1" status=none
exec sleep 86400"""
READ: Final = f"""
dd if=/dev/zero of=/file bs=1M count={CACHE}
sync
dd if=/file of=/dev/null bs=1M
exec sleep 86400"""
WRITE: Final = f"""
for part in $(seq 0 4 {FILE - 4}); do
    dd if=/dev/zero of=/file bs=1M seek=$part count=4 conv=notrunc,fsync
done"""
"""Written to the disk at once: else a kernel that does not wait for that kills the pod, whatever is protected."""
FORK: Final = """
import os
for _ in range({others}):
    if not os.fork():
        break
"""

pytestmark = pytest.mark.skipif(not MODES, reason="long; `make bench-memory-qos` runs it")


@dataclasses.dataclass(frozen=True)
class Bench:
    cluster: Provider
    node: NodeVM
    swapwarden: Release
    eventually: Wait

    @contextlib.contextmanager
    def pods(self) -> Iterator[Namespace]:
        """A namespace; its pods are gone from the node when this returns."""
        with new_namespace(self.cluster) as made:
            yield made
        path = f"/api/v1/namespaces/{made.name}/pods"
        self.eventually(lambda: not self.cluster.get(path)["items"], "the pods are gone")

    @contextlib.contextmanager
    def daemon(self, name: str, mib: int) -> Iterator[Path]:
        """A service that takes memory once, and its cgroup."""
        with self.service(name, taking(mib, "--rounds=1")) as folder:
            yield folder

    @contextlib.contextmanager
    def service(self, name: str, argv: Sequence[str], *options: str) -> Iterator[Path]:
        """A program that systemd runs as a service NAME, and its cgroup."""
        self.node.run(["systemd-run", "--quiet", "--collect", f"--unit={name}", *options, *argv], timeout=TIMEOUT)
        unit = f"{name}.service"
        try:
            said = self.node.systemctl("show", "--value", "--property=ControlGroup", unit).strip()
            yield Path("/sys/fs/cgroup") / said.removeprefix("/")
        finally:
            self.node.run(["systemctl", "stop", unit], timeout=TIMEOUT, check=False)

    @contextlib.contextmanager
    def crowded(self) -> Iterator[None]:
        """Only ROOM is available."""
        self.node.write("/proc/sys/vm/drop_caches", "3")
        mib = (cgroups.meminfo(self.node, "MemAvailable") - ROOM) // MIB
        self.node.mkdir(BALLAST)
        options = ["--slice=ballast.slice", "--property=OOMScoreAdjust=-1000"]
        with self.service("ballast", ["sh", "-euc", TAKE, BALLAST, str(mib)], *options) as folder:
            try:
                self.eventually(
                    lambda: self.number(folder / "memory.current") > mib * MIB, "the ballast has its memory"
                )
                yield
            finally:
                self.node.run(["umount", BALLAST], timeout=TIMEOUT)

    def number(self, file: Path) -> int:
        return int(self.node.read(file))

    def kept(self, folder: Path) -> int:
        """Return the MiB of a cgroup's anonymous memory that are not in swap."""
        fields = dict(line.split() for line in self.node.read(folder / "memory.stat").splitlines())
        return round(int(fields["anon"]) / MIB)

    def stalled(self, folder: Path) -> float:
        """Return the seconds for which all tasks of a cgroup waited for memory."""
        found = re.search(r"^full .* total=(\d+)", self.node.read(folder / "memory.pressure"), re.MULTILINE)
        assert found is not None
        return int(found[1]) / 1e6

    def kills(self) -> list[str]:
        """Return whose memory ended, and the cgroup of the task, for each OOM kill since the last call."""
        said = self.node.run(["dmesg", "--read-clear"], timeout=TIMEOUT).stdout
        found = re.findall(r"oom-kill:constraint=(\w+),.*task_memcg=([^,]+)", said)
        return [f"{'node' if constraint == 'CONSTRAINT_NONE' else 'limit'} {path}" for constraint, path in found]


def has(bench: Bench, folder: Path, mib: int) -> bool:
    """Whether a hog has its memory, wherever that is."""
    return sum(bench.number(folder / f"memory.{kind}current") for kind in ("", "swap.")) > mib * MIB


def filled(bench: Bench, folder: Path, mib: int) -> None:
    bench.eventually(lambda: has(bench, folder, mib), f"{folder.name} has {mib} MiB", timeout=TIMEOUT)


def swap_limit(mib: int) -> dict[str, Any]:
    return {"annotations": {"swapwarden.dev/swap-limit": f"{mib}Mi"}}


def of(request: int, limit: int) -> dict[str, Any]:
    return {"requests": {"memory": f"{request}Mi"}, "limits": {"memory": f"{limit}Mi"}}


def taking(mib: int, *options: str) -> list[str]:
    """Return the command of a hog: as many processes as it needs."""
    others = -(-mib // PIECE) - 1
    source = FORK.format(others=others) + inspect.getsource(hog)
    return ["python3", "-I", "-S", "-c", source, str(-(-mib // (others + 1))), f"--pace={PACE}", *options]


def container(command: list[str], resources: dict[str, Any]) -> dict[str, Any]:
    return {**greedy(0, resources, PACE), "command": command}


def beside_a_hog(bench: Bench) -> dict[str, str]:
    """An idle pod and an idle daemon beside a BestEffort pod that wants more than there is; all may swap."""
    with bench.crowded(), bench.pods() as pods:
        pods.create_pod(
            "victim", metadata=swap_limit(128), containers=[container(taking(VICTIM, "--rounds=1"), of(128, 256))]
        )
        victim = cgroups.of_pod(bench.node, pods.wait_ready("victim"))
        with bench.daemon("daemon", DAEMON) as daemon:
            filled(bench, victim, VICTIM)
            filled(bench, daemon, DAEMON)
            pods.create_pod("hog", metadata=swap_limit(320), containers=[container(taking(HOG, "--then=64"), {})])
            filled(bench, cgroups.of_pod(bench.node, pods.wait_ready("hog")), HOG)
            time.sleep(AFTER_SECONDS)
            return {
                f"idle pod beside a hog: MiB kept of {VICTIM}": str(bench.kept(victim)),
                f"idle daemon beside the same: MiB kept of {DAEMON}": str(bench.kept(daemon)),
            }


def idle_request(bench: Bench) -> dict[str, str]:
    """A daemon needs memory that is page cache of a BestEffort pod, beside a request that nobody uses; no swap."""
    device = bench.node.read("/proc/swaps").splitlines()[1].split()[0]
    with bench.crowded(), bench.pods() as pods:
        bench.node.run(["swapoff", device], timeout=TIMEOUT)
        try:
            pods.create_pod("idle", resources=of(IDLE, 2 * IDLE))
            pods.wait_ready("idle")
            pods.create_pod("cache", command=["sh", "-euc", READ])
            folder = cgroups.of_pod(bench.node, pods.wait_ready("cache"))
            bench.eventually(lambda: "sleep" in processes(bench.node, folder), "the file is in memory")
            wanted = cgroups.meminfo(bench.node, "MemAvailable") // MIB - LEFT
            bench.kills()
            killed: list[str] = []
            with bench.daemon("greedy", wanted) as daemon:

                def over() -> bool:
                    killed.extend(bench.kills())
                    return bool(killed) or bench.kept(daemon) >= wanted

                bench.eventually(over, "the daemon has its memory, or something was killed", timeout=TIMEOUT)
            return {f"daemon needs page cache beside a request of {IDLE} MiB that nobody uses": who(killed, folder)}
        finally:
            bench.node.run(["swapon", device], timeout=TIMEOUT)


def processes(node: Node, folder: Path) -> str:
    """Return the names of the programs in a pod's cgroups."""
    script = 'cat "$0"/*/cgroup.procs | while read -r one; do cat "/proc/$one/comm"; done'
    return node.run(["sh", "-c", script, str(folder)], timeout=TIMEOUT, check=False).stdout


def who(killed: list[str], folder: Path) -> str:
    """Name the victims of the kernel."""
    if not killed:
        return "nobody killed"
    pods = sum(folder.name in each for each in killed)
    rest = [each for each in killed if folder.name not in each]
    others = sorted({"another pod" if "/kubepods" in each else each.rpartition("/")[2] for each in rest})
    return f"OOM kill of the node: {', '.join([*(['the BestEffort pod'] if pods else []), *others])}"


def large_file(bench: Bench) -> dict[str, str]:
    """A Guaranteed pod writes a file that is larger than its memory."""
    with bench.pods() as pods:
        resources = {"limits": {"cpu": "200m", "memory": f"{SMALL}Mi"}}
        pods.create_pod("writer", command=["sh", "-euc", WRITE], resources=resources, restartPolicy="Never")

        def ended() -> bool:
            return pods.pod("writer")["status"]["phase"] in {"Succeeded", "Failed"}

        bench.eventually(ended, "the pod has ended", timeout=TIMEOUT)
        status = pods.pod("writer")["status"]
    assert "containerStatuses" in status, f"the kubelet refused the pod: {status}"
    state = status["containerStatuses"][0]["state"]["terminated"]
    key = f"Guaranteed pod of {SMALL} MiB writes a file of {FILE} MiB"
    return {key: "done" if state["exitCode"] == 0 else f"OOM kill of the pod ({state['reason']})"}


def throttled(bench: Bench, metadata: dict[str, Any]) -> str:
    """Return the seconds that a pod stands still which wants nearly all of its limit, of STUCK_SECONDS at most."""
    with bench.pods() as pods:
        pods.create_pod(
            "pod", metadata=metadata, containers=[container(taking(WANTED, "--rounds=1"), of(REQUEST, LIMIT))]
        )
        folder = cgroups.of_pod(bench.node, pods.wait_ready("pod"))
        done = got(bench, folder)
        return f"{bench.stalled(folder):.1f}{'' if done else ', and has not got it'}"


def got(bench: Bench, folder: Path) -> bool:
    """Return whether a pod has WANTED, after STUCK_SECONDS at the latest."""
    deadline = time.monotonic() + STUCK_SECONDS
    while not (done := has(bench, folder, WANTED)) and time.monotonic() < deadline:
        time.sleep(POLL)
    return done


def neighbor(bench: Bench) -> dict[str, str]:
    """A container takes 1 MiB again and again beside one that wants nearly all of the limit of their pod."""
    with bench.pods() as pods:
        small = ["python3", "-I", "-S", "-c", "import os, time\nwhile True: os.urandom(1 << 20); time.sleep(0.2)"]
        pair = [container(taking(WANTED - SMALL_USE, "--rounds=1"), {}), {**container(small, {}), "name": "small"}]
        pods.create_pod("pair", containers=pair, resources=of(REQUEST, LIMIT))
        pod = pods.wait_ready("pair")
        got(bench, cgroups.of_pod(bench.node, pod))
        key = f"a container beside one that takes {WANTED - SMALL_USE} of the {LIMIT} MiB of both: seconds stalled"
        return {key: f"{bench.stalled(cgroups.of_container(bench.node, pod, 'small')):.1f}"}


def stuck(bench: Bench) -> dict[str, str]:
    return {f"pod without swap takes {WANTED} of its {LIMIT} MiB: seconds stalled": throttled(bench, {})}


def roomy(bench: Bench) -> dict[str, str]:
    return {f"the same with {SWAP} MiB of swap: seconds stalled": throttled(bench, swap_limit(SWAP))}


def guarded(bench: Bench) -> dict[str, str]:
    with bench.swapwarden.profile("bench-memory", memoryQoS=WITHOUT_SWAP) as apply:
        apply(behavior="WorkloadControlled")
        key = f"without swap, at the kubelet's memory.high, with a guard of {WINDOW} s: seconds stalled"
        return {key: throttled(bench, {})}


Experiment = Callable[[Bench], dict[str, str]]
FAILED: Final = "failed"
EXPERIMENTS: Final[tuple[Experiment, ...]] = (large_file, beside_a_hog, stuck, roomy, neighbor, idle_request)


def test_no_experiment_shows_swapwardens_behind(cluster: Provider, swapwarden: Release, eventually: Wait) -> None:
    node = cluster.node
    if not isinstance(node, NodeVM):
        pytest.skip("it crowds the node, and needs one of its own")
    node.write(kubelets.FILE, node.read(kubelets.FILE).replace("memory.available: 50Mi", "memory.available: 0%"))
    bench = Bench(cluster, node, swapwarden, eventually)
    found: dict[str, dict[str, str]] = {}
    with kubelets.configured(node) as configure:
        for mode in MODES:
            found[mode] = of_mode(bench, mode, configure)
    sys.stdout.write(f"\n{table(found)}\n{where(node)}\n")
    assert not [text for each in found.values() for text in each.values() if text.startswith(FAILED)]
    assert not behind(found)


def of_mode(bench: Bench, mode: str, configure: Callable[[str], None]) -> dict[str, str]:
    """Return what the experiments show with the memory QoS of one column."""
    if mode == OLD:
        replace_kubelet(bench.node)
    configure(kubelets.POLICY if mode in {OLD, NEW} else "")
    bench.eventually(functools.partial(runs, bench, OLD if mode == OLD else NEW), "the kubelet is that one")
    ours = {"memoryQoS": SOFT} if mode == OURS else {}
    found: dict[str, str] = {}
    with bench.swapwarden.profile("bench-memory", **ours) as apply:
        apply(behavior="WorkloadControlled")
        for experiment in (*EXPERIMENTS, *([as_planned] if mode == OLD else [])):
            found |= tried(bench, mode, experiment)
    return found | (tried(bench, mode, guarded) if mode == OURS else {})


def tried(bench: Bench, mode: str, experiment: Experiment) -> dict[str, str]:
    """Print and return what an experiment shows; a failure costs the others nothing."""
    try:
        found = experiment(bench)
    except (AssertionError, ProviderError, process.ProcessError, VMError, OSError) as error:
        found = {experiment.__name__: f"{FAILED}: {str(error).splitlines()[0]}"}
    sys.stdout.writelines(f"\n{COLUMNS[mode]}: {key}: {text}" for key, text in found.items())
    sys.stdout.flush()
    return found


def replace_kubelet(node: NodeVM) -> None:
    inside = node.shared / "kubelet"
    shutil.copyfile(assets.made("kubelet", OLD_VERSION), inside)
    target = "/usr/local/bin/kubelet"
    node.run(["install", "-m", "755", str(inside), target], timeout=TIMEOUT)
    inside.unlink()


def runs(bench: Bench, version: str) -> bool:
    status = bench.cluster.get(f"/api/v1/nodes/{bench.cluster.node_name}")["status"]
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status["conditions"])
    said: str = status["nodeInfo"]["kubeletVersion"]
    return ready and said.startswith(f"v{version}.")


def as_planned(bench: Bench) -> dict[str, str]:
    """Compare the kubelet's values with `swapwarden plan --as-kubelet`, as test_memory_qos.py does for the newest."""
    with bench.pods() as pods:
        kinds: Mapping[str, dict[str, Any]] = {
            "burstable": of(REQUEST, 2 * REQUEST),
            "guaranteed": {"limits": {"cpu": "20m", "memory": f"{REQUEST}Mi"}},
            "besteffort": {},
        }
        for name, resources in kinds.items():
            pods.create_pod(name, resources=resources)
        late = [pods.wait_ready(name) for name in kinds]
        compare = functools.partial(kubelets.differences, bench.cluster, bench.node, late)
        bench.eventually(lambda: not compare(), "the kubelet's values are as planned", timeout=TIMEOUT)
    return {}


def table(found: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table of docs/memory-qos.md."""
    modes = [mode for mode in COLUMNS if mode in found]
    rows = dict.fromkeys(key for each in found.values() for key in each)
    lines = [["", *(COLUMNS[mode] for mode in modes)], ["---"] * (len(modes) + 1)]
    lines += [[key, *(found[mode].get(key, "-") for mode in modes)] for key in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def where(node: NodeVM) -> str:
    """Return the day and the machine."""
    release = node.read("/proc/sys/kernel/osrelease").strip()
    today = datetime.date.today()  # noqa: DTZ011 the day here
    total = cgroups.meminfo(node, "MemTotal") // MIB
    load = f"{os.getloadavg()[0]:.1f} processes on {os.cpu_count()} processors of the host"
    return f"{today}, Linux {release} ({node.accelerator}), {total} MiB of memory; {load}"


def behind(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the rows in which Swapwarden is worse than a kubelet."""
    ours = found.get(OURS, {})
    return [
        f"{key}: {ours[key]}, {COLUMNS[mode]} has {text}"
        for mode in (OLD, NEW)
        for key, text in found.get(mode, {}).items()
        if key in ours and is_worse(key, ours[key], text)
    ]


def is_worse(key: str, ours: str, other: str) -> bool:
    """Whether a cell is worse than another of its row, by more than what two runs differ by."""
    if "MiB kept" in key:
        return int(ours) < int(other) * 0.9 - 1
    if "stalled" in key:
        return float(ours.partition(",")[0]) > float(other.partition(",")[0]) * 1.3 + 1
    return "kill" in ours.replace("nobody killed", "") and "kill" not in other.replace("nobody killed", "")
