"""The agent: what it costs a node to have it, and how long it takes to bring a whole node to a state.

Memory is compared with that of a bare interpreter with the same libraries, idle CPU time with one look at each file,
and 250 pods from cold with a bare loop that opens, reads, writes and reads back the same files. All on a directory tree
in memory that looks like a node's cgroups; each run is a process of its own. The numbers are of this machine; the ratio
is what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import IO, Any, cast

from swapwarden.agent import cgroupfs, enforcer, journal, wanted
from swapwarden.api import names

NODE = "bench"
LIMIT = 64 << 20
RUNS = 5
IDLE_PODS = 110
IDLE_SECONDS = 30
COLD_PODS = 250
MIB = 1 << 20
LIBRARIES = "asyncio, ssl, msgspec"
FILES = {
    "memory.current": "1048576\n",
    "memory.max": "max\n",
    "memory.swap.current": "0\n",
    "memory.swap.max": "max\n",
}
PROC = {"meminfo": "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nSwapTotal: 8388608 kB\n", "swaps": ""}
LEVEL = Path("kubepods.slice", "kubepods-burstable.slice")


# --- the node ---


def uids(count: int) -> list[str]:
    return [str(uuid.UUID(int=number + 1)) for number in range(count)]


def pod_path(uid: str) -> Path:
    return LEVEL / f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"


def make_node(folder: Path, count: int) -> Path:
    """The cgroups of a node with so many pods, of two containers each."""
    root = folder / "cgroup"
    groups = [LEVEL.parent, LEVEL]
    for uid in uids(count):
        scopes = [f"cri-containerd-{uuid.uuid4().hex * 2}.scope" for _ in range(2)]
        groups += [pod_path(uid), *(pod_path(uid) / scope for scope in scopes)]
    for group in groups:
        (root / group).mkdir(parents=True)
        for name, text in FILES.items():
            (root / group / name).write_text(text)
    (root / "cgroup.controllers").write_text("memory\n")
    (folder / "proc").mkdir()
    for name, text in PROC.items():
        (folder / "proc" / name).write_text(text)
    return root


def memory_folder() -> str | None:
    """Files in memory, as cgroups are, where there is such a folder."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 a folder of our own is made in it


# --- 250 pods from cold: seconds, in a process of its own ---


async def reconcile(folder: Path, count: int) -> float:
    cgroups = cgroupfs.Cgroups(str(folder / "cgroup"), os.sysconf("SC_PAGE_SIZE"))
    pods = {uid: wanted.Pod(LIMIT, {}) for uid in uids(count)}
    state = wanted.State("", 1, names.Mode.ENFORCE, names.UnknownPod.DENY, None, pods)
    agent = enforcer.Enforcer(cgroups, journal.Journal(folder / "journal.jsonl"), proc=folder / "proc")
    begun = time.perf_counter()
    agent.start(state)
    seconds = time.perf_counter() - begun
    if agent.standing().violations:
        sys.exit("the agent did not get there")
    agent.close()
    return seconds


def write_plainly(folder: Path, count: int) -> float:
    paths = [str(folder / "cgroup" / pod_path(uid) / "memory.swap.max") for uid in uids(count)]
    data = b"%d\n" % LIMIT
    begun = time.perf_counter()
    for path in paths:
        read_plainly(path)
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, data)
        os.close(fd)
        read_plainly(path)
    return time.perf_counter() - begun


def read_plainly(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    data = os.read(fd, 64)
    os.close(fd)
    return data


def cold(role: str, count: int) -> None:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as name:
        folder = Path(name)
        root = make_node(folder, count)
        seconds = asyncio.run(reconcile(folder, count)) if role == "reconcile" else write_plainly(folder, count)
        held = [(root / pod_path(uid) / "memory.swap.max").read_text().split() for uid in uids(count)]
    if held != [[str(LIMIT)]] * count:
        sys.exit("not all pods got their limit")
    print(seconds)


# --- an agent that has nothing to do ---


async def serve(count: int) -> None:
    """The API server: one state, a watch that tells nothing, and every write is fine."""
    pods = {uid: {"swapMax": str(LIMIT), "reason": "LimitedSwap"} for uid in uids(count)}
    item = {
        "metadata": {"name": NODE, "uid": "u", "resourceVersion": "1", "generation": 1},
        "spec": {"profile": {"name": "p"}, "pods": pods},
    }
    body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": [item]}).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(one[15:]) for one in head.split(b"\r\n") if one.lower().startswith(b"content-length:")), 0
                )
                await reader.readexactly(length)
                if b"watch=true" in head:
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


