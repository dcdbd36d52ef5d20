"""The informer against plain json.loads: how many pods a second each takes in, and how much memory it needs for it.

Both read the same pages and the same watch from the same server, which is a process of its own; each run of a reader is
one, too. Both end up with the rows of all pods in memory. The numbers are of this machine; the ratio is what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from swapwarden.kube import client, config, informer
from swapwarden.policy import pods

PATH = "/api/v1/pods"
PAGE = 500
RUNS = 3
MIB = 1024 * 1024

Json = dict[str, Any]


# --- what is read ---


def pod(number: int, version: int) -> Json:
    """A pod as a cluster has them: about 8 KB, a good part of it for the field manager."""
    name, uid = f"shop-7c9d8f6b5d-{number:06}", f"{number:08x}-1111-4222-8333-{number:012x}"
    image = f"registry.example.com/team/service-with-a-long-name@sha256:{number:064x}"
    env = [{"name": f"SETTING_{at}", "value": f"value-{at}-of-a-usual-length"} for at in range(30)]
    mount = {"name": "kube-api-access", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    resources = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
    containers = [
        {
            "name": role,
            "image": image,
            "env": env,
            "resources": resources,
            "volumeMounts": [mount],
            "terminationMessagePath": "/dev/termination-log",
            "imagePullPolicy": "IfNotPresent",
        }
        for role in ("main", "sidecar")
    ]
    statuses = [
        {
            "name": role,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            "ready": True,
            "restartCount": 0,
            "image": image,
            "imageID": image,
            "containerID": f"containerd://{number * 1_000_003 + version:064x}",
        }
        for role in ("main", "sidecar")
    ]
    fields: Json = {f'k:{{"name":"SETTING_{at}"}}': {".": {}, "f:name": {}, "f:value": {}} for at in range(30)}
    return {
        "metadata": {
            "name": name,
            "namespace": f"team-{number % 50}",
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "shop", "pod-template-hash": "7c9d8f6b5d"},
            "annotations": {"swapwarden.dev/swap-policy": "Disabled"} if number % 3 == 0 else {},
            "managedFields": [{"manager": "kube-controller-manager", "fieldsV1": {"f:spec": {"f:env": fields}}}],
        },
        "spec": {"nodeName": f"node-{number % 400}", "containers": containers, "restartPolicy": "Always"},
        "status": {"phase": "Running", "qosClass": "Burstable", "containerStatuses": statuses},
    }


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Server:
    """Serves the list in pages and a watch that changes each pod once."""

    def __init__(self, count: int) -> None:
        self._pages = [self._page(start, count) for start in range(0, count, PAGE)]
        self._events = [
            chunk(json.dumps({"type": "MODIFIED", "object": pod(number, count + 1 + number)}).encode() + b"\n")
            for number in range(count)
        ]

    @staticmethod
    def _page(start: int, count: int) -> bytes:
        following = str(start // PAGE + 1) if start + PAGE < count else ""
        items = [pod(number, number + 1) for number in range(start, min(start + PAGE, count))]
        body = {"metadata": {"resourceVersion": str(count), "continue": following}, "items": items}
        return json.dumps(body, separators=(",", ":")).encode()

    async def serve(self) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        async with server:
            await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                target = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
                query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(target).query))
                if "watch" in query:
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    for at in range(0, len(self._events), 100):
                        writer.write(b"".join(self._events[at : at + 100]))
                        await writer.drain()
                    await reader.read()
                else:
                    body = self._pages[int(query.get("continue", "0"))]
                    writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.close()


# --- the two readers: seconds for the list, seconds for the watch, rows ---


async def read_with_informer(port: int, count: int) -> tuple[float, float, int]:
    changes = 0
    done = asyncio.Event()

    def changed(_key: str, _old: object, _new: object) -> None:
        nonlocal changes
        changes += 1
        if changes == 2 * count:
            done.set()

    async with client.Client(config.Config(server=f"http://127.0.0.1:{port}"), user_agent="bench") as api:
        reader = informer.Informer(
            api, PATH, wire=pods.WirePod, project=pods.project, name="pods", on_change=changed, page_size=PAGE
        )
        begun = time.perf_counter()
        task = asyncio.create_task(reader.run())
        await reader.synced.wait()
        listed = time.perf_counter()
        await done.wait()
        watched = time.perf_counter()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return listed - begun, watched - listed, len(reader.rows)


def project(item: Json) -> Json:
    """About the fields of pods.PodRow."""
    metadata, status = item["metadata"], item["status"]
    ids = {found["name"]: found.get("containerID", "") for found in status.get("containerStatuses", [])}
    return {
        "uid": metadata["uid"],
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "node": item["spec"].get("nodeName", ""),
        "phase": status.get("phase"),
        "qos": status.get("qosClass"),
        "policy": metadata.get("annotations", {}).get("swapwarden.dev/swap-policy"),
        "containers": [
            {"name": found["name"], "resources": found.get("resources", {}), "id": ids.get(found["name"], "")}
            for found in item["spec"]["containers"]
        ],
    }


def list_plainly(connection: http.client.HTTPConnection) -> Iterator[Json]:
    following = ""
    while True:
        connection.request("GET", f"{PATH}?limit={PAGE}" + (f"&continue={following}" if following else ""))
        answer = json.loads(connection.getresponse().read())
        yield from answer["items"]
        following = answer["metadata"]["continue"]
        if not following:
            return


def read_plainly(port: int, count: int) -> tuple[float, float, int]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    begun = time.perf_counter()
    rows = {
        f"{item['metadata']['namespace']}/{item['metadata']['name']}": project(item)
        for item in list_plainly(connection)
    }
    listed = time.perf_counter()
    connection.request("GET", f"{PATH}?watch=true&resourceVersion={count}")
    answer = connection.getresponse()
    for _ in range(count):
        item = json.loads(answer.readline())["object"]
        rows[f"{item['metadata']['namespace']}/{item['metadata']['name']}"] = project(item)
    watched = time.perf_counter()
    connection.close()
    return listed - begun, watched - listed, len(rows)


def peak_memory() -> int:
    """Bytes of memory that this process held at most."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


