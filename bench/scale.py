"""The controller at scale: a real kube-apiserver and etcd, fake nodes and pods, `swapwarden controller` as a process.

For each size it reports what a start costs, memory, CPU and the time from a pod's binding to its node's state at
several rates of change, and what a pod's life costs etcd and the API server; then how each figure grows from size to
size. At the smallest size a controller on kopf alone does the same work in the same run. etcd syncs nothing to disk,
agents are imitated (bench/agents.py), and all of it shares one machine, so absolute times are of this machine. The last
line says whether the budgets hold: exit status 1 where one does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import itertools
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from swapwarden.agent.report import status_writer
from swapwarden.api import names
from swapwarden.controller.writers import states
from swapwarden.kube import client, config

from bench.agent import cpu_seconds, resident
from bench.load import LIVES_FOR, STARTS_AFTER, Bound, Load, Observer, roles
from testbed.base import process, term
from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests, part
from testbed.product.controller import Controller

FOLDER: Final = Path(__file__).parent
CRDS: Final = FOLDER.parent / "crds"
MIB: Final = 1 << 20
RATES: Final = {10: 20.0, 100: 15.0, 300: 10.0}
"""Changes of pods a second, and for how many seconds they are measured."""
JUDGED: Final = 100
STARTS: Final = 100
"""Pods by which the cost of one is counted."""
STARTS_PER_SECOND: Final = 10
"""Slowly, so that no two of them share a write."""
STORED: Final = "etcd_debugging_mvcc_total_put_size_in_bytes"
LEADS: Final = '"this instance leads"'
DEADLINE: Final = 900.0
QUIET: Final = status_writer.GENERATION_SECONDS + 2.0
"""Seconds without a write after which no more are to come."""
SATURATED: Final = 0.95
"""Share of all cores from which on the machine is what is measured."""

DISTURBED: Final = 0.3
"""Cores that others had, the kernel's threads included, from which on times say little."""

MAX_RSS: Final = 600_000_000
MAX_PLAN_SECONDS: Final = 60.0
MAX_CORES: Final = 0.5
MAX_ETCD_BYTES: Final = 16 << 10
MAX_WRITES: Final = 2.0


@dataclasses.dataclass(frozen=True)
class Size:
    """A cluster; so many agents have a watch of their own."""

    nodes: int
    pods: int
    agents: int

    def __str__(self) -> str:
        return f"{self.nodes:,}/{self.pods:,}"


SIZES: Final = (Size(100, 3_000, 100), Size(1_000, 30_000, 1_000), Size(5_000, 150_000, 1_000))
ETCD_QUOTA: Final = 8 << 30


@dataclasses.dataclass(frozen=True)
class Counters:
    """What etcd and the API server have counted."""

    etcd: float
    """Bytes of keys and values, of which each write stores those of a whole object. The log that is written before has
    them once more. (etcd_disk_wal_write_bytes_total is no measure of it: it says twice what the log holds.)
    """
    states: float
    """Writes of states, by the controller."""
    statuses: float
    """Writes of their status, by agents."""

    def since(self, before: Counters) -> Counters:
        return Counters(self.etcd - before.etcd, self.states - before.states, self.statuses - before.statuses)


def counters(control_plane: ControlPlane) -> Counters:
    text = control_plane.request("GET", "/metrics")[1]
    kind = {"group": names.GROUP, "resource": names.STATE_PLURAL}
    statuses = part.total(text, "apiserver_request_total", verb="PATCH", subresource="status", **kind)
    states = sum(
        part.total(text, "apiserver_request_total", verb=verb, subresource="", **kind) for verb in ("PATCH", "POST")
    )
    return Counters(part.total(control_plane.servers.etcd_metrics(), STORED), states, statuses)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one pod costs: bytes written to etcd and requests; the pod's own writes are in the bytes."""

    started: Counters
    """From their binding until their containers run and all have said so."""
    gone: Counters
    containers: int
    """That started."""

    @property
    def start_bytes(self) -> float:
        return self.started.etcd / STARTS

    @property
    def life_bytes(self) -> float:
        return self.start_bytes + self.gone.etcd / STARTS

    @property
    def life_states(self) -> float:
        return (self.started.states + self.gone.states) / STARTS

    @property
    def life_statuses(self) -> float:
        return (self.started.statuses + self.gone.statuses) / STARTS

    @property
    def writes_per_container(self) -> float:
        """From the pod's binding to the start of its containers, by controller and agents."""
        return (self.started.states + self.started.statuses) / self.containers