def kubeconfig(folder: Path, port: int) -> Path:
    file = folder / "kubeconfig"
    content: dict[str, Any] = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    file.write_text(json.dumps(content))
    return file


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used in all its threads; stat would count in steps of 10 ms."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text(encoding="ascii").split()[0]) for file in threads) / 1e9


def wait_for(root: Path, count: int, agent: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    files = [root / pod_path(uid) / "memory.swap.max" for uid in uids(count)]
    while any(file.read_text().split() != [str(LIMIT)] for file in files):
        if agent.poll() is not None or time.monotonic() > deadline:
            sys.exit("the agent did not get there")
        time.sleep(0.05)


def idle(count: int, seconds: int) -> tuple[int, float]:
    """Memory in bytes, and CPU seconds in so many seconds, of an agent that has nothing to do."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as name:
        folder = Path(name)
        root = make_node(folder, count)
        with subprocess.Popen(start("serve", "--pods", count), stdout=subprocess.PIPE) as server:
            port = int(cast("IO[bytes]", server.stdout).readline())
            argv = [sys.executable, "-m", "swapwarden", "agent", "--node-name", NODE, "--cgroup-root", str(root)]
            argv += ["--run-dir", str(folder / "run"), "--state-dir", str(folder / "state"), "--log-level", "error"]
            argv += ["--proc-root", str(folder / "proc"), "--kubeconfig", str(kubeconfig(folder, port))]
            with subprocess.Popen([*argv, "--metrics-address", "127.0.0.1:0"]) as agent:
                try:
                    wait_for(root, count, agent)
                    time.sleep(5)  # what follows the first state, its caching and the status, is over then
                    before = cpu_seconds(agent.pid)
                    time.sleep(seconds)
                    return resident(agent.pid), cpu_seconds(agent.pid) - before
                finally:
                    agent.terminate()
                    server.terminate()


def look(count: int) -> None:
    """CPU seconds to read each file of so many pods once."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as name:
        root = make_node(Path(name), count)
        paths = [str(root / pod_path(uid) / "memory.swap.max") for uid in uids(count)]
        before = resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(100):
            for path in paths:
                read_plainly(path)
        after = resource.getrusage(resource.RUSAGE_SELF)
        print((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 100)


def bare() -> None:
    """Memory of an interpreter that has imported the libraries and done nothing."""
    code = f"import {LIBRARIES}\nprint(open('/proc/self/status').read())"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    print(next(int(line.split()[1]) * 1024 for line in said.splitlines() if line.startswith("VmRSS:")))


# --- the comparison ---


def start(role: str, *arguments: object) -> list[str]:
    return [sys.executable, __file__, role, *(str(argument) for argument in arguments)]


def measure(role: str, pods: int = 0) -> float:
    """The median of what a role says."""
    found = []
    for _ in range(RUNS):
        argv = start(role, "--pods", pods)
        found.append(float(subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout))
    return statistics.median(found)


def compare(seconds: int) -> None:
    memory, cpu = idle(IDLE_PODS, seconds)
    interpreter, one_look = measure("bare"), measure("look", IDLE_PODS)
    reconciled, written = measure("reconcile", COLD_PODS), measure("write", COLD_PODS)
    print(f"an agent with {IDLE_PODS} pods of two containers, idle for {seconds} s; others: medians of {RUNS} runs")
    print(f"  memory               {memory / MIB:8.1f} MiB")
    print(f"  import {LIBRARIES}  {interpreter / MIB:3.1f} MiB    ratio {memory / interpreter:.2f}")
    print(f"  idle CPU             {cpu / seconds * 1000:8.2f} millicores")
    print(
        f"  one look at each     {one_look * 1000:8.2f} ms of CPU    looks a minute {cpu / seconds * 60 / one_look:.1f}"
    )
    print(f"{COLD_PODS} pods from cold")
    print(f"  agent                {reconciled * 1000:8.1f} ms")
    print(f"  bare loop            {written * 1000:8.1f} ms     ratio {reconciled / written:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    roles = ("compare", "serve", "reconcile", "write", "look", "bare")
    parser.add_argument("role", nargs="?", choices=roles, default="compare")
    parser.add_argument("--seconds", type=int, default=IDLE_SECONDS, help="to watch it idle (default: %(default)s)")
    parser.add_argument("--pods", type=int, default=IDLE_PODS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    match arguments.role:
        case "compare":
            compare(arguments.seconds)
        case "serve":
            asyncio.run(serve(arguments.pods))
        case "look":
            look(arguments.pods)
        case "bare":
            bare()
        case role:
            cold(role, arguments.pods)


if __name__ == "__main__":
    main()
