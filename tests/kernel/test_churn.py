"""The agent in bad times on a real kernel: pods that come and go while others write to their limits, and worse."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import statistics
import sys
import uuid
from typing import Any, NamedTuple

import pytest
from swapwarden.agent.inventory import exposure
from swapwarden.agent.reconcile import swap_drain

from testbed.standin import churn
from tests.kernel import test_agent

MIB = 1 << 20
SLOTS = 20
"""Of pods that must have no swap, and as many of pods that may have some."""
SECONDS = 180 if "KERNEL_FACTS" in os.environ else 90
"""The longer form is one of `make test-kernel-memory`."""
LIVES = 16
METRICS = "127.0.0.1:18082"
LIMIT = str(8 * MIB)


def plan_of(slots: int, lives: int) -> dict[str, dict[str, Any]]:
    """Pods by UID: of every other slot without swap, of those every other one spared by reloads, half of each full."""
    pods = {}
    for slot in range(2 * slots):
        for _ in range(lives):
            entry = {"disabled": slot % 2 == 0, "spared": slot % 4 == 0, "full": slot % 8 >= 4}
            pods[str(uuid.uuid4())] = {"slot": slot, **entry}
    return pods


class Exposure(NamedTuple):
    """One exposure from the agent's log: monotonic seconds, and the bytes taken meanwhile."""

    begin: float
    """When another wrote. The agent cannot know that, and counts from its `notice`; who attacked does."""
    notice: float
    end: float
    taken: int


def exposures(lines: list[dict[str, Any]], clock: float, attacks: dict[str, list[float]]) -> dict[str, list[Exposure]]:
    """Return all exposures in an agent's log, by UID.

    Each repair also has a line. So an exposure belongs to the first attack after the repair before it.
    """

    def moment(text: str) -> float:
        return datetime.datetime.fromisoformat(text).timestamp() - clock

    found: dict[str, list[Exposure]] = {}
    repaired: dict[str, tuple[float, float]] = {}
    for line in lines:
        if line["message"] == "wrote":
            uid = line["cgroup"].rpartition("-pod")[2].partition(".")[0].replace("_", "-")
            repaired[uid] = (repaired.get(uid, (0.0, 0.0))[1], moment(line["time"]))
        elif line["logger"] == exposure.__name__:
            uid, notice, end = line["uid"], moment(line["from"]), moment(line["until"])
            before, _ = repaired[uid]
            made = (attack for attack in attacks[uid] if before <= attack <= notice)
            found.setdefault(uid, []).append(Exposure(min(made, default=notice), notice, end, line["swapBytes"]))
    return found


def let(known: list[Exposure], until: float) -> int:
    """Return the bytes of swap that a pod without swap may have after these: those that it took, and their room."""
    taken = sum(each.taken for each in known if each.end <= until)
    return taken + taken // swap_drain.ROOM_SHARE


