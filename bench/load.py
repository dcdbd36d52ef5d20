"""A cluster of objects alone: nodes, pods that run there, pods that start and end, and an observer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec
from swapwarden.api import names, state
from swapwarden.controller.writers import nodes as node_writer
from swapwarden.kube import client, errors, informer

NAMESPACE: Final = "bench"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
PROFILES: Final = f"/apis/{names.API_VERSION}/{names.PROFILE_PLURAL}"
REQUESTS_AT_ONCE: Final = 32
DISABLED_EVERY: Final = 10
"""One pod of this many has the policy Disabled."""
CONTAINERS: Final = {"app": "128Mi", "sidecar": "64Mi"}
"""Names with memory requests. One pod in three has a sidecar."""
SIDECAR_EVERY: Final = 3
STARTS_AFTER: Final = 1.0
"""Seconds from a pod's binding to the start of its containers."""
LIVES_FOR: Final = 3.0
"""Seconds from a pod's binding to its end."""
CROWD: Final = 3
"""Up to this multiple of the intended number of lives at a time."""
CHANGES_OF_A_LIFE: Final = 3
"""It is bound, its containers start, it is deleted."""
BEGUN: Final = "2026-01-01T00:00:00Z"

T = TypeVar("T")
Json = dict[str, Any]


def node_name(number: int) -> str:
    return f"node-{number:05}"


def node_status() -> Json:
    """Return a node of 64 GiB with 8 GiB of swap."""
    fields = ["machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"]
    fields += ["kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"]
    info = {**dict.fromkeys(fields, ""), "swap": {"capacity": 8 << 30}}
    return {"status": {"capacity": {"memory": "64Gi", "cpu": "32", "pods": "110"}, "nodeInfo": info}}


def roles(number: int) -> tuple[str, ...]:
    """Return the names of a pod's containers."""
    return tuple(CONTAINERS) if number % SIDECAR_EVERY == 0 else ("app",)


def pod(name: str, node: str, number: int, *, disabled: bool) -> Json:
    """Return a bound pod as a Deployment makes it."""
    env = [{"name": f"SETTING_{at}", "value": f"value-{at}-of-a-usual-length"} for at in range(8)]
    containers = [
        {
            "name": role,
            "image": "registry.example.com/team/service-with-a-long-name:1.2.3",
            "env": env,
            "resources": {"requests": {"cpu": "100m", "memory": CONTAINERS[role]}, "limits": {"memory": "256Mi"}},
            "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10},
        }
        for role in roles(number)
    ]
    annotations = {names.POLICY_ANNOTATION: names.Policy.DISABLED.value} if disabled else {}
    metadata = {"name": name, "labels": {"app": "shop", "pod-template-hash": "7c9d8f6b5d"}, "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": containers}}


def running(number: int) -> Json:
    """Return a kubelet's report on a pod whose containers have started."""
    statuses = [
        {
            "name": role,
            "containerID": f"containerd://{number * len(CONTAINERS) + at:064x}",
            "image": "registry.example.com/team/service-with-a-long-name:1.2.3",
            "imageID": f"registry.example.com/team/service-with-a-long-name@sha256:{1:064x}",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": BEGUN}},
        }
        for at, role in enumerate(roles(number))
    ]
    kinds = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": BEGUN} for kind in kinds]
    found = {"phase": "Running", "startTime": BEGUN, "podIP": "10.0.0.1", "conditions": conditions}
    return {"status": {**found, "containerStatuses": statuses}}


@dataclasses.dataclass(frozen=True)
class Bound:
    """A pod, and when it was bound (CLOCK_MONOTONIC in seconds)."""

    name: str
    number: int
    uid: str
    disabled: bool
    at: float


