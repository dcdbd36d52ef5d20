"""Finds the disks that a node swaps to. Cgroup files name whole disks, not partitions."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Final

import msgspec

from swapwarden.agent.host import block_devices
from swapwarden.api import state

_FILE: Final = "file"


class Disks(msgspec.Struct, frozen=True):
    """The disks under the node's swap."""

    numbers: tuple[str, ...] = ()
    """major:minor of the disks whose I/O the kernel can prioritise."""
    unknown: tuple[str, ...] = ()
    """Swap devices and files whose disks are unknown."""
    without: tuple[str, ...] = ()
    """Swap devices and files without such a disk, with the reason."""


def find(block: pathlib.Path, devices: Iterable[state.SwapDevice]) -> Disks:
    """Find the disks under these devices; `block` is /sys/block. Files are on the disk of a node with just one."""
    numbers: set[str] = set()
    unknown, without = [], []
    for device in devices:
        disks = block_devices.only_disk(block) if device.type == _FILE else block_devices.look(block, device.name).disks
        if disks is None:
            unknown.append(device.name)
        elif not disks:
            without.append(f"{device.name} is in memory")
        for disk in sorted(disks or ()):
            number = block_devices.queue(block, disk)
            if number is None:
                without.append(f"{device.name} is on {disk}, which has no queue of requests in this node's kernel")
            else:
                numbers.add(number)
    return Disks(tuple(sorted(numbers)), tuple(unknown), tuple(without))
