"""The webhook: what it adds to the creation of a pod at a real API server, beside a webhook in Go that does the same.

First both must answer alike about the same pods. Then pods with a policy are created in three namespaces in turn: one
without a webhook, one for `swapwarden webhook`, one for gowebhook/ (controller-runtime). The median with a webhook less
the median without one, turn by turn, is what it adds. Finally each answers reviews alone, over a few connections, for
its CPU time and memory. The numbers are of this machine; only the ratio counts. Exit status 1 if the budget is
exceeded, or if the result is too uncertain.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import http
import itertools
import json
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from bench.cgroups import cpu_seconds
from testbed.base import process
from testbed.controlplane import golang
from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests
from testbed.product.webhook import Webhook

BUDGET = 0.8
"""The most that ours may add to the median, as a share of what the one in Go adds."""
KINDS = ("none", "ours", "go")
ORDERS = list(itertools.permutations(KINDS))
"""The first in a turn meets the clean-up that the last one left."""
SOURCE = Path(__file__).with_name("gowebhook")
POLICIES = ("Required", "Disabled", "NoPreference", "Preferred", "Avoid", "disable")
MIB = 1 << 20
WARM_UP = 200
ALIKE = 120
"""Pods to ask both about before anything is measured."""
SHAPES = 512
"""Different reviews; a connection sends them in turn."""
REQUESTS_PER_CONNECTION = 5000
FLAT = 1.05, MIB
"""The limit of memory at the end, relative to the end of the first quarter: a factor, and bytes more."""

Json = dict[str, Any]


def pod(name: str) -> Json:
    """Return a pod as a Deployment makes it, that must run on a node with swap: about 3 KB."""
    env = [{"name": f"SETTING_{at}", "value": f"value-{at}-of-a-usual-length"} for at in range(12)]
    probe = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10}
    containers = [
        {
            "name": role,
            "image": "example.com/team/service-with-a-long-name:1.2.3",
            "env": env,
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
            "livenessProbe": probe,
            "readinessProbe": probe,
        }
        for role in ("main", "sidecar")
    ]
    metadata = {
        "name": name,
        "labels": {"app": "shop", "pod-template-hash": "7c9d8f6b5d"},
        "annotations": {"swapwarden.dev/swap-policy": "Required", "swapwarden.dev/swap-limit": "512Mi"},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def varied(number: int) -> Json:
    """Return pods that differ in their decision, and in texts that caches would keep."""
    body = pod(f"shop-{number}")
    annotations, spec = body["metadata"]["annotations"], body["spec"]
    annotations["swapwarden.dev/swap-policy"] = POLICIES[number % len(POLICIES)]
    annotations["swapwarden.dev/swap-limit"] = "0" if number % 8 == 1 else f"{number}Mi"
    if number % 3 == 0:
        annotations["swap-limit.swapwarden.dev/main"] = f"{number % 2000}Mi"
    if number % 5 == 0:
        annotations["swapwarden.dev/swap-polcy"] = "x"
    if number % 7 == 0:
        spec["nodeSelector"] = {"pool": "a"} if number % 2 else {"node.swapwarden.dev/swap": "true"}
    if number % 11 == 0:
        spec["tolerations"] = [{"key": "node.swapwarden.dev/swap", "operator": "Exists"}]
    if number % 13 == 0:
        term = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
        spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    if number % 17 == 0:
        spec["nodeName"] = "node-1"
    return body


def review(number: int) -> bytes:
    """Return the API server's review of such a pod."""
    request = {
        "uid": "c0ffee00-0000-4000-8000-000000000001",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": f"shop-{number}",
        "namespace": "ours",
        "operation": "CREATE",
        "userInfo": {"username": "jane", "groups": ["system:authenticated"]},
        "object": varied(number),
        "oldObject": None,
        "dryRun": False,
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


# --- the peer ---


class GoWebhook:
    """Run the webhook in Go as a process."""

    def __init__(self, control_plane: ControlPlane, program: Path, folder: Path) -> None:
        certificate, key = control_plane.credentials.issue("gowebhook", ["127.0.0.1"])
        (folder / "tls.crt").write_bytes(certificate.read_bytes())
        (folder / "tls.key").write_bytes(key.read_bytes())
        port = process.free_port()
        self.url = f"https://127.0.0.1:{port}"
        argv = [str(program), f"--port={port}", f"--cert-dir={folder}"]
        self.process = process.Process("gowebhook", argv, log=folder / "log")


# --- creating pods ---


def registration(kind: str, url: str, ca: bytes) -> str:
    """Return the registration of the manifests, for pods of one namespace."""
    (document,) = yaml.safe_load_all(manifests.webhook_manifests(url, ca))
    entry = document["webhooks"][0]
    entry["name"] = f"{kind}.bench.swapwarden.dev"
    entry["namespaceSelector"] = {"matchLabels": {"bench": kind}}
    return yaml.safe_dump({**document, "metadata": {"name": f"bench-{kind}"}, "webhooks": [entry]})


@dataclasses.dataclass
class Creator:
    """Create pods, over as many connections as there are clients."""

    session: aiohttp.ClientSession
    url: str
    number: int = 0

    async def batch(self, kind: str, count: int, clients: int) -> tuple[list[float], float]:
        """Return the milliseconds of each creation, and the seconds of all."""
        names = [f"shop-{self.number + at}" for at in range(count)]
        self.number += count
        pending = iter(names)
        took: list[float] = []
        begun = time.perf_counter()
        await asyncio.gather(*(self._client(kind, pending, took) for _ in range(clients)))
        seconds = time.perf_counter() - begun
        async with self.session.delete(f"{self.url}/api/v1/namespaces/{kind}/pods?gracePeriodSeconds=0") as answer:
            answer.raise_for_status()
            await answer.read()
        return took, seconds

    async def _client(self, kind: str, names: Iterator[str], took: list[float]) -> None:
        for name in names:
            body = json.dumps(pod(name)).encode()
            begun = time.perf_counter()
            headers = {"Content-Type": "application/json"}
            async with self.session.post(
                f"{self.url}/api/v1/namespaces/{kind}/pods", data=body, headers=headers
            ) as answer:
                text = await answer.read()
            took.append((time.perf_counter() - begun) * 1000)
            if answer.status != 201:
                raise process.ProcessError(f"{kind}: {answer.status} {text.decode()}")
            if (b"nodeSelector" in text) != (kind != "none"):
                raise process.ProcessError(f"{kind}: the number of webhook calls is wrong")


@dataclasses.dataclass
class Creations:
    """One way of creating pods with so many clients."""

    turns: list[list[float]] = dataclasses.field(default_factory=list)
    """Milliseconds of each creation, turn by turn."""
    seconds: float = 0.0

    @property
    def took(self) -> list[float]:
        return [each for turn in self.turns for each in turn]

    @property
    def median(self) -> float:
        return statistics.median(self.took)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.took, n=100)[98]

    @property
    def per_second(self) -> float:
        return len(self.took) / self.seconds


