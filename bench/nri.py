"""`swapwarden nri`: the time that it adds to the start of a container, its memory and its idle CPU.

Three runtimes on the library of containerd and CRI-O take turns: one without a plugin, one with `swapwarden nri`, one
with a plugin in Go on the library's own stub that also sets memory.swap.max of pods with policy Disabled. Half of the
containers are of such pods. A plugin adds the difference of two medians, turn by turn. The numbers are of this machine;
the ratio counts. Exit status 1 if a budget is exceeded.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import dataclasses
import itertools
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from swapwarden.api import names, runtime_link

from bench.cgroups import cpu_seconds
from testbed.base import paths, process
from testbed.standin import runtime
from testbed.standin.runtime import Container, Measured, Pod, Runtime

RATIO: Final = 1.3
"""The most that ours may add to the median, as a share of what the one in Go adds.

Measured on a quiet machine: 1.19 for small containers, 1.06 for large ones (docs/design/measurements.md).
"""
MOST_MEMORY: Final = 14 * 10**6
"""Bytes of resident memory of ours, in use."""
KINDS: Final = ("none", "ours", "go")
ORDERS: Final = list(itertools.permutations(KINDS))
SIZES: Final = {"small": (20, 8), "large": (150, 38)}
"""Variables and mounts of a container."""
WARM_UP: Final = 300
LARGE_NODE: Final = 400, 1200
"""Pods and containers."""
OURS: Final = f"{runtime_link.INDEX}-{runtime_link.PLUGIN}"
DISABLED: Final = {names.POLICY_ANNOTATION: names.Policy.DISABLED.value}


@dataclasses.dataclass
class Contender:
    """A runtime and its plugin."""

    runtime: Runtime
    plugin: process.Process | None
    turns: list[Measured] = dataclasses.field(default_factory=list)
    cpu: float = 0.0
    """Seconds of CPU time that the plugin used in these turns."""

    def run(self, count: int, size: str) -> Measured:
        """Create containers, half of them in a Disabled pod."""
        env, mounts = SIZES[size]
        pods = [Pod("sandbox-1", "uid-disabled", DISABLED), Pod("sandbox-2", "uid-free", {"team": "shop"})]
        wanted = Container("container", "", unified={runtime_link.SWAP_MAX: "69943296"}, env=env, mounts=mounts)
        return self.runtime.measure(pods, wanted, count)

    def turn(self, count: int, size: str) -> None:
        """Measure one turn."""
        before = self._used()
        self.turns.append(self.run(count, size))
        self.cpu += self._used() - before

    def _used(self) -> float:
        return 0.0 if self.plugin is None else cpu_seconds(self.plugin.pid)

    @property
    def micros(self) -> list[float]:
        """The microseconds of all requests."""
        return [each for turn in self.turns for each in turn.micros]


def ours(folder: Path, *options: str) -> process.Process:
    """Start `swapwarden nri`."""
    (link := folder / "link").mkdir(exist_ok=True)
    (cgroup := folder / "cgroup").mkdir(exist_ok=True)
    (cgroup / runtime_link.SWAP_MAX).touch()
    argv = [sys.executable, "-m", "swapwarden", "nri", f"--socket-dir={folder}", f"--link-dir={link}"]
    return process.Process("ours", [*argv, f"--cgroup-root={cgroup}", *options], log=folder / "ours.log")


@contextlib.contextmanager
def contenders(folder: Path, *options: str) -> Iterator[dict[str, Contender]]:
    """Start all three, ours with OPTIONS."""
    with contextlib.ExitStack() as stack:
        made: dict[str, Contender] = {}
        for kind in KINDS:
            (own := folder / kind).mkdir()
            running = stack.enter_context(Runtime(own)).start()
            plugin = None
            if kind == "ours":
                plugin = stack.enter_context(ours(own, *options))
                running.connected(OURS)
            elif kind == "go":
                only = [f"-annotation={names.POLICY_ANNOTATION}", f"-wanted={names.Policy.DISABLED}"]
                plugin = stack.enter_context(runtime.plugin(own, "go", "90", "0", *only))
                running.connected("90-go")
            made[kind] = Contender(running, plugin)
        yield made


def p99(micros: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(micros, n=100, method="inclusive")[98]


def added(found: Mapping[str, Contender], kind: str) -> list[float]:
    """Return the microseconds that a plugin added to the median, turn by turn."""
    pairs = zip(found[kind].turns, found["none"].turns, strict=True)
    return [statistics.median(with_it.micros) - statistics.median(without.micros) for with_it, without in pairs]


def show(size: str, found: Mapping[str, Contender]) -> float:
    """Print a table; return the ratio of the additions to the median."""
    bytes_each = found["none"].turns[0].size
    print(f"\n{size} containers: requests of {bytes_each:,} bytes, half of them of Disabled pods")
    columns = ("requests", "p50 us", "p99 us", "p99.9 us", "adds us", "adds p99", "CPU us", "RSS MB")
    print(f"{'':6}" + "".join(f"{name:>10}" for name in columns))
    base = p99(found["none"].micros)
    for kind, each in found.items():
        micros = sorted(each.micros)
        rare = micros[-len(micros) // 1000]
        row = f"{kind:6}{len(micros):10,}" + "".join(
            f"{number:10.1f}" for number in (statistics.median(micros), p99(micros), rare)
        )
        if each.plugin is not None:
            more = statistics.median(added(found, kind)), p99(micros) - base, each.cpu / len(micros) * 1e6
            row += "".join(f"{number:10.1f}" for number in (*more, process.status(each.plugin.pid, "VmRSS") / 1e6))
        print(row, flush=True)
    ratio = statistics.median(added(found, "ours")) / statistics.median(added(found, "go"))
    print(f"ours adds {ratio:.2f} of what the one in Go adds")
    return ratio


def idle(folder: Path, seconds: float) -> None:
    """Print the CPU time of ours without requests: without an agent, which it tries to reach, and with one."""
    with Runtime(folder) as running:
        running.start()
        with ours(folder) as plugin, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            running.connected(OURS)
            print(f"\nidle for {seconds:.0f} s: {_idle(plugin, seconds)} without an agent", flush=True)
            listener.bind(str(folder / "link" / runtime_link.SOCKET))
            listener.listen()
            agent, _ = listener.accept()
            with agent:
                for message in ({"kind": "mode", "mode": names.Mode.ENFORCE}, {"kind": "reset"}, {"kind": "ready"}):
                    agent.send(json.dumps(message).encode())
                time.sleep(6)  # Until it has sent what it counted.
                print(f"idle for {seconds:.0f} s: {_idle(plugin, seconds)} with an agent", flush=True)


def _idle(plugin: process.Process, seconds: float) -> str:
    used, woken = cpu_seconds(plugin.pid), process.status(plugin.pid, "voluntary_ctxt_switches")
    time.sleep(seconds)
    used, woken = cpu_seconds(plugin.pid) - used, process.status(plugin.pid, "voluntary_ctxt_switches") - woken
    return f"{used * 1e3:.2f} ms of CPU, woken {woken} times"


def large_node(folder: Path) -> int:
    """Print what a large node costs at the start; return the most bytes of memory."""
    pods, containers = LARGE_NODE
    env, mounts = SIZES["large"]
    with Runtime(folder) as running:
        running.start().populate(
            [Pod(f"{at:064x}", f"uid-{at}", DISABLED) for at in range(pods)],
            [
                Container(f"{pods + at:064x}", f"{at % pods:064x}", f"app-{at}", env=env, mounts=mounts)
                for at in range(containers)
            ],
        )
        with ours(folder) as plugin:
            running.connected(OURS)
            seconds = running.wait_for("synchronized", containers=containers)["seconds"]
            memory, most = process.status(plugin.pid, "VmRSS"), process.status(plugin.pid, "VmHWM")
            print(f"\n{pods} pods and {containers} containers at once: {seconds:.3f} s,", end=" ")
            print(f"{memory / 1e6:.1f} MB afterwards, {most / 1e6:.1f} MB at most", flush=True)
            return most


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="turns of each way (default: %(default)s)")
    parser.add_argument("--count", type=int, default=4000, help="creations a turn (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=60, help="seconds without requests (default: %(default)s)")
    parser.add_argument("--required", action="store_true", help="ours with --required: the runtime asks it twice")
    options = parser.parse_args(arguments)
    process.exit_on_sigterm()
    # As in the image: an interpreter that compiles its modules itself stays larger as long as it runs.
    compileall.compile_dir(paths.OPERATOR, quiet=2)
    ratios, memory = [], 0
    with tempfile.TemporaryDirectory(prefix="swapwarden-nri-") as name:
        folder = Path(name)
        for size in SIZES:
            (own := folder / size).mkdir()
            with contenders(own, *(["--required"] if options.required else [])) as found:
                for each in found.values():
                    each.run(WARM_UP, size)
                for number in range(options.rounds):
                    for kind in ORDERS[number % len(ORDERS)]:
                        found[kind].turn(options.count, size)
                ratios.append(show(size, found))
                plugin = found["ours"].plugin
                memory = max(memory, process.status(plugin.pid, "VmRSS") if plugin else 0)
        for part in ("idle", "large-node"):
            (folder / part).mkdir()
        large_node(folder / "large-node")
        idle(folder / "idle", options.idle)
    # The runtime asks a required plugin twice, to adjust and to validate; the one in Go only once.
    most = RATIO * 2 if options.required else RATIO
    holds = max(ratios) <= most and memory <= MOST_MEMORY
    shown = " and ".join(f"{each:.2f}" for each in ratios)
    print(
        f"\nbudget (ours adds at most {most} of what the one in Go adds, and has at most {MOST_MEMORY / 1e6:.0f} MB): "
        f"{'holds' if holds else 'DOES NOT HOLD'}: {shown}; {memory / 1e6:.1f} MB"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
