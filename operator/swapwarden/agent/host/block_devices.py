"""Follows a swap device through partitions, RAID and device mapper down to its disks, in /sys/block.

Nothing here opens a device: an agent without privileges sees only these directories.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from swapwarden.agent.host import files
from swapwarden.api import names

_ENCRYPTING: Final = re.compile(r"CRYPT-(?:LUKS[12]|PLAIN|LOOPAES|TCRYPT|BITLK|FVAULT2)-")
"""Device mapper UUIDs by which cryptsetup marks encrypted devices (lib/utils_dm.h); other UUIDs that begin with CRYPT-
are of dm-verity and dm-integrity, which do not encrypt."""
_KINDS: Final = (
    (re.compile(r"zram\d+"), names.Backing.ZRAM),
    (re.compile(r"nvme\d+(?:c\d+)?n\d+"), names.Backing.NVME),
    (re.compile(r"(?:vd|xvd)[a-z]+"), names.Backing.VIRTUAL),
    (re.compile(r"(?:nbd|rbd|drbd)\d+"), names.Backing.NETWORK),
    (re.compile(r"loop\d+"), names.Backing.LOOP),
)
_ROTATIONAL: Final = {"0": names.Backing.SSD, "1": names.Backing.HDD}
_ATTACHED: Final = (
    (re.compile(r"/(?:session|rport-)\d[^/]*/"), names.Backing.NETWORK),
    (re.compile(r"/virtio\d+/"), names.Backing.VIRTUAL),
)
"""How SCSI disks are attached, by their path in /sys/devices: by iSCSI (scsi_transport_iscsi), by Fibre Channel or SRP
(their remote ports), by virtio-scsi."""
_FABRICS: Final = frozenset({"tcp", "rdma", "fc"})
"""Transports of NVMe over a network (drivers/nvme/host: nvme_ctrl_ops.name)."""
_DEPTH: Final = 16
"""Most levels of devices; the kernel allows fewer."""
_PAGE_BYTES: Final = 4096
"""Most bytes read of a file: the kernel returns a page."""
_NUMBER: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}", re.ASCII)
_DELETED: Final = " (deleted)"


class Device(msgspec.Struct, frozen=True):
    """The kind of a device, and the disks under it."""

    backing: names.Backing
    encrypted: bool
    """Whether nothing written to it reaches a disk in the clear."""
    disks: frozenset[str] | None
    """The kernel's names of the whole disks under it: empty for memory (zram), None if not all of them are known."""


UNKNOWN: Final = Device(names.Backing.UNKNOWN, encrypted=False, disks=None)


def look(block: pathlib.Path, path: str) -> Device:
    """Follow the block device `path` of /proc/swaps to its disks; `block` is /sys/block. Unreadable is unknown.

    The name of a disk, or its path in /sys/devices, shows how it is attached (nvme, virtual, network); for others the
    kernel's queue/rotational shows the kind. A device is encrypted if dm-crypt is on each way to a disk.
    zram is memory and counts as encrypted, unless it writes back to a disk, which then counts.
    """
    name = _name(block, path.removesuffix(_DELETED))
    return UNKNOWN if name is None else _below(block, name, _DEPTH)


def disks_of_number(block: pathlib.Path, number: str) -> frozenset[str] | None:
    """Return the disks under the device `number` (major:minor), by /sys/dev/block beside /sys/block."""
    try:
        target = (block.parent / "dev/block" / number).readlink()
    except OSError:
        return None
    return _below(block, target.name, _DEPTH).disks


def disks_of_btrfs(block: pathlib.Path, source: str) -> frozenset[str] | None:
    """Return the disks under all devices of a btrfs, by /sys/fs/btrfs; the mount table names one of them, `source`."""
    name = _name(block, source)
    for members in block.parent.glob("fs/btrfs/*/devices"):
        try:
            devices = {each.name for each in members.iterdir()}
        except OSError:
            continue
        if name in devices:
            return _all(_below(block, each, _DEPTH) for each in devices)
    return None


def only_disk(block: pathlib.Path) -> frozenset[str] | None:
    """Return the disk of a node that has just one, which must then hold its files; None otherwise.

    Disks are what a driver made for some hardware; drives whose medium can be taken out (CD-ROMs) do not count.
    """
    try:
        disks = [
            each for each in block.iterdir() if (each / "device").exists() and _NUMBER.fullmatch(_text(each / "dev"))
        ]
    except OSError:
        return None
    fixed = [each.name for each in disks if _text(each / "removable") != "1"]
    return frozenset(fixed) if len(fixed) == 1 else None


