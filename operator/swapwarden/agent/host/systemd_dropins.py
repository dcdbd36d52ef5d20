"""Drop-in files for guarantee Strict: systemd creates each Burstable and BestEffort pod's slice with MemorySwapMax=0.

`swapwarden drop-ins` writes them, in an init container of the agent's pod; the agent itself only reads them.

A folder `a-b-.slice.d` applies to every slice whose name begins with `a-b-` (systemd.unit(5)). So two folders cover the
pods of both classes, but not the slices of the classes themselves, which the kubelet writes. Slices created later have
the value from the start, older ones from systemd's next daemon-reload.

The node's own slices can also have such a file, in a folder with their whole name. Services have
none: a writer of a service's drop-ins decides what it runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import re
from collections.abc import Callable
from typing import Final

from swapwarden.agent.host import cgroup_files, files

log = logging.getLogger(__name__)

UNITS: Final = "/etc/systemd/system"
"""The folders on the node: files in /run would be lost by a reboot, before pods start again."""
PREFIX: Final = "kubepods"
"""First part of pods' slice names, if the kubelet has no cgroupRoot."""
FILE: Final = "50-swapwarden.conf"
CONTENT: Final = f"[Slice]\n{cgroup_files.SWAP_MAX.systemd_property}=0\n".encode()
CLASSES: Final = ("burstable", "besteffort")

INSTALLER: Final = "drop-ins"
"""The name of the init container that installs the files."""

Look = Callable[[pathlib.Path], tuple[frozenset[str], frozenset[str]]]
"""Finds which files in a folder are right, and which are missing."""

_SLICE: Final = re.compile(r"[A-Za-z0-9_:.\\]+(-[A-Za-z0-9_:.\\]+)*[.]slice")
"""A slice other than the root. A name that ends with a dash would apply to all slices that begin with it."""
NEW: Final = f".{FILE}.new"
"""systemd only reads files that end in .conf."""
_FOLDER: Final = ".d"
_SUFFIX: Final = ".slice"
_DEPTH: Final = 4
"""Levels below a slice in which the tree of pods is searched."""
_POD_FOLDERS: Final = tuple(f"-{name}-.slice{_FOLDER}" for name in CLASSES)
_MAX_BYTES: Final = 4096


def folders(prefix: str) -> list[str]:
    """Return the names of the two folders; pods' slices begin with `prefix`."""
    return [f"{prefix}-{name}-.slice.d" for name in CLASSES]


def printed(prefix: str) -> str:
    """Return both files with their paths, as `systemctl cat` shows them."""
    return "\n".join(f"# {UNITS}/{folder}/{FILE}\n{CONTENT.decode()}" for folder in folders(prefix))


def pod_folders(directory: pathlib.Path) -> list[pathlib.Path]:
    """Return the folders of pods in a directory, of any prefix; none if it cannot be read."""
    return [directory / name for name in files.names(directory, f"*{_FOLDER}") if name.endswith(_POD_FOLDERS)]


def slice_folders(directory: pathlib.Path) -> list[pathlib.Path]:
    """Return the folders of slices without pods in a directory; none if it cannot be read."""
    return [
        directory / name
        for name in files.names(directory, f"*{_FOLDER}")
        if _SLICE.fullmatch(name.removesuffix(_FOLDER)) and PREFIX not in name
    ]


def has_pods(root: pathlib.Path, folder: pathlib.Path) -> bool:
    """Return whether pods are in the slice of a drop-in folder; `root` has the cgroups of the node.

    A slice is inside those that its name begins with, up to a dash (systemd.slice(5)).
    """
    parts = folder.name.removesuffix(_FOLDER).removesuffix(_SUFFIX).split("-")
    path = root.joinpath(*("-".join(parts[: number + 1]) + _SUFFIX for number in range(len(parts))))
    return any(next(path.glob(f"{'*/' * depth}*{PREFIX}*"), None) is not None for depth in range(_DEPTH))


def install(folder: pathlib.Path) -> None:
    """Write a folder's file unless it is correct; it is the old or the new one at any time. OSError if that fails."""
    if _content(folder / FILE) != CONTENT:
        _replace(folder)
        log.info("installed a systemd drop-in", extra={"file": f"{UNITS}/{folder.name}/{FILE}"})


def remove(folder: pathlib.Path) -> None:
    """Remove a folder's file if it has the content that `install` writes. OSError if that fails."""
    file = folder / FILE
    if _content(file) == CONTENT:
        file.unlink()
        log.info("removed a systemd drop-in", extra={"file": f"{UNITS}/{folder.name}/{FILE}"})
    (folder / NEW).unlink(missing_ok=True)


def slice_files(directory: pathlib.Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the slices whose file is right, and those with a folder only."""
    right = {folder.name.removesuffix(_FOLDER): _is_right(folder) for folder in slice_folders(directory)}
    return frozenset(name for name in right if right[name]), frozenset(name for name in right if not right[name])


def pod_files(directory: pathlib.Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the prefixes of slices of pods with both files right, and those with a folder only."""
    right_kinds: dict[str, set[str]] = {}
    for folder in pod_folders(directory):
        prefix, _, kind = folder.name.removesuffix("-.slice.d").rpartition("-")
        right_kinds.setdefault(prefix, set()).update({kind} if _is_right(folder) else ())
    whole = frozenset(prefix for prefix, kinds in right_kinds.items() if kinds == set(CLASSES))
    return whole, frozenset(right_kinds) - whole


def _is_right(folder: pathlib.Path) -> bool:
    return _content(folder / FILE) == CONTENT


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
