"""Counts writes to files of cgroups."""

from __future__ import annotations

import itertools
from typing import Final

from swapwarden.agent.inventory import records
from swapwarden.telemetry import metrics

_KINDS: Final = ("pod", "container", "kubepods")
WRITES = metrics.counter(
    "swapwarden_agent_writes_total",
    "Writes to memory.swap.max, by kind of cgroup (pod, container, kubepods, system) and result: ok, overwritten (by"
    " another at the same moment), gone (with its cgroup), denied, error.",
    labels=("kind", "result"),
    known=itertools.product(_KINDS, ("ok", "overwritten", "gone", "denied", "error")),
)
MEMORY_WRITES = metrics.counter(
    "swapwarden_agent_memory_writes_total",
    "Writes to memory.min, memory.low and memory.high, by file and result, as in swapwarden_agent_writes_total.",
    labels=("file", "result"),
)


def count(file: records.ControlFile, result: str) -> None:
    """Count one write with its result."""
    if file.usage:
        WRITES.inc(file.kind, result)
    else:
        MEMORY_WRITES.inc(file.spec.name, result)
