"""The agent on a real kernel: what it costs a node, and how fast it is, beside a loop in C that does the same.

In the kernel VM, on real cgroups: memory, CPU time and system calls; 10 to 500 pods from cold; the time from a state's
arrival to the file, from a pod's creation to its 0, and from a foreign write to its repair, with and without memory
pressure. The floor is bench/agent_floor.c in the same run, on the same files. The VM's CPU may be emulated: the numbers
are of this machine, the ratios are what counts, and by them the last line says whether the budgets hold (memory as it
is). It needs a C compiler, and strace to count system calls.

No other agent is in the comparison: the Go module of wasp-agent, which does the nearest thing, could not be downloaded
where this was written (its origin refused with 403), so nothing is said of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, cast
from urllib import parse

from swapwarden.agent.desired import spec
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.ledger import journal, ledger
from swapwarden.agent.reconcile import reconciler
from swapwarden.api import names
from swapwarden.kube import config

from testbed.base import paths
from testbed.controlplane import pki
from testbed.run import pythons
from testbed.standin import hog
from testbed.vm.kernelvm import CGROUPS, KernelVM

NODE: Final = "bench"
SERVER: Final = "apiserver"
ADDRESS: Final = "127.0.0.1"
ROOT: Final = CGROUPS / "bench"
LEVEL: Final = ROOT / "kubepods.slice" / "kubepods-burstable.slice"
PRESSED: Final = CGROUPS / "bench-pressure"
FLOOR: Final = Path(__file__).with_name("agent_floor.c")
MIB: Final = 1 << 20
LIMIT: Final = 64 * MIB
COLD_PODS: Final = (10, 110, 250, 500)
LIVE_PODS: Final = 110
RUNS: Final = 3
TRIES: Final = 100
ROUNDS: Final = 5
"""Of repairs. Of their p99 the median counts: a machine that is shared stands still for a moment now and then."""
PYTHON_VARIABLE: Final = "BENCH_PYTHON"
BOOKMARK_SECONDS: Final = 60
IDLE_SECONDS: Final = 60
IDLE_MINUTES: Final = 4
"""Traced, so that it does not depend on what part of a watch falls into one."""
QUIET_SECONDS: Final = 1.0
"""System calls further apart than this belong to different awakenings."""
PATIENCE: Final = 120.0

# The budgets. On hardware the C loop takes about 4 ms for 250 files, and 1.5 ms for 110.
MOST_MEMORY: Final = 30_000_000
MOST_COLD: Final = 60.0
"""250 pods from cold, in times of the C loop: 250 ms on hardware."""
MOST_REPAIR: Final = 5.0
"""99 of 100 repairs, from no limit and from 0, in times of the C loop's."""
MOST_IDLE: Final = 200.0
"""CPU time of an idle minute, in times of the C loop over the same pods' files: 5 millicores on hardware."""
MOST_CALLS: Final = 30
"""In an idle minute, full comparisons left out: signs of life, and one watch after the other."""
MOST_AWAKENINGS: Final = 4
"""In an idle minute: a sign of life, the watch's bookmark, its end."""

Json = dict[str, Any]


# --- inside: the cgroups ---


def uids(count: int) -> list[str]:
    return [str(uuid.UUID(int=number + 1)) for number in range(count)]


def pod_path(uid: str) -> Path:
    return LEVEL / f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"


def limit_file(uid: str) -> Path:
    return pod_path(uid) / "memory.swap.max"


def scope(pod: Path) -> Path:
    return pod / f"cri-containerd-{'0' * 64}.scope"


