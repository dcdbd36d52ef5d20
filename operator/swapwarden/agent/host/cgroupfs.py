"""The boundary to the cgroup file system: the only module that reads and writes it.

Paths are relative to the root that was given, and come from listing directories, never from the API. cgroupfs has no
symbolic links; in case the root is something else, none is followed.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from swapwarden.agent.host import values

SWAP_MAX: Final = "memory.swap.max"
SWAP_CURRENT: Final = "memory.swap.current"
MEMORY_CURRENT: Final = "memory.current"
MEMORY_MAX: Final = "memory.max"
MEMORY_HIGH: Final = "memory.high"
MEMORY_STAT: Final = "memory.stat"
MEMORY_EVENTS: Final = "memory.events"
SWAP_EVENTS: Final = "memory.swap.events"
CGROUP_EVENTS: Final = "cgroup.events"
CONTROLLERS: Final = "cgroup.controllers"
IO: Final = "io"
"""The controller of block devices, as `cgroup.controllers` lists it."""

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP})
_NUMBER: Final = re.compile(r"[0-9]{1,19}\Z")
_LIMIT_BYTES: Final = 64
_STAT_BYTES: Final = 16384
_DEVICES_BYTES: Final = 65536
"""Of a file with a line for each block device that something is set for."""
_RESOURCES: Final = (MEMORY_MAX, "cpu.max", "cpu.weight")
"""What a change of a pod's requests or limits changes."""


def join(parent: str, name: str) -> str:
    """Path of a child, relative to the root of the file system."""
    return f"{parent}/{name}" if parent else name


