"""Reads the mount table of the agent's own process, and infers the node's disks from it.

A container sees few of the node's file systems, but it sees those with the numbers of their devices:
the kubelet mounts /etc/hosts from its own root directory into each container, host paths come with their file system,
and the token volume is one of the kubelet's tmpfs volumes.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from swapwarden.agent.host import block_devices, files

MAX_BYTES: Final = 1 << 20
"""Longest mount table; a longer one counts as unreadable, since the rest could be what matters."""
HOSTS: Final = "/etc/hosts"
KUBELET: Final = "/var/lib/kubelet"
_OCTAL = re.compile(r"\\([0-7]{3})")
_VOLUMES: Final = re.compile(r".*(?:/volumes/kubernetes\.io~[^/]+/[^/]+|/secrets/kubernetes\.io/serviceaccount)")
"""Mount points of the kubelet's volumes: on the node, and of the token volume in a container."""
_DISKLESS: Final = frozenset({"tmpfs", "ramfs", "nfs", "nfs4"})


class Mount(msgspec.Struct, frozen=True):
    """The used fields of a line of /proc/PID/mountinfo (proc_pid_mountinfo(5))."""

    device: str
    """major:minor. The major number is 0 without a block device, or with several (btrfs)."""
    point: str
    kind: str
    source: str
    options: frozenset[str]
    """Options of the file system, not of this mount."""


def unescaped(text: str) -> str:
    """Decode a path of a kernel table, which has octal escapes for spaces and the like."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def read(proc: pathlib.Path) -> list[Mount]:
    """Return the mounts that this process sees, in the order of the table; none if it cannot be read."""
    try:
        table = files.whole(proc / "self/mountinfo", MAX_BYTES)
    except (OSError, ValueError):
        return []
    return parse(table.decode("utf-8", "replace"))


def parse(text: str) -> list[Mount]:
    """Parse a mountinfo; invalid lines are skipped."""
    parsed = []
    for line in text.splitlines():
        here, _, system = line.partition(" - ")
        first, second = here.split(), system.split()
        if len(first) >= 6 and len(second) >= 3:
            point, source = unescaped(first[4]), unescaped(second[1])
            parsed.append(Mount(first[2], point, second[0], source, frozenset(second[2].split(","))))
    return parsed


def holding(mounts: Iterable[Mount], path: str) -> Mount | None:
    """Return the mount of a path: the best mount point above it, and the last of several on one point."""
    best = None
    for mount in mounts:
        above = mount.point.rstrip("/")
        if (path == above or path.startswith(f"{above}/")) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def node_disks(mounts: Sequence[Mount], block: pathlib.Path, folders: Iterable[str]) -> frozenset[str] | None:
    """Return the disks of the kubelet's file systems and of these folders; None if any of them is unknown.

    `block` is /sys/block. In a container /etc/hosts is on the kubelet's file system, elsewhere on the root file system.
    Other paths on / are skipped: in a container that is the image's file system.
    """
    disks: set[str] = set()
    for path in (HOSTS, KUBELET, *folders):
        mount = holding(mounts, path)
        if mount is not None and mount.point == "/" and path != HOSTS:
            continue
        more = None if mount is None else _disks(mount, block)
        if more is None:
            return None
        disks |= more
    return frozenset(disks)


def _disks(mount: Mount, block: pathlib.Path) -> frozenset[str] | None:
    if not mount.device.startswith("0:"):
        return block_devices.disks_of_number(block, mount.device)
    if mount.kind in _DISKLESS:
        return frozenset()
    if mount.kind == "btrfs":
        return block_devices.disks_of_btrfs(block, mount.source)
    return None


def recursive_protection(mounts: Iterable[Mount]) -> bool:
    """Return whether cgroup v2 is mounted with memory_recursiveprot; True if it is not visible."""
    options = [mount.options for mount in mounts if mount.kind == "cgroup2"]
    return not options or any("memory_recursiveprot" in each for each in options)


def noswap(mounts: Iterable[Mount]) -> bool | None:
    """Return whether the kubelet mounts its tmpfs volumes with noswap; None if none of them is visible."""
    volumes = [mount for mount in mounts if mount.kind == "tmpfs" and _VOLUMES.fullmatch(mount.point)]
    return all("noswap" in mount.options for mount in volumes) if volumes else None