async def create(control_plane: ControlPlane, clients: int, rounds: int, count: int) -> dict[str, Creations]:
    """Run all three ways in turn, so that each has the same share of other load on the machine."""
    found = {kind: Creations() for kind in KINDS}
    headers = {"Authorization": f"Bearer {control_plane.token('none', 'default', seconds=7200)}"}
    connector = aiohttp.TCPConnector(limit=clients, ssl=ssl.create_default_context(cafile=str(control_plane.ca_file)))
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        creator = Creator(session, control_plane.url, clients * 1_000_000)
        for kind in KINDS:
            await creator.batch(kind, WARM_UP, clients)
        for number in range(rounds):
            for kind in ORDERS[number % len(ORDERS)]:
                took, seconds = await creator.batch(kind, count, clients)
                found[kind].turns.append(took)
                found[kind].seconds += seconds
    return found


# --- reviews alone ---


def messages(host: str) -> list[bytes]:
    """Return requests with reviews, as bytes."""
    found = []
    for number in range(SHAPES):
        body, path = review(number), "/pods/preferred" if number % 19 == 0 else "/pods"
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        found.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return found


async def ask(url: str, ca: Path, count: int, connections: int) -> None:
    """Send so many reviews, and check each answer's status."""
    host, _, port = url.removeprefix("https://").partition(":")
    context = ssl.create_default_context(cafile=str(ca))
    asked = messages(host)
    left = count

    async def client() -> None:
        nonlocal left
        while left > 0:
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            for _ in range(REQUESTS_PER_CONNECTION):
                if left <= 0:
                    break
                left -= 1
                writer.write(asked[left % SHAPES])
                answer = await reader.readuntil(b"\r\n\r\n")
                if not answer.startswith(b"HTTP/1.1 200"):
                    raise process.ProcessError(answer.decode())
                lines = answer.lower().split(b"\r\n")
                length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
                await reader.readexactly(length)
            writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))


