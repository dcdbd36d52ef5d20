"""Cells about the memory QoS of pods."""

from __future__ import annotations

from swapwarden.api import sizes
from swapwarden.cli.kubectl.cluster.usage import MemoryUse
from swapwarden.cli.kubectl.output import tables


def protected(found: MemoryUse | None) -> str:
    """Return the planned memory.low or memory.min of a pod."""
    return _size(None if found is None else found.protected_bytes)


def high(found: MemoryUse | None, container: str) -> str:
    """Return memory.high of the pod, else that of the container, or of each with its name if `container` is empty."""
    if found is None or found.high_bytes is not None:
        return _size(None if found is None else found.high_bytes)
    each = found.container_high_bytes
    if container:
        return _size(each.get(container))
    return ",".join(f"{name}:{sizes.rounded(amount)}" for name, amount in each.items()) or tables.NONE


def throttled(found: MemoryUse | None) -> tables.Cell:
    """Return how often and for how long a pod was throttled, and what the guard made of it: 42(4.5s,Released)."""
    if found is None or not (found.high_bytes or found.container_high_bytes):
        return tables.Cell(tables.NONE)
    if found.throttled is None:
        return tables.Cell(tables.UNKNOWN)
    stalled = f"{found.stalled_milliseconds / 1000:.1f}s" if found.stalled_milliseconds else ""
    details = ",".join(filter(None, (stalled, found.guard)))
    style = "bold red" if found.guard else "yellow" if found.throttled else ""
    return tables.Cell(f"{found.throttled}({details})" if details else str(found.throttled), style)


def _size(amount: int | None) -> str:
    return tables.NONE if amount is None else sizes.rounded(amount)