@dataclasses.dataclass(frozen=True)
class Pace:
    """What was seen at one rate of change."""

    achieved: float
    """Changes a second that were made."""
    took: list[float]
    """Seconds from a pod's binding to its state, of all pods."""
    disabled: list[float]
    """The same of pods with policy Disabled."""
    lost: int
    """Pods that stood in no state before they were gone."""
    cores: dict[str, float]
    """By process."""
    busy: float
    """Share of all the machine's cores."""
    others: float
    """Cores that went to what is not part of this."""


@dataclasses.dataclass(frozen=True)
class Found:
    """What was seen of one controller at one size."""

    cold: float
    """Seconds from the start of the process until all states were written."""
    plan: float
    """Seconds of these from the moment at which it knew all and led."""
    next: float
    """Seconds in which the next leader plans all nodes, where all states are there; NaN where that was not tried."""
    peak: int
    settled: int
    paces: dict[int, Pace]
    cost: Cost


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them is; NaN where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


def peak(pid: int) -> int:
    """The most memory that a process ever held, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def machine_seconds() -> tuple[float, float]:
    """What all cores were busy, and what they were there, in ticks."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return float(sum(fields) - fields[3] - fields[4]), float(sum(fields))


class Bench:
    """One cluster, and what is measured in it."""

    def __init__(self, control_plane: ControlPlane, api: client.Client, size: Size) -> None:
        self._control_plane = control_plane
        self._size = size
        self.load = Load(api, size.nodes)
        self.observer = Observer(api)
        self._pids: dict[str, int] = {}

    async def fill(self) -> None:
        """Make all that is there from the start."""
        with term.step(f"{self._size.nodes:,} nodes"):
            await self.load.make_nodes()
        await self.load.make_profile(names.Behavior.LIMITED_SWAP)
        step = max(1, self._size.pods // 10)
        with term.step(f"{self._size.pods:,} pods"):
            await self.load.make_pods(
                self._size.pods, lambda done: None if done % step else term.say(f"{done:,} pods run")
            )

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """In this block states are observed, and agents report."""
        options = [f"--nodes={self._size.nodes}", f"--own={self._size.agents}"]
        with self.program("agents", *options) as agents:
            self._pids = {**self._control_plane.servers.pids(), "agents": agents.pid, "bench": os.getpid()}
            watching = asyncio.create_task(self.observer.informer.run())
            try:
                await self.until(lambda: "a watch of their own" in agents.output(), agents)
                yield
            finally:
                watching.cancel()

    @contextlib.contextmanager
    def program(self, name: str, *options: str) -> Iterator[process.Process]:
        """A program of this folder, as the administrator."""
        argv = [sys.executable, "-m", f"bench.{name}", f"--kubeconfig={self._control_plane.kubeconfig}", *options]
        with process.Process(name, argv, log=self._control_plane.folder / f"{name}.log") as running:
            yield running

    async def until(self, condition: Callable[[], bool], *running: process.Process) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            for each in running:
                each.check_alive()
            if time.monotonic() > deadline:
                raise process.ProcessError(f"not there after {DEADLINE:.0f} s\n{self._control_plane.servers.logs()}")
            await asyncio.sleep(0.02)

    async def counted(self) -> Counters:
        """Wait until nobody writes states any more; what was counted until then."""
        before = await asyncio.to_thread(counters, self._control_plane)
        while True:
            await asyncio.sleep(QUIET)
            after = await asyncio.to_thread(counters, self._control_plane)
            if (after.states, after.statuses) == (before.states, before.statuses):
                return after
            before = after

    # Measures

    async def cost(self) -> Cost:
        """Count what pods cost that come one after the other."""

        async def start() -> Bound:
            one = await self.load.bind()
            await asyncio.sleep(STARTS_AFTER)
            await self.load.begin(one)
            return one

        at = [await self.counted()]
        starts = []
        for _ in range(STARTS):
            starts.append(asyncio.create_task(start()))
            await asyncio.sleep(1 / STARTS_PER_SECOND)
        bound = await asyncio.gather(*starts)
        at.append(await self.counted())
        for one in bound:
            await self.load.end(one)
            await asyncio.sleep(1 / STARTS_PER_SECOND)
        at.append(await self.counted())
        started, gone = (after.since(before) for before, after in itertools.pairwise(at))
        return Cost(started, gone, sum(len(roles(one.number)) for one in bound))

    async def pace(self, rate: int, seconds: float, controller: process.Process) -> Pace:
        """Have pods come and go for some seconds, when as many go as come."""
        self.observer.forget()
        pids = {"controller": controller.pid, **self._pids}
        life = asyncio.create_task(self.load.churn(rate, LIVES_FOR + seconds))
        await asyncio.sleep(LIVES_FOR)
        begun, changes, used = (
            time.monotonic(),
            self.load.changes,
            {name: cpu_seconds(pid) for name, pid in pids.items()},
        )
        busy, there = machine_seconds()
        await asyncio.sleep(seconds)
        ended, made = time.monotonic(), self.load.changes - changes
        cores = {name: (cpu_seconds(pid) - used[name]) / (ended - begun) for name, pid in pids.items()}
        busy_after, there_after = machine_seconds()
        counted = [one for one in await life if begun <= one.at < ended]
        await self.counted()
        seen = self.observer.seen
        # The watch may be faster than the answer to the binding.
        took = {one: max(0.0, seen[one.uid] - one.at) for one in counted if one.uid in seen}
        busy = (busy_after - busy) / (there_after - there)
        return Pace(
            achieved=made / (ended - begun),
            took=list(took.values()),
            disabled=[seconds for one, seconds in took.items() if one.disabled],
            lost=len(counted) - len(took),
            cores=cores,
            busy=busy,
            others=max(0.0, busy * (os.cpu_count() or 1) - sum(cores.values())),
        )

    async def run(self, name: str, start: Callable[[], process.Process], leads: str) -> Found:
        """Measure one controller from its start to its end; `leads` is in its log when it has begun to."""
        with term.step(f"{name}: start"):
            begun = time.monotonic()
            controller = await asyncio.to_thread(start)
        with controller:
            with term.step(f"{name}: all states"):
                await self.until(lambda: leads in controller.output() or self.observer.pods > 0, controller)
                led = time.monotonic()
                await self.until(self.is_complete, controller)
                cold, plan = self.observer.last - begun, self.observer.last - led
            with term.step(f"{name}: agents report"):
                await self.counted()
            settled = resident(controller.pid)
            with term.step(f"{name}: what a pod costs"):
                cost = await self.cost()
            paces = {}
            for rate, seconds in RATES.items():
                with term.step(f"{name}: {rate} changes/s"):
                    paces[rate] = await self.pace(rate, seconds, controller)
            return Found(cold, plan, math.nan, peak(controller.pid), settled, paces, cost)

    def is_complete(self) -> bool:
        return len(self.observer.informer.rows) == self._size.nodes and self.observer.pods >= self._size.pods

    async def plans(self) -> dict[str, Any]:
        """What all states say, by node."""
        found = await asyncio.to_thread(self._control_plane.get, states.STATES)
        return {item["metadata"]["name"]: {**item["spec"], "epoch": 0} for item in found["items"]}

    async def restart(self) -> float:
        """Seconds in which another leader, from its lead on, plans all nodes, where all states are there."""
        running = await asyncio.to_thread(Controller, self._control_plane)
        with running:
            await self.until(lambda: LEADS in running.process.output(), running.process)
            led = time.monotonic()
            planned = functools.partial(asyncio.to_thread, running.metric, "swapwarden_controller_plan_seconds_count")
            while await planned() < self._size.nodes:
                running.process.check_alive()
                await asyncio.sleep(0.02)
            return time.monotonic() - led

    async def clear(self) -> None:
        """Remove all states."""
        await self.load.remove_states()
        await self.until(lambda: not self.observer.informer.rows)


@dataclasses.dataclass(frozen=True)
class Result:
    """All that was seen at one size."""

    size: Size
    ours: Found
    bare: Cost
    """What a pod costs without any controller."""
    built_in: Cost | None = None
    """What it costs on nodes that no profile governs."""
    kopf: Found | None = None


async def measure(control_plane: ControlPlane, size: Size, *, beside: bool) -> Result:
    """Measure at one size; `beside`: the controller on kopf, and the built-in profile, too."""
    cfg = config.load(str(control_plane.kubeconfig))
    async with client.Client(cfg, user_agent="bench", max_connections=64) as api:
        bench = Bench(control_plane, api, size)
        await bench.fill()
        with term.step("what a pod costs by itself"):
            bare = await bench.cost()
        async with bench.watched():
            ours = await bench.run("swapwarden", lambda: Controller(control_plane).process, LEADS)
            with term.step("swapwarden: the next leader"):
                ours = dataclasses.replace(ours, next=await bench.restart())
            if not beside:
                return Result(size, ours, bare)
            plans = await bench.plans()
            await bench.clear()
            with contextlib.ExitStack() as stack:
                kopf = await bench.run(
                    "kopf", lambda: stack.enter_context(bench.program("kopf_controller")), "no such line"
                )
            if await bench.plans() != plans:
                raise process.ProcessError("the two controllers do not write the same states")
            term.say("both controllers write the same states")
            await bench.clear()
            await bench.load.remove_profile()
            with term.step("what a pod costs where no profile selects its node"), Controller(control_plane):
                await bench.until(bench.is_complete)
                return Result(size, ours, bare, await bench.cost(), kopf)


def run(size: Size, *, beside: bool) -> Result:
    """A control plane of its own for each size."""
    term.say(f"{size} nodes/pods")
    with ControlPlane(etcd_quota=ETCD_QUOTA) as control_plane:
        control_plane.apply_crds(CRDS)
        control_plane.apply(*manifests.other_manifests())
        control_plane.create_namespace("bench")
        return asyncio.run(measure(control_plane, size, beside=beside))


# --- what is said of it ---


def figures(found: Found, bare: Cost) -> dict[str, float]:
    """A line of the table for each."""
    lines = {
        "cold start, s": found.cold,
        "  of these since it led": found.plan,
        "next leader: full plan, s": found.next,
        "RSS peak, MiB": found.peak / MIB,
        "RSS settled, MiB": found.settled / MIB,
    }
    for rate, pace in found.paces.items():
        per_rate = {
            "made, /s": pace.achieved,
            "bind to state p50, ms": quantile(pace.took, 0.5) * 1000,
            "bind to state p99, ms": quantile(pace.took, 0.99) * 1000,
            "Disabled p99, ms": quantile(pace.disabled, 0.99) * 1000,
            "pods in no state": pace.lost,
            **{f"{name}, cores": used for name, used in pace.cores.items()},
            "others, cores": pace.others,
            "all cores busy, %": pace.busy * 100,
        }
        lines |= {f"{rate:>3} changes/s: {name}": value for name, value in per_rate.items()}
    cost = found.cost
    return lines | {
        "etcd bytes per pod start, KiB": cost.start_bytes / 1024,
        "  less the pod's own": (cost.start_bytes - bare.start_bytes) / 1024,
        "etcd bytes per pod's life, KiB": cost.life_bytes / 1024,
        "  less the life's own": (cost.life_bytes - bare.life_bytes) / 1024,
        "state writes per pod's life": cost.life_states,
        "status writes per pod's life": cost.life_statuses,
        "writes per container start": cost.writes_per_container,
    }


def show(title: str, columns: dict[str, dict[str, float]]) -> None:
    """Print a table, each column beside its ratio to the one before."""
    print(title)
    heads = [f"{name:>14}{'' if not at else '  ratio':7}" for at, name in enumerate(columns)]
    print(f"{'':40}{''.join(heads)}")
    values = list(columns.values())
    for key in values[0]:
        cells = []
        for at, column in enumerate(values):
            before = values[at - 1][key] if at else 0.0
            ratio = f"{column[key] / before:7.2f}" if before > 0 else f"{'':7}"
            cells.append(f"{column[key]:14,.2f}{ratio}")
        print(f"{key:40}{''.join(cells)}")
    sys.stdout.flush()


def remarks(results: Sequence[Result]) -> Iterator[str]:
    """What the tables do not say."""
    for result in results:
        size = result.size
        if size.agents < size.nodes:
            yield f"{size}: {size.agents:,} agents have a watch of their own, one watch serves the other nodes"
        for rate, pace in result.ours.paces.items():
            if pace.busy > SATURATED or pace.achieved < SATURATED * rate:
                yield (
                    f"{size}: at {rate} changes/s the machine is the limit: {pace.achieved:.0f} were made a second,"
                    f" all cores {pace.busy:.0%} busy, the controller takes {pace.cores['controller']:.2f} of one"
                )
                break
        if any(pace.others > DISTURBED for pace in result.ours.paces.values()):
            yield f"{size}: THE MACHINE HAD OTHER THINGS TO DO: times and latencies say little"
    yield f"etcd's quota is {ETCD_QUOTA >> 30} GiB, and it waits for no disk"


def budgets(results: Sequence[Result]) -> Iterator[tuple[str, float, float]]:
    """What is promised: its name, what was found, and the most that is allowed."""
    largest = results[-1]
    if largest.size == SIZES[-1]:
        yield "RSS, MB", largest.ours.peak / 1e6, MAX_RSS / 1e6
        yield "full plan of the next leader, s", largest.ours.next, MAX_PLAN_SECONDS
        yield f"cores at {JUDGED} changes/s", largest.ours.paces[JUDGED].cores["controller"], MAX_CORES
    added = max(each.ours.cost.start_bytes - each.bare.start_bytes for each in results)
    yield "KiB that a pod's start adds to etcd", added / 1024, MAX_ETCD_BYTES / 1024
    yield "writes per container start", max(each.ours.cost.writes_per_container for each in results), MAX_WRITES


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--up-to",
        type=int,
        choices=[size.nodes for size in SIZES],
        default=SIZES[-1].nodes,
        help="nodes of the largest size to run (default: %(default)s)",
    )
    parser.add_argument("--without-kopf", action="store_true", help="leave the controller on kopf out")
    options = parser.parse_args(arguments)
    process.exit_on_sigterm()
    results = [
        run(size, beside=size == SIZES[0] and not options.without_kopf) for size in SIZES if size.nodes <= options.up_to
    ]
    show("swapwarden controller", {str(each.size): figures(each.ours, each.bare) for each in results})
    smallest = results[0]
    if smallest.kopf and smallest.built_in:
        peers = {"swapwarden": smallest.ours, "kopf": smallest.kopf}
        show(f"beside kopf, {smallest.size}", {name: figures(each, smallest.bare) for name, each in peers.items()})
        cost, own = smallest.built_in, smallest.bare.start_bytes
        print(
            f"where no profile selects the node: {cost.start_bytes / 1024:.1f} KiB to etcd per pod start,"
            f" {(cost.start_bytes - own) / 1024:.1f} of them beyond the pod's own,"
            f" {cost.writes_per_container:.2f} writes per container start"
        )
    for remark in remarks(results):
        print(remark)
    judged = list(budgets(results))
    holds = all(found <= most for _, found, most in judged)
    shown = ", ".join(f"{name} {found:.2f} (at most {most:g})" for name, found, most in judged)
    left_out = "" if results[-1].size == SIZES[-1] else f"; those for {SIZES[-1]} nodes/pods were not measured"
    print(f"budgets: {'hold' if holds else 'DO NOT HOLD'}: {shown}{left_out}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
