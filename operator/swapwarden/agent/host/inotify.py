"""inotify(7), as far as the agent needs it: the standard library has no binding."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final, NamedTuple

MODIFY: Final = 0x2
MOVED_FROM: Final = 0x40
MOVED_TO: Final = 0x80
CREATE: Final = 0x100
DELETE: Final = 0x200
Q_OVERFLOW: Final = 0x4000
IGNORED: Final = 0x8000
ONLYDIR: Final = 0x1000000
DONT_FOLLOW: Final = 0x2000000
ISDIR: Final = 0x40000000

CHILDREN: Final = CREATE | DELETE | MOVED_FROM | MOVED_TO | ONLYDIR | DONT_FOLLOW
"""For a directory: its entries come and go."""
CONTENT: Final = MODIFY | DONT_FOLLOW
"""For a file: someone writes to it."""

_CLOEXEC_NONBLOCK: Final = os.O_CLOEXEC | os.O_NONBLOCK
_HEADER: Final = struct.Struct("iIII")
_BUFFER_BYTES: Final = 64 * 1024
_LONGEST_BYTES: Final = _HEADER.size + 256

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)


class InotifyEvent(NamedTuple):
    """One event: the watch it belongs to (-1 for an overflow), what happened, and the entry's name, if about one."""

    watch: int
    mask: int
    name: str


def parse(data: bytes) -> list[InotifyEvent]:
    """Take apart what one read gave: whole events, as the kernel promises."""
    events = []
    offset = 0
    while offset < len(data):
        watch, mask, _, length = _HEADER.unpack_from(data, offset)
        offset += _HEADER.size
        name = data[offset : offset + length].rstrip(b"\0")
        events.append(InotifyEvent(watch, mask, os.fsdecode(name)))
        offset += length
    return events


def _error(path: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), path)


class Inotify:
    """One inotify instance, non-blocking. OSError (EMFILE) where the user has too many of them."""

    def __init__(self) -> None:
        self.drained = True
        """Whether the last read gave all that there was at that time."""
        self._fd: int = _libc.inotify_init1(_CLOEXEC_NONBLOCK)
        if self._fd < 0:
            raise _error("inotify_init1")

    def fileno(self) -> int:
        """For an event loop's reader."""
        return self._fd

    def add(self, path: str, mask: int) -> int:
        """Watch `path`; gives the watch's number. OSError: ENOENT where it is gone, ENOSPC where watches ran out."""
        watch: int = _libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
        if watch < 0:
            raise _error(path)
        return watch

    def remove(self, watch: int) -> None:
        """End a watch. One that the kernel ended already (as ext4 and tmpfs do on deletion, cgroupfs not) is fine."""
        if _libc.inotify_rm_watch(self._fd, watch) < 0 and ctypes.get_errno() != errno.EINVAL:
            raise _error(f"watch {watch}")

    def read(self) -> list[InotifyEvent]:
        """What happened since the last read, oldest first; empty where nothing did."""
        try:
            data = os.read(self._fd, _BUFFER_BYTES)
        except BlockingIOError:
            data = b""
        # The kernel ends a read where the next event would not fit; the longest one has a whole name.
        self.drained = len(data) <= _BUFFER_BYTES - _LONGEST_BYTES
        return parse(data)

    def close(self) -> None:
        """End the instance and all its watches."""
        os.close(self._fd)