def test_pods_without_swap_take_some_only_in_exposures_that_the_agent_publishes(
    node: test_agent.Node, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them end at 0, however often others have written another value.

    Swap taken in an exposure stays in use after it: a lower limit brings no page back, and swap that cannot be cut
    keeps room (docs/agent.md). So a sample is in an exposure, or is explained by the published exposures before it.
    Metrics have the sums, and the log each one.
    """
    pods = plan_of(SLOTS, LIVES)
    wanted = {
        uid: {"swapMax": "0" if each["disabled"] else LIMIT, "reason": "LimitedSwap"} for uid, each in pods.items()
    }
    node.put({"pods": wanted})
    top = str(2 * SLOTS)  # each that lives
    agent = node.start("kubeconfig", "--log-level", "debug", "--metrics-address", METRICS, "--metrics-top-pods", top)
    plan = {
        "folder": str(node.burstable),
        "seconds": SECONDS,
        "device": node.vm.read("/proc/swaps").splitlines()[1].split()[0],
        "metrics": METRICS,
        "pods": pods,
    }
    (node.files / "plan.json").write_text(json.dumps(plan))
    argv = [sys.executable, churn.__file__, str(node.files / "plan.json"), str(node.files / "report.json")]
    node.vm.run(argv, timeout=SECONDS + 240)
    report = json.loads((node.files / "report.json").read_text())

    ended = report["pods"]
    disabled = {uid: each for uid, each in ended.items() if each["disabled"]}
    lines = [json.loads(line) for line in agent.output().splitlines()]
    exposed = exposures(lines, report["clock"], {uid: each["attacks"] for uid, each in ended.items()})
    swapped: set[str] = set()
    inside = outside = 0
    unexplained = []
    with (node.files / "report.samples").open(encoding="ascii") as samples:
        gaps = json.loads(next(samples))
        for line in samples:
            first, last, uid, held, _ = line.split()
            since, until, used = float(first), float(last), int(held)
            if not used:
                continue
            swapped.add(uid)
            known = exposed.get(uid, [])
            if any(each.begin <= until and since <= each.end for each in known):
                inside += 1
                continue
            outside += 1
            if used > let(known, since):
                unexplained.append((since, until, uid, used, let(known, since), disabled[uid]["attacks"], known))
    own = [each for uid in disabled for each in exposed.get(uid, [])]
    late = sorted(each.notice - each.begin for each in own)
    attacks = sum(len(each["attacks"]) for each in ended.values())
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(ended)} pods, {sum(each['runs'] for each in ended.values())} processes, {attacks} foreign writes;"
            f" {len(gaps)} looks, every {statistics.median(gaps) * 1000:.0f} ms, 99 of 100 within"
            f" {gaps[len(gaps) * 99 // 100] * 1000:.0f} ms;"
            f" {len(swapped)} of {len(disabled)} pods took swap, {sum(each.taken for each in own) / MIB:.1f} MiB in"
            f" {len(own)} exposures, each noticed after {statistics.median(late) * 1000:.1f} ms,"
            f" 99 of 100 within {late[len(late) * 99 // 100] * 1000:.0f} ms, all within {late[-1] * 1000:.0f} ms;"
            f" samples with swap: {inside} in exposures, {outside} after\n"
        )
    assert len(disabled) >= 2 * SLOTS, "pods came and went"
    assert statistics.median(gaps) < 0.05
    assert {uid: each["limit_at_end"] for uid, each in disabled.items()} == dict.fromkeys(disabled, "0")
    for uid, each in disabled.items():
        known = exposed.get(uid, [])
        assert each["published"]["exposures"] == len(known)
        assert each["published"]["bytes"] == sum(one.taken for one in known)
        assert each["published"]["seconds"] == pytest.approx(sum(one.end - one.notice for one in known), abs=0.001)
    assert not unexplained, "pods have more swap than they took while the agent says that they were exposed"
    assert own, "none was exposed: this proves nothing"
    assert not any(disabled[uid]["spared"] for uid in swapped), "nobody raised its limit while it ran"
    assert "error" not in {line["level"] for line in lines}


# Runs in the guest: so many pods with a container come and go, some of them at a time.
MANY = """
import pathlib, sys
folder, first, count = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
alive = []
def end():
    pod = alive.pop(0)
    (pod / "cri-containerd-{}.scope".format("0" * 64)).rmdir()
    pod.rmdir()
for number in range(first, first + count):
    pod = folder / f"kubepods-burstable-pod{number:032x}.slice"
    (pod / "cri-containerd-{}.scope".format("0" * 64)).mkdir(parents=True)
    alive.append(pod)
    if len(alive) > 20:
        end()
while alive:
    end()
"""


def test_1000_pods_come_and_go_and_leave_nothing(node: test_agent.Node) -> None:
    generation = node.put({"pods": {}})
    agent = node.start()
    node.applied(generation)

    def marks() -> int:
        found = 0
        for name in node.vm.listdir(f"/proc/{agent.pid}/fdinfo"):
            with contextlib.suppress(FileNotFoundError):  # what it wrote with is closed meanwhile
                found += node.vm.read(f"/proc/{agent.pid}/fdinfo/{name}").count("inotify wd:")
        return found

    def memory() -> int:
        lines = node.vm.read(f"/proc/{agent.pid}/status").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    def come_and_go(first: int, count: int) -> None:
        node.vm.run([sys.executable, "-c", MANY, str(node.burstable), str(first), str(count)], timeout=300)
        test_agent.until(lambda: marks() == idle, "as many watches as before")

    idle = marks()
    come_and_go(0, 200)
    before, descriptors = memory(), len(node.vm.listdir(f"/proc/{agent.pid}/fd"))
    come_and_go(200, 1000)
    assert memory() < before + MIB
    assert len(node.vm.listdir(f"/proc/{agent.pid}/fd")) <= descriptors
    assert not node.status.get("violations")


def test_cgroups_that_cannot_be_written_are_reported_with_the_reason(node: test_agent.Node) -> None:
    pod = node.pod("there")
    node.put({"pods": {pod.uid: {"swapMax": "0", "reason": "PolicyDisabled"}}})
    pod.make()
    place = f"/run/readonly-{node.name}"
    node.vm.mkdir(place)
    node.vm.run(["mount", "--bind", str(node.root), place], timeout=60)
    try:
        node.vm.run(["mount", "-o", "remount,bind,ro", place], timeout=60)
        agent = node.start("kubeconfig", "--cgroup-root", place)

        def degraded() -> dict[str, Any]:
            return next((each for each in node.status.get("conditions", []) if each["type"] == "Degraded"), {})

        test_agent.until(lambda: degraded().get("reason") == "WriteFailed", "it says so")
        assert "Read-only file system, mount the node's /sys/fs/cgroup read-write" in degraded()["message"]
        assert pod.swap_max == "max"
        agent.stop()
    finally:
        node.vm.run(["umount", place], timeout=60)


# Runs in the guest.
JUMP = """
import sys, time
time.clock_settime(time.CLOCK_REALTIME, time.time() + float(sys.argv[1]))
"""


def test_a_clock_that_jumps_changes_nothing(node: test_agent.Node) -> None:
    pod = node.pod("there")
    generation = node.want({pod: "0"})
    node.start()
    pod.make()
    node.applied(generation)
    for offset in (5 * 365 * 86400, -5 * 365 * 86400, -20 * 365 * 86400, 20 * 365 * 86400):
        node.vm.run([sys.executable, "-c", JUMP, str(offset)], timeout=60)
        for _ in range(3):
            node.vm.write(pod.path / "memory.swap.max", "max")
            test_agent.until(lambda: pod.swap_max == "0", "it is repaired")
    node.applied(node.want({pod: "max"}))
    assert pod.swap_max == "max"
