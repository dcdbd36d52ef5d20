"""Summarize a recording of bench.storm: exposures, repairs, and a row for each variant."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from testbed.vm.nodevm import Sample

Json = Any


@dataclasses.dataclass(frozen=True)
class Exposures:
    """The history of one pod, in seconds and bytes."""

    repairs: list[float]
    """From each foreign write, which removed the limit of its own cgroup, to the repair."""
    above: list[float]
    """How long a container could use more than it may at a time; while a pod drains, that is the agent's own doing."""
    below: list[float]
    """How long it could use less."""
    swapped: int
    """The most swap that its containers used, beyond their earlier use."""
    sandbox: int
    """The most swap that the rest of the pod used: its sandbox, which the runtime holds for nobody."""


class _Spans:
    """Adds up the times in which something is so."""

    def __init__(self) -> None:
        self.lasted: list[float] = []
        self._since: float | None = None

    def note(self, at: float, *, holds: bool) -> None:
        """Note whether it is so from this moment on."""
        if holds and self._since is None:
            self._since = at
        elif not holds and self._since is not None:
            self.lasted.append(at - self._since)
            self._since = None


def exposures(samples: Iterable[Sample], end: float, containers: Mapping[str, int]) -> Exposures:
    """Return the history of one pod until `end`.

    `samples` are of its own cgroup and of those below it. `containers` has the limit of each container, in bytes, by
    the name of its cgroup.
    """
    limits: dict[str, float] = {}
    used: dict[str, int] = {}
    first: dict[str, int] = {}
    repaired, above, below = _Spans(), _Spans(), _Spans()
    swapped = sandbox = 0
    for sample in samples:
        if sample.at > end or sample.event == "gone":
            break
        name = sample.path.rpartition("/")[2]
        name = name if name in containers else "" if name.endswith(".slice") else "sandbox"
        limits[name] = math.inf if sample.max_bytes is None else sample.max_bytes
        used[name] = sample.current_bytes
        first.setdefault(name, sample.current_bytes)
        own = limits.get("", 0.0)
        effective = {each: min(own, limits[each]) for each in containers if each in limits}
        repaired.note(sample.at, holds=own == math.inf)
        above.note(sample.at, holds=any(value > containers[each] for each, value in effective.items()))
        below.note(sample.at, holds=any(value < containers[each] for each, value in effective.items()))
        swapped = max(swapped, sum(used[each] - first[each] for each in effective if containers[each] == 0))
        sandbox = max(sandbox, used.get("sandbox", 0) - first.get("sandbox", 0))
    for spans in (repaired, above, below):
        spans.note(end, holds=False)
    return Exposures(repaired.lasted, above.lasted, below.lasted, swapped, sandbox)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed; NaN without any."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)] if values else math.nan


@dataclasses.dataclass(frozen=True)
class Share:
    """CPU time of the agent's pod, in seconds."""

    used: float
    waited: float
    """How long it could run while others ran (cpu.pressure); NaN if the kernel does not report it."""

    def since(self, before: Share) -> Share:
        """Return the increase since then."""
        return Share(self.used - before.used, self.waited - before.waited)


@dataclasses.dataclass(frozen=True)
class Row:
    """The results of one variant."""

    variant: str
    swapped_pods: int
    """`Disabled` pods with a container that swapped."""
    most_bytes: int
    sandbox_bytes: int
    """The most that one sandbox swapped."""
    above_seconds: float
    longest_seconds: float
    repairs: int
    p50: float
    p99: float
    most: float
    limited_off: float
    """The longest time that a pod under LimitedSwap was above or below its number."""
    oom_kills: int
    """Of pods under LimitedSwap."""
    reloads: int
    kills: int
    reclaims: int
    """How often each pod was asked to give memory back."""
    busy: float
    agent: Share


def row(variant: str, quiet: Sequence[Exposures], limited: Sequence[Exposures], said: Json, agent: Share) -> Row:
    """Summarize all pods of one variant."""
    repairs = [each for pod in quiet for each in pod.repairs]
    above = [each for pod in quiet for each in pod.above]
    return Row(
        variant=variant,
        swapped_pods=sum(pod.swapped > 0 for pod in quiet),
        most_bytes=max((pod.swapped for pod in quiet), default=0),
        sandbox_bytes=max((pod.sandbox for pod in quiet), default=0),
        above_seconds=sum(above),
        longest_seconds=max(above, default=0.0),
        repairs=len(repairs),
        p50=statistics.median(repairs) if repairs else math.nan,
        p99=quantile(repairs, 0.99),
        most=max(repairs, default=math.nan),
        limited_off=max((each for pod in limited for each in (*pod.above, *pod.below)), default=0.0),
        oom_kills=said["oomKills"],
        reloads=said["reloads"],
        kills=said["kills"],
        reclaims=said["reclaims"],
        busy=said["busy"],
        agent=agent,
    )


COLUMNS: Final[tuple[tuple[str, Callable[[Row], str]], ...]] = (
    ("agent", lambda each: each.variant),
    ("swapped", lambda each: str(each.swapped_pods)),
    ("most kB", lambda each: f"{each.most_bytes / 1000:.0f}"),
    ("sandbox kB", lambda each: f"{each.sandbox_bytes / 1000:.0f}"),
    ("above s", lambda each: f"{each.above_seconds:.2f}"),
    ("longest s", lambda each: f"{each.longest_seconds:.2f}"),
    ("repairs", lambda each: str(each.repairs)),
    ("p50 ms", lambda each: f"{each.p50 * 1000:.1f}"),
    ("p99 ms", lambda each: f"{each.p99 * 1000:.1f}"),
    ("max ms", lambda each: f"{each.most * 1000:.1f}"),
    ("limited off s", lambda each: f"{each.limited_off:.2f}"),
    ("OOM", lambda each: str(each.oom_kills)),
    ("reloads", lambda each: str(each.reloads)),
    ("kills", lambda each: str(each.kills)),
    ("reclaims", lambda each: str(each.reclaims)),
    ("busy", lambda each: f"{each.busy:.0%}"),
    ("CPU s", lambda each: f"{each.agent.used:.2f}"),
)


def table(rows: Iterable[Row]) -> str:
    """Return a table for people."""
    lines = [[name for name, _ in COLUMNS], *([show(each) for _, show in COLUMNS] for each in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
