"""What is under a swap device: read from /sys/block, through device mapper, RAID and partitions down to the disks.

Nothing here opens a device: an agent without privileges sees these directories, and no more.
"""

from __future__ import annotations

import pathlib
import re
from typing import Final, NamedTuple

from swapwarden.api import names

_ENCRYPTING: Final = re.compile(r"CRYPT-(?:LUKS[12]|PLAIN|LOOPAES|TCRYPT|BITLK|FVAULT2)-")
"""Device mapper UUIDs by which cryptsetup marks what encrypts (lib/utils_dm.h); others that begin with CRYPT- are of
dm-verity and dm-integrity, which do not."""
_KINDS: Final = (
    (re.compile(r"zram\d+"), names.Backing.ZRAM),
    (re.compile(r"nvme\d+(?:c\d+)?n\d+"), names.Backing.NVME),
    (re.compile(r"(?:vd|xvd)[a-z]+"), names.Backing.VIRTUAL),
    (re.compile(r"(?:nbd|rbd|drbd)\d+"), names.Backing.NETWORK),
    (re.compile(r"loop\d+"), names.Backing.LOOP),
)
_ROTATIONAL: Final = {"0": names.Backing.SSD, "1": names.Backing.HDD}
_DEPTH: Final = 16
"""Of a stack of devices; the kernel itself allows for fewer."""
_DELETED: Final = " (deleted)"


class Device(NamedTuple):
    """What is known of a device."""

    backing: names.Backing
    encrypted: bool
    """Whether nothing that is written to it reaches a disk in the clear."""


UNKNOWN: Final = Device(names.Backing.UNKNOWN, encrypted=False)


def look(block: pathlib.Path, path: str) -> Device:
    """What is under the block device that /proc/swaps calls `path`; `block` is /sys/block. What is unreadable: unknown.

    The name of a disk tells how it is attached (nvme, virtual, network); of others the kernel's queue/rotational
    does what it is. Encrypted is what goes through dm-crypt on each way to a disk. zram is memory and counts as
    encrypted, unless it writes back to a disk, which then counts.
    """
    name = _name(block, path.removesuffix(_DELETED))
    return UNKNOWN if name is None else _below(block, name, _DEPTH)


def _name(block: pathlib.Path, path: str) -> str | None:
    """The kernel's name of a device, which has an exclamation mark for each slash; None for no device."""
    if not path.startswith("/dev/"):
        return None
    mapped = path.removeprefix("/dev/mapper/")
    if mapped == path:
        return path.removeprefix("/dev/").replace("/", "!")
    return next((each.parent.parent.name for each in block.glob("dm-*/dm/name") if _text(each) == mapped), None)


def _disk(block: pathlib.Path, name: str) -> pathlib.Path | None:
    """The directory of a disk, or of the disk that a partition is on."""
    if not name or name in {".", ".."}:
        return None
    try:
        if (block / name).is_dir():
            return block / name
        return next((disk for disk in block.iterdir() if (disk / name / "partition").is_file()), None)
    except OSError:
        return None


def _below(block: pathlib.Path, name: str, depth: int) -> Device:
    disk = _disk(block, name)
    if disk is None or not depth:
        return UNKNOWN
    encrypts = _ENCRYPTING.match(_text(disk / "dm/uuid")) is not None
    try:
        under = sorted(each.name for each in (disk / "slaves").iterdir())
    except OSError:
        under = []
    if not under:
        return _leaf(block, disk, depth, encrypts=encrypts)
    devices = [_below(block, each, depth - 1) for each in under]
    kinds = {each.backing for each in devices}
    backing = kinds.pop() if len(kinds) == 1 else names.Backing.MIXED
    return Device(backing, encrypts or all(each.encrypted for each in devices))


def _leaf(block: pathlib.Path, disk: pathlib.Path, depth: int, *, encrypts: bool) -> Device:
    kind = next((kind for pattern, kind in _KINDS if pattern.fullmatch(disk.name)), None)
    if kind is None:
        # A mapping without a device under it is no disk, whatever its queue says.
        mapped = (disk / "dm").is_dir()
        kind = names.Backing.UNKNOWN if mapped else _ROTATIONAL.get(_text(disk / "queue/rotational"), UNKNOWN.backing)
    if kind is names.Backing.ZRAM:
        written_back = _text(disk / "backing_dev")
        if written_back in {"", "none"}:
            return Device(kind, encrypted=True)
        name = _name(block, written_back)
        return Device(kind, name is not None and _below(block, name, depth - 1).encrypted)
    return Device(kind, encrypts)


def _text(file: pathlib.Path) -> str:
    try:
        return file.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
