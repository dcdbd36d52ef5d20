"""The agent's signals of memory pressure on a real kernel: before its OOM killer, and silent while all is well.

$PRESSURE_RUNS says how often those with a growing pod run; each shows the seconds of warning of those before it too.
"""

from __future__ import annotations

import collections
import datetime
import json
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from testbed.vm import initramfs
from testbed.vm.kernelvm import GuestProcess, KernelVM
from tests.kernel import test_agent

pytestmark = pytest.mark.skipif(
    "KERNEL_FACTS" not in os.environ,
    reason="an experiment with the kernel that takes minutes: `make test-kernel-memory` runs it",
)

MIB = 1 << 20
PAGE = 4096
PACE = 30
"""MiB a second."""
BELOW, CLEAR = 48, 96
"""MiB: 5 % and 10 % of the guest's 960."""
HEADROOM = {"belowBytes": BELOW * MIB, "clearBytes": CLEAR * MIB, "forMilliseconds": 5000}
STALL = {"fullPermille": 400, "overMilliseconds": 10_000}
EARLY = {"fullPermille": 20, "overMilliseconds": 4000}
GRANTED = 128
"""MiB of swap of the pod that fills it."""
LIMIT = 128
"""MiB for all pods together, of which the agent takes some 30."""
MORE = 120
SWAPPED = 100
MIN_WARNING = 1.0
LONGEST = 600.0
"""Seconds until the kill, on a busy machine."""
AFTER = 30.0
"""Seconds that are watched after a signal."""
KUBELET = 100
"""MiB: the kubelet's default threshold for memory.available, and for what all pods may still take."""
ALL_PODS, MUCH_SWAP, NEVER = 700, 300, 1 << 20
"""MiB that all pods together may have, that a pod swaps, and that none does."""
SMALL_ZRAM, LARGE_ZRAM = 512, 2048
"""MiB that can be swapped to it."""
RUN = "PRESSURE_RUN"
"""Environment variable: the file for the run of which docs/images/memory-pressure.svg is drawn."""

# Runs in the guest: takes memory until the kernel kills it, or until it has so many MiB in swap; then it rests.
# Arguments: cgroup, MiB a second, random bytes in each page, and these MiB.
GROW = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
pathlib.Path("/proc/self/oom_score_adj").write_text("1000")
pace, random, rest, held = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) << 20, []
block, begun = b"".join(os.urandom(random) + bytes(4096 - random) for _ in range(256)), time.monotonic()
swap = pathlib.Path(sys.argv[1], "memory.swap.current")
while int(swap.read_text()) < rest:
    held.append(bytearray(block))
    time.sleep(max(0.0, begun + len(held) / pace - time.monotonic()))
print("rests", flush=True)
time.sleep(3600)
"""
# Runs in the guest: prints how the memory of the node and of a pod is until something is killed.
WATCH = """
import ctypes, json, os, pathlib, sys, time
os.nice(-10)
if ctypes.CDLL(None).mlockall(3):
    sys.exit("memory cannot be locked")
pod, pods = map(pathlib.Path, sys.argv[1:])
def numbers(file):
    words = (line.split() for line in pathlib.Path(file).read_text().splitlines())
    return {each[0].rstrip(":"): int(each[1]) for each in words if len(each) > 1 and each[1].isdecimal()}