def put(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def make_pods(pods: Sequence[str]) -> None:
    """So many pods, with a container each, and no limit."""
    for parent in (CGROUPS, ROOT, LEVEL.parent, LEVEL):
        parent.mkdir(exist_ok=True)
        put(parent / "cgroup.subtree_control", "+memory")
    for uid in pods:
        scope(pod_path(uid)).mkdir(parents=True, exist_ok=True)
        put(limit_file(uid), "max")


def remove(pods: Sequence[str]) -> None:
    for uid in pods:
        scope(pod_path(uid)).rmdir()
        pod_path(uid).rmdir()


def floor(program: str, mode: str, pods: Sequence[str], value: str) -> subprocess.Popen[str]:
    running = subprocess.Popen([program, mode, value], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert running.stdin is not None  # noqa: S101 it was asked for
    running.stdin.write("".join(f"{limit_file(uid)}\n" for uid in pods))
    running.stdin.close()
    return running


# --- inside: pods from cold, in a process of its own ---


async def reconcile(count: int) -> None:
    """Seconds, and seconds of CPU, to bring so many pods to a state, and the bytes of memory held then."""
    with tempfile.TemporaryDirectory() as folder:
        cgroups = cgroupfs.Cgroups(str(ROOT), os.sysconf("SC_PAGE_SIZE"))
        pods = {uid: spec.PodSpec(LIMIT, {}) for uid in uids(count)}
        state = spec.NodeSpec("", 1, names.Mode.ENFORCE, names.UnknownPod.DENY, None, pods)
        agent = reconciler.Enforcer(
            cgroups,
            journal.Journal(Path(folder, "journal.jsonl")),
            ledger.Ledger(Path(folder)),
            proc=Path("/proc"),
        )
        begun, used = time.perf_counter(), time.process_time()
        agent.start(state)
        print(time.perf_counter() - begun, time.process_time() - used, resident(os.getpid()))
        agent.close()
    if any(limit_file(uid).read_text(encoding="ascii").strip() != str(LIMIT) for uid in uids(count)):
        sys.exit("not all pods got their limit")


def cold(program: str, count: int) -> Json:
    pods = uids(count)
    agents, loops, used, memory = [], [], [], []
    for _ in range(RUNS):
        make_pods(pods)
        said = subprocess.run(role("reconcile", count), check=True, capture_output=True, text=True).stdout.split()
        agents.append(float(said[0]))
        used.append(float(said[1]))
        memory.append(int(said[2]))
        make_pods(pods)
        with floor(program, "write", pods, str(LIMIT)) as loop:
            loops.append(float(cast("IO[str]", loop.stdout).read()))
    found = {"agent": statistics.median(agents), "floor": statistics.median(loops), "cpu": statistics.median(used)}
    found["memory"] = statistics.median(memory)
    make_pods(pods)
    argv = ["strace", "-f", "-c", "-o", "/tmp/calls", *role("reconcile", count)]  # noqa: S108 the guest's own
    subprocess.run(argv, check=True, capture_output=True)
    total = Path("/tmp/calls").read_text(encoding="utf-8").splitlines()[-1].split()  # noqa: S108 as above
    found["calls"] = int(total[3])
    remove(pods)
    return found


# --- inside: an agent at work, at an API server that is played ---


class ApiServer:
    """One state, which others write; every write to it is fine. Watches are as a real API server has them.

    Each ends at its timeoutSeconds. Bookmarks come a minute after its begin and two seconds before its end, where
    states of other nodes have changed since it began (k/k: apiserver's storage/cacher/cache_watcher.go): here they
    always have.
    """

    def __init__(self, count: int) -> None:
        self._pods = uids(count)
        self._version = self._written = 1
        self._generation = 0
        self._watching: set[asyncio.StreamWriter] = set()
        self.put(LIMIT)

    def put(self, limit: int, guarantee: str = "Standard") -> None:
        """Give all pods another limit, under a guarantee; all who watch are told."""
        self._generation += 1
        self._version += 1
        self._written = self._version
        pods = {uid: {"swapMax": str(limit), "reason": "LimitedSwap"} for uid in self._pods}
        metadata = {"name": NODE, "uid": "u", "resourceVersion": str(self._version), "generation": self._generation}
        item = {"metadata": metadata, "spec": {"profile": {"name": "p"}, "guarantee": guarantee, "pods": pods}}
        # Ready before anything is measured: the real one is not on the node.
        self._item = json.dumps(item).encode()
        self._event = b'{"type": "MODIFIED", "object": ' + self._item + b"}\n"
        for writer in self._watching:
            _chunk(writer, self._event)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: *([0-9]+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                if b"watch=true" in head:
                    await self._watch(
                        writer, int(_parameter(head, "timeoutSeconds")), _parameter(head, "resourceVersion")
                    )
                else:
                    listed = b'{"metadata": {"resourceVersion": "%d"}, "items": [%b]}' % (self._version, self._item)
                    body = listed if head.startswith(b"GET") else self._item
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()

    async def _watch(self, writer: asyncio.StreamWriter, seconds: int, version: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        if int(version) < self._written:
            _chunk(writer, self._event)
        self._watching.add(writer)
        begun = time.monotonic()
        try:
            for at in (BOOKMARK_SECONDS, seconds - 2):
                if at <= seconds - 2:
                    await asyncio.sleep(begun + at - time.monotonic())
                    self._version += 1
                    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self._version)}}}
                    _chunk(writer, json.dumps(bookmark).encode() + b"\n")
            await asyncio.sleep(begun + seconds - time.monotonic())
        finally:
            self._watching.remove(writer)
        writer.write(b"0\r\n\r\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n" % len(data) + data + b"\r\n")


