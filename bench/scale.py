"""The controller at scale: a real kube-apiserver and etcd, fake nodes and pods, `swapwarden controller` as a process.

For each size it reports the costs of a start, memory, CPU and the time from a pod's binding to its node's state at
several rates of change, and the costs of a pod's life for etcd and the API server; then the growth of each figure from
size to size. At the smallest size, in the same run, a controller on kopf alone does the same work, and the controller
itself plans memory QoS as well. etcd syncs nothing to disk, agents are imitated (bench/agents.py), and all of it shares
one machine, so absolute times are of this machine. The last line reports whether the budgets hold: exit status 1 if one
is exceeded.
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
from swapwarden.kube import client, config

from bench.cgroups import cpu_seconds
from bench.load import LIVES_FOR, STARTS_AFTER, Bound, Load, Observer, roles
from bench.scale_report import (
    ETCD_QUOTA,
    SIZES,
    STARTS,
    Cost,
    Counters,
    Found,
    Pace,
    Result,
    Size,
    budgets,
    figures,
    remarks,
    show,
)
from testbed.base import paths, process, term
from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests, part
from testbed.product.controller import Controller

RATES: Final = {10: 20.0, 100: 15.0, 300: 10.0}
"""Changes of pods a second, and for how many seconds they are measured."""
STARTS_PER_SECOND: Final = 10
"""Slow, so that no two of them share a write."""
STORED: Final = "etcd_debugging_mvcc_total_put_size_in_bytes"
LEADS: Final = '"this instance leads"'
DEADLINE: Final = 900.0
MEMORY_QOS: Final = {"reservationPolicy": "Soft", "throttlingPercent": 90}
QUIET: Final = status_writer.GENERATION_SECONDS + 2.0
"""Seconds without a write after which no more are expected."""


def counters(control_plane: ControlPlane) -> Counters:
    text = control_plane.request("GET", "/metrics")[1]
    kind = {"group": names.GROUP, "resource": names.STATE_PLURAL}
    statuses = part.total(text, "apiserver_request_total", verb="PATCH", subresource="status", **kind)
    states = sum(
        part.total(text, "apiserver_request_total", verb=verb, subresource="", **kind) for verb in ("PATCH", "POST")
    )
    return Counters(part.total(control_plane.servers.etcd.metrics(), STORED), states, statuses)


def machine_seconds() -> tuple[float, float]:
    """Return the busy time of all cores, and their whole time, in ticks."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return float(sum(fields) - fields[3] - fields[4]), float(sum(fields))


def whole_seconds(pid: int) -> float:
    """Return the CPU time of a process, also in threads that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    """One cluster, and the measurements in it."""

    def __init__(self, control_plane: ControlPlane, api: client.Client, size: Size) -> None:
        self._control_plane = control_plane
        self._size = size
        self.load = Load(api, size.nodes)
        self.observer = Observer(api)
        self._pids: dict[str, int] = {}

    async def fill(self) -> None:
        """Make the objects that exist from the start."""
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
        """Run a program of this folder, as the administrator."""
        argv = [sys.executable, "-m", f"bench.{name}", f"--kubeconfig={self._control_plane.kubeconfig}", *options]
        with process.Process(name, argv, log=self._control_plane.folder / f"{name}.log") as running:
            yield running

    async def until(self, condition: Callable[[], bool], *running: process.Process) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            for each in running:
                each.check_alive()
            if time.monotonic() > deadline:
                raise process.ProcessError(f"missing after {DEADLINE:.0f} s\n{self._control_plane.servers.logs()}")
            await asyncio.sleep(0.02)

    async def counted(self) -> Counters:
        """Wait until nobody writes states any more; return the counters until then."""
        before = await asyncio.to_thread(counters, self._control_plane)
        while True:
            await asyncio.sleep(QUIET)
            after = await asyncio.to_thread(counters, self._control_plane)
            if (after.states, after.statuses) == (before.states, before.statuses):
                return after
            before = after

    # Measures

    async def cost(self) -> Cost:
        """Count the costs of pods, one after the other."""

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
        """Let pods start and end for some seconds, as many each."""
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
            settled = process.resident(controller.pid)
            with term.step(f"{name}: what a pod costs"):
                cost = await self.cost()
            used = whole_seconds(controller.pid)
            paces = {}
            for rate, seconds in RATES.items():
                with term.step(f"{name}: {rate} changes/s"):
                    paces[rate] = await self.pace(rate, seconds, controller)
            return Found(cold, plan, math.nan, process.status(controller.pid, "VmHWM"), settled, used, paces, cost)

    def is_complete(self) -> bool:
        return len(self.observer.informer.rows) == self._size.nodes and self.observer.pods >= self._size.pods

    async def plans(self) -> dict[str, Any]:
        """Return all states' specs, by node."""
        found = await asyncio.to_thread(self._control_plane.get, names.STATES_PATH)
        return {item["metadata"]["name"]: {**item["spec"], "epoch": 0} for item in found["items"]}

    async def restart(self) -> float:
        """Return the seconds in which another leader, from its lead on, plans all nodes, if all states exist."""
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


async def measure(control_plane: ControlPlane, size: Size, *, beside: bool) -> Result:
    """Measure at one size; with `beside`, also the controller on kopf, memory QoS and the built-in profile."""
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
                # It may be behind when the last pace ends.
                await bench.counted()
                found = await bench.plans()
            if different := [name for name in plans | found if found.get(name) != plans.get(name)]:
                raise process.ProcessError(f"both write other states for {len(different)} nodes: {different[0]}")
            term.say("both controllers write the same states")
            await bench.clear()
            await bench.load.remove_profile()
            await bench.load.make_profile(names.Behavior.LIMITED_SWAP, memoryQoS=MEMORY_QOS)
            memory = await bench.run("swapwarden, memory QoS", lambda: Controller(control_plane).process, LEADS)
            await bench.clear()
            await bench.load.remove_profile()
            with term.step("what a pod costs on a node that no profile selects"), Controller(control_plane):
                await bench.until(bench.is_complete)
                return Result(size, ours, bare, await bench.cost(), kopf, memory)


def run(size: Size, *, beside: bool) -> Result:
    """Run each size on a control plane of its own."""
    term.say(f"{size} nodes/pods")
    with ControlPlane(etcd_quota=ETCD_QUOTA) as control_plane:
        control_plane.apply_crds(paths.CRDS)
        control_plane.apply(*manifests.other_manifests())
        control_plane.create_namespace("bench")
        return asyncio.run(measure(control_plane, size, beside=beside))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--up-to",
        type=int,
        choices=[size.nodes for size in SIZES],
        default=SIZES[-1].nodes,
        help="nodes of the largest size to run (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    process.exit_on_sigterm()
    results = [run(size, beside=size == SIZES[0]) for size in SIZES if size.nodes <= options.up_to]
    show("swapwarden controller", {str(each.size): figures(each.ours, each.bare) for each in results})
    smallest = results[0]
    if smallest.kopf and smallest.built_in:
        peers = {"swapwarden": smallest.ours, "kopf": smallest.kopf}
        show(f"beside kopf, {smallest.size}", {name: figures(each, smallest.bare) for name, each in peers.items()})
        if smallest.memory_qos:
            both = {"without": smallest.ours, "memory QoS": smallest.memory_qos}
            show("beside memory QoS", {name: figures(each, smallest.bare) for name, each in both.items()})
        cost, own = smallest.built_in, smallest.bare.start_bytes
        print(
            f"on a node that no profile selects: {cost.start_bytes / 1024:.1f} KiB to etcd per pod start,"
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
