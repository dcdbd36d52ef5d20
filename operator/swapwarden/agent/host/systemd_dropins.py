"""Drop-in files for guarantee Strict: systemd creates each Burstable and BestEffort pod's slice with MemorySwapMax=0.

A folder `a-b-.slice.d` applies to every slice whose name begins with `a-b-` (systemd.unit(5)). So two folders cover the
pods of both classes, but not the slices of the classes themselves, which the kubelet writes. Slices created later have
the value from the start, older ones from systemd's next daemon-reload.

The node's own slices that a profile names can also have such a file, in a folder with their whole name. Services have
none: a writer of a service's drop-ins decides what it runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import re
from collections.abc import Collection
from typing import Final

from swapwarden.agent.host import cgroup_files, files

log = logging.getLogger(__name__)

UNITS: Final = "/etc/systemd/system"
"""The folders on the node: files in /run would be lost by a reboot, before pods start again."""
PREFIX: Final = "kubepods"
"""Of slices, if the kubelet has no cgroupRoot."""
FILE: Final = "50-swapwarden.conf"
CONTENT: Final = f"[Slice]\n{cgroup_files.SWAP_MAX.systemd_property}=0\n".encode()
CLASSES: Final = ("burstable", "besteffort")

_SLICE: Final = re.compile(r"[A-Za-z0-9_:.\\]+(-[A-Za-z0-9_:.\\]+)*[.]slice")
"""A slice other than the root. A name that ends with a dash would apply to all slices that begin with it."""
NEW: Final = f".{FILE}.new"
"""systemd only reads files that end in .conf."""
_FOLDER: Final = ".d"
_MAX_BYTES: Final = 4096


def folders(prefix: str) -> list[str]:
    """Return the names of the two folders; pods' slices begin with `prefix`."""
    return [f"{prefix}-{name}-.slice.d" for name in CLASSES]


def printed(prefix: str) -> str:
    """Return both files with their paths, as `systemctl cat` shows them."""
    return "\n".join(f"# {UNITS}/{folder}/{FILE}\n{CONTENT.decode()}" for folder in folders(prefix))


def install(directory: pathlib.Path, prefix: str) -> None:
    """Write both files unless they are correct; each is the old or the new one at any time.

    `directory` holds the two folders. OSError if that fails; for a missing folder the message has the remedy.
    """
    for name in folders(prefix):
        folder = directory / name
        if not folder.is_dir():
            raise FileNotFoundError(f"{UNITS}/{name} is not mounted: set agent.dropIns.prefix to {prefix}")
        _install(folder)


def remove(directory: pathlib.Path) -> None:
    """Remove the files of any prefix with the content that `install` writes. OSError if that fails."""
    endings = tuple(folders(PREFIX))
    for folder in sorted(directory.iterdir()):
        if folder.name.endswith(endings):
            _remove(folder)


def slices(units: Collection[str], root: str) -> tuple[str, ...]:
    """Return the slices of these units that may have a drop-in: none with pods. `root` is the cgroup above all pods."""
    above = root.split("/")
    return tuple(name for name in units if _SLICE.fullmatch(name) and name not in above and PREFIX not in name)


def reconcile_slices(directory: pathlib.Path, wanted: tuple[str, ...]) -> None:
    """Write the files of `wanted` slices with a folder in `directory`, and remove others. OSError if that fails."""
    for folder in sorted(directory.iterdir()):
        name = folder.name.removesuffix(_FOLDER)
        if name == folder.name or not _SLICE.fullmatch(name) or not folder.is_dir():
            continue
        if name in wanted:
            _install(folder)
        else:
            _remove(folder)


def installed(directory: pathlib.Path) -> frozenset[str]:
    """Return the slices with a file as `reconcile_slices` writes it; none if the directory cannot be read."""
    names = (name.removesuffix(_FOLDER) for name in files.names(directory, f"*{_FOLDER}"))
    return frozenset(
        name for name in names if _SLICE.fullmatch(name) and _content(directory / f"{name}{_FOLDER}" / FILE) == CONTENT
    )


def _install(folder: pathlib.Path) -> None:
    if _content(folder / FILE) != CONTENT:
        _replace(folder)
        log.info("installed a systemd drop-in", extra={"file": f"{UNITS}/{folder.name}/{FILE}"})


def _remove(folder: pathlib.Path) -> None:
    file = folder / FILE
    if _content(file) == CONTENT:
        file.unlink()
        log.info("removed a systemd drop-in", extra={"file": f"{UNITS}/{folder.name}/{FILE}"})
    (folder / NEW).unlink(missing_ok=True)


def _content(file: pathlib.Path) -> bytes | None:
    """Return up to a page of a file; None if it is a link or cannot be read."""
    try:
        return files.content(file, _MAX_BYTES, follow=False)
    except OSError:
        return None


def _replace(folder: pathlib.Path) -> None:
    new = folder / NEW
    new.unlink(missing_ok=True)
    # systemd and people read it; nothing in it is secret.
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with open(fd, "wb") as file:  # noqa: PTH123 pathlib opens no descriptors
            file.write(CONTENT)
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / FILE)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def reconcile_pods(directory: pathlib.Path, prefix: str) -> None:
    """Install both files for slices that begin with `prefix`; if that is empty, remove them. OSError as these."""
    if prefix:
        install(directory, prefix)
    else:
        remove(directory)
