"""What the node has: read from /proc, /sys and the cgroup file system."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence
from typing import Final

from swapwarden.agent.host import block_devices, cgroupfs, files, mounts
from swapwarden.api import names, state

TMPFS_NOSWAP_KERNEL: Final = (6, 4)
"""From here on the kubelet takes tmpfs noswap as given (pkg/kubelet/util/swap/swap_util.go)."""

_SIZE = re.compile(r"[0-9]{1,15}", re.ASCII)
"""In KiB: as many digits as bytes have that fit into the status."""
_PRIORITY = re.compile(r"-?[0-9]{1,9}", re.ASCII)


def meminfo(text: str) -> dict[str, int]:
    """The lines of /proc/meminfo that are sizes, in bytes."""
    sizes = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and _SIZE.fullmatch(words[0]) and words[1] == "kB":
            sizes[name] = int(words[0]) * 1024
    return sizes


def devices(text: str, block: pathlib.Path, node_disks: frozenset[str] | None = None) -> list[state.SwapDevice]:
    """The devices in /proc/swaps, which writes spaces and the like in paths as octal escapes; odd lines are skipped.

    `block` is /sys/block; `node_disks` are the disks with the node's file systems, where they are known. What is under
    a file cannot be seen from a container: it counts as a file, not encrypted, on a disk that is not known.
    """
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < 5 or not _SIZE.fullmatch(words[2]):
            continue
        name, is_file = mounts.unescaped(words[0]), words[1] == "file"
        priority = int(words[4]) if _PRIORITY.fullmatch(words[4]) else 0
        under = (
            block_devices.Device(names.Backing.FILE, encrypted=False) if is_file else block_devices.look(block, name)
        )
        disks = None if is_file else block_devices.disks(block, name)
        dedicated = None if disks is None or node_disks is None else disks.isdisjoint(node_disks)
        size = int(words[2]) * 1024
        found.append(
            state.SwapDevice(name[:256], words[1][:32], size, priority, under.backing, under.encrypted, dedicated)
        )
    return found[: state.MAX_DEVICES]


def noswap(release: str) -> bool:
    """Whether a kernel of this release can keep tmpfs out of swap."""
    match = re.match(r"([0-9]{1,9})\.([0-9]{1,9})", release)
    return match is not None and (int(match[1]), int(match[2])) >= TMPFS_NOSWAP_KERNEL


def available(proc: pathlib.Path) -> int:
    """Memory in bytes that the node can still give without swapping (MemAvailable); 0 where it cannot be read."""
    return meminfo(files.text(proc / "meminfo") or "").get("MemAvailable", 0)


def has_swap_controller(cgroups: cgroupfs.Cgroups, root: str) -> bool:
    """Whether pods can be given limits of swap; `root` is the cgroup above them all."""
    return cgroups.has("", cgroupfs.CONTROLLERS) and cgroups.has(root, cgroupfs.SWAP_MAX)


def read(
    proc: pathlib.Path,
    block: pathlib.Path,
    cgroups: cgroupfs.Cgroups,
    pods_root: str | None,
    folders: Sequence[str] = (),
) -> state.Facts:
    """All facts, as they are now; `block` is /sys/block. What cannot be read counts as absent.

    `folders` are on file systems of the node, to find the disks that swap may share with them.
    Whether there is a swap controller is told by the cgroup above all pods; before that is found, by nothing.
    """
    sizes = meminfo(files.text(proc / "meminfo") or "")
    release = files.text(proc / "sys/kernel/osrelease") or ""
    mounted = mounts.read(proc)
    seen = mounts.noswap(mounted)
    unified = cgroups.has("", cgroupfs.CONTROLLERS)
    return state.Facts(
        cgroup_version=2 if unified else 1 if cgroups.has("", "memory") else 0,
        swap_controller=pods_root is not None and has_swap_controller(cgroups, pods_root),
        swap_bytes=sizes.get("SwapTotal", 0),
        memory_bytes=sizes.get("MemTotal", 0),
        page_size=cgroups.page,
        kernel=release[:128],
        tmpfs_noswap=noswap(release) if seen is None else seen,
        devices=devices(files.text(proc / "swaps") or "", block, mounts.node_disks(mounted, block, folders)),
    )