class Load:
    """Make the objects, as the administrator."""

    def __init__(self, api: client.Client, nodes: int) -> None:
        self._api = api
        self.nodes = nodes
        self._numbers = 0
        self.changes = 0
        """The number of pods made so far."""

    async def make_nodes(self) -> None:
        async def make(number: int) -> None:
            name = node_name(number)
            await self._api.post(node_writer.NODES, msgspec.json.encode({"metadata": {"name": name}}))
            await self._api.merge_patch(f"{node_writer.NODES}/{name}/status", msgspec.json.encode(node_status()))

        await _each(range(self.nodes), make)

    async def make_profile(self, behavior: names.Behavior, **more: Json) -> None:
        spec = {"nodeSelector": {}, "swap": {"behavior": behavior.value}, **more}
        kind = {"apiVersion": names.API_VERSION, "kind": names.PROFILE_KIND}
        await self._api.post(PROFILES, msgspec.json.encode({**kind, "metadata": {"name": "bench"}, "spec": spec}))

    async def remove_profile(self) -> None:
        await self._api.delete(f"{PROFILES}/bench")
        # The bench does not measure its end in waves.
        with contextlib.suppress(errors.ApiError):
            await self._api.merge_patch(f"{PROFILES}/bench", b'{"metadata": {"finalizers": null}}')

    async def make_pods(self, count: int, show: Callable[[int], None]) -> None:
        """Make so many running pods, spread over all nodes; call `show` with the number made so far."""
        done = 0

        async def make(_: int) -> None:
            nonlocal done
            await self.begin(await self.bind())
            done += 1
            show(done)

        await _each(range(count), make)

    async def bind(self) -> Bound:
        """Make a pod that is bound to the next node."""
        number, self._numbers = self._numbers, self._numbers + 1
        # On all nodes, not on each tenth.
        disabled = (number + number // self.nodes) % DISABLED_EVERY == 0
        name = f"shop-7c9d8f6b5d-{number:06}"
        body = json.dumps(pod(name, node_name(number % self.nodes), number, disabled=disabled)).encode()
        made = json.loads(await self._api.post(PODS, body))
        self.changes += 1
        return Bound(name, number, made["metadata"]["uid"], disabled, time.monotonic())

    async def begin(self, one: Bound) -> None:
        """Start its containers."""
        body = json.dumps(running(one.number)).encode()
        await self._api.merge_patch(f"{PODS}/{one.name}/status", body)
        self.changes += 1

    async def end(self, one: Bound) -> None:
        """Delete it."""
        await self._api.delete(f"{PODS}/{one.name}", params={"gracePeriodSeconds": "0"})
        self.changes += 1

    async def churn(self, rate: float, seconds: float) -> list[Bound]:
        """Make pods live and die so that there are `rate` changes a second; return the bound ones.

        Lives begin on time whatever became of earlier ones, like those of pods, unless there are far too many by then;
        a life that the API server does not answer in time is given up.
        """
        begun, born, alive = time.monotonic(), [], 0
        births = rate / CHANGES_OF_A_LIFE

        async def live() -> None:
            nonlocal alive
            alive += 1
            with contextlib.suppress(errors.Unreachable):
                one = await self.bind()
                born.append(one)
                await asyncio.sleep(STARTS_AFTER)
                await self.begin(one)
                await asyncio.sleep(LIVES_FOR - STARTS_AFTER)
                await self.end(one)
            alive -= 1

        async with asyncio.TaskGroup() as group:
            for number in range(int(births * seconds)):
                await asyncio.sleep(max(0.0, begun + number / births - time.monotonic()))
                if alive < CROWD * births * LIVES_FOR:
                    group.create_task(live())
        return born

    async def remove_states(self) -> None:
        await self._api.delete(names.STATES_PATH)


async def _each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(REQUESTS_AT_ONCE):
            group.create_task(worker())


class _WireState(msgspec.Struct, frozen=True):
    metadata: state.ObjectMeta
    spec: msgspec.Raw


class _Spec(msgspec.Struct):
    pods: dict[str, msgspec.Raw] = {}


class Observer:
    """Follow all states, and note when each pod first appeared in one."""

    def __init__(self, api: client.Client) -> None:
        self.seen: dict[str, float] = {}
        """By the pod's UID: its time (CLOCK_MONOTONIC in seconds)."""
        self.last = 0.0
        """When a state last changed."""
        self.pods = 0
        """The number of pods in all states."""
        self.informer = informer.Informer(
            api, names.STATES_PATH, wire=_WireState, project=_keys, name="observed", on_change=self._changed
        )

    def _changed(self, _: str, old: frozenset[str] | None, new: frozenset[str] | None) -> None:
        self.last = time.monotonic()
        before, after = old or frozenset(), new or frozenset()
        self.pods += len(after) - len(before)
        for uid in after - before:
            self.seen.setdefault(uid, self.last)

    def forget(self) -> None:
        """Forget everything observed so far."""
        self.seen.clear()


def _keys(wire: _WireState) -> frozenset[str]:
    return frozenset(msgspec.json.decode(wire.spec, type=_Spec).pods)
