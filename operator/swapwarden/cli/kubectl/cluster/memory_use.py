"""Memory QoS of running pods, by the state of their node: values, and how often they were throttled. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from swapwarden.api import names, state
from swapwarden.policy.observed import pods


class MemoryUse(msgspec.Struct, frozen=True, rename="camel"):
    """The plan of a pod's memory files, in bytes, and the throttling that its agent reports."""

    protected_bytes: int | None = None
    """memory.low, or memory.min; None if neither is planned."""
    high_bytes: int | None = None
    """memory.high of the pod's cgroup."""
    container_high_bytes: dict[str, int] = {}
    """memory.high of its containers, by name."""
    throttled: int | None = None
    """How many times, the pod and its containers together; 0 if not in the last ten minutes, None if unknown."""
    stalled_milliseconds: int = 0
    """For how long a task stalled meanwhile."""
    guard: str = ""
    """How the guard has raised a memory.high: Stepped, Released or Latched; empty if it has not."""


def of_pod(row: pods.PodRow, spec: state.StateSpec | None, status: state.StateStatus) -> MemoryUse | None:
    """Return the memory QoS of a pod; None if its node's state plans none."""
    pod = spec.pods.get(row.key) if spec is not None and spec.mode is names.Mode.ENFORCE else None
    if pod is None:
        return None
    each = {one.name: pod.containers.get(one.name) or pod.container_default for one in row.containers}
    planned = {name: _number(own.memory_high) for name, own in each.items() if own is not None}
    highs = {name: value for name, value in planned.items() if value is not None}
    high = _number(pod.memory_high)
    recursive = status.facts is None or status.facts.recursive_protection
    protected = state.protected_bytes(pod, recursive=recursive)
    if not protected and high is None and not highs:
        return None
    found = [one for one in status.throttled if one.pod == row.key]
    unknown = not found and (status.throttled_omitted or not status.observed_generation)
    throttles = high is not None or bool(highs)
    return MemoryUse(
        protected_bytes=protected or None,
        high_bytes=high,
        container_high_bytes=highs,
        throttled=None if unknown or not throttles else sum(one.count for one in found),
        stalled_milliseconds=sum(one.milliseconds for one in found),
        guard=max((one.guard for one in found), default="", key=_worse),
    )


_WORST: Final = ("Stepped", "Released", "Latched")


def _worse(guard: str) -> int:
    return _WORST.index(guard) if guard in _WORST else -1


def _number(value: str | None) -> int | None:
    return None if value is None or value == names.MAX_SWAP else int(value)