def above(path: str) -> Iterator[str]:
    """The cgroups above one, but for the root of the file system: the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


class Stat(NamedTuple):
    """Some lines of memory.stat, in bytes."""

    inactive_file: int = 0
    """What the kernel can drop without swapping, as the kubelet counts it."""
    swapcached: int = 0
    """What is in memory and still has its place in swap (kernel 5.11 and newer)."""


class CgroupError(Exception):
    """The kernel refused; the message names the file and the cause."""


class GoneError(CgroupError):
    """The cgroup, or the file in it, is not there (any more, or yet)."""


class DeniedError(CgroupError):
    """The agent may not: a matter of the mount, the user, or delegation (a cgroup's own namespace root)."""


class ReadOnlyError(DeniedError):
    """The whole file system is mounted read-only for the agent."""


class UnsupportedError(CgroupError):
    """The kernel does not do that for this block device now."""


class TransientError(CgroupError):
    """The file holds no value at this moment."""


def counts(text: str) -> dict[str, int]:
    """The lines that are a name and a number of a cgroup's file or of /proc/vmstat; odd lines are skipped."""
    lines = (line.partition(" ") for line in text.splitlines())
    return {name: int(number) for name, _, number in lines if _NUMBER.match(number)}


def _typed(error: OSError, path: str) -> CgroupError:
    message = f"{path}: {error.strerror}"
    if error.errno == errno.EROFS:
        return ReadOnlyError(f"{message}, mount the node's /sys/fs/cgroup read-write")
    if error.errno in _GONE:
        return GoneError(message)
    if error.errno == errno.EOPNOTSUPP:
        return UnsupportedError(message)
    return DeniedError(message) if error.errno in _DENIED else CgroupError(message)


class Cgroups:
    """A cgroup file system, or a directory that looks like one."""

    def __init__(self, root: str, page: int) -> None:
        """Open `root`; OSError where it is not a directory. `page` is the kernel's page size in bytes."""
        self.root = os.path.realpath(root)
        self.page = page
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the root."""
        os.close(self._fd)

    def absolute(self, path: str, file: str = "") -> str:
        """The path for inotify, which knows no directory descriptors."""
        return "/".join(part for part in (self.root, path, file) if part)

    def dirs(self, path: str) -> list[str]:
        """Names of the child cgroups; empty where `path` is gone or cannot be read: for a look that may miss some."""
        try:
            return self.children(path)
        except CgroupError:
            return []

    def children(self, path: str, *, most: int | None = None) -> list[str]:
        """Names of the child cgroups; empty where `path` is gone. CgroupError where it cannot be read, or not whole.

        With `most`, so many at most: for cgroups whose owner makes as many as they like.

        That is no sign that the cgroups in it are gone: a process that has run out of descriptors sees nothing either.
        """
        try:
            fd = os.open(path or ".", _READ | os.O_DIRECTORY, dir_fd=self._fd)
            try:
                with os.scandir(fd) as entries:
                    found = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
                    return list(itertools.islice(found, most))
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in _GONE:
                return []
            raise _typed(error, path or self.root) from None

    def inode(self, path: str) -> int | None:
        """What tells a cgroup from a later one of the same name; None where there is none. CgroupError: not known."""
        try:
            return os.stat(path or ".", dir_fd=self._fd, follow_symlinks=False).st_ino
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise _typed(error, path or self.root) from None

    def has(self, path: str, file: str) -> bool:
        """Whether the file exists."""
        try:
            os.stat(join(path, file), dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def read(self, name: str) -> int:
        """Read a file with one number, by its whole name: bytes, or values.NO_LIMIT."""
        text = self._read(name, _LIMIT_BYTES).partition("\n")[0]
        try:
            return values.parse(text, self.page)
        except ValueError as error:
            raise TransientError(f"{name}: {error}") from None

    def stat(self, path: str) -> Stat:
        """What memory.stat says of this cgroup and all below; zeros where the file, or a line of it, is not there."""
        try:
            text = self._read(join(path, MEMORY_STAT), _STAT_BYTES)
        except GoneError:
            return Stat()
        return Stat(**{name: number for name, number in counts(text).items() if name in Stat._fields})

    def is_populated(self, path: str) -> bool:
        """Whether a process runs in the cgroup, or below it. GoneError where it has gone, or is none."""
        return self.counts(path, CGROUP_EVENTS).get("populated", 0) > 0

    def counts(self, path: str, file: str) -> dict[str, int]:
        """What a file with a name and a number on each line counts; CgroupError where it cannot be read."""
        return counts(self._read(join(path, file), _STAT_BYTES))

    def pressure(self, path: str, resource: str) -> str:
        """What the pressure file of a resource says, memory or io; CgroupError where it cannot be read."""
        return self._read(join(path, f"{resource}.pressure"), _STAT_BYTES)

    def resources(self, path: str) -> tuple[str, ...]:
        """Memory limit, CPU limit and CPU weight, as the kernel shows them; empty where there is no such file."""
        return tuple(self._resource(join(path, file)) for file in _RESOURCES)

    def _resource(self, name: str) -> str:
        try:
            return self._read(name, _LIMIT_BYTES)
        except CgroupError:
            return ""

    def is_high_below_max(self, path: str) -> bool:
        """Whether memory.high is below memory.max; not where either is not there."""
        try:
            return self.read(join(path, MEMORY_HIGH)) < self.read(join(path, MEMORY_MAX))
        except CgroupError:
            return False

    def controllers(self, path: str) -> frozenset[str]:
        """The controllers that a cgroup has, as far as that can be read."""
        try:
            return frozenset(self._read(join(path, CONTROLLERS), _STAT_BYTES).split())
        except CgroupError:
            return frozenset()

    def of_device(self, path: str, file: str, device: str) -> str:
        """What a file with a line for each block device says of one (major:minor); empty where that is nothing."""
        for line in self._read(join(path, file), _DEVICES_BYTES).splitlines():
            name, _, value = line.partition(" ")
            if name == device:
                return value.strip()
        return ""

    def set_of_device(self, path: str, file: str, device: str, value: str) -> None:
        """Write what is to hold for one block device (major:minor). GoneError also where there is no such disk."""
        self._write(join(path, file), f"{device} {value}")

    def write(self, name: str, value: int) -> None:
        """Write a file with one number. What it then holds is for the caller to read: others write there too."""
        self._write(name, values.render(value))

    def _write(self, name: str, value: str) -> None:
        data = f"{value}\n".encode("ascii")
        try:
            fd = os.open(name, _WRITE, dir_fd=self._fd)
            try:
                # Kernel files have no size. A plain file must lose what a longer value left, in the same write: neither
                # readers nor other writers shall meet something in between, as with truncation.
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