def _parameter(head: bytes, name: str) -> str:
    """Of the query in a request's head."""
    return parse.parse_qs(parse.urlsplit(head.split(None, 2)[1].decode()).query)[name][0]


async def serve(count: int, folder: Path) -> None:
    """Play the API server; each line on standard input gives limit and guarantee of the next state."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / f"{SERVER}.crt", folder / f"{SERVER}.key")
    played = ApiServer(count)
    server = await asyncio.start_server(played.answer, ADDRESS, 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        limit, guarantee = line.split()
        played.put(int(limit), guarantee)


@contextlib.contextmanager
def agent_at_work(count: int, folder: Path) -> Iterator[tuple[int, Callable[..., None]]]:
    """Its PID, and what gives all pods another limit, under a guarantee.

    It finds the API server as in a pod, by its service account.
    """
    serving = subprocess.Popen(role("serve", count, folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with tempfile.TemporaryDirectory() as name, serving as server:
        told, said = cast("IO[str]", server.stdin), cast("IO[str]", server.stdout)
        environment = os.environ | {
            "KUBERNETES_SERVICE_HOST": ADDRESS,
            "KUBERNETES_SERVICE_PORT": said.readline().strip(),
        }
        config.SERVICE_ACCOUNT.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "ca.crt", config.SERVICE_ACCOUNT / "ca.crt")
        (config.SERVICE_ACCOUNT / "token").write_text("token", encoding="ascii")
        python = os.environ.get(PYTHON_VARIABLE, sys.executable)
        argv = [python, "-m", "swapwarden", "agent", "--node-name", NODE, "--cgroup-root", str(ROOT)]
        argv += ["--run-dir", f"{name}/run", "--state-dir", f"{name}/state", "--log-level", "error"]
        argv += ["--metrics-address", f"{ADDRESS}:0"]

        def give(limit: int, guarantee: str = "Standard") -> None:
            told.write(f"{limit} {guarantee}\n")
            told.flush()

        with subprocess.Popen(argv, env=environment) as agent:
            try:
                for uid in uids(count):
                    reach(limit_file(uid), LIMIT)
                time.sleep(5)  # what follows the first state, its caching and the status, is over then
                yield agent.pid, give
            finally:
                agent.terminate()
                told.close()


def reach(file: Path, limit: int, begun: float | None = None) -> float:
    """Wait until the file holds that; the seconds since `begun`."""
    since = time.perf_counter() if begun is None else begun
    data = b"%d\n" % limit
    while True:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(file, os.O_RDONLY)
            try:
                if os.read(descriptor, 64) == data:
                    return time.perf_counter() - since
            finally:
                os.close(descriptor)
        if time.perf_counter() - since > PATIENCE:
            sys.exit(f"{file} never came to hold {limit}")
        time.sleep(0)


def repairs(pods: Sequence[str], foreign: str) -> list[float]:
    """Of limits that another writer replaces by `foreign`: `max` or, as systemd under guarantee Strict, `0`."""
    found = []
    for number in range(ROUNDS * 2 * TRIES):
        file = limit_file(pods[number % len(pods)])
        begun = time.perf_counter()
        put(file, foreign)
        found.append(reach(file, LIMIT, begun))
        time.sleep(0.005)
    return found


def covered(pods: Sequence[str], give: Callable[..., None]) -> None:
    """Have the agent know that systemd holds all pods at 0: to another writer it would leave that after a while."""
    for limit in (2 * LIMIT, LIMIT):
        give(limit, "Strict")
        for uid in pods:
            reach(limit_file(uid), limit)
    for uid in pods:
        put(limit_file(uid), "0")
        reach(limit_file(uid), LIMIT)


def creations() -> list[float]:
    found = []
    for uid in [str(uuid.UUID(int=(1 << 100) + number)) for number in range(TRIES)]:
        begun = time.perf_counter()
        pod_path(uid).mkdir()
        found.append(reach(limit_file(uid), 0, begun))
        pod_path(uid).rmdir()
        time.sleep(0.005)
    return found


def arrivals(pods: Sequence[str], give: Callable[[int], None]) -> list[float]:
    """To the last of all pods' files."""
    found = []
    for number in range(20):
        limit = LIMIT * (2 - number % 2)
        begun = time.perf_counter()
        give(limit)
        reach(limit_file(pods[-1]), limit, begun)
        for uid in pods:
            reach(limit_file(uid), limit)
        found.append(time.perf_counter() - begun)
        time.sleep(0.1)
    return found


