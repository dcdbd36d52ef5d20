"""The boundary to the cgroup file system: the only module that reads and writes it.

Paths are relative to the given root, and come from listed directories, never from the API. cgroupfs has no symbolic
links; in case the root is another file system, none is followed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

NO_LIMIT: Final = 1 << 63
"""The value of "max": above every number of bytes."""

SWAP_MAX: Final = "memory.swap.max"
SWAP_CURRENT: Final = "memory.swap.current"
MEMORY_CURRENT: Final = "memory.current"
MEMORY_MAX: Final = "memory.max"
MEMORY_HIGH: Final = "memory.high"
MEMORY_LOW: Final = "memory.low"
MEMORY_MIN: Final = "memory.min"
MEMORY_STAT: Final = "memory.stat"
MEMORY_EVENTS: Final = "memory.events"
MEMORY_EVENTS_LOCAL: Final = "memory.events.local"
"""Counts events at the cgroup's own limits, without those below."""
SWAP_EVENTS: Final = "memory.swap.events"
CGROUP_EVENTS: Final = "cgroup.events"
CONTROLLERS: Final = "cgroup.controllers"
IO: Final = "io"
"""The controller of block devices, as `cgroup.controllers` lists it."""


RECLAIM: Final = "memory.reclaim"
"""The file by which the kernel reclaims memory of a cgroup, from Linux 5.19 on."""
PIECE_BYTES: Final = 4 << 20
"""Reclaimed by one write at most: it can end between two."""
SWAPPINESS: Final = "swappiness=200"
"""Anonymous memory before the page cache. Linux 6.9 and newer take it."""

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""O_NONBLOCK: from kernel 6.16 on, a write of memory.high then reclaims nothing in the writer."""
_REPLACE: Final = _WRITE & ~os.O_WRONLY | os.O_RDWR
_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP})
_NUMBER: Final = re.compile(r"[0-9]{1,19}\Z")
_LIMIT_BYTES: Final = 64
_STAT_BYTES: Final = 16384
_DEVICES_BYTES: Final = 65536
"""Longest file that is read with a line for each block device."""
_RESOURCES: Final = (MEMORY_MAX, "cpu.max", "cpu.weight")
"""Files that change with a pod's requests or limits."""


def parse(text: str, page: int) -> int:
    """Return bytes, floored to `page` as the kernel does on a write; NO_LIMIT for "max". ValueError otherwise.

    The kernel counts pages in a signed long and shows a larger count as "max"
    (mm/page_counter.c: PAGE_COUNTER_MAX).
    """
    if text == "max":
        return NO_LIMIT
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{text[:64]!r} is neither max nor a number of bytes")
    pages = int(text) // page
    return NO_LIMIT if pages >= (NO_LIMIT - 1) // page else pages * page


def render(limit: int) -> str:
    """Return the value as the kernel's file takes and shows it."""
    return "max" if limit >= NO_LIMIT else str(limit)


def join(parent: str, name: str) -> str:
    """Return the path of a child, relative to the root of the file system."""
    return f"{parent}/{name}" if parent else name