begun = numbers("/proc/vmstat")
while True:
    now, sizes, root = numbers("/proc/vmstat"), numbers("/proc/meminfo"), numbers("/sys/fs/cgroup/memory.stat")
    stalled = pathlib.Path("/proc/pressure/memory").read_text().rpartition("total=")[2]
    grew = lambda *names: sum(now[name] - begun[name] for name in names)
    most = pathlib.Path(pods, "memory.max").read_text().strip()
    most = sizes["MemTotal"] << 10 if most == "max" else int(most)
    working = int(pathlib.Path(pods, "memory.current").read_text()) - numbers(pods / "memory.stat")["inactive_file"]
    print(json.dumps({
        "at": time.time(), "killed": grew("oom_kill") > 0, "free": sizes["MemFree"] >> 10,
        "file": (sizes["Active(file)"] + sizes["Inactive(file)"]) >> 10, "swapFree": sizes["SwapFree"] >> 10,
        "podSwap": int(pathlib.Path(pod, "memory.swap.current").read_text()) >> 20, "stalled": int(stalled) / 1e6,
        "reclaimed": grew("pgsteal_kswapd", "pgsteal_direct") >> 8,
        "refaulted": grew("workingset_refault_anon", "workingset_refault_file") >> 8,
        "taken": (sizes["AnonPages"] + sizes["SwapTotal"] - sizes["SwapFree"]) >> 10,
        "available": (sizes["MemTotal"] >> 10) - (root["anon"] + root["file"] - root["inactive_file"] >> 20),
        "allocatable": (most - working) >> 20,
    }), flush=True)
    if grew("oom_kill"):
        break
    time.sleep(0.2)
