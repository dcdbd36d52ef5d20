"""The results of bench.scale: figures by size and rate, tables for people, and the verdict on the budgets."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Final

MIB: Final = 1 << 20
JUDGED: Final = 100
STARTS: Final = 100
"""Pods to average the cost of one over."""
SATURATED: Final = 0.95
"""Share of all busy cores from which on the machine is the bottleneck."""

DISTURBED: Final = 0.3
"""Cores used by others, the kernel's threads included, from which on times mean little."""

MAX_RSS: Final = 400_000_000
MAX_PLAN_SECONDS: Final = 10.0
MAX_CORES: Final = 0.5
MAX_ETCD_BYTES: Final = 16 << 10
MAX_WRITES: Final = 2.0
MAX_WITH_MEMORY_QOS: Final = 1.3
"""The controller's CPU and memory with memory QoS, in times of those without."""


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
    """Counters of etcd and the API server."""

    etcd: float
    """Bytes of keys and values: each write stores those of a whole object. The log that is written ahead has them once
    more. (etcd_disk_wal_write_bytes_total does not measure it: it counts twice the content of the log.)
    """
    states: float
    """Writes of states, by the controller."""
    statuses: float
    """Writes of their status, by agents."""

    def since(self, before: Counters) -> Counters:
        return Counters(self.etcd - before.etcd, self.states - before.states, self.statuses - before.statuses)


@dataclasses.dataclass(frozen=True)
class Cost:
    """The costs of one pod: bytes written to etcd and requests; the pod's own writes are in the bytes."""

    started: Counters
    """From their binding until their containers run and everyone has reported so."""
    gone: Counters
    containers: int
    """Containers that started."""

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
    """Results at one rate of change."""

    achieved: float
    """Changes a second that were achieved."""
    took: list[float]
    """Seconds from a pod's binding to its state, of all pods."""
    disabled: list[float]
    """The same of pods with policy Disabled."""
    lost: int
    """Pods that appeared in no state before they were deleted."""
    cores: dict[str, float]
    """By process."""
    busy: float
    """Share of all the machine's cores."""
    others: float
    """Cores used by other processes."""


@dataclasses.dataclass(frozen=True)
class Found:
    """Results of one controller at one size."""

    cold: float
    """Seconds from the start of the process until all states were written."""
    plan: float
    """Seconds of these from the moment at which it knew all objects and led."""
    next: float
    """Seconds in which the next leader plans all nodes, if all states exist; NaN if that was not tried."""
    peak: int
    settled: int
    cpu: float
    """Seconds of CPU from its start until the lives of STARTS pods were over."""
    paces: dict[int, Pace]
    cost: Cost


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of them is below; NaN without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


@dataclasses.dataclass(frozen=True)
class Result:
    """All results at one size."""

    size: Size
    ours: Found
    bare: Cost
    """The costs of a pod without any controller."""
    built_in: Cost | None = None
    """The costs on nodes that no profile governs."""
    kopf: Found | None = None
    memory_qos: Found | None = None
    """With a profile that plans memory QoS."""


def figures(found: Found, bare: Cost) -> dict[str, float]:
    """A line of the table for each."""
    lines = {
        "cold start, s": found.cold,
        "  of these since it led": found.plan,
        "next leader: full plan, s": found.next,
        "RSS peak, MiB": found.peak / MIB,
        "RSS settled, MiB": found.settled / MIB,
        "CPU for all of that, s": found.cpu,
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
    """Return remarks on the tables."""
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
    """Yield the promises: name, result, and limit."""
    largest = results[-1]
    if largest.size == SIZES[-1]:
        yield "RSS, MB", largest.ours.peak / 1e6, MAX_RSS / 1e6
        yield "full plan of the next leader, s", largest.ours.next, MAX_PLAN_SECONDS
        yield f"cores at {JUDGED} changes/s", largest.ours.paces[JUDGED].cores["controller"], MAX_CORES
    if (memory := results[0].memory_qos) is not None:
        off = results[0].ours
        yield "x the CPU with memory QoS", memory.cpu / off.cpu, MAX_WITH_MEMORY_QOS
        yield "x the RSS with memory QoS", memory.peak / off.peak, MAX_WITH_MEMORY_QOS
    measured = [(found, each.bare) for each in results for found in (each.ours, each.memory_qos) if found]
    added = max(found.cost.start_bytes - bare.start_bytes for found, bare in measured)
    yield "KiB that a pod's start adds to etcd", added / 1024, MAX_ETCD_BYTES / 1024
    yield "writes per container start", max(each.ours.cost.writes_per_container for each in results), MAX_WRITES
