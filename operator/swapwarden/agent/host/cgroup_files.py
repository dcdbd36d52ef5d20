"""Descriptions of the cgroup files that the agent sets."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from swapwarden.agent.host import cgroupfs


class Exposed(enum.Enum):
    """Which values other than the desired one break a promise."""

    ABOVE = "above"
    BELOW = "below"


class CgroupFile(NamedTuple):
    """A file with one number. Bytes."""

    name: str
    usage: str = ""
    """The file that counts its use; empty: none does."""
    unset: int = cgroupfs.NO_LIMIT
    """Its value until the first write."""
    denied: int | None = 0
    """Its desired value for a pod that no state has named yet; None: any."""
    exposed: Exposed = Exposed.ABOVE
    reclaims: bool = False
    """Whether a write of a smaller value lasts until the kernel has reclaimed memory (memory_high_write)."""

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
    """The value that removes a disk's line (iolatency_set_limit, ioc_weight_write)."""
    option: str
    """The kernel's build option for it."""


LATENCY: Final = File(
    "io.latency", "systemUnits.io.latencyTargetMilliseconds", "target=max", "CONFIG_BLK_CGROUP_IOLATENCY"
)
WEIGHT: Final = File("io.weight", "systemUnits.io.weight", "default", "CONFIG_BLK_CGROUP_IOCOST")
FILES: Final = {file.name: file for file in (LATENCY, WEIGHT)}
