"""Nodes under scripted memory pressure, an API server, and leaders that follow each other, in simulated time.

The decisions are the product's: handler, term, queue and inventory run as they are. The rest is a model:
latencies and faults come from a seed.
"""

from __future__ import annotations

import asyncio
import functools
import random
import urllib.parse
from collections.abc import Coroutine, Iterable
from typing import Any, Final, cast
from unittest import mock

import msgspec
from swapwarden.api import names, state
from swapwarden.api import profile as api
from swapwarden.api.notices import Notice
from swapwarden.controller.pressure import budgets, handler
from swapwarden.controller.term import Term
from swapwarden.controller.writers import fenced, victims
from swapwarden.kube import backoff, client, errors, events, ratelimit, transport
from swapwarden.policy import plan
from swapwarden.policy.fleet import cluster
from swapwarden.policy.observed import nodes, states
from swapwarden.policy.pressure import handling
from swapwarden.policy.profile import compiled

from tests.unit.controller.pressure.simulated.clock import SimulatedLoop
from tests.unit.controller.pressure.simulated.judge import Judge, Request
from tests.unit.controller.pressure.simulated.machines import BELOW, CLEAR, MEMORY, MI, SWAP, Json, Machine, Pod
from tests.unit.objects import profile_object

REPORT_SECONDS: Final = 5.0
TAINT: Final = nodes.WireTaint(names.PRESSURE_TAINT, "NoSchedule")


class Load(msgspec.Struct, frozen=True):
    """A script."""

    nodes: int
    pools: int
    pressed: tuple[int, ...]
    """Nodes of each pool that come under pressure."""
    ramp: float
    """Seconds in which they do."""
    seconds: float
    failovers: tuple[float, ...] = ()
    """When a leader ends: in turns cleanly, and without knowing that another one leads."""
    lost: float = 0.1
    """Share of the reports that never arrive."""
    late: float = 0.1
    """Share that arrives up to 8 s late."""
    faults: float = 0.03
    """Share of the requests that fail, executed or not."""
    per_hour: int = 6
    """Most evictions from a node in an hour."""
    seed: int = 1


class Server(client.Client):
    """The API server, as one leader reaches it."""

    def __init__(self, world: World) -> None:  # the connection is a model
        self._world = world

    async def answer(self, call: transport.Call, timeout: float) -> bytes:  # noqa: ASYNC109 as in the client
        return await self._world.answer(call, timeout)