@contextlib.contextmanager
def pressure() -> Iterator[None]:
    """Two processes that swap all the time."""
    PRESSED.mkdir()
    put(PRESSED / "memory.max", str(96 * MIB))
    argv = [sys.executable, hog.__file__, "96", "--cgroup", str(PRESSED), "--pace", "64"]
    hogs = [subprocess.Popen(argv, stdout=subprocess.DEVNULL) for _ in range(2)]
    time.sleep(5)
    try:
        yield
    finally:
        for each in hogs:
            each.kill()
            each.wait()
        PRESSED.rmdir()


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used in all its threads; stat would count in steps of 10 ms."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text(encoding="ascii").split()[0]) for file in threads) / 1e9


def idle(pid: int) -> Json:
    """An agent that has nothing to do, for a minute; then its system calls, for some."""
    before = cpu_seconds(pid)
    time.sleep(IDLE_SECONDS)
    found: Json = {"cpu": (cpu_seconds(pid) - before) * 60 / IDLE_SECONDS, "memory": resident(pid)}
    trace = Path("/tmp/idle")  # noqa: S108 the guest's own
    with subprocess.Popen(["strace", "-f", "-q", "-ttt", "-o", str(trace), "-p", str(pid)]) as tracer:
        time.sleep(IDLE_SECONDS * IDLE_MINUTES)
        tracer.send_signal(signal.SIGINT)
    lines = [line.split(None, 2) for line in trace.read_text(encoding="utf-8").splitlines()]
    # The end of a call that is told in two parts, a signal, the end of a thread.
    times = [float(at) for _, at, what in lines if not what.startswith(("<...", "---", "+++"))]
    return found | quiet(times, IDLE_SECONDS * IDLE_MINUTES)


def quiet(times: Sequence[float], seconds: float) -> Json:
    """Calls and awakenings a minute, by the TIMES of an idle agent's system calls in so many SECONDS.

    A full comparison is left out, with the time that it takes, and counted by itself.
    """
    bursts: list[list[float]] = []
    for at in times:
        if not bursts or at - bursts[-1][-1] > QUIET_SECONDS:
            bursts.append([])
        bursts[-1].append(at)
    comparisons = [each for each in bursts if len(each) >= LIVE_PODS]
    # strace itself comes first: a call that it finds under way.
    idle = [each for each in bursts[1:] if len(each) < LIVE_PODS]
    minutes = (seconds - sum(each[-1] - each[0] for each in comparisons)) / 60
    return {
        "calls": sum(map(len, idle)) / minutes,
        "awakenings": len(idle) / minutes,
        "comparison": max(map(len, comparisons), default=None),
    }


def inside(program: str, report: Path) -> None:
    """All measurements, in the guest."""
    found: Json = {"cold": {count: cold(program, count) for count in COLD_PODS}}
    pods = uids(LIVE_PODS)
    make_pods(pods)
    with agent_at_work(LIVE_PODS, report.parent) as (pid, give):
        found["repair"], found["creation"] = repairs(pods, "max"), creations()
        found["arrival"] = arrivals(pods, give)
        with pressure():
            found["repair, pressed"], found["creation, pressed"] = repairs(pods, "max"), creations()
            found["arrival, pressed"] = arrivals(pods, give)
        covered(pods, give)
        found["raise"] = repairs(pods, "0")
        with pressure():
            found["raise, pressed"] = repairs(pods, "0")
        give(LIMIT)
        time.sleep(30)  # for the last status to be written
        found["idle"] = idle(pid)
    make_pods(pods)
    with floor(program, "write", pods, str(LIMIT)) as loop:
        found["floor"] = float(cast("IO[str]", loop.stdout).read())
    with floor(program, "keep", pods, str(LIMIT)) as loop:
        cast("IO[str]", loop.stdout).readline()
        found["floor repair"], found["floor raise"] = repairs(pods, "max"), repairs(pods, "0")
        with pressure():
            found["floor repair, pressed"], found["floor raise, pressed"] = repairs(pods, "max"), repairs(pods, "0")
        loop.kill()
    report.write_text(json.dumps(found), encoding="ascii")


# --- outside: the VM, and what came of it ---


def role(name: str, *arguments: object) -> list[str]:
    return [sys.executable, __file__, name, *(str(argument) for argument in arguments)]


