"""The kernel's part in memory.min, low and high: facts that the plan's numbers and the guard rest on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

import pytest

from testbed.vm.kernelvm import KernelVM
from tests.kernel.memory import MIB, WAITS, Files, Lab, Walk, until, walk_seconds

pytestmark = pytest.mark.skipif(
    "KERNEL_FACTS" not in os.environ,
    reason="an experiment with the kernel that takes minutes: `make test-kernel-memory` runs it",
)


@pytest.fixture
def lab(kernel_vm: KernelVM) -> Iterator[Lab]:
    made = Lab(kernel_vm)
    yield made
    made.close()


SIZES = ((48, 52), (160, 170))
"""MiB of memory.high and of the limit."""
BESIDE = (48, 50)


def test_how_long_a_pod_without_swap_stands_still_at_memory_high(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """One thread alone on its CPU takes the time of the formula; with a pod beside it up to 64 times that.

    The kernel charges 64 pages at once and pauses for all of them; unused pages it takes back when another cgroup
    charges on the CPU (refill_stock in mm/memcontrol.c). Bounded counts with a pause for each page.

    On a busy machine the seconds asleep may miss some, and those of stall have others: each is a bound on its side.
    """
    lines = []
    for high, top in SIZES:
        least = walk_seconds(high, top)
        walk = walked(lab, f"alone-{high}", high, top, top + 4)
        stalled = lab.stalled(f"alone-{high}")
        lines.append(f"{high} to {top} MiB {walk.blocked:.2f} s, stalled {stalled:.2f} s, by the formula {least:.2f} s")
        assert walk.blocked < 1.3 * least
        assert stalled > 0.7 * least
        assert lab.events(f"alone-{high}")["oom_kill"] == 1, "memory.max ends it, and nothing before"
    lab.keep_busy()
    least = walk_seconds(*BESIDE)
    walk = walked(lab, "beside", *BESIDE, BESIDE[1] + 4)
    lines.append(f"{BESIDE[0]} to {BESIDE[1]} MiB beside another {walk.blocked:.1f} s, by the formula {least:.2f} s")
    with capsys.disabled():
        sys.stdout.write(f"\nasleep from memory.high to the limit: {'; '.join(lines)}\n")
    assert 4 * least < walk.blocked < 1.3 * 64 * least


def walked(lab: Lab, name: str, high: int, top: int, mib: int, swap: int = 0) -> Walk:
    """Let a process take so much memory; return its walk once it is through, or dead."""
    lab.make({name: {"memory.high": high, "memory.max": top, "memory.swap.max": swap}})
    found = Walk(lab.vm, lab.root / name, high * MIB, lambda: lab.hog(name, mib, "--rounds", "1", cpus="0"))
    until(found.look, f"{name} is through")
    return found


LIMIT, ALLOCATED, HIGH, SWAP = 50, 49, 30, 20
STUCK = 5.0
"""Seconds."""


def test_a_pod_with_swap_stands_still_only_if_that_is_too_small(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Skip has no memory.high below the limit less the swap: then all has room."""
    covers = walked(lab, "covers", HIGH, LIMIT, ALLOCATED, SWAP)
    planned = walked(lab, "planned", LIMIT - SWAP // 2, LIMIT, ALLOCATED, SWAP // 2)
    lab.make({"half": {"memory.high": HIGH, "memory.max": LIMIT, "memory.swap.max": SWAP // 2}})
    half = Walk(lab.vm, lab.root / "half", HIGH * MIB, lambda: lab.hog("half", ALLOCATED, "--rounds", "1"))
    until(lambda: half.look() or half.blocked > 2 * STUCK, "the last one stands still")
    with capsys.disabled():
        sys.stdout.write(
            f"\n{ALLOCATED} MiB over memory.high {HIGH} MiB: asleep for {covers.blocked:.1f} s with {SWAP} MiB of swap;"
            f" with {SWAP // 2} MiB more than {half.blocked:.1f} s; with as much and the planned memory.high"
            f" {planned.blocked:.1f} s\n"
        )
    assert max(covers.blocked, planned.blocked) < STUCK
    assert not half.ended
    assert lab.number("half") < ALLOCATED * MIB
    lab.vm.write(lab.root / "half/memory.high", "max")
    until(half.look, "it continues without memory.high", seconds=STUCK)


def test_memory_high_of_a_container_slows_no_other_of_its_pod(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """That of their pod does: so a plan throttles the containers of a pod that has several."""
    none = {"memory.swap.max": 0}
    lab.make({"pod": {"memory.high": 32, **none}, "pod/stuck": {}, "pod/other": {}})
    lab.make({"each": none, "each/stuck": {"memory.high": 32}, "each/other": {}})
    go = f"/run/{lab.root.name}"
    others = {name: lab.run(f"{name}/other", WAITS, go) for name in ("pod", "each")}
    for name in others:
        lab.hog(f"{name}/stuck", 96)
    until(lambda: all(lab.number(f"{name}/stuck") > 35 * MIB for name in others), "both stand still")
    lab.vm.write(go, "")
    until(lambda: all(each.output() for each in others.values()), "each neighbour has its memory")
    took = {name: float(each.output()) for name, each in others.items()}
    with capsys.disabled():
        sys.stdout.write(
            f"\n1 MiB beside a container that stands still, with memory.high on their pod: {took['pod']:.2f} s;"
            f" on the container: {took['each']:.3f} s\n"
        )
    assert took["pod"] > 1.0
    assert took["each"] < took["pod"] / 4


# --- protection ---

NODE, VICTIM, HOG = 80, 32, 76
"""MiB of memory of a node; of an idle pod; of one that takes what it can get."""
PODS, VICTIMS, HOGS = "kubepods", "kubepods/burstable/victim", "kubepods/besteffort/hog"
BURSTABLE = "kubepods/burstable"


def test_memory_low_keeps_an_idle_pod_if_all_levels_above_have_it(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    low = {"memory.low": VICTIM + 4}
    cases: dict[str, dict[str, Files]] = {
        "none": {},
        "pod alone": {VICTIMS: low},
        "burstable at 0": {PODS: low, VICTIMS: low},
        "all levels": {PODS: low, BURSTABLE: low, VICTIMS: low},
    }
    for name, protected in cases.items():
        lab.make({name: {"memory.max": NODE}})
        for each in (PODS, BURSTABLE, VICTIMS, "kubepods/besteffort", HOGS):
            lab.make({f"{name}/{each}": protected.get(each, {})})
    kept = compete(lab, cases, VICTIMS)
    with capsys.disabled():
        sys.stdout.write(f"\nof {VICTIM} MiB an idle pod keeps, by where memory.low is: {kept}\n")
    assert kept["all levels"] >= VICTIM * 110 / 120
    assert max(kept[name] for name in ("none", "pod alone", "burstable at 0")) < VICTIM * 60 / 120


def test_protected_pods_move_reclaim_onto_daemons_unless_they_are_protected_too(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon, low = "system.slice", {"memory.low": 28}
    cases: dict[str, dict[str, Files]] = {
        "nobody": {},
        "pods": {PODS: low, BURSTABLE: low, VICTIMS: low},
        "pods and daemons": {PODS: low, BURSTABLE: low, VICTIMS: low, daemon: {"memory.low": 20}},
    }
    for name, protected in cases.items():
        lab.make({name: {"memory.max": NODE}})
        for each in (daemon, PODS, BURSTABLE, VICTIMS, "kubepods/besteffort", HOGS):
            lab.make({f"{name}/{each}": protected.get(each, {})})
    daemons = [lab.hog(f"{name}/{daemon}", 16, "--rounds", "1") for name in cases]
    until(lambda: all("round 1:" in each.output() for each in daemons), "daemons have their memory")
    compete(lab, cases, VICTIMS, mib=24)
    kept = {name: lab.number(f"{name}/{daemon}") / MIB for name in cases}
    with capsys.disabled():
        sys.stdout.write(f"\nof 16 MiB a daemon keeps, by who is protected: {kept}\n")
    assert kept["pods and daemons"] >= 16 * 0.9
    assert kept["pods"] < 16 / 2


def compete(lab: Lab, cases: Mapping[str, object], victim: str, mib: int = VICTIM) -> dict[str, float]:
    """Return the MiB that each node's victim keeps while a hog takes what it can get."""
    idle = [lab.hog(f"{name}/{victim}", mib, "--rounds", "1") for name in cases]
    until(lambda: all("round 1:" in each.output() for each in idle), "the victims have their memory")
    hogs = [lab.hog(f"{name}/{HOGS}", HOG, "--rounds", "2") for name in cases]
    until(lambda: all("round 2:" in each.output() for each in hogs), "the hogs have had theirs twice")
    return {name: round(lab.number(f"{name}/{victim}") / MIB, 1) for name in cases}


# Reads or writes so many MiB of a disk, from such a MiB on, and keeps it open: the cache of a closed one is empty.
CACHE = """
how, first, count = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
disk = os.open("/dev/vdb", os.O_RDWR)
block = bytes(1 << 20)
for at in range(first << 20, first + count << 20, 1 << 20):
    os.pread(disk, 1 << 20, at) if how == "read" else os.pwrite(disk, block, at)
print("done", flush=True)
time.sleep(3600)
"""


def test_files_alone_kill_a_pod_whose_containers_have_memory_min(lab: Lab) -> None:
    """Their pages leave the pod none to reclaim: so a plan gives memory.min to pods, never to containers."""
    for name in ("container", "pod"):
        own = {"memory.min": 32} if name == "container" else {}
        tops = {"memory.max": 32, "memory.swap.max": 0}
        lab.make({name: {"memory.min": 32, **tops}, f"{name}/pause": {}, f"{name}/app": {**own, **tops}})
    pauses = [
        lab.run(f"{name}/pause", "held = os.urandom(1 << 20); print('up', flush=True); time.sleep(3600)")
        for name in ("container", "pod")
    ]
    until(lambda: all(each.output() for each in pauses), "the sandboxes run")
    lab.run("container/app", CACHE, "write", 0, 64)
    plain = lab.run("pod/app", CACHE, "write", 64, 64)
    until(lambda: lab.events("container")["oom_kill"], "it is killed")
    until(lambda: "done" in plain.output(), "it writes all of it")
    assert lab.events("pod")["oom_kill"] == 0


def test_memory_min_above_pods_leaks_to_others_caches_and_kills_a_daemon(lab: Lab) -> None:
    """The kubelet's kubepods memory.min counts Burstable pods, which have none below: with memory.low nobody dies."""
    node, spare, cache, daemon = 96, 60, 50, 60
    for at, name in enumerate(("min", "low")):
        lab.make({name: {"memory.max": node, "memory.swap.max": 0}, f"{name}/system.slice": {}})
        lab.make({f"{name}/kubepods": {f"memory.{name}": spare}, f"{name}/kubepods/besteffort": {}})
        reading = lab.run(f"{name}/kubepods/besteffort", CACHE, "read", 200 + 100 * at, cache)
        until(lambda: "done" in reading.output(), "the files are cached")  # noqa: B023 called at once
    daemons = {name: lab.hog(f"{name}/system.slice", daemon, "--rounds", "1") for name in ("min", "low")}
    until(lambda: lab.events("min")["oom_kill"], "one is killed")
    until(lambda: "round 1:" in daemons["low"].output(), "the other daemon has its memory")
    assert lab.events("low")["oom_kill"] == 0
    assert lab.number("min/kubepods") > cache * 0.9 * MIB, "no cache was touched"