# --- the comparison ---


def start(role: str, *arguments: object) -> list[str]:
    return [sys.executable, __file__, role, *(str(argument) for argument in arguments)]


def compare(count: int) -> None:
    size = len(json.dumps(pod(0, 1), separators=(",", ":")))
    print(f"{count:,} pods of {size / 1000:.1f} KB in pages of {PAGE}, then a change of each; medians of {RUNS} runs")
    runs: dict[str, list[list[float]]] = {"informer": [], "json.loads": []}
    with subprocess.Popen(start("serve", "--count", count), stdout=subprocess.PIPE, text=True) as server:
        try:
            port = int(cast("IO[str]", server.stdout).readline())
            for _ in range(RUNS):
                for role, found in runs.items():
                    argv = start("read", "--count", count, "--port", port, "--reader", role)
                    said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout
                    found.append(json.loads(said))
        finally:
            server.terminate()
    print(f"{'':12}{'listed/s':>12}{'changes/s':>12}{'peak memory':>15}")
    medians = {role: [statistics.median(column) for column in zip(*found, strict=True)] for role, found in runs.items()}
    for role, (listed, watched, memory) in medians.items():
        print(f"{role:12}{listed:12,.0f}{watched:12,.0f}{memory / MIB:11,.0f} MiB")
    ours, plain = medians.values()
    print(
        f"{'ratio':12}" + "".join(f"{a / b:{width}.2f}" for a, b, width in zip(ours, plain, (12, 12, 15), strict=True))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="?", choices=("compare", "serve", "read"), default="compare")
    parser.add_argument("--count", type=int, default=20_000, help="pods (default: %(default)s)")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    count = arguments.count
    if arguments.role == "compare":
        compare(count)
    elif arguments.role == "serve":
        asyncio.run(Server(count).serve())
    else:
        if arguments.reader == "informer":
            listing, watching, rows = asyncio.run(read_with_informer(arguments.port, count))
        else:
            listing, watching, rows = read_plainly(arguments.port, count)
        if rows != count:
            sys.exit(f"{rows} rows of {count} pods")
        print(json.dumps([count / listing, count / watching, peak_memory()]))


if __name__ == "__main__":
    main()
