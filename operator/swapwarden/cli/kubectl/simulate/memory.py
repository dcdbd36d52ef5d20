"""Memory QoS of a pod by one plan, and the columns about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from swapwarden.api import sizes
from swapwarden.policy import plan
from swapwarden.policy.memory import qos
from swapwarden.policy.pod_settings import text

_NOTHING: Final = "-"


class SimulatedMemory(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """memory.min, memory.low and memory.high of a pod, in bytes; None where nothing is written."""

    protection_reason: str = ""
    throttling_reason: str = ""
    """Empty if nobody asks for memory QoS."""
    memory_min: str | None = None
    memory_low: str | None = None
    memory_high: str | None = None
    containers: Mapping[str, str] = {}
    """memory.high of its containers that have one, by name."""

    @property
    def protection(self) -> tuple[str | None, str | None]:
        """Return memory.min and memory.low."""
        return self.memory_min, self.memory_low

    @property
    def throttling(self) -> tuple[str | None, Mapping[str, str]]:
        """Return memory.high of the pod, and of containers."""
        return self.memory_high, self.containers

    @property
    def protected(self) -> str:
        """Return memory.min and memory.low for users, rounded."""
        parts = [f"min {_rounded(self.memory_min)}"] if self.memory_min else []
        parts += [_rounded(self.memory_low)] if self.memory_low else []
        return ", ".join(parts) or _NOTHING

    @property
    def throttled(self) -> str:
        """Return memory.high for users, rounded."""
        parts = [_rounded(self.memory_high)] if self.memory_high else []
        parts += [f"{name} {_rounded(high)}" for name, high in self.containers.items()]
        return ", ".join(parts) or _NOTHING


NONE: Final = SimulatedMemory()


def of_pod(memory: qos.PodMemory | None) -> SimulatedMemory:
    """Return the numbers of a plan."""
    if memory is None:
        return NONE
    highs = {one.name: str(one.high) for one in memory.containers if one.high}
    numbers = text(memory.minimum), text(memory.low), text(memory.high)
    return SimulatedMemory(memory.protection.value, memory.throttling.value, *numbers, highs)


def of_node(explained: plan.Explanation) -> dict[str, str]:
    """Return the protection above a node's pods, by file."""
    total = explained.protection
    amounts = {
        "kubepods memory.min": total.kubepods_min,
        "kubepods memory.low": total.kubepods_low,
        "burstable memory.low": total.burstable_low,
    }
    return {name: str(amount) for name, amount in amounts.items() if amount}


def _rounded(amount: str) -> str:
    return sizes.rounded(int(amount))