def queue(block: pathlib.Path, disk: str) -> str | None:
    """Return the number (major:minor) of a disk for which the kernel queues requests; None if it does not.

    Only these have io.latency and io.weight: devices that handle bios in the order of arrival (zram, drbd, the head of
    several NVMe paths) have no queue to reorder (queue_is_mq).
    """
    number = _text(block / disk / "dev")
    return number if _NUMBER.fullmatch(number) and (block / disk / "mq").is_dir() else None


def _name(block: pathlib.Path, path: str) -> str | None:
    """Return the kernel's name of a device, with an exclamation mark for each slash; None if it is not one."""
    if not path.startswith("/dev/"):
        return None
    mapped = path.removeprefix("/dev/mapper/")
    if mapped == path:
        return path.removeprefix("/dev/").replace("/", "!")
    return next((each.parent.parent.name for each in block.glob("dm-*/dm/name") if _text(each) == mapped), None)


def _disk(block: pathlib.Path, name: str) -> pathlib.Path | None:
    """Return the directory of a disk, or of a partition's disk."""
    if not name or name in {".", ".."}:
        return None
    try:
        if (block / name).is_dir():
            return block / name
        return next((disk for disk in block.iterdir() if (disk / name / "partition").is_file()), None)
    except OSError:
        return None


def _all(devices: Iterable[Device]) -> frozenset[str] | None:
    """Return the disks under all of them."""
    disks = [each.disks for each in devices]
    known = [each for each in disks if each is not None]
    return frozenset().union(*known) if len(known) == len(disks) else None


def _under(disk: pathlib.Path) -> list[str]:
    """Return the names of the devices that one consists of."""
    try:
        return sorted(each.name for each in (disk / "slaves").iterdir())
    except OSError:
        return []


def _below(block: pathlib.Path, name: str, depth: int) -> Device:
    disk = _disk(block, name)
    if disk is None or not depth:
        return UNKNOWN
    encrypts = _ENCRYPTING.match(_text(disk / "dm/uuid")) is not None
    under = _under(disk)
    if not under:
        return _leaf(block, disk, depth, encrypts=encrypts)
    devices = [_below(block, each, depth - 1) for each in under]
    kinds = {each.backing for each in devices}
    backing = kinds.pop() if len(kinds) == 1 else names.Backing.MIXED
    return Device(backing, encrypts or all(each.encrypted for each in devices), _all(devices))


def _leaf(block: pathlib.Path, disk: pathlib.Path, depth: int, *, encrypts: bool) -> Device:
    kind = _kind(disk)
    if kind is names.Backing.ZRAM:
        written_back = _text(disk / "backing_dev")
        if written_back in {"", "none"}:
            return Device(kind, encrypted=True, disks=frozenset())
        name = _name(block, written_back)
        behind = UNKNOWN if name is None else _below(block, name, depth - 1)
        return msgspec.structs.replace(behind, backing=kind)
    # A mapping without a device under it is no disk, and a loop device does not show the device under it.
    hidden = kind is names.Backing.LOOP or (disk / "dm").is_dir()
    return Device(kind, encrypts, None if hidden else frozenset({disk.name}))


def _kind(disk: pathlib.Path) -> names.Backing:
    """Return the kind of a device that consists of no other."""
    kind = next((kind for pattern, kind in _KINDS if pattern.fullmatch(disk.name)), None)
    if kind is names.Backing.NVME:
        # Below it is its controller, or if it may have several paths, the subsystem with links to its controllers.
        transports = {_text(file) for file in disk.glob("device/transport")}
        transports |= {_text(file) for file in disk.glob("device/nvme*/transport")}
        return names.Backing.NETWORK if transports & _FABRICS else kind
    if kind is not None:
        return kind
    # A mapping without a device under it is no disk, whatever its queue says.
    if (disk / "dm").is_dir():
        return names.Backing.UNKNOWN
    path = f"{disk.resolve()}/"
    attached = next((kind for pattern, kind in _ATTACHED if pattern.search(path)), None)
    return attached or _ROTATIONAL.get(_text(disk / "queue/rotational"), UNKNOWN.backing)


def _text(file: pathlib.Path) -> str:
    return files.text(file, _PAGE_BYTES) or ""
