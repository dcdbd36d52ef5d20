"""Descriptions of the cgroup files that the agent sets."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from swapwarden.agent.host import cgroupfs, values


class Exposed(enum.Enum):
    """Which values other than the desired one break a promise."""

    ABOVE = "above"
    BELOW = "below"


class CgroupFile(NamedTuple):
    """A file with one number. Bytes."""

    name: str
    usage: str = ""
    """The file that counts what is in use of it; empty where there is none."""
    unset: int = values.NO_LIMIT
    """What it holds where nobody has set it."""
    denied: int | None = 0
    """What it is to hold for a pod that may have nothing yet; None: whatever it holds."""
    exposed: Exposed = Exposed.ABOVE
    reclaims: bool = False
    """Whether the kernel reclaims memory in a write of less, for as long as that takes (memory_high_write)."""

    def exposes(self, found: int, desired: int) -> bool:
        """Return whether holding `found` breaks what `desired` promises."""
        return found > desired if self.exposed is Exposed.ABOVE else found < desired


SWAP_MAX: Final = CgroupFile(cgroupfs.SWAP_MAX, cgroupfs.SWAP_CURRENT)


class File(NamedTuple):
    """A file with a line for each block device."""

    name: str
    field: str
    """In a profile."""
    nothing: str
    """What is written for a disk of which the file is to say nothing (iolatency_set_limit, ioc_weight_write)."""
    option: str
    """Without which a kernel does not have it."""


LATENCY: Final = File(
    "io.latency", "systemUnits.io.latencyTargetMilliseconds", "target=max", "CONFIG_BLK_CGROUP_IOLATENCY"
)
WEIGHT: Final = File("io.weight", "systemUnits.io.weight", "default", "CONFIG_BLK_CGROUP_IOCOST")
FILES: Final = {file.name: file for file in (LATENCY, WEIGHT)}
