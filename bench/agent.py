"""The agent on a real kernel: its costs for a node and its speed, beside a loop in C that does the same.

In the kernel VM, on real cgroups: memory, CPU time and system calls; 10 to 500 pods from cold; the time from a state's
arrival to the file, from a pod's creation to its 0, and from a foreign write to its repair, with and without memory
pressure. The floor is bench/agent_floor.c in the same run, on the same files. The VM's CPU may be emulated: the numbers
are of this machine, and only the ratios count. The last line reports by them whether the budgets hold (memory as it
is). It needs a C compiler, and strace to count system calls.

No other agent is in the comparison: the Go module of wasp-agent, the nearest one, could not be downloaded where this
was written (its origin refused with 403).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Final, cast

from swapwarden.agent.desired import spec
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import board
from swapwarden.agent.ledger import ledger
from swapwarden.agent.reconcile import reconciler
from swapwarden.api import names
from swapwarden.kube import config

from bench.agent_apiserver import ADDRESS, LIMIT, NODE, SERVER, serve
from bench.agent_report import COLD_PODS, LIVE_PODS, ROUNDS, TRIES, Json, show
from bench.cgroups import ROOT, cpu_seconds, floor, limit_file, make_pods, pod_path, pressure, reach, remove, uids
from testbed.base import paths, process
from testbed.controlplane import pki
from testbed.run import pythons
from testbed.standin.churn import write
from testbed.vm.kernelvm import KernelVM

FLOOR: Final = Path(__file__).with_name("agent_floor.c")
RUNS: Final = 3
PYTHON_VARIABLE: Final = "BENCH_PYTHON"
BYTECODE: Final = "bytecode"
MEMORY: Final = "memory"
IDLE_SECONDS: Final = 60
IDLE_MINUTES: Final = 4
"""Seconds under strace: long enough not to depend on the part of a watch within it."""
QUIET_SECONDS: Final = 1.0
"""System calls further apart than this belong to different wake-ups."""


# --- inside: pods from cold, in a process of its own ---


async def reconcile(count: int) -> None:
    """Return the seconds, and seconds of CPU, to bring so many pods to a state, and the bytes of memory held then."""
    with tempfile.TemporaryDirectory() as folder:
        cgroups = cgroupfs.Cgroups(str(ROOT), os.sysconf("SC_PAGE_SIZE"))
        pods = {uid: spec.PodEntry({cgroupfs.SWAP_MAX: spec.FileSetting(LIMIT)}, {}) for uid in uids(count)}
        state = spec.NodeSpec("", 1, names.Mode.ENFORCE, names.BeforePlan.NO_SWAP, None, pods)
        agent = reconciler.NodeReconciler(cgroups, ledger.Ledger(Path(folder)), board.Board(), proc=Path("/proc"))
        begun, used = time.perf_counter(), time.process_time()
        agent.start(state)
        print(time.perf_counter() - begun, time.process_time() - used, process.resident(os.getpid()))
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
    remove(pods)
    return found


# --- inside: an agent at work, at an API server that is played ---


@contextlib.contextmanager
def agent_at_work(count: int, folder: Path, *qos: str) -> Iterator[tuple[int, Callable[..., None]]]:
    """Yield its PID, and a function that gives all pods another limit, under a guarantee; QOS is `memory`, or nothing.

    It finds the API server like in a pod, by its service account.
    """
    serving = subprocess.Popen(
        role("serve", count, folder, *qos), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
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
        environment["PYTHONPYCACHEPREFIX"] = str(folder / BYTECODE)

        def give(limit: int, guarantee: str = "Standard") -> None:
            told.write(f"{limit} {guarantee}\n")
            told.flush()

        with subprocess.Popen(argv, env=environment) as agent:
            try:
                for uid in uids(count):
                    reach(limit_file(uid), LIMIT)
                time.sleep(5)  # Everything after the first state, its caching and the status, is over by then.
                yield agent.pid, give
            finally:
                agent.terminate()
                told.close()


def repairs(pods: Sequence[str], foreign: str) -> list[float]:
    """Return times of repairs after a `foreign` write: of `max` or, like systemd under guarantee Strict, of `0`."""
    found = []
    for number in range(ROUNDS * 2 * TRIES):
        file = limit_file(pods[number % len(pods)])
        begun = time.perf_counter()
        write(file, foreign)
        found.append(reach(file, LIMIT, begun))
        time.sleep(0.005)
    return found


def covered(pods: Sequence[str], give: Callable[..., None]) -> None:
    """Make the agent know that systemd holds all pods at 0: otherwise it would yield to that writer after a while."""
    for limit in (2 * LIMIT, LIMIT):
        give(limit, "Strict")
        for uid in pods:
            reach(limit_file(uid), limit)
    for uid in pods:
        write(limit_file(uid), "0")
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
    """Return the seconds to the last of all pods' files."""
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


