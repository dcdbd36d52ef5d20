"""The agent on a real kernel: what it writes holds under memory stress, and what it does kills nobody."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from swapwarden.agent.drift import repairs
from swapwarden.agent.host import inotify

from testbed.base import paths
from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests
from testbed.standin import hog
from testbed.vm.kernelvm import CGROUPS, GuestProcess, KernelVM

MIB = 1 << 20
PATIENCE = 180.0
STATES = "/apis/swapwarden.dev/v1alpha1/nodeswapstates"
NAMESPACE = "swapwarden-system"
CRDS = paths.CRDS
MEMORY = 64 * MIB
KEPT_SLOTS = 2 * 64 * 4096
"""Bytes in swap slots that two CPUs may keep, and count as in use, after they were freed."""


def until(holds: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> ControlPlane:
    """The session's control plane, with the product's kinds and rights."""
    control_plane.apply_crds(CRDS)
    control_plane.apply(*manifests.other_manifests())
    return control_plane


# Runs in the guest: the module that is named, uid 0 without capabilities, which file modes bind.
BARE = """
import ctypes, runpy, sys
header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
if ctypes.CDLL(None).capset(header, none):
    sys.exit("no capability could be dropped")
sys.argv[0] = "swapwarden"
runpy.run_module("swapwarden", run_name="__main__", alter_sys=True)
"""


class Pod:
    """A pod's cgroup in the guest, with one container that is limited like the pod."""

    def __init__(self, node: Node, name: str, uid: str = "") -> None:
        self.uid = uid or str(uuid.uuid4())
        self.vm = node.vm
        slug = self.uid.replace("-", "_")
        self.path = node.burstable / (f"kubepods-burstable-pod{slug}.slice" if node.systemd else f"pod{self.uid}")
        self.container_id = hashlib.sha256(self.uid.encode()).hexdigest()
        scope = f"cri-containerd-{self.container_id}.scope" if node.systemd else self.container_id
        self.container = self.path / scope
        self.name = name

    def make(self, held: str = "") -> None:
        """With a container, which is made once the pod's limit is HELD, if that is given."""
        self.vm.mkdir(self.path)
        if held:
            self.vm.wait_for(self.path / "memory.swap.max", lambda text: text.strip() == held, PATIENCE)
        self.vm.write(self.path / "memory.max", str(MEMORY))
        self.vm.write(self.path / "cgroup.subtree_control", "+memory")
        self.vm.mkdir(self.container)

    def remove(self) -> None:
        self.vm.write(self.path / "cgroup.kill", "1")
        self.vm.wait_for(self.path / "cgroup.events", lambda text: "populated 0" in text, PATIENCE)
        self.vm.rmdir(self.container)
        self.vm.rmdir(self.path)

    def hog(self, mib: int, *options: str) -> GuestProcess:
        """Start a hog in the container."""
        argv = [sys.executable, hog.__file__, str(mib), "--cgroup", str(self.container), "--pace", "96", *options]
        return self.vm.spawn(argv, log=f"hog-{self.uid}")

    def number(self, file: str) -> int:
        return int(self.vm.read(self.path / file))

    @property
    def swap_max(self) -> str:
        return self.vm.read(self.path / "memory.swap.max").strip()

    @property
    def oom_kills(self) -> int:
        words = self.vm.read(self.path / "memory.events").split()
        return int(words[words.index("oom_kill") + 1])

    def peak(self, rounds: GuestProcess, count: int) -> int:
        """The most swap seen until the hog has done so many rounds, or is dead."""
        most = 0
        deadline = time.monotonic() + PATIENCE
        while rounds.poll() is None and f"round {count}:" not in rounds.output():
            most = max(most, self.number("memory.swap.current"))
            assert time.monotonic() < deadline, rounds.tail()
            time.sleep(0.1)
        return max(most, self.number("memory.swap.current"))


