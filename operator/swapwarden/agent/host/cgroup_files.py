"""The files of the node's cgroups that are set for each block device."""

from __future__ import annotations

from typing import Final, NamedTuple


class File(NamedTuple):
    """One of them, as the kernel has it."""

    name: str
    field: str
    """In a profile."""
    nothing: str
    """What is written for a disk of which the file is to say nothing (iolatency_set_limit, ioc_weight_write)."""
    option: str
    """Without which a kernel does not have it."""


LATENCY: Final = File("io.latency", "system.ioLatencyTarget", "target=max", "CONFIG_BLK_CGROUP_IOLATENCY")
WEIGHT: Final = File("io.weight", "system.ioWeight", "default", "CONFIG_BLK_CGROUP_IOCOST")
FILES: Final = {file.name: file for file in (LATENCY, WEIGHT)}