def p99(found: Sequence[float]) -> float:
    """99 of 100 were no slower; of what was done in rounds, the median of theirs."""
    rounds = ROUNDS if len(found) >= ROUNDS * TRIES else 1
    size = len(found) // rounds
    return statistics.median(sorted(found[at : at + size])[size * 99 // 100] for at in range(0, rounds * size, size))


def tell(found: Json) -> list[str]:
    """Print all; what does not hold."""
    print("pods from cold          agent ms    C loop ms    ratio    CPU ms a pod")
    for count, each in found["cold"].items():
        print(
            f"  {count:>4} {each['agent'] * 1000:24.1f} {each['floor'] * 1000:12.2f}"
            f" {each['agent'] / each['floor']:8.1f} {each['cpu'] * 1000 / int(count):14.2f}"
        )
    few, many = (found["cold"][str(count)] for count in (COLD_PODS[0], 250))
    print(f"  system calls a pod {(many['calls'] - few['calls']) / (250 - COLD_PODS[0]):12.1f}")
    print(f"  memory a pod, kB   {(many['memory'] - few['memory']) / (250 - COLD_PODS[0]) / 1000:12.1f}")
    print(f"with {LIVE_PODS} pods, ms              p50       p99")
    for what in ("arrival", "creation", "repair", "raise", "floor repair", "floor raise"):
        for each in (what, f"{what}, pressed"):
            print(f"  {each:<24} {statistics.median(found[each]) * 1000:9.2f} {p99(found[each]) * 1000:9.2f}")
    rest = found["idle"]
    print(f"idle for a minute: {rest['cpu'] * 1000:.1f} ms of CPU, {rest['memory'] / 1e6:.1f} MB", end="")
    print(f", {rest['calls']:.1f} system calls in {rest['awakenings']:.1f} awakenings", end="")
    print(f"; {rest['comparison']} more in a full comparison" if rest["comparison"] else "")
    ratios = {
        "MB of memory": (rest["memory"] / 1e6, MOST_MEMORY / 1e6),
        "x the C loop for 250 pods from cold": (many["agent"] / many["floor"], MOST_COLD),
        "x the C loop at p99 of repairs": (
            p99(found["repair"]) / p99(found["floor repair"]),
            MOST_REPAIR,
        ),
        "x the C loop at p99 of raises from 0": (
            p99(found["raise"]) / p99(found["floor raise"]),
            MOST_REPAIR,
        ),
        "C loops of CPU in an idle minute": (rest["cpu"] / found["floor"], MOST_IDLE),
        "system calls in an idle minute": (float(rest["calls"]), float(MOST_CALLS)),
        "awakenings in an idle minute": (float(rest["awakenings"]), float(MOST_AWAKENINGS)),
    }
    for what, (is_now, most) in ratios.items():
        print(f"  {is_now:8.1f} of {most:5.0f} {what}")
    return [what for what, (is_now, most) in ratios.items() if is_now > most]


def outside() -> int:
    """Boot the VM and measure in it; 1 where a budget does not hold."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("the floor is a program in C: install gcc")
    if shutil.which("strace") is None:
        sys.exit("strace counts system calls and awakenings, which have a budget: install strace")
    python = pythons.of_image()
    if isinstance(python, str):
        print(f"the agent at work runs with {sys.version.split()[0]}, and not with the image's Python: {python}")
        python = Path(sys.executable)
    # As in the image: what compiles its modules itself is larger for it, for as long as it runs.
    for each in {str(python), sys.executable}:
        subprocess.run([each, "-m", "compileall", "-q", str(paths.OPERATOR)], check=True)
    with KernelVM() as vm:
        program, report = vm.shared / "floor", vm.shared / "report.json"
        subprocess.run([compiler, "-O2", "-o", str(program), str(FLOOR)], check=True)
        pki.Authority(vm.shared).issue(SERVER, SERVER, [ADDRESS])
        environment = {"PYTHONPATH": f"{paths.OPERATOR}:{paths.ROOT}", PYTHON_VARIABLE: str(python)}
        vm.run(role("inside", program, report), timeout=3600, env=environment)
        found = json.loads(report.read_text(encoding="ascii"))
        print(f"in the kernel VM, accelerator {vm.accelerator}")
    missed = tell(found)
    print(f"budgets: {'missed: ' + '; '.join(missed) if missed else 'all hold'}")
    return 1 if missed else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="?", choices=("inside", "reconcile", "serve"), help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    match options.role:
        case "inside":
            inside(options.arguments[0], Path(options.arguments[1]))
        case "reconcile":
            asyncio.run(reconcile(int(options.arguments[0])))
        case "serve":
            asyncio.run(serve(int(options.arguments[0]), Path(options.arguments[1])))
        case _:
            sys.exit(outside())


if __name__ == "__main__":
    main()
