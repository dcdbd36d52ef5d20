"""The disks that a node swaps to, as files of cgroups name them: whole ones, for partitions have no place there."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from swapwarden.agent.host import block_devices
from swapwarden.api import state

_FILE: Final = "file"


class Disks(NamedTuple):
    """What is under the node's swap."""

    numbers: tuple[str, ...] = ()
    """major:minor of the disks whose I/O the kernel can put in an order."""
    unknown: tuple[str, ...] = ()
    """Swap devices and files under which it is not known what disks are."""
    without: tuple[str, ...] = ()
    """Those that have none, or none of this kind, with the reason."""


def find(block: pathlib.Path, devices: Iterable[state.SwapDevice]) -> Disks:
    """Look at what is under these devices; `block` is /sys/block. A file is on the disk of a node that has just one."""
    numbers: set[str] = set()
    unknown, without = [], []
    for device in devices:
        disks = block_devices.only_disk(block) if device.type == _FILE else block_devices.disks(block, device.name)
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
