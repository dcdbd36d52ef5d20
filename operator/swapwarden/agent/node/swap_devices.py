"""Finds the disks that a node swaps to. Cgroup files name whole disks, not partitions."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from swapwarden.agent.host import block_devices, files
from swapwarden.agent.node import memory_headroom
from swapwarden.api import state

_FILE: Final = "file"
_ZRAM: Final = re.compile(r"/dev/(zram[0-9]{1,4})", re.ASCII)
_SIZE: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_PRIORITY: Final = re.compile(r"-?[0-9]{1,5}", re.ASCII)


class Disks(msgspec.Struct, frozen=True):
    """The disks under the node's swap."""

    numbers: tuple[str, ...] = ()
    """major:minor of the disks whose I/O the kernel can prioritise."""
    unknown: tuple[str, ...] = ()
    """Swap devices and files whose disks are unknown."""
    without: tuple[str, ...] = ()
    """Those without such a disk, with the reason."""


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


def space(proc: pathlib.Path, block: pathlib.Path) -> list[memory_headroom.SwapSpace]:
    """Return the free space of the swap devices, and the memory that zram takes; invalid lines are skipped."""
    found = []
    for line in (files.text(proc / "swaps") or "").splitlines()[1 : state.MAX_DEVICES + 1]:
        words = line.split()
        if len(words) < 5 or not (all(map(_SIZE.fullmatch, words[2:4])) and _PRIORITY.fullmatch(words[4])):
            continue
        device = memory_headroom.SwapSpace(max(0, int(words[2]) - int(words[3])) * 1024, int(words[4]))
        if match := _ZRAM.fullmatch(words[0]):
            # Original, compressed, used and most allowed bytes (Documentation/admin-guide/blockdev/zram.rst).
            words = (files.text(block / match[1] / "mm_stat") or "").split()[:4]
            sizes = [int(word) for word in words if _SIZE.fullmatch(word)]
            original, _, used, limit = sizes if len(sizes) == 4 else (0, 0, 0, 0)
            device = msgspec.structs.replace(device, original=original, used=used, limit=limit, in_memory=True)
        found.append(device)
    return found
