"""Descriptions of the cgroup files that the agent sets."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs


class Exposed(enum.IntEnum):
    """Which values other than the desired one break a promise: the sign of their difference to it."""

    ABOVE = 1
    """A limit: it is lowered at once, and raised only after all that waited before."""
    BELOW = -1
    """A protection: it is raised at once, and lowered only after all that waited before."""


class CgroupFile(msgspec.Struct, frozen=True):
    """A file with one number of bytes. How it is read and written is no field: `cgroupfs.Cgroups` does it for all."""

    name: str
    field: str = ""
    """The field of api.state.CgroupSettings with the value that the file must hold."""
    ceiling: str = ""
    """The field of api.state.CappedSettings with the most that it may hold; a smaller value of another writer stays."""
    systemd_property: str = ""
    """The property's name in a systemd unit; empty: units have none."""
    usage: str = ""
    """The file that counts its use; empty: none does."""
    unset: int = cgroupfs.NO_LIMIT
    """The value in bytes until the first write."""
    denied: int | None = 0
    """Desired value in bytes for a pod that no state has named yet; None: any."""
    exposed: Exposed = Exposed.ABOVE
    """In which direction a value breaks a promise, and so in which order values are written (WriteOrder)."""
    reclaims: bool = False
    """Whether a write of a smaller value lasts until the kernel has reclaimed memory (memory_high_write)."""
    inner: bool = True
    """Whether a cgroup that a runtime makes inside a container's (crun) must hold it as well."""


SWAP_MAX: Final = CgroupFile(
    cgroupfs.SWAP_MAX, "swap_max", "swap_at_most", "MemorySwapMax", usage=cgroupfs.SWAP_CURRENT
)
MEMORY_HIGH: Final = CgroupFile(
    cgroupfs.MEMORY_HIGH, "memory_high", systemd_property="MemoryHigh", denied=None, reclaims=True, inner=False
)
MEMORY_LOW: Final = CgroupFile(
    cgroupfs.MEMORY_LOW, "memory_low", systemd_property="MemoryLow", unset=0, denied=None, exposed=Exposed.BELOW
)
MEMORY_MIN: Final = CgroupFile(
    cgroupfs.MEMORY_MIN, "memory_min", systemd_property="MemoryMin", unset=0, denied=None, exposed=Exposed.BELOW
)
OF_MEMORY: Final = (MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN)
"""Files with a record only where a state has a setting, or the ledger a record. memory.high is the first: a restore
ends the throttling before the protection."""
OF_PODS: Final = (SWAP_MAX, *OF_MEMORY)
"""The files that the agent sets in the cgroups of pods and containers, in the order of reconciling. SWAP_MAX is the
first: exposures count its use."""


class DeviceFile(msgspec.Struct, frozen=True):
    """A file with a line for each block device."""

    name: str
    field: str
    """The setting's field in a profile."""
    nothing: str
    """The value that removes a disk's line (iolatency_set_limit, ioc_weight_write)."""
    option: str
    """The kernel's build option for it."""


LATENCY: Final = DeviceFile(
    "io.latency", "systemUnits.io.latencyTargetMilliseconds", "target=max", "CONFIG_BLK_CGROUP_IOLATENCY"
)
WEIGHT: Final = DeviceFile("io.weight", "systemUnits.io.weight", "default", "CONFIG_BLK_CGROUP_IOCOST")
FILES: Final = {file.name: file for file in (LATENCY, WEIGHT)}