def above(path: str) -> Iterator[str]:
    """Yield the cgroups above one except the root of the file system, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


class Stat(NamedTuple):
    """Some lines of memory.stat, in bytes unless they say otherwise."""

    inactive_file: int = 0
    """Memory that the kernel can drop without swapping, as the kubelet counts it."""
    active_file: int = 0
    active_anon: int = 0
    """Together with inactive_anon, the memory that the kernel can swap."""
    inactive_anon: int = 0
    swapcached: int = 0
    """Pages in memory that still have their place in swap (kernel 5.11 and newer)."""
    workingset_refault_anon: int = 0
    """Count of anonymous pages that were reclaimed and soon needed again."""
    workingset_refault_file: int = 0


class CgroupError(Exception):
    """The kernel refused; the message names the file and the cause."""


class GoneError(CgroupError):
    """The cgroup or its file does not exist (any more, or yet)."""


class DeniedError(CgroupError):
    """The agent has no access, by the mount, the user, or delegation (a cgroup's own namespace root)."""


class ReadOnlyError(DeniedError):
    """The whole file system is mounted read-only for the agent."""


class UnsupportedError(CgroupError):
    """The kernel does not support that for this block device now."""


class LessError(CgroupError):
    """The kernel reclaimed less than asked."""


class ValueRefusedError(CgroupError):
    """The kernel does not know such a value of this file."""


class TransientError(CgroupError):
    """The file holds no value at this moment."""


def counts(text: str) -> dict[str, int]:
    """Return the numbers by name in the text of a cgroup's file or of /proc/vmstat; invalid lines are skipped."""
    lines = (line.partition(" ") for line in text.splitlines())
    return {name: int(number) for name, _, number in lines if _NUMBER.match(number)}


def stalls(text: str) -> dict[str, int]:
    """Return the total microseconds of a pressure file by kind: some, full (Documentation/accounting/psi.rst).

    Its lines are `some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS`; invalid lines are skipped.
    """
    lines = (line.partition(" ") for line in text.splitlines())
    totals = ((kind, rest.rpartition("total=")[2]) for kind, _, rest in lines)
    return {kind: int(total) for kind, total in totals if kind in {"some", "full"} and _NUMBER.match(total)}


def _typed(error: OSError, path: str) -> CgroupError:
    message = f"{path}: {error.strerror}"
    if error.errno == errno.EROFS:
        return ReadOnlyError(f"{message}, mount the node's /sys/fs/cgroup read-write")
    if error.errno in _GONE:
        return GoneError(message)
    if error.errno == errno.EOPNOTSUPP:
        return UnsupportedError(message)
    kind = {errno.EAGAIN: LessError, errno.EINVAL: ValueRefusedError}.get(error.errno or 0, CgroupError)
    return DeniedError(message) if error.errno in _DENIED else kind(message)


class Cgroups:
    """A cgroup file system, or a directory that looks like one."""

    def __init__(self, root: str, page: int) -> None:
        """Open `root`; OSError if it is not a directory. `page` is the kernel's page size in bytes."""
        self.root = os.path.realpath(root)
        self.page = page
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the root."""
        os.close(self._fd)

    def absolute(self, path: str, file: str = "") -> str:
        """Return the path for inotify, which takes no directory descriptors."""
        return "/".join(part for part in (self.root, path, file) if part)

    def dirs(self, path: str) -> list[str]:
        """Return the names of the child cgroups, for callers that may miss some; none if `path` is unreadable."""
        try:
            return self.children(path)
        except CgroupError:
            return []

    def children(self, path: str, *, most: int | None = None) -> list[str]:
        """Return the names of the child cgroups; none if `path` is gone. CgroupError if not all can be read.

        `most` bounds their number, for cgroups whose owner can make any number of them.

        An error is no sign that the children are gone: a process without free descriptors also gets one.
        """
        try:
            fd = os.open(path or ".", _READ | os.O_DIRECTORY, dir_fd=self._fd)
            try:
                with os.scandir(fd) as entries:
                    names = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
                    return list(itertools.islice(names, most))
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in _GONE:
                return []
            raise _typed(error, path or self.root) from None

    def inode(self, path: str) -> int | None:
        """Return the number by which a cgroup differs from a later one of its name; None if it is gone. CgroupError."""
        try:
            return os.stat(path or ".", dir_fd=self._fd, follow_symlinks=False).st_ino
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise _typed(error, path or self.root) from None

    def has(self, path: str, file: str) -> bool:
        """Return whether the file exists."""
        try:
            os.stat(join(path, file), dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def read(self, name: str) -> int:
        """Read a file with one number, by its whole name: bytes, or NO_LIMIT. TransientError if it has none."""
        text = self._read(name, _LIMIT_BYTES).partition("\n")[0]
        try:
            return parse(text, self.page)
        except ValueError as error:
            raise TransientError(f"{name}: {error}") from None

    def number(self, path: str, file: str) -> int | None:
        """Return what `read` does of a cgroup's file; None if it cannot be read."""
        try:
            return self.read(join(path, file))
        except CgroupError:
            return None

    def stat(self, path: str) -> Stat:
        """Read memory.stat of this cgroup, which includes all below; zeros if the file, or a line of it, is missing."""
        try:
            text = self._read(join(path, MEMORY_STAT), _STAT_BYTES)
        except GoneError:
            return Stat()
        return Stat(**{name: number for name, number in counts(text).items() if name in Stat._fields})

    def counts(self, path: str, file: str) -> dict[str, int]:
        """Read a file with a name and a number on each line. CgroupError if it cannot be read."""
        return counts(self._read(join(path, file), _STAT_BYTES))

    def pressure(self, path: str, resource: str) -> dict[str, int]:
        """Return the `stalls` of a resource, memory or io. CgroupError if they cannot be read."""
        return stalls(self._read(join(path, f"{resource}.pressure"), _STAT_BYTES))

    def resources(self, path: str) -> tuple[str, ...]:
        """Return the memory limit, CPU limit and CPU weight as the kernel shows them; empty without such a file."""

        def text(file: str) -> str:
            try:
                return self._read(join(path, file), _LIMIT_BYTES)
            except CgroupError:
                return ""

        return tuple(map(text, _RESOURCES))

    def controllers(self, path: str) -> frozenset[str]:
        """Return the controllers of a cgroup; none if they cannot be read."""
        try:
            return frozenset(self._read(join(path, CONTROLLERS), _STAT_BYTES).split())
        except CgroupError:
            return frozenset()

    def of_device(self, path: str, file: str, device: str) -> str:
        """Return the value for one block device (major:minor) in a file with a line for each; empty without one."""
        for line in self._read(join(path, file), _DEVICES_BYTES).splitlines():
            name, _, value = line.partition(" ")
            if name == device:
                return value.strip()
        return ""

    def set_of_device(self, path: str, file: str, device: str, value: str) -> None:
        """Write the value for one block device (major:minor). GoneError also if the disk does not exist."""
        self._write(join(path, file), f"{device} {value}")

    def write(self, name: str, value: int) -> None:
        """Write a file with one number. The caller must read it back: other writers may write at the same time."""
        self._write(name, render(value))

    def replace(self, name: str, observed: int, value: int) -> int:
        """Write a file with one number if it still holds `observed`. Return what it held just before, as `read`."""
        try:
            fd = os.open(name, _REPLACE, dir_fd=self._fd)
            try:
                data = os.pread(fd, _LIMIT_BYTES, 0)
                held = parse(data.partition(b"\n")[0].decode("ascii", "replace"), self.page)
                if held == observed:
                    os.pwrite(fd, f"{render(value)}\n".encode("ascii").ljust(len(data), b"\n"), 0)
            finally:
                os.close(fd)
        except OSError as error:
            raise _typed(error, name) from None
        except ValueError as error:
            raise TransientError(f"{name}: {error}") from None
        return held

    def _write(self, name: str, value: str) -> None:
        data = f"{value}\n".encode("ascii")
        try:
            fd = os.open(name, _WRITE, dir_fd=self._fd)
            try:
                # Kernel files have no size. A plain file must lose the rest of a longer value in the same write: with a
                # truncation, readers and other writers could meet an empty file.
                os.write(fd, data.ljust(os.fstat(fd).st_size, b"\n"))
            finally:
                os.close(fd)
        except OSError as error:
            raise _typed(error, name) from None

    def _read(self, name: str, size: int) -> str:
        try:
            fd = os.open(name, _READ, dir_fd=self._fd)
            try:
                data = os.read(fd, size)
            finally:
                os.close(fd)
        except OSError as error:
            raise _typed(error, name) from None
        return data.decode("ascii", "replace")


def if_any(read: Callable[[str, str], dict[str, int]], path: str, what: str) -> dict[str, int]:
    """Return the numbers that a method of Cgroups reads, counts or pressure; empty if they cannot be read."""
    with contextlib.suppress(CgroupError):
        return read(path, what)
    return {}


class ReclaimFiles(Cgroups):
    """The cgroup file system for the one thread that reclaims memory: it has a descriptor of its own."""

    def __init__(self, root: str, page: int) -> None:
        super().__init__(root, page)
        self.takes_swappiness = True
        """Whether the kernel takes an argument, as far as it was tried."""

    def reclaim(self, path: str, size: int) -> None:
        """Have the kernel reclaim `size` bytes of a cgroup. It blocks. CgroupError; LessError if it found less."""
        name = join(path, RECLAIM)
        if self.takes_swappiness:
            try:
                self._write(name, f"{size} {SWAPPINESS}")
            except ValueRefusedError:
                self.takes_swappiness = False
            else:
                return
        self._write(name, str(size))
