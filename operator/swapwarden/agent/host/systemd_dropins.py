"""The drop-in files of guarantee Strict: systemd makes each Burstable and BestEffort pod's slice with MemorySwapMax=0.

A folder `a-b-.slice.d` holds for every slice whose name begins with `a-b-` (systemd.unit(5)), so that two folders cover
the pods of both classes, and not the slices of the classes themselves, which the kubelet writes to. Slices that are
made once the files are there have the value from the start; older ones from systemd's next daemon-reload on.

Slices of the node's own that a profile names can have such a file, too, in a folder by their whole name. There are none
for services: who may write a service's drop-ins says what it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
import re
from collections.abc import Callable, Collection
from typing import Final, Generic, TypeVar

from swapwarden.agent.host import hostfiles
from swapwarden.kube import backoff
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

FAILURES = metrics.counter(
    "swapwarden_agent_drop_in_failures_total",
    "Times that systemd's drop-in files for guarantee Strict could not be installed or removed.",
)

UNITS: Final = "/etc/systemd/system"
"""Where the folders are on the node: files of /run would be lost with a reboot, before pods start again."""
PREFIX: Final = "kubepods"
"""Of slices, where the kubelet has no cgroupRoot."""
FILE: Final = "50-swapwarden.conf"
CONTENT: Final = b"[Slice]\nMemorySwapMax=0\n"
CLASSES: Final = ("burstable", "besteffort")
BACKOFF_SECONDS: Final = (2.0, 300.0)
"""First and longest bound of the wait after a failure."""

_SLICE: Final = re.compile(r"[A-Za-z0-9_:.\\]+(-[A-Za-z0-9_:.\\]+)*[.]slice")
"""A slice that is not the root of all. A name with a dash at its end would stand for all that begin with it."""
_NEW: Final = f".{FILE}.new"
"""systemd reads no file that does not end in .conf."""
_FOLDER: Final = ".d"
_MAX_BYTES: Final = 4096
Wanted = TypeVar("Wanted", str, tuple[str, ...])
"""What says which files are to be there; an empty one: none."""


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
    names = (name.removesuffix(_FOLDER) for name in hostfiles.names(directory, f"*{_FOLDER}"))
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
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, _MAX_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)


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


class Keeper(Generic[Wanted]):
    """Has the files there, or not, in the background: a disk that is busy with swapping takes seconds."""

    def __init__(
        self,
        directory: pathlib.Path | None,
        bring: Callable[[pathlib.Path, Wanted], None],
        *,
        changed: Callable[[], None],
    ) -> None:
        """`directory` None: the folders are not mounted, and nothing is done. `changed` when `failed` or `left` is."""
        self._directory = directory
        self._bring: Callable[[pathlib.Path, Wanted], None] = bring
        self._changed = changed
        self._wanted: Wanted | None = None
        self._due = asyncio.Event()
        self._backoff = backoff.Backoff(*BACKOFF_SECONDS)
        self.failed = ""
        """Why the files are not as wanted; empty where they are, or were not looked at yet."""
        self.left = False
        """Whether there may be files that should not be."""
        self.held: frozenset[str] = frozenset()
        """The slices that may have a file: those where one was seen, and while files are written those that get one."""

    @property
    def mounted(self) -> bool:
        """Whether this agent installs the files, and no one else has to."""
        return self._directory is not None

    def look(self) -> None:
        """See which slices have a file already: to be called before anything depends on it."""
        self.held = frozenset() if self._directory is None else installed(self._directory)

    def want(self, wanted: Wanted | None) -> None:
        """Files by what `bring` takes; empty: none. None: not known yet, so all stays as it is."""
        if self._directory is None or wanted is None or wanted == self._wanted:
            return
        self._wanted = wanted
        self.left = not wanted
        # What failed was something else: nobody who waits for this one waits for that.
        self._backoff.reset()
        self._due.set()

    def check(self) -> None:
        """Look whether the files are as wanted still; after a failure that comes by itself."""
        if self._wanted is not None and not self.failed:
            self._due.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._due.wait()
            self._due.clear()
            if self._directory is None or self._wanted is None:
                continue
            wanted, before = self._wanted, (self.failed, self.left)
            # systemd may read a file before it is known here that it was written.
            self.held |= frozenset([wanted] if isinstance(wanted, str) else wanted)
            try:
                self.held = await asyncio.to_thread(self._brought, self._directory, wanted)
            except OSError as error:
                wait = self._failed(error)
                self._changed()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._due.wait()
                self._due.set()
                continue
            self._backoff.reset()
            self.failed = ""
            if wanted == self._wanted:
                self.left = False
            if (self.failed, self.left) != before:
                self._changed()

    def _brought(self, directory: pathlib.Path, wanted: Wanted) -> frozenset[str]:
        self._bring(directory, wanted)
        return installed(directory)

    def _failed(self, error: OSError) -> float:
        FAILURES.inc()
        reason = str(error)
        wait = self._backoff.next()
        if reason != self.failed:
            log.error("systemd's drop-in files are not as wanted; trying again in %.0f s: %s", wait, reason)
        self.failed = reason
        return wait


def bring(directory: pathlib.Path, prefix: str) -> None:
    """Install both files for slices that begin with `prefix`; where that is empty, remove them. OSError as these."""
    if prefix:
        install(directory, prefix)
    else:
        remove(directory)