def alone(name: str, url: str, pid: int, ca: Path, reviews: int) -> bool:
    """Print reviews per second of CPU time, and the course of memory; return whether it stayed flat."""
    asyncio.run(ask(url, ca, 2000, 8))
    memory = [process.resident(pid)]
    begun, cpu = time.perf_counter(), cpu_seconds(pid)
    for _ in range(4):
        asyncio.run(ask(url, ca, reviews // 4, 8))
        memory.append(process.resident(pid))
    seconds, used = time.perf_counter() - begun, cpu_seconds(pid) - cpu
    is_flat = memory[-1] <= memory[1] * FLAT[0] + FLAT[1]
    shown = ", ".join(f"{each / MIB:.1f}" for each in memory)
    rates = f"{reviews:10,}{reviews / seconds:10,.0f}/s{reviews / used:10,.0f}/s per core"
    print(f"{name:12}{rates}   MiB: {shown}{'' if is_flat else '   GROWS'}", flush=True)
    return is_flat


# --- the comparison ---


def added(found: dict[str, Creations], kind: str) -> list[float]:
    """Return the milliseconds that a webhook added to the median, turn by turn."""
    pairs = zip(found[kind].turns, found["none"].turns, strict=True)
    return [statistics.median(with_it) - statistics.median(without) for with_it, without in pairs]


def show(results: dict[int, dict[str, Creations]]) -> list[float | None]:
    """Print a table; return the ratio of the additions by number of clients, None if it is too uncertain."""
    print(f"{'clients':>8}  {'':14}{'p50 ms':>10}{'p99 ms':>10}{'creates/s':>11}{'added ms':>10}{'its spread':>20}")
    ratios: list[float | None] = []
    for clients, found in results.items():
        medians = {}
        for kind, result in found.items():
            numbers = f"{result.median:10.2f}{result.p99:10.2f}{result.per_second:11,.0f}"
            more = ""
            if kind != "none":
                each = added(found, kind)
                medians[kind] = statistics.median(each)
                low, _, high = statistics.quantiles(each, n=4)
                more = f"{medians[kind]:10.3f}{low:10.3f} to {high:6.3f}"
            print(f"{clients:8}  {kind:14}{numbers}{more}")
        low, *_ = statistics.quantiles(added(found, "go"), n=4)
        ratios.append(medians["ours"] / medians["go"] if low > 0 else None)
        ours, go = found["ours"], found["go"]
        shown = f"{ours.median / go.median:10.2f}{ours.p99 / go.p99:10.2f}{ours.per_second / go.per_second:11.2f}"
        print(f"{clients:8}  {'ours to go':14}{shown}" + ("" if ratios[-1] is None else f"{ratios[-1]:10.2f}"))
    return ratios


def compare(control_plane: ControlPlane) -> None:
    """Ask both about the same pods. ProcessError if one answer differs."""
    keys = ("nodeSelector", "affinity", "tolerations")
    refused = 0
    for number in range(ALIKE):
        said = {}
        for kind in ("ours", "go"):
            path = f"/api/v1/namespaces/{kind}/pods?dryRun=All"
            status, answer = control_plane.request("POST", path, varied(number))
            made = status == http.HTTPStatus.CREATED
            said[kind] = status, [answer["spec"].get(key) for key in keys] if made else None
            refused += not made
        if said["ours"] != said["go"]:
            raise process.ProcessError(f"they differ on {json.dumps(varied(number)['metadata'])}: {said}")
    print(f"both answer alike about {ALIKE} pods, of which they refuse {refused // 2}", flush=True)


def prepare(control_plane: ControlPlane, urls: dict[str, str]) -> None:
    """Make namespaces, the right to create pods, and the registrations."""
    for kind in KINDS:
        control_plane.create_namespace(kind, {"bench": kind})
    binding = {
        "metadata": {"name": "bench"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "none"}],
    }
    control_plane.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    ca = control_plane.ca_file.read_bytes()
    for kind, url in urls.items():
        control_plane.apply(registration(kind, url, ca))

    def is_called(kind: str) -> bool:
        path = f"/api/v1/namespaces/{kind}/pods?dryRun=All"
        return "nodeSelector" in json.dumps(control_plane.request("POST", path, pod("probe"))[1])

    logs = control_plane.servers.logs
    process.until(lambda: all(map(is_called, urls)), "the API server calls both webhooks", 30.0, said=logs)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="turns of each way (default: %(default)s)")
    parser.add_argument("--count", type=int, default=250, help="creations a turn (default: %(default)s)")
    parser.add_argument("--reviews", type=int, default=1_000_000, help="reviews alone; 0: none (default: %(default)s)")
    options = parser.parse_args(arguments)
    process.exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="swapwarden-bench-") as name, ControlPlane() as control_plane:
        folder = Path(name)
        golang.build(".", program := folder / "gowebhook", source=SOURCE, stamps=[])
        with Webhook(control_plane) as ours:
            go = GoWebhook(control_plane, program, folder)
            with go.process:
                prepare(control_plane, {"ours": ours.url, "go": go.url})
                compare(control_plane)
                results = {
                    clients: asyncio.run(create(control_plane, clients, options.rounds, options.count))
                    for clients in (1, 32)
                }
                ratios = show(results)
                ca, is_flat = control_plane.ca_file, True
                if options.reviews:
                    print("reviews alone, 8 connections")
                    is_flat = alone("ours", ours.url, ours.process.pid, ca, options.reviews)
                    alone("go", go.url, go.process.pid, ca, options.reviews // 10)
    known = [ratio for ratio in ratios if ratio is not None]
    holds = len(known) == len(ratios) and max(known) <= BUDGET
    shown = " and ".join("too uncertain" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    print(f"memory of ours stays {'flat' if is_flat else 'NOT FLAT'}")
    print(
        f"budget (what ours adds to the median is at most {BUDGET} of what the one in Go adds): "
        f"{'holds' if holds else 'DOES NOT HOLD'}: {shown} with 1 and 32 clients"
    )
    return 0 if holds and is_flat else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