class Lease:
    """Until when an instance believes that it leads."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ends = float("inf")

    def left(self) -> float:
        return max(0.0, self.ends - self._world.now())


class Instance:
    """A leader with its memory, and its watch."""

    def __init__(self, world: World, epoch: int) -> None:
        self.lease, self.known = Lease(world), cluster.Cluster()
        self._world = world
        self._seen: dict[str, states.StateRow] = {}
        self.term = Term(epoch, self.lease)
        for machine in world.machines.values():
            self.known.node_changed(machine.name, machine.row)
        self.known.profiles_changed(world.profiles)
        server = Server(world)
        writes = fenced.Fenced(server, self.term, ratelimit.Throttle(300, world.now))
        recorder = cast("events.Recorder", self)

        async def ask(pod: Any) -> handling.EvictionAnswer:
            return await budgets.ask(server, pod)

        records = victims.VictimWriter(writes, self.known.wrote)
        evict = functools.partial(budgets.evict, server, self.term)
        self.handler = handler.PressureHandler(
            self.known,
            server,
            self.term,
            recorder,
            records,
            ask=ask,
            evict=evict,
            now=world.now,
            today=lambda: 1e9 + world.now(),
        )
        for machine in world.machines.values():
            self.receive(machine.name, machine.wire(), first=True)
        self.job = asyncio.create_task(self.handler.run())

    def post(self, *_: Notice) -> None:
        """In place of the recorder."""

    def receive(self, name: str, wire: bytes, *, first: bool = False) -> None:
        """Take in a state as a watch reports it."""
        row = states.decode(wire)
        old = None if first else self._seen.get(name)
        self._seen[name] = row
        self.known.state_changed(name, old, row)
        self.handler.state_changed(name, old, row)
        if row.pressure is not None and self.known.inventory.nodes[name].place(names.PRESSURE_TAINT) is None:
            self._world.taint(self.known, name)


class World:
    """Nodes, pods and the API server."""

    def __init__(self, load: Load, loop: SimulatedLoop) -> None:
        self.load, self.now = load, loop.time
        self._loop = loop
        self._random = random.Random(load.seed)  # noqa: S311 a script, no secret
        self.profiles = {
            f"pool-{number}": self._profile(f"pool-{number}", load.per_hour) for number in range(load.pools)
        }
        self.machines: dict[str, Machine] = {}
        for number in range(load.nodes):
            self._machine(f"n{number}", f"pool-{number % load.pools}")
        self.epoch = 0
        self.instances: list[Instance] = []
        self._watched = 0.0
        self._replaced = 0
        self.judge = Judge(self.machines, load.per_hour)
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def _profile(name: str, per_hour: int) -> compiled.Profile:
        selector, swap = {"matchLabels": {"pool": name}}, {"behavior": "LimitedSwap"}
        pressure = {"mode": "Enforce", "taintEffect": "NoSchedule", "eviction": {"perNodePerHour": per_hour}}
        body = profile_object(name, nodeSelector=selector, swap=swap, pressure=pressure)
        return compiled.compile_profile(api.NodeSwapProfile.model_validate(body))

    def _machine(self, name: str, pool: str) -> None:
        facts = nodes.facts(nodes.NodeRow(name, f"uid-of-{name}", {}, SWAP, MEMORY), None)
        machine = self.machines[name] = Machine(name, pool, plan.plan_node(self.profiles[pool], facts, ()))
        draw = self._random
        for pod in (
            Pod(f"{name}-grows", name, 1000, 700),
            Pod(f"{name}-exceeds", name, draw.choice((100, 400)), draw.choice((450, 900))),
            Pod(f"{name}-large", name, 3000, 2800, 100),
            Pod(f"{name}-daemon", name, 100, 700, kind="DaemonSet"),
            Pod(f"{name}-alone", name, 100, 600, kind=draw.choice(("", "DaemonSet"))),
            Pod(f"{name}-critical", name, 100, 500, critical=draw.random() < 0.5, namespace="kube-system"),
            Pod(f"{name}-kept", name, 100, 400, kept=True),
            Pod(f"{name}-budget", name, 100, 1000, budget=True),
        ):
            machine.pods[pod.name] = pod

    # Time

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something happen beside all else."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self) -> None:
        """Run the script."""
        begun, load = self.now(), self.load
        for pool, count in enumerate(load.pressed):
            members = [machine for machine in self.machines.values() if machine.pool == f"pool-{pool}"]
            for machine in members[:count]:
                self.start(self._grow(machine, self._random.uniform(0, load.ramp)))
        await self._lead()
        for number, at in enumerate(load.failovers):
            await asyncio.sleep(begun + at - self.now())
            await self._fail_over(clean=number % 2 == 0)
        await asyncio.sleep(begun + load.seconds - self.now())
        for instance in self.instances:
            instance.job.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *(one.job for one in self.instances), return_exceptions=True)

    async def _lead(self) -> None:
        self.epoch += 1
        self.instances.append(Instance(self, self.epoch))

    async def _fail_over(self, *, clean: bool) -> None:
        """Let another instance lead: once this one has given the lease back, or a third of it after its end."""
        old = self.instances[-1]
        if clean:
            await old.term.drain()
            old.job.cancel()
            await asyncio.sleep(1.0)
        else:
            old.lease.ends = self.now() + 10.0
            await asyncio.sleep(15.0)
            old.job.cancel()
        await self._lead()

    # Nodes

    async def _grow(self, machine: Machine, wait: float) -> None:
        """Let pods of a node grow until little memory is left, and its agent report that."""
        await asyncio.sleep(wait)
        pod, second = (machine.pods[f"{machine.name}-{name}"] for name in ("grows", "exceeds"))
        if self._random.random() < 0.5:  # then one eviction is not enough
            pod.memory += 2500
            second.memory += 900
        pod.memory += max(0, machine.free() - BELOW) // MI + self._random.randint(20, 300)
        pod.swap = self._random.randint(0, 300)
        await asyncio.sleep(5.0)
        while machine.free() < CLEAR:
            await self._report(machine)
            await asyncio.sleep(REPORT_SECONDS + self._random.uniform(0, 0.2))
        await asyncio.sleep(1.0)
        self._signal(machine, None)

    async def _report(self, machine: Machine) -> None:
        machine.seq += 1
        if self._random.random() < self.load.lost:
            return
        found = {pod.uid: pod.usage for pod in machine.pods.values()}
        body = {
            "seq": machine.seq,
            "signal": "Headroom",
            "scope": "Node",
            "headroomBytes": max(0, machine.free()),
            "since": "s",
            "pods": [
                {"pod": pod.uid, "workingSetBytes": pod.memory * MI, "swapBytes": pod.swap * MI}
                for pod in machine.pods.values()
            ],
        }
        if self._random.random() < self.load.late:
            await asyncio.sleep(self._random.uniform(1, 8))
        machine.reports.append((self.now(), found))
        machine.arrived[machine.seq] = self.now()
        self._signal(machine, body)

    def taint(self, known: cluster.Cluster, name: str) -> None:
        """Let the node have its taint soon, as the reconciler would."""
        tainted = msgspec.structs.replace(self.machines[name].row, taints=(TAINT,))
        self._loop.call_later(self._random.uniform(0.05, 0.2), known.node_changed, name, tainted)

    def _signal(self, machine: Machine, body: Json | None) -> None:
        """Store a node's report, or that it is under pressure no more."""
        change = (body is not None) - (machine.pressure is not None)
        machine.pressure = body
        self.judge.signal(machine, change, self.now())
        self._changed(machine)

    def _changed(self, machine: Machine, *, spec: bool = False) -> None:
        """Store a change of the node's state, and let watches report it in its turn."""
        machine.version += 1
        machine.generation += spec
        self._watched = max(self._watched, self.now() + self._random.uniform(0.002, 0.05))
        wire = machine.wire()
        for instance in self.instances:
            if not instance.job.cancelled():
                self._loop.call_at(self._watched, instance.receive, machine.name, wire)

    # The API server

    async def answer(self, call: transport.Call, timeout: float) -> bytes:  # noqa: ASYNC109 as in the client
        """Answer a request some time later; or fail, before or after it was executed."""
        sent, fault = self.now(), self._random.random()
        await asyncio.sleep(self._random.uniform(0.001, 0.03))
        if fault < self.load.faults / 3:
            raise errors.ApiError(500, "InternalError", "etcd is away")
        if fault < self.load.faults * 2 / 3:
            raise errors.ApiError(429, "TooManyRequests", "busy", 1.0)
        answer = self._execute(call, sent)
        if fault < self.load.faults:
            await asyncio.sleep(timeout)
            raise errors.Unreachable("no answer")
        await asyncio.sleep(self._random.uniform(0.001, 0.03))
        return answer

    def _execute(self, call: transport.Call, sent: float) -> bytes:
        path, params = call.path, dict(call.params or {})
        if call.method == "PATCH" and path.startswith(names.STATES_PATH):
            return self._patch(self.machines[path.rpartition("/")[2]], msgspec.json.decode(call.body or b""), sent)
        if call.method == "POST" and path.endswith("/eviction"):
            return self._evict(urllib.parse.unquote(path.split("/")[6]), call, sent, dry="dryRun" in params)
        if call.method == "GET":
            items = [pod.wire() for pod in self._selected(params["fieldSelector"].split(",")[0])]
            return msgspec.json.encode({"items": items, "metadata": {}})
        raise AssertionError(call)

    def _selected(self, selector: str) -> Iterable[Pod]:
        field, _, value = selector.partition("=")
        if field == "spec.nodeName":
            return self.machines[value].pods.values()
        pod = self.machines[value.partition("-")[0]].pods.get(value)
        return [] if pod is None else [pod]

    def _pod(self, name: str) -> Pod:
        found = self.machines[name.partition("-")[0]].pods.get(name)
        if found is None:
            raise errors.ApiError(404, "NotFound", f"pods {name} not found")
        return found

    def _patch(self, machine: Machine, body: Json, sent: float) -> bytes:
        metadata, spec = body["metadata"], body["spec"]
        if spec["epoch"] < machine.spec.get("epoch", 0):
            raise errors.ApiError(422, "Invalid", state.EPOCH_REFUSAL)
        if int(metadata.get("resourceVersion", machine.version)) != machine.version:
            raise errors.ApiError(409, "Conflict", "the object has been modified")
        before, victim = machine.victim, spec["pressure"]["victim"]
        machine.spec["epoch"] = spec["epoch"]
        machine.spec["pressure"].pop("victim", None)
        if victim is not None:
            machine.spec["pressure"]["victim"] = victim
            if before != victim["uid"]:
                request = Request(sent, self.now(), machine.name, victim["uid"], spec["epoch"])
                self.judge.recorded(machine, before, request)
        if "evictedAt" in spec["pressure"]:
            machine.spec["pressure"]["evictedAt"] = spec["pressure"]["evictedAt"] or []
        self._changed(machine, spec=True)
        return machine.wire()

    def _evict(self, name: str, call: transport.Call, sent: float, *, dry: bool) -> bytes:
        pod, body = self._pod(name), msgspec.json.decode(call.body or b"")
        options = body["deleteOptions"]
        if options["preconditions"]["uid"] != pod.uid:
            raise errors.ApiError(409, "Conflict", "the UID differs")
        if pod.budget and pod.ends is None:
            raise errors.ApiError(429, "TooManyRequests", "budget", causes=frozenset({"DisruptionBudget"}))
        if not dry and pod.ends is None:
            self.judge.evicted(pod, Request(sent, self.now(), pod.node, pod.uid, self.epoch))
            pod.evicted, pod.ends = True, self.now() + self._random.uniform(0.5, options["gracePeriodSeconds"])
            self.start(self._end(pod))
        return b"{}"

    async def _end(self, pod: Pod) -> None:
        machine = self.machines[pod.node]
        await asyncio.sleep((pod.ends or 0.0) - self.now())
        del machine.pods[pod.name]
        machine.terminated = self.now()
        await asyncio.sleep(self._random.uniform(1, 10))
        self._replaced += 1
        new = Pod(f"{machine.name}-again{self._replaced}", machine.name, 1000, self._random.choice((300, 700, 3000)))
        machine.pods[new.name] = new


def simulate(load: Load) -> World:
    """Run a script in simulated time."""
    draw = random.Random(load.seed)  # noqa: S311 a script, no secret

    def between(least: float, longest: float) -> float:
        return draw.uniform(least, longest)

    loop = SimulatedLoop()
    asyncio.set_event_loop(loop)
    try:
        world = World(load, loop)
        with mock.patch.object(backoff, "between", between):  # waits after failures
            loop.run_until_complete(world.run())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    return world