class Node:
    """A node's cgroups in the guest, its state at the API server, and its agent."""

    def __init__(self, cluster: ControlPlane, vm: KernelVM, naming: str) -> None:
        self.cluster = cluster
        self.vm = vm
        self.systemd = naming == "systemd"
        self.name = f"agent-{uuid.uuid4().hex[:8]}"
        self.root = CGROUPS / f"test-{self.name}"
        self.kubepods = self.root / ("kubepods.slice" if self.systemd else "kubepods")
        self.burstable = self.kubepods / ("kubepods-burstable.slice" if self.systemd else "burstable")
        self.pods: list[Pod] = []
        self.agents: list[GuestProcess] = []
        vm.write(CGROUPS / "cgroup.subtree_control", "+memory")
        for path in (self.root, self.kubepods, self.burstable):
            vm.mkdir(path)
            vm.write(path / "cgroup.subtree_control", "+memory")
        self.files = vm.shared / self.name
        self.files.mkdir()
        self._register()

    def _register(self) -> None:
        self.cluster.create("/api/v1/nodes", {"metadata": {"name": self.name}})
        containers = [{"name": "agent", "image": "none"}]
        spec = {"nodeName": self.name, "serviceAccountName": "swapwarden-agent", "containers": containers}
        self.cluster.create(f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": self.name}, "spec": spec})
        token = self.cluster.token(NAMESPACE, "swapwarden-agent", pod=self.name)
        server = self.cluster.guest_url
        shutil.copy(self.cluster.kubeconfig_for(token, self.name, server=server), self.files / "kubeconfig")
        broken = json.loads((self.files / "kubeconfig").read_text())
        broken["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
        (self.files / "unreachable").write_text(json.dumps(broken))

    def pod(self, name: str, uid: str = "") -> Pod:
        made = Pod(self, name, uid)
        self.pods.append(made)
        return made

    def start(self, kubeconfig: str = "kubeconfig", *options: str, program: str = "") -> GuestProcess:
        """With BARE as the program, an agent without capabilities, as the chart has it."""
        argv = [sys.executable, *(("-c", program) if program else ("-m", "swapwarden"))]
        argv += ["agent", "--node-name", self.name, "--cgroup-root", str(self.root)]
        argv += ["--run-dir", f"/run/{self.name}", "--state-dir", f"/var/tmp/{self.name}"]  # noqa: S108 the guest's own
        argv += ["--kubeconfig", str(self.files / kubeconfig), "--metrics-address", "127.0.0.1:0", *options]
        running = self.vm.spawn(
            argv, env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")}, log=f"{self.name}-{len(self.agents)}"
        )
        self.agents.append(running)
        until(lambda: "found the tree of pods" in running.output() or running.poll() is not None, "the agent is up")
        assert running.poll() is None, running.tail()
        return running

    def put(self, spec: dict[str, Any]) -> int:
        """Write the spec, as the controller does; gives its generation."""
        body = {"profileRef": {"name": "(built-in)"}, **spec}
        status, made = self.cluster.request("PATCH", f"{STATES}/{self.name}", {"spec": body})
        if status == 404:
            kind = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapState"}
            made = self.cluster.create(STATES, {**kind, "metadata": {"name": self.name}, "spec": body})
        else:
            assert status == 200, made
        return int(made["metadata"]["generation"])

    def want(self, values: dict[Pod, str], **spec: Any) -> int:
        pods = {pod.uid: {"swapMax": value, "reason": "KubeletDecides"} for pod, value in values.items()}
        return self.put({"pods": pods, **spec})

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.get(f"{STATES}/{self.name}").get("status", {})
        return found

    def applied(self, generation: int, *reasons: str) -> None:
        """Wait until the agent reports this generation, with one of the reasons (AsSpecified)."""
        expected = reasons or ("AsSpecified",)

        def holds() -> bool:
            status = self.status
            found = [each["reason"] for each in status.get("conditions", []) if each["type"] == "Applied"]
            return status.get("observedGeneration") == generation and found[0] in expected

        until(holds, f"generation {generation} is {expected}")

    def close(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.stop()
        for pod in self.pods:
            if self.vm.exists(pod.path):
                pod.remove()
        for path in (self.burstable, self.kubepods, self.root):
            self.vm.rmdir(path)
        shutil.rmtree(self.files)


@pytest.fixture(params=["systemd", "cgroupfs"])
def naming(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def node(cluster: ControlPlane, kernel_vm: KernelVM, naming: str) -> Iterator[Node]:
    made = Node(cluster, kernel_vm, naming)
    yield made
    made.close()


@pytest.fixture
def one(cluster: ControlPlane, kernel_vm: KernelVM) -> Iterator[Node]:
    made = Node(cluster, kernel_vm, "systemd")
    yield made
    made.close()


def test_limits_hold_under_memory_stress(node: Node) -> None:
    disabled, limited, free = (node.pod(name) for name in ("disabled", "limited", "free"))
    generation = node.want({disabled: "0", limited: str(16 * MIB), free: "max"})
    node.start()
    for pod in (disabled, limited, free):
        pod.make()
    node.applied(generation)
    until(lambda: [pod.swap_max for pod in (disabled, limited, free)] == ["0", str(16 * MIB), "max"], "limits are set")

    # More than memory.max in each: without swap that ends in an OOM kill, with it in swapping.
    greedy = {disabled: disabled.hog(88), limited: limited.hog(66), free: free.hog(88)}
    assert disabled.peak(greedy[disabled], 2) == 0
    assert greedy[disabled].wait(PATIENCE) == -9
    assert disabled.oom_kills == 1
    assert 0 < limited.peak(greedy[limited], 2) <= 16 * MIB
    assert limited.oom_kills == 0
    # And more than both of its limits together: one of its processes dies, as no more is swapped.
    another = limited.hog(32)
    assert limited.peak(another, 1) <= 16 * MIB
    until(lambda: limited.oom_kills > 0, "more than memory and swap together is refused")
    assert free.peak(greedy[free], 2) > 16 * MIB
    assert free.oom_kills == 0
    facts = node.status["facts"]
    assert (facts["cgroupVersion"], facts["swapController"]) == (2, True)
    assert facts["swapBytes"] > 0
    assert facts["devices"][0]["type"] == "partition"
    assert "memory" in facts["controllers"]
    # The cgroupfs driver names a container's cgroup by its id alone.
    assert facts.get("runtime") == ("containerd" if node.systemd else None)


def test_unknown_pods_are_denied_until_their_state_arrives(node: Node) -> None:
    node.put({"pods": {}})
    node.start()
    pod = node.pod("late")
    pod.make()
    until(lambda: pod.swap_max == "0", "an unknown pod gets 0")
    node.applied(node.want({pod: "max"}))
    assert pod.swap_max == "max"


# Runs in the guest: one scrape between two looks at the kernel's files.
SCRAPE = """
import json, pathlib, sys, urllib.request
url, *files = sys.argv[1:]
look = lambda: {file: pathlib.Path(file).read_text() for file in files}
before = look()
text = urllib.request.urlopen(url, timeout=30).read().decode()
print(json.dumps([before, text, look()]))
"""


def test_what_a_pod_swaps_is_published_as_the_kernel_has_it(one: Node) -> None:
    pod, free = one.pod("limited"), one.pod("free")
    generation = one.want({pod: str(32 * MIB), free: "max"}, kubepods={"swapMax": str(128 * MIB)})
    agent = one.start()
    for each in (pod, free):
        each.make()
    one.applied(generation)
    hogs = [each.hog(80) for each in (pod, free)]
    until(lambda: all("round 1:" in each.output() for each in hogs), "both swap")
    for each in (pod, free):
        # Only values that do not change can be compared.
        one.vm.write(each.path / "cgroup.freeze", "1")
    port = next(json.loads(line)["port"] for line in agent.output().splitlines() if '"serving health' in line)
    counted = {"memory.swap.events": "swap_events", "memory.events": "memory_events"}
    files = [str(each.path / name) for each in (pod, free) for name in ("memory.swap.current", *counted)]
    argv = [sys.executable, "-c", SCRAPE, f"http://127.0.0.1:{port}/metrics", *files, "/proc/vmstat"]

    def unmoved() -> tuple[dict[str, str], dict[str, float]]:
        """Return the content of the kernel's files, and the metrics published while they did not change."""
        deadline = time.monotonic() + PATIENCE
        while True:
            before, text, after = json.loads(one.vm.run(argv, timeout=60).stdout)
            if all(before[file] == after[file] for file in files):
                samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
                return before, {name: float(value) for name, _, value in samples}
            assert time.monotonic() < deadline, "the pods never stand still"
            time.sleep(1.5)

    held, published = unmoved()
    for each, limit in ((pod, 32 * MIB), (free, 128 * MIB)):
        labels = f'{{pod_uid="{each.uid}"}}'
        used = int(held[str(each.path / "memory.swap.current")])
        assert used > 0
        assert published[f"swapwarden_pod_swap_usage_bytes{labels}"] == used
        assert published[f"swapwarden_pod_swap_limit_bytes{labels}"] == limit
        inner = f'{{pod_uid="{each.uid}",container_id="{each.container_id}"}}'
        assert published[f"swapwarden_container_swap_usage_bytes{inner}"] == used
        for file, kind in counted.items():
            events = dict(line.split() for line in held[str(each.path / file)].splitlines())
            name = f'swapwarden_pod_{kind}_total{{pod_uid="{each.uid}",event="'
            told = {sample: value for sample, value in published.items() if sample.startswith(name)}
            assert told == {f'{name}{event}"}}': int(events[event]) for event in events if f'{name}{event}"}}' in told}
            assert len(told) >= 3
        assert published[f'swapwarden_pod_memory_events_total{{pod_uid="{each.uid}",event="max"}}'] > 0
    pages = dict(line.split() for line in held["/proc/vmstat"].splitlines())
    assert published["swapwarden_node_swap_out_bytes_total"] >= 4096 * int(pages["pswpout"]) > 0
    assert published["swapwarden_node_swap_usage_bytes"] > 0
    assert published['swapwarden_node_pressure_stalled_seconds_total{resource="memory",kind="some"}'] > 0


# Runs in the guest: writes max as soon as the value is right again, so many times or until a folder exists, and prints
# how long each repair took.
REWRITE = """
import itertools, json, os, sys, time
path, end = sys.argv[1:3]
pause = float((sys.argv[3:] or ["0"])[0])
times = []
for number in itertools.count():
    if number == int(end) if end.isdigit() else os.path.exists(end):
        break
    with open(path, "w") as file:
        file.write("max")
    begun = time.monotonic()
    while open(path).read() != "0\\n":
        if time.monotonic() - begun > 60:
            sys.exit("not repaired")
    times.append(time.monotonic() - begun)
    time.sleep(pause)
print(json.dumps(times))
"""
# Runs in the guest: puts 0 back whenever somebody has written, and does nothing else. No repair can be quicker.
KEEP = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(os.O_CLOEXEC)
if libc.inotify_add_watch(watch, os.fsencode(sys.argv[1]), 2) < 0:
    sys.exit("cannot watch")
print("watching", flush=True)
while True:
    os.read(watch, 4096)
    with open(sys.argv[1], "r+") as file:
        if file.read() != "0\\n":
            file.seek(0)
            file.write("0")
"""
REWRITES = 250
ROUNDS = 4
MOST_REPAIR = 5.0
"""99 of 100 repairs, in times of KEEP's."""


def repaired_within(vm: KernelVM, pod: Pod) -> float:
    """Return the seconds within which 99 of 100 rewrites were repaired."""
    argv = [sys.executable, "-c", REWRITE, str(pod.path / "memory.swap.max"), str(REWRITES)]
    times: list[float] = sorted(json.loads(vm.run(argv, timeout=600).stdout))
    return times[len(times) * 99 // 100]


def test_every_rewrite_is_repaired_and_counted(one: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """In rounds that take turns, of which the best counts: what else the machine does only adds to a round."""
    pod, bare = one.pod("rewritten"), Pod(one, "bare")
    one.want({pod: "0"})
    one.start()
    pod.make(held="0")
    # Outside of the tree that the agent looks after.
    bare.path = CGROUPS / f"bare-{one.name}"
    one.vm.mkdir(bare.path)
    one.vm.write(bare.path / "memory.swap.max", "0")
    keeping = one.vm.spawn([sys.executable, "-c", KEEP, str(bare.path / "memory.swap.max")], log=bare.uid)
    try:
        until(lambda: "watching" in keeping.output(), "the loop watches")
        floor, agent = [], []
        for _ in range(ROUNDS):
            floor.append(repaired_within(one.vm, bare))
            agent.append(repaired_within(one.vm, pod))
    finally:
        keeping.stop()
        one.vm.rmdir(bare.path)
    ours, least = min(agent), min(floor)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{ROUNDS * REWRITES} rewrites: 99 of 100 repaired within {ours * 1000:.1f} ms, by a loop that does"
            f" nothing else within {least * 1000:.1f} ms: {ours / least:.1f} times that"
            f" ({[round(each * 1000, 1) for each in agent]}, {[round(each * 1000, 1) for each in floor]})\n"
        )
    assert pod.swap_max == "0"

    def counted() -> bool:
        found = [each["count"] for each in one.status.get("exposures", [])]
        return found == [ROUNDS * REWRITES]

    until(counted, "each is counted")
    assert ours <= MOST_REPAIR * least


# Runs in the guest: takes a cgroup over, as a runtime gives it to a container's user, who then changes its mode.
CLOSE = """
import os, sys
path, mode = sys.argv[1], int(sys.argv[2], 8)
os.chown(path, 1000, 1000)
os.setuid(1000)
os.chmod(path, mode)
"""


def test_a_container_that_closes_its_cgroup_is_the_only_one_without_its_value(one: Node) -> None:
    pods = [one.pod(f"pod-{number}") for number in range(5)]
    for pod in pods:
        pod.make()
    early, late, *others = pods
    containers = {pod: {"app": {"id": pod.container_id[:13], "swapMax": str(4 * MIB)}} for pod in pods}
    spec = {
        "kubepods": {"swapMax": str(128 * MIB)},
        "pods": {
            pod.uid: {"swapMax": str(8 * MIB), "reason": "WorkloadLimit", "containers": containers[pod]} for pod in pods
        },
    }

    def close(pod: Pod, mode: str) -> None:
        one.vm.run([sys.executable, "-c", CLOSE, str(pod.container), mode], timeout=PATIENCE)

    def values(*some: Pod) -> set[tuple[str, str]]:
        return {(pod.swap_max, one.vm.read(pod.container / "memory.swap.max").strip()) for pod in some}

    def kept_out() -> dict[str, str]:
        found = one.status.get("violations", [])
        return {each["pod"]: each["reason"] for each in found if each["reason"] != "AwaitingState"}

    close(early, "0")
    generation = one.put(spec)
    one.start(program=BARE)
    one.applied(generation, "AccessDenied")
    held = {(str(8 * MIB), str(4 * MIB))}
    assert values(late, *others) == held, "in the same pass"
    assert one.vm.read(one.kubepods / "memory.swap.max").strip() == str(128 * MIB)
    assert kept_out() == {early.uid: "AccessDenied"}
    degraded = next(each for each in one.status["conditions"] if each["type"] == "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("False", "AsExpected"), "a tenant must not stop a rollout"

    # And while it runs: external writes elsewhere are repaired as ever.
    close(late, "0")
    one.vm.write(late.container / "memory.swap.max", "max")
    for pod in others:
        one.vm.write(pod.path / "memory.swap.max", "max")
        one.vm.write(pod.container / "memory.swap.max", "max")
    until(lambda: values(*others) == held, "the others are repaired")
    until(lambda: kept_out() == {early.uid: "AccessDenied", late.uid: "AccessDenied"}, "both are reported")
    assert late.swap_max == str(8 * MIB), "the pod's own limit holds"
    for pod in (early, late):
        close(pod, "755")
    one.applied(generation)
    assert values(*pods) == held


# Runs in the guest: enters a cgroup, and stays.
ENTER = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
time.sleep(3600)
"""
# Runs in the guest: writes max to a file so many times, and then 0 as soon as that is not what it holds, so many times.
STIR = """
import pathlib, sys, time
file, raises, cuts = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for _ in range(raises):
    file.write_text("max")
    time.sleep(0.01)
deadline = time.monotonic() + 120
for _ in range(cuts):
    while file.read_text() in {"max\\n", "0\\n"}:
        if time.monotonic() > deadline:
            sys.exit("not repaired")
        time.sleep(0.01)
    file.write_text("0")
"""


def test_what_a_container_does_to_a_cgroup_of_its_own_is_no_trouble_of_its_node(one: Node) -> None:
    tenant, other = one.pod("tenant"), one.pod("other")
    for pod in (tenant, other):
        pod.make()
    inner = tenant.container / "container"
    controllers = tenant.container / "cgroup.subtree_control"
    one.vm.write(controllers, "+memory")
    one.vm.mkdir(inner)
    one.vm.spawn([sys.executable, "-c", ENTER, str(inner)], log="inside")
    one.vm.wait_for(inner / "cgroup.events", lambda text: "populated 1" in text, PATIENCE)

    def put(of_pod: int, of_container: int) -> int:
        pods = {
            pod.uid: {
                "swapMax": str(of_pod),
                "reason": "WorkloadLimit",
                "containers": {"app": {"id": pod.container_id[:13], "swapMax": str(of_container)}},
            }
            for pod in (tenant, other)
        }
        return one.put({"pods": pods})

    def values(*some: Pod) -> set[tuple[str, str]]:
        return {(pod.swap_max, one.vm.read(pod.container / "memory.swap.max").strip()) for pod in some}

    def condition(kind: str) -> tuple[str, str]:
        return next((each["status"], each["reason"]) for each in one.status["conditions"] if each["type"] == kind)

    def said() -> list[tuple[str, str]]:
        found = one.status.get("violations", [])
        return [(each["pod"], each["reason"]) for each in found]

    def exposures() -> int:
        found = one.status.get("exposures", [])
        return sum(each["count"] for each in found if each["pod"] == tenant.uid)

    try:
        generation = put(8 * MIB, 4 * MIB)
        one.start(program=BARE)
        one.applied(generation)
        assert one.vm.read(inner / "memory.swap.max").strip() == str(4 * MIB)

        assert exposures() == 1, "it ran before it had a state"

        # It owns the file, above which its limits hold: what it writes there harms and helps nobody but itself.
        argv = [sys.executable, "-c", STIR, str(inner / "memory.swap.max"), "50", str(repairs.ROUNDS + 1)]
        one.vm.run(argv, timeout=PATIENCE)
        until(lambda: said() == [(tenant.uid, "Yielded")], "it is left what it gives itself")
        assert condition("Applied") == ("False", "Yielded")
        assert [condition(kind) for kind in ("Degraded", "Drifted")] == [("False", "AsExpected"), ("False", "Quiet")]

        # It takes the controller away, and so the file, without an event from the kernel.
        one.vm.write(controllers, "-memory")
        assert not one.vm.exists(inner / "memory.swap.max")
        generation = put(6 * MIB, 3 * MIB)
        one.applied(generation, "AccessDenied")
        assert values(tenant, other) == {(str(6 * MIB), str(3 * MIB))}, "in the same pass"
        assert said() == [(tenant.uid, "AccessDenied")]
        assert condition("Degraded") == ("False", "AsExpected"), "a tenant must not stop a rollout"
        one.vm.write(other.path / "memory.swap.max", "max")
        until(lambda: other.swap_max == str(6 * MIB), "others are repaired")

        one.vm.write(controllers, "+memory")
        one.applied(generation)
        assert one.vm.read(inner / "memory.swap.max").strip() == str(3 * MIB)
        assert exposures() == 1, "none of that is one"
    finally:
        one.vm.write(tenant.path / "cgroup.kill", "1")
        one.vm.wait_for(tenant.path / "cgroup.events", lambda text: "populated 0" in text, PATIENCE)
        one.vm.rmdir(inner)


# Runs in the guest: writes max a while after the value is right again, and prints how long each stayed, how long the
# value was right before, and the longest time between two reads.
EXPOSE = """
import sys, time
path, count, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
above = right = gap = 0.0
for _ in range(count):
    begun = time.monotonic()
    time.sleep(pause)
    written = time.monotonic()
    with open(path, "w") as file:
        file.write("max")
    looked = time.monotonic()
    while open(path).read() != "0\\n":
        if time.monotonic() - written > 120:
            sys.exit("not repaired")
        time.sleep(0.01)
        gap, looked = max(gap, time.monotonic() - looked), time.monotonic()
    above, right = above + looked - written, right + written - begun
print(above, right, gap)
"""


def test_an_exposure_that_is_found_by_polling_is_as_long_as_it_was(
    one: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    instances = "/proc/sys/fs/inotify/max_user_instances"
    before, count = one.vm.read(instances), 6
    pod = one.pod("polled")
    one.want({pod: "0"})
    one.vm.write(instances, "0")
    try:
        one.start()
        pod.make(held="0")
        argv = [sys.executable, "-c", EXPOSE, str(pod.path / "memory.swap.max"), str(count), "0.4"]
        said = one.vm.run(argv, timeout=600).stdout
        above, right, gap = (1000 * float(word) for word in said.split())

        def exposed() -> dict[str, Any]:
            return next(iter(one.status.get("exposures", [])), {})

        until(lambda: exposed().get("count") == count, "each is counted")
        told = exposed()["milliseconds"]
    finally:
        one.vm.write(instances, before.strip())
    with capsys.disabled():
        sys.stdout.write(f"\nby polling: above for {above:.0f} ms, told {told} ms, right before for {right:.0f} ms\n")
    # The first time, it was last seen right up to one look before the script began.
    first = 1000 * inotify.POLL_SECONDS
    assert above - count * gap <= told <= above + right + first + count * gap
    assert told > 4 * count * gap, "the bound says something"


def test_a_policy_set_and_removed_with_swap_in_use_kills_nobody(one: Node) -> None:
    busy, roomy = one.pod("busy"), one.pod("roomy")
    one.want({busy: "max", roomy: "max"})
    one.start()
    for pod in (busy, roomy):
        pod.make()
    hogs = [busy.hog(96), roomy.hog(88, "--rounds", "1")]
    until(lambda: "round 2:" in hogs[0].output() and "round 1:" in hogs[1].output(), "both swap")
    one.vm.write(roomy.path / "memory.max", str(256 * MIB))

    generation = one.want({busy: "0", roomy: "0"})
    one.applied(generation, "Draining")
    assert roomy.swap_max == "0"
    assert int(busy.swap_max) < 2 * busy.number("memory.swap.current") + 17 * MIB
    draining = {each["pod"] for each in one.status["violations"] if each["reason"] == "Draining"}
    assert draining == {busy.uid, roomy.uid}
    rounds = hogs[0].output().count("round")
    until(lambda: hogs[0].output().count("round") >= rounds + 2 or hogs[0].poll() is not None, "the busy pod continues")
    assert [each.poll() for each in hogs] == [None, None]
    assert [pod.oom_kills for pod in (busy, roomy)] == [0, 0]

    one.applied(one.want({busy: "max", roomy: "max"}))
    assert [busy.swap_max, roomy.swap_max] == ["max", "max"]

    # With room, touched pages return to memory; a few that nobody touches may stay in swap, and are reported.
    used = busy.number("memory.swap.current")
    one.vm.write(busy.path / "memory.max", str(256 * MIB))
    generation = one.want({busy: "0", roomy: "max"})
    until(lambda: busy.swap_max == "0", "the limit is reached")
    until(lambda: busy.number("memory.swap.current") < used // 4, "touched pages return to memory")
    one.applied(generation, "Draining", "AsSpecified")
    assert [pod.oom_kills for pod in (busy, roomy)] == [0, 0]


# Runs in the guest: fills memory, and reads all of it again when a file exists.
READER = """
import mmap, os, pathlib, sys, time
go, cgroup, mib = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
(cgroup / "cgroup.procs").write_text(str(os.getpid()))
memory = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, len(memory), 1 << 20):
    memory[at:at + (1 << 20)] = os.urandom(1 << 20)
print("filled", flush=True)
while not go.exists():
    time.sleep(0.1)
for at in range(0, len(memory), 4096):
    memory[at]
print("read", flush=True)
time.sleep(3600)
"""


def test_pages_that_are_in_memory_and_in_swap_need_no_room_and_are_no_success(one: Node) -> None:
    """Pages that are read again keep their place in swap until the kernel scans them: counted twice, still on disk."""
    cached, out = one.pod("cached"), one.pod("out")
    one.want({cached: "max", out: "max"})
    one.start()
    readers = {}
    for pod in (cached, out):
        pod.make()
        argv = [sys.executable, "-c", READER, str(one.files / pod.name), str(pod.container), "80"]
        readers[pod] = one.vm.spawn(argv, log=f"reader-{pod.uid}")
    until(lambda: all("filled" in each.output() for each in readers.values()), "both have more than fits")

    def read(pod: Pod) -> None:
        (one.files / pod.name).touch()
        until(lambda: "read" in readers[pod].output(), f"{pod.name} has read all of it")

    def draining() -> set[str]:
        return {each["pod"] for each in one.status.get("violations", []) if each["reason"] == "Draining"}

    for pod in (cached, out):
        one.vm.write(pod.path / "memory.max", str(100 * MIB))
    read(cached)
    used = cached.number("memory.current") + cached.number("memory.swap.current")
    assert used > 90 * MIB, "it would not fit, were the pages in the swap cache counted twice"

    generation = one.want({cached: "0", out: "0"})
    one.applied(generation, "Draining")
    assert [cached.swap_max, out.swap_max] == ["0", "0"]
    assert draining() == {cached.uid, out.uid}
    # With the limit in force, a page that is read from swap gives up its place there at once.
    read(out)
    assert out.number("memory.swap.current") < 2 * MIB
    assert cached.number("memory.swap.current") > 8 * MIB
    assert cached.uid in draining()
    for pod, reader in readers.items():
        assert (pod.oom_kills, reader.poll()) == (0, None)
        reader.send_signal(9)
        reader.wait(PATIENCE)
    # Each CPU keeps some slots that were freed, and their charge, for later (mm/swap_slots.c).
    until(lambda: sum(pod.number("memory.swap.current") for pod in readers) <= KEPT_SLOTS, "swap in use is free again")
    until(
        lambda: draining() == {pod.uid for pod in readers if pod.number("memory.swap.current")},
        "only pods with swap in use are reported",
    )


def test_all_limits_stay_when_the_state_is_deleted(one: Node) -> None:
    disabled, limited, number = one.pod("disabled"), one.pod("limited"), str(64 << 20)
    generation = one.want({disabled: "0", limited: number})
    agent = one.start()
    for pod in (disabled, limited):
        pod.make()
    one.applied(generation)
    until(lambda: (disabled.swap_max, limited.swap_max) == ("0", number), "limits are set")
    assert one.cluster.request("DELETE", f"{STATES}/{one.name}")[0] == 200
    until(lambda: "state was deleted" in agent.output(), "the agent knows")
    one.vm.write(disabled.path / "memory.swap.max", "max")
    one.vm.write(limited.path / "memory.swap.max", "0")
    until(lambda: (disabled.swap_max, limited.swap_max) == ("0", number), "both values are kept")
    greedy = disabled.hog(88)
    assert disabled.peak(greedy, 2) == 0
    assert greedy.wait(PATIENCE) == -9


def test_killed_under_load_and_restarted_without_an_api_server(one: Node) -> None:
    disabled, free = one.pod("disabled"), one.pod("free")
    one.want({disabled: "0", free: "max"})
    first = one.start()
    for pod in (disabled, free):
        pod.make()
    until(lambda: (disabled.swap_max, free.swap_max) == ("0", "max"), "limits are set")
    swapping = free.hog(88)
    until(lambda: one.vm.exists(f"/var/tmp/{one.name}/state.json"), "the state is cached")  # noqa: S108 the guest's own
    first.send_signal(9)
    assert first.wait(PATIENCE) == -9
    one.vm.write(disabled.path / "memory.swap.max", "max")
    appeared = one.pod("appeared")
    appeared.make()
    one.start("unreachable")
    until(lambda: (disabled.swap_max, appeared.swap_max) == ("0", "0"), "the cached state is in force")
    greedy = disabled.hog(88)
    assert disabled.peak(greedy, 2) == 0
    assert greedy.wait(PATIENCE) == -9
    assert free.peak(swapping, 2) > 0


def test_restore_writes_the_earlier_values(node: Node) -> None:
    limited, free, capped = node.pod("limited"), node.pod("free"), node.pod("capped")
    for pod in (limited, free, capped):
        pod.make()
    node.vm.write(limited.path / "memory.swap.max", str(8 * MIB))

    def values() -> list[str]:
        return [node.vm.read(path / "memory.swap.max").strip() for path in (*folders, node.burstable)]

    folders = [limited.path, free.path, node.kubepods, free.container, capped.container]
    node.start()
    pods = {
        limited.uid: {"swapMax": "0", "reason": "PolicyDisabled"},
        free.uid: {
            "swapMax": "max",
            "reason": "KubeletDecides",
            "containers": {"app": {"id": free.container_id[:13], "swapMax": str(4 * MIB)}},
        },
        capped.uid: {
            "reason": "KubeletDecides",
            "containers": {"app": {"id": capped.container_id[:13], "swapAtMost": str(2 * MIB)}},
        },
    }
    spec = {"pods": pods, "kubepods": {"swapMax": str(128 * MIB)}}
    node.applied(node.put(spec))
    assert values() == ["0", "max", str(128 * MIB), str(4 * MIB), str(2 * MIB), "max"]
    node.applied(node.put({**spec, "mode": "Restore"}), "Restored")
    assert values() == [str(8 * MIB), "max", "max", "max", "max", "max"]


# Runs in the guest: turns swap off or on.
SWITCH = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
device = os.fsencode(sys.argv[2])
if libc.swapoff(device) if sys.argv[1] == "off" else libc.swapon(device, 0):
    sys.exit(os.strerror(ctypes.get_errno()))
"""


def test_the_kernel_reports_swapoff_and_swapon(one: Node) -> None:
    generation = one.put({"pods": {}})
    one.start()
    one.applied(generation)

    def devices() -> dict[str, str]:
        return {each["name"]: each.get("backing", "") for each in one.status["facts"].get("devices", [])}

    (disk,) = devices()
    assert devices() == {disk: "Virtual"}

    def switch(to: str) -> None:
        one.vm.run([sys.executable, "-c", SWITCH, to, disk], timeout=PATIENCE)
        until(lambda: bool(devices()) is (to == "on"), f"the agent knows that swap is {to}")

    begun = time.monotonic()
    try:
        for _ in range(3):
            switch("off")
            assert one.status["facts"]["swapBytes"] == 0
            switch("on")
        # It looks by itself with each full comparison: that alone would take many minutes.
        assert time.monotonic() - begun < 90
    finally:
        if not devices():
            switch("on")


# Runs in the guest: makes a pod with a container and takes it away again, ever a little later.
CHURN = """
import pathlib, sys, time
pod, scope = pathlib.Path(sys.argv[1]), sys.argv[2]
for count in range(int(sys.argv[3])):
    pod.mkdir()
    (pod / scope).mkdir()
    time.sleep(count % 20 / 1000)
    (pod / scope).rmdir()
    pod.rmdir()
"""


def test_pods_that_go_while_they_are_written_leave_nothing_behind(one: Node) -> None:
    """No failure, and no watch: the kernel never ends the watch of a removed cgroup by itself."""
    pod = one.pod("brief")
    one.put({"pods": {}})
    agent = one.start()

    def marks() -> int:
        folder = f"/proc/{agent.pid}/fdinfo"
        found = 0
        for fd in one.vm.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # what it wrote with is closed meanwhile
                found += one.vm.read(f"{folder}/{fd}").count("inotify wd:")
        return found

    before = marks()
    pod.make()
    until(lambda: pod.swap_max == "0", "an unknown pod gets 0")
    assert marks() > before
    pod.remove()
    argv = [sys.executable, "-c", CHURN, str(pod.path), pod.container.name, "200"]
    one.vm.run(argv, timeout=300)
    until(lambda: marks() == before, "as many watches as before")
    one.applied(one.put({"pods": {}, "beforePlan": "Unmanaged"}))
    assert not one.status.get("violations")
    assert "error" not in {json.loads(line)["level"] for line in agent.output().splitlines()}