def idle(pid: int) -> Json:
    """Measure an agent without work for a minute; then its system calls, for some time."""
    before = cpu_seconds(pid)
    time.sleep(IDLE_SECONDS)
    found: Json = {"cpu": (cpu_seconds(pid) - before) * 60 / IDLE_SECONDS, "memory": process.resident(pid)}
    trace = Path("/tmp/idle")  # noqa: S108 the guest's own
    with subprocess.Popen(["strace", "-f", "-q", "-ttt", "-o", str(trace), "-p", str(pid)]) as tracer:
        time.sleep(IDLE_SECONDS * IDLE_MINUTES)
        tracer.send_signal(signal.SIGINT)
    lines = [line.split(None, 2) for line in trace.read_text(encoding="utf-8").splitlines()]
    # The end of a call that is logged in two parts, a signal, the end of a thread.
    times = [float(at) for _, at, what in lines if not what.startswith(("<...", "---", "+++"))]
    return found | quiet(times, IDLE_SECONDS * IDLE_MINUTES)


def quiet(times: Sequence[float], seconds: float) -> Json:
    """Return calls and wake-ups a minute, by the TIMES of an idle agent's system calls in so many SECONDS.

    A full comparison is left out, with its time, and counted by itself.
    """
    bursts: list[list[float]] = []
    for at in times:
        if not bursts or at - bursts[-1][-1] > QUIET_SECONDS:
            bursts.append([])
        bursts[-1].append(at)
    comparisons = [each for each in bursts if len(each) >= LIVE_PODS]
    # strace itself is first: a call that it finds under way.
    idle = [each for each in bursts[1:] if len(each) < LIVE_PODS]
    minutes = (seconds - sum(each[-1] - each[0] for each in comparisons)) / 60
    return {
        "calls": sum(map(len, idle)) / minutes,
        "awakenings": len(idle) / minutes,
        "comparison": max(map(len, comparisons), default=None),
    }


def inside(program: str, report: Path) -> None:
    """Return all measurements, in the guest."""
    found: Json = {"cold": {count: cold(program, count) for count in COLD_PODS}}
    pods = uids(LIVE_PODS)
    make_pods(pods)
    with agent_at_work(LIVE_PODS, report.parent) as (pid, give):
        found["memory"] = process.resident(pid)
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
        time.sleep(30)  # Time to write the last status.
        found["idle"] = idle(pid)
    make_pods(pods)
    with agent_at_work(LIVE_PODS, report.parent, MEMORY) as (pid, _):
        found["memory QoS: memory"] = process.resident(pid)
        time.sleep(30)  # As above.
        found["memory QoS: idle"] = idle(pid)
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


def compile_as_image(python: Path, folder: Path) -> None:
    """Put the image's bytecode into a folder. Without it, an interpreter compiles itself, and stays larger."""
    asked = "import sysconfig; print(*map(sysconfig.get_path, ('stdlib', 'purelib')), sep='\\n')"
    modules = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.split("\n")[:2]
    command = [str(python), str(paths.ROOT / "deploy/image/rootfs.py"), "compile", str(paths.OPERATOR), *modules]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPYCACHEPREFIX": str(folder)})


def outside() -> int:
    """Boot the VM and measure in it; return 1 if a budget is exceeded."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("the floor is a program in C: install gcc")
    if shutil.which("strace") is None:
        sys.exit("strace counts system calls and wake-ups, which have a budget: install strace")
    python = pythons.of_image()
    if isinstance(python, str):
        print(f"the agent at work runs with {sys.version.split()[0]}, and not with the image's Python: {python}")
        python = Path(sys.executable)
    with KernelVM() as vm:
        program, report = vm.shared / "floor", vm.shared / "report.json"
        subprocess.run([compiler, "-O2", "-o", str(program), str(FLOOR)], check=True)
        pki.Authority(vm.shared).issue(SERVER, SERVER, [ADDRESS])
        environment = {"PYTHONPATH": f"{paths.OPERATOR}:{paths.ROOT}", PYTHON_VARIABLE: str(python)}
        compile_as_image(python, vm.shared / BYTECODE)
        vm.run(role("inside", program, report), timeout=3600, env=environment)
        found = json.loads(report.read_text(encoding="ascii"))
        print(f"in the kernel VM, accelerator {vm.accelerator}")
    missed = show(found)
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
            count, folder, *qos = options.arguments
            asyncio.run(serve(int(count), Path(folder), memory_qos=qos == [MEMORY]))
        case _:
            sys.exit(outside())


if __name__ == "__main__":
    main()