"""


class Grown(NamedTuple):
    """Samples until the OOM kill, and signals."""

    samples: list[dict[str, Any]]
    signals: list[dict[str, Any]]
    """Lines of the agent's log."""

    @property
    def end(self) -> float:
        return float(self.samples[-1]["at"])

    def warning(self, signal: dict[str, Any]) -> float:
        """Seconds from a signal to the kill."""
        return self.end - datetime.datetime.fromisoformat(signal["time"]).timestamp()

    def taken_after(self, signal: dict[str, Any]) -> int:
        """MiB of memory and swap that were taken between a signal and the kill."""
        return int(max(each["taken"] for each in self.samples) - self.before(signal)["taken"])

    @property
    def kubelet(self) -> float | None:
        """Seconds from the moment at which the kubelet would have evicted, if it looked then, to the kill."""
        return next((self.end - each["at"] for each in self.samples if each["available"] < KUBELET), None)

    def as_csv(self) -> str:
        """The samples about a second apart, and the signals, for the picture in docs."""
        shown = [each for number, each in enumerate(self.samples[::-1]) if number % 5 == 0][::-1]
        signals = [
            (-round(self.warning(each), 1), each["signal"], int(each["headroom_bytes"]) // MIB) for each in self.signals
        ]
        rows = [
            f"{each['at'] - self.end:.1f},{each['free']},{each['file']},{each['podSwap']},{each['stalled']:.1f}"
            for each in shown
        ]
        return "\n".join([f"# {json.dumps(signals)}", "at,free,file,podSwap,stalled", *rows, ""])

    def before(self, signal: dict[str, Any]) -> dict[str, Any]:
        """The last sample before a signal."""
        return [each for each in self.samples if self.end - each["at"] >= self.warning(signal)][-1]


def start(node: test_agent.Node, values: dict[test_agent.Pod, str], **settings: Any) -> GuestProcess:
    """Start the agent in a pod that may not swap, as the chart's, and beside it pods of these values without limits."""
    own = node.pod("agent")
    generation = node.want({own: "0", **values}, pressure={"headroom": HEADROOM, "stall": STALL, **settings})
    for pod in (own, *values):
        pod.make()
        node.vm.write(pod.path / "memory.max", "max")
    node.vm.write(own.path / "memory.swap.max", "0")
    join = f"import os, pathlib\npathlib.Path({str(own.container)!r}, 'cgroup.procs').write_text(str(os.getpid()))\n"
    agent = node.start(program=join + test_agent.BARE)
    node.applied(generation)
    return agent


def grow(node: test_agent.Node, pod: test_agent.Pod, agent: GuestProcess, random: int = PAGE) -> Grown:
    """Have a pod take all memory until the kernel kills it. So many bytes of each page cannot be compressed."""
    watching = begin(node, pod, random)
    assert watching.wait(LONGEST) == 0, watching.tail()
    return found(watching, agent)


def begin(node: test_agent.Node, pod: test_agent.Pod, random: int, rest: int = NEVER) -> GuestProcess:
    """Have a pod take memory, until it has `rest` MiB in swap; return what prints samples until the kernel kills it."""
    watched = [str(pod.path), str(node.kubepods)]
    watching = node.vm.spawn([sys.executable, "-c", WATCH, *watched], log=f"watch-{pod.uid}")
    test_agent.until(watching.output, "the watcher runs")
    growing = [sys.executable, "-c", GROW, str(pod.container), str(PACE), str(random), str(rest)]
    node.vm.spawn(growing, log=f"grow-{pod.uid}")
    return watching


def found(watching: GuestProcess, agent: GuestProcess) -> Grown:
    lines = (json.loads(line) for line in agent.output().splitlines() if line.startswith("{"))
    signals = [each for each in lines if each["message"] == "the node is under memory pressure"]
    return Grown([json.loads(line) for line in watching.output().splitlines() if line.endswith("}")], signals)


def report(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")


Warnings = dict[str, list[float]]
"""Seconds from the first signal to the OOM kill, by test, of all runs."""


@pytest.fixture(scope="module")
def warnings() -> Warnings:
    return collections.defaultdict(list)


@pytest.fixture(params=range(int(os.environ.get("PRESSURE_RUNS", "1"))))
def turn(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=[SMALL_ZRAM])
def zram(kernel_vm: KernelVM, request: pytest.FixtureRequest) -> Iterator[None]:
    """Swap to zram of so many MiB, in place of the disk."""
    modules = sorted(initramfs.ensure().modules.iterdir())

    def run(*argv: str) -> None:
        kernel_vm.run(["/run/testbed/busybox", *argv], timeout=test_agent.PATIENCE)

    for module in modules:
        run("insmod", str(module))
    kernel_vm.write("/sys/block/zram0/disksize", f"{request.param}M")
    run("mkswap", "/dev/zram0")
    run("swapon", "/dev/zram0")
    run("swapoff", "/dev/vda")
    yield
    run("swapon", "/dev/vda")
    run("swapoff", "/dev/zram0")
    for module in reversed(modules):
        run("rmmod", module.stem.partition("-")[2])


def tell(capsys: pytest.CaptureFixture[str], grown: Grown, earlier: list[float]) -> None:
    """Show a run, and the warnings of it and those before it."""
    names = [name for name in grown.samples[0] if name not in {"at", "killed"}]
    rows = [f"{'s':>6}" + "".join(f"{name:>10}" for name in names)]
    rows += [
        f"{each['at'] - grown.end:6.1f}" + "".join(f"{each[name]:10.1f}" for name in names)
        for each in grown.samples[-300::5]
    ]
    for each in grown.signals:
        words = " ".join(f"{name}={each[name]}" for name in ("signal", "scope", "headroom_bytes", "stall_permille"))
        rows.append(
            f"signal {grown.warning(each):.1f} s and {grown.taken_after(each)} MiB before the OOM kill: {words}"
        )
    if grown.signals:
        earlier.append(grown.warning(grown.signals[0]))
        found = min(earlier), statistics.median(earlier), max(earlier)
        rows.append(f"warning in {len(earlier)} runs: " + ", ".join(f"{each:.1f} s" for each in found))
    kubelet = "never" if grown.kubelet is None else f"{grown.kubelet:.1f} s before the OOM kill"
    rows.append(f"memory.available below {KUBELET} MiB: {kubelet}")
    report(capsys, "\n".join(rows))


@pytest.mark.usefixtures("turn")
def test_the_oom_kill_of_a_pod_without_swap_is_announced_though_swap_is_free(
    node: test_agent.Node, warnings: Warnings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another pod may swap 512 MiB, and has swapped all that it has."""
    idle, pod = node.pod("idle"), node.pod("grows")
    agent = start(node, {idle: "max", pod: "0"})
    held = idle.hog(SWAPPED, "--rounds", "1")
    test_agent.until(lambda: "round 1:" in held.output(), "the idle pod has its memory")
    while idle.number("memory.swap.current") < (SWAPPED - 10) * MIB:
        node.vm.write(idle.path / "memory.reclaim", str(8 * MIB))
    grown = grow(node, pod, agent)
    tell(capsys, grown, warnings["without swap"])
    assert grown.samples[-1]["swapFree"] > 300
    assert grown.signals
    assert grown.warning(grown.signals[0]) > MIN_WARNING


@pytest.mark.usefixtures("turn")
def test_the_oom_kill_of_a_pod_with_full_swap_is_announced_and_its_swapping_is_not(
    node: test_agent.Node, warnings: Warnings, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = node.pod("grows")
    agent = start(node, {pod: str(GRANTED * MIB)})
    grown = grow(node, pod, agent)
    tell(capsys, grown, warnings["full swap"])
    if RUN in os.environ:
        pathlib.Path(os.environ[RUN]).write_text(grown.as_csv(), encoding="utf-8")
    assert grown.signals
    first = grown.signals[0]
    assert grown.warning(first) > MIN_WARNING
    assert first["signal"] == "Headroom"
    assert grown.before(first)["podSwap"] > GRANTED - CLEAR, "before, most of its swap is free"


@pytest.mark.usefixtures("zram", "turn")
def test_the_oom_kill_of_a_pod_with_full_zram_is_announced_and_its_swapping_is_not(
    node: test_agent.Node, warnings: Warnings, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page takes about a quarter of one there."""
    pod = node.pod("grows")
    agent = start(node, {pod: "max"})
    grown = grow(node, pod, agent, random=PAGE // 4)
    tell(capsys, grown, warnings["zram"])
    assert grown.signals
    first = grown.signals[0]
    assert grown.warning(first) > MIN_WARNING
    assert first["signal"] == "Headroom"
    assert grown.before(first)["swapFree"] < 2 * CLEAR, "before, much of it is free"


@pytest.mark.parametrize("zram", [LARGE_ZRAM], indirect=True)
@pytest.mark.usefixtures("zram")
def test_zram_that_is_free_is_no_headroom_where_memory_does_not_compress(
    node: test_agent.Node, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel moves memory there all the same, page for page."""
    if initramfs.ensure().release.startswith("6.1."):
        pytest.skip("6.1 killed the pod with the signal or one second after it, in two runs; why is not known")
    pod = node.pod("grows")
    agent = start(node, {pod: "max"})
    watching = begin(node, pod, PAGE)
    test_agent.until(
        lambda: "the node is under memory pressure" in agent.output() or watching.poll() is not None,
        "a signal",
        LONGEST,
    )
    time.sleep(AFTER)
    if watching.poll() is None:
        watching.stop()
    grown = found(watching, agent)
    first, last = grown.signals[0], grown.samples[-1]
    before, taken = grown.before(first), grown.taken_after(first)
    report(
        capsys,
        f"signal at a headroom of {first['headroom_bytes'] // MIB} MiB with {before['swapFree']} MiB of zram free;"
        f" {taken} MiB were taken in the next {grown.warning(first):.0f} s;"
        f" memory.available {before['available']} MiB, then {last['available']}",
    )
    assert first["signal"] == "Headroom"
    assert before["swapFree"] > LARGE_ZRAM // 2
    assert taken < CLEAR


SCRAPE = "import sys, urllib.request\nprint(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"
PRESSURE, RATIO = "swapwarden_node_memory_pressure", "swapwarden_node_memory_stall_ratio"


def published(node: test_agent.Node, agent: GuestProcess, metric: str) -> dict[str, float]:
    """Return the values of one of the agent's metrics by labels."""
    port = next(json.loads(line)["port"] for line in agent.output().splitlines() if '"serving health' in line)
    text = node.vm.run([sys.executable, "-c", SCRAPE, f"http://127.0.0.1:{port}/metrics"], timeout=60).stdout
    samples = (line.removeprefix(metric).rpartition(" ") for line in text.splitlines() if line.startswith(metric))
    return {labels: float(value) for labels, _, value in samples}


def test_at_the_limit_of_all_pods_the_kubelet_evicts_before_they_swap_and_the_signal_waits_for_full_swap(
    node: test_agent.Node, warnings: Warnings, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kubelet copies its threshold to what all pods may still take."""
    pod = node.pod("grows")
    agent = start(node, {pod: str(MUCH_SWAP * MIB)})
    node.vm.write(node.kubepods / "memory.max", str(ALL_PODS * MIB))
    grown = grow(node, pod, agent)
    tell(capsys, grown, warnings["all pods"])
    evicts = next(each for each in grown.samples if each["allocatable"] < KUBELET)
    swaps = next(each for each in grown.samples if each["podSwap"])
    lead = swaps["at"] - evicts["at"]
    report(
        capsys,
        f"allocatable memory below {KUBELET} MiB {lead:.1f} s before the first MiB was swapped; then the node had"
        f" {evicts['available']} MiB available; {min(each['available'] for each in grown.samples)} at least",
    )
    assert lead > 1
    assert grown.kubelet is None, "the node itself has memory"
    first = grown.signals[0]
    assert (first["signal"], first["scope"]) == ("Headroom", "Pods")
    assert grown.warning(first) > MIN_WARNING
    assert grown.before(first)["podSwap"] > MUCH_SWAP - CLEAR, "before, most of its swap is free"


def test_a_pod_that_swaps_while_swap_is_free_is_no_signal(
    node: test_agent.Node, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = node.pod("grows")
    agent = start(node, {pod: "max"})
    watching = begin(node, pod, PAGE, MUCH_SWAP)
    test_agent.until(
        lambda: pod.number("memory.swap.current") >= MUCH_SWAP * MIB or watching.poll() is not None,
        "the pod has swapped",
        LONGEST,
    )
    time.sleep(AFTER)
    assert watching.poll() is None, "nothing is killed"
    watching.stop()
    grown = found(watching, agent)
    begun, last = next(each for each in grown.samples if each["podSwap"]), grown.samples[-1]
    passed = last["at"] - begun["at"]
    below = [each["at"] for each in grown.samples if each["available"] < KUBELET]
    report(
        capsys,
        f"{last['podSwap']} MiB swapped, {last['taken'] - begun['taken']} taken in {passed:.0f} s, tasks stalled for"
        f" {(last['stalled'] - begun['stalled']) / passed:.0%}, {last['refaulted'] - begun['refaulted']} of"
        f" {last['reclaimed'] - begun['reclaimed']} MiB came back; headroom at the end:"
        f" {published(node, agent, 'swapwarden_node_memory_headroom_bytes')};"
        f" memory.available {min(each['available'] for each in grown.samples)} MiB at least,"
        f" below {KUBELET} MiB in {len(below)} of {len(grown.samples)} samples",
    )
    assert grown.signals == []
    watched = published(node, agent, PRESSURE)
    assert watched['{signal="headroom",scope="node"}'] == 0
    assert last["podSwap"] > MUCH_SWAP // 2


def test_a_stall_counts_for_all_pods_at_their_limit_and_not_for_one_at_its_own(
    node: test_agent.Node, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = node.pod("greedy")
    agent = start(node, {pod: "max"}, stall=EARLY)
    node.vm.write(pod.path / "memory.max", str(test_agent.MEMORY))
    running = pod.hog(MORE, "--pace", "1000")
    test_agent.until(lambda: "round 1:" in running.output(), "the pod swaps at its own limit")
    own = '{signal="stall",scope="pod"}'
    test_agent.until(lambda: published(node, agent, PRESSURE).get(own) == 1, "the stall is a pod's own")
    assert "pressure" not in node.status
    before = published(node, agent, RATIO).get('{scope="pods"}', 0)
    node.vm.write(node.kubepods / "memory.max", str(LIMIT * MIB))
    node.vm.write(pod.path / "memory.max", "max")
    test_agent.until(lambda: "pressure" in node.status, "the stall is that of all pods")
    found = node.status["pressure"]
    assert (found["signal"], found["scope"], found["seq"]) == ("Stall", "Pods", 1)
    assert found["pods"][0]["pod"] == pod.uid
    assert found["pods"][0]["swapBytes"] > 0
    assert found["headroomBytes"] > HEADROOM["belowBytes"], "its memory can be swapped"
    running.stop()
    test_agent.until(lambda: "pressure" not in node.status, "the signal ends")
    report(
        capsys,
        f"stall at a pod's own limit {before:.0%}: no signal; at the limit of all pods"
        f" {found['stallPermille'] / 10:.0f}%: Stall/Pods",
    )
