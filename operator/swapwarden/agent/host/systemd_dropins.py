"""The drop-in files of guarantee Strict: systemd makes each Burstable and BestEffort pod's slice with MemorySwapMax=0.

A folder `a-b-.slice.d` holds for every slice whose name begins with `a-b-` (systemd.unit(5)), so that two folders cover
the pods of both classes, and not the slices of the classes themselves, which the kubelet writes to. Slices that are
made once the files are there have the value from the start; older ones from systemd's next daemon-reload on.

Slices of the node's own that a profile names can have such a file, too, in a folder by their whole name. There are none
for services: who may write a service's drop-ins says what it runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import re
from collections.abc import Collection
from typing import Final

from swapwarden.agent.host import files

log = logging.getLogger(__name__)

UNITS: Final = "/etc/systemd/system"
"""Where the folders are on the node: files of /run would be lost with a reboot, before pods start again."""
PREFIX: Final = "kubepods"
"""Of slices, where the kubelet has no cgroupRoot."""
FILE: Final = "50-swapwarden.conf"
CONTENT: Final = b"[Slice]\nMemorySwapMax=0\n"
CLASSES: Final = ("burstable", "besteffort")

_SLICE: Final = re.compile(r"[A-Za-z0-9_:.\\]+(-[A-Za-z0-9_:.\\]+)*[.]slice")
"""A slice that is not the root of all. A name with a dash at its end would stand for all that begin with it."""
_NEW: Final = f".{FILE}.new"
"""systemd reads no file that does not end in .conf."""
_FOLDER: Final = ".d"
_MAX_BYTES: Final = 4096


def folders(prefix: str) -> list[str]:
    """Names of the two folders, where slices of pods begin with `prefix`."""
    return [f"{prefix}-{name}-.slice.d" for name in CLASSES]


def printed(prefix: str) -> str:
    """Both files with their paths, as `systemctl cat` shows files."""
    return "\n".join(f"# {UNITS}/{folder}/{FILE}\n{CONTENT.decode()}" for folder in folders(prefix))


def install(directory: pathlib.Path, prefix: str) -> None:
    """Write both files, where they are not as they should be; each is the old or the new one at any time.

    `directory` holds the two folders. OSError where that fails; its message has the remedy where a folder is missing.
    """
    for name in folders(prefix):
        folder = directory / name
        if not folder.is_dir():
            raise FileNotFoundError(f"{UNITS}/{name} is not mounted: set agent.dropIns.prefix to {prefix}")
        _install(folder)


def remove(directory: pathlib.Path) -> None:
    """Remove the files of any prefix that hold what `install` writes. OSError where that fails."""
    endings = tuple(folders(PREFIX))
    for folder in sorted(directory.iterdir()):
        if folder.name.endswith(endings):
            _remove(folder)


def slices(units: Collection[str], root: str) -> tuple[str, ...]:
    """Of these units, the slices that may have a drop-in: none with pods in it. `root` is the cgroup above all pods."""
    above = root.split("/")
    return tuple(name for name in units if _SLICE.fullmatch(name) and name not in above and PREFIX not in name)


def bring_slices(directory: pathlib.Path, wanted: tuple[str, ...]) -> None:
    """Write the files of the slices that are `wanted` and whose folders are in `directory`, and remove those of others.

    OSError where that fails.
    """
    for folder in sorted(directory.iterdir()):
        name = folder.name.removesuffix(_FOLDER)
        if name == folder.name or not _SLICE.fullmatch(name) or not folder.is_dir():
            continue
        if name in wanted:
            _install(folder)
        else:
            _remove(folder)


def installed(directory: pathlib.Path) -> frozenset[str]:
    """The slices whose file is there, as `bring_slices` writes it; none where the directory cannot be read."""
    names = (name.removesuffix(_FOLDER) for name in files.names(directory, f"*{_FOLDER}"))
    return frozenset(
        name for name in names if _SLICE.fullmatch(name) and _content(directory / f"{name}{_FOLDER}" / FILE) == CONTENT
    )


def _install(folder: pathlib.Path) -> None:
    if _content(folder / FILE) != CONTENT:
        _replace(folder)
        log.info("installed a drop-in of systemd's", extra={"file": f"{UNITS}/{folder.name}/{FILE}"})


def _remove(folder: pathlib.Path) -> None:
    file = folder / FILE
    if _content(file) == CONTENT:
        file.unlink()
        log.info("removed a drop-in of systemd's", extra={"file": f"{UNITS}/{folder.name}/{FILE}"})
    (folder / _NEW).unlink(missing_ok=True)


def _content(file: pathlib.Path) -> bytes | None:
    """What the file holds, of which more than a page says no more; None where it is no plain file that can be read."""
    try:
        return files.content(file, _MAX_BYTES, follow=False)
    except OSError:
        return None


def _replace(folder: pathlib.Path) -> None:
    new = folder / _NEW
    new.unlink(missing_ok=True)
    # systemd and people read it: it says nothing that is secret.
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


def bring(directory: pathlib.Path, prefix: str) -> None:
    """Install both files for slices that begin with `prefix`; where that is empty, remove them. OSError as these."""
    if prefix:
        install(directory, prefix)
    else:
        remove(directory)
