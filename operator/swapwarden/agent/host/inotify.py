"""inotify(7), as far as the agent needs it: the standard library has no binding. Each watch has an owner.

Also watches for swapon and swapoff, which inotify does not report.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import enum
import errno
import logging
import os
import pathlib
import select
import struct
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

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
"""Events of a directory: entries appear or disappear."""
CONTENT: Final = MODIFY | DONT_FOLLOW
"""Events of a file: a process writes to it."""

_CLOEXEC_NONBLOCK: Final = os.O_CLOEXEC | os.O_NONBLOCK
_HEADER: Final = struct.Struct("iIII")
_BUFFER_BYTES: Final = 64 * 1024
_LONGEST_BYTES: Final = _HEADER.size + 256

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)


class InotifyEvent(msgspec.Struct, frozen=True):
    """One event: the watch it belongs to (-1 for an overflow), what happened, and the entry's name, if about one."""

    watch: int
    mask: int
    name: str


def parse(data: bytes) -> list[InotifyEvent]:
    """Parse the result of one read: whole events, as the kernel promises."""
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
    """One inotify instance, non-blocking. OSError (EMFILE) if the user has too many of them."""

    def __init__(self) -> None:
        self.drained = True
        """Whether the last read returned all events of that time."""
        self._fd: int = _libc.inotify_init1(_CLOEXEC_NONBLOCK)
        if self._fd < 0:
            raise _error("inotify_init1")

    def fileno(self) -> int:
        """Return the descriptor, for an event loop's reader."""
        return self._fd

    def add(self, path: str, mask: int) -> int:
        """Watch `path` and return the watch's number. OSError: ENOENT if it is gone, ENOSPC if no watch is left."""
        watch: int = _libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
        if watch < 0:
            raise _error(path)
        return watch

    def remove(self, watch: int) -> None:
        """End a watch, which may have ended already (on deletion ext4 and tmpfs end it, cgroupfs does not)."""
        if _libc.inotify_rm_watch(self._fd, watch) < 0 and ctypes.get_errno() != errno.EINVAL:
            raise _error(f"watch {watch}")

    def read(self) -> list[InotifyEvent]:
        """Return the events since the last read, oldest first."""
        try:
            data = os.read(self._fd, _BUFFER_BYTES)
        except BlockingIOError:
            data = b""
        # The kernel ends a read if the next event would not fit; the longest one has a whole name.
        self.drained = len(data) <= _BUFFER_BYTES - _LONGEST_BYTES
        return parse(data)

    def close(self) -> None:
        """End the instance and all its watches."""
        os.close(self._fd)


WATCHES = metrics.gauge(
    "swapwarden_agent_watches", "inotify watches in use, one for each cgroup and each watched file."
)

POLL_SECONDS: Final = 1.0
"""Seconds between full comparisons while inotify cannot watch everything."""

_DENIED: Final = frozenset({errno.EACCES, errno.EPERM})
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR})


class Degraded(enum.StrEnum):
    """Why events alone do not suffice."""

    INSTANCES = "instances"
    """No inotify instance (EMFILE)."""
    WATCHES = "watches"
    """No watch left (ENOSPC)."""
    REFUSED = "refused"
    """One watch was refused for another reason."""
    UNREADABLE = "unreadable"
    """A directory of the tree could not be read."""
    FAULT = "fault"
    """An error in the agent: it may have missed something."""


SHORTFALLS = metrics.counter(
    "swapwarden_agent_watch_shortfalls_total",
    "Failures to watch a cgroup or file, by reason: instances, watches (limits of inotify), refused, unreadable, fault"
    " (an unexpected error of the agent). Comparisons replace the events.",
    labels=("reason",),
    known=[(each.value,) for each in Degraded],
)


@contextlib.contextmanager
def watch_priority(file: pathlib.Path, changed: Callable[[], None]) -> Iterator[None]:
    """Call `changed` in the running event loop after each swapon and swapoff, until the context ends.

    `file` is /proc/swaps, which then reports an exceptional condition (mm/swapfile.c).

    If the file cannot be watched, that is logged and nothing else happens.
    """
    with contextlib.ExitStack() as stack:
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            # A poller of its own: to that of the event loop the file would always be readable.
            poller = stack.enter_context(select.epoll())
            poller.register(fd, select.EPOLLPRI)
        except OSError as error:
            log.info(
                "swap devices cannot be watched (%s); they are looked at with each full comparison", error.strerror
            )
        else:
            loop = asyncio.get_running_loop()

            def ready() -> None:
                poller.poll(0)
                changed()

            loop.add_reader(poller.fileno(), ready)
            stack.callback(loop.remove_reader, poller.fileno())
        yield


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Watched:
    """An owner of a watch."""

    watch: int | None = dataclasses.field(default=None, init=False)

    @property
    def is_tenants(self) -> bool:
        """Whether the processes in it may own its cgroup, and so lock the agent out."""
        return False


class WatchRegistry:
    """All watches. Use it in the running event loop."""

    def __init__(self, *, readable: Callable[[], None]) -> None:
        """`readable` is called when `read` has events."""
        self._readable = readable
        self._notify: Inotify | None = None
        self.owners: dict[int, Watched] = {}
        self._logged = False
        self.drained = True
        """Whether the last `read` returned all events of that time."""
        self.degraded = ""
        """Why not everything can be watched, or empty. It stands until a full comparison found no reason."""
        self._degraded = ""
        """Reason for `degraded` in the comparison under way, or empty."""

    def open(self) -> None:
        """Open inotify unless it is open."""
        if self._notify is not None:
            return
        try:
            self._notify = Inotify()
        except OSError as error:
            text = f"inotify cannot be used ({error.strerror}): raise fs.inotify.max_user_instances"
            self.degrade(Degraded.INSTANCES, text)
        else:
            asyncio.get_running_loop().add_reader(self._notify.fileno(), self._readable)

    def close(self) -> None:
        """End all watches."""
        if self._notify is not None:
            asyncio.get_running_loop().remove_reader(self._notify.fileno())
            self._notify.close()
            self._notify = None

    def watch(self, owner: Watched, path: str, mask: int) -> bool:
        """Watch `path` for `owner`, unless it has a watch. Without effect if the path is gone.

        Return False only if the tenant who owns the cgroup denies it: no reason to compare everything instead.
        """
        if owner.watch is not None or self._notify is None:
            return True
        try:
            owner.watch = self._notify.add(path, mask)
        except OSError as error:
            if error.errno in _DENIED and owner.is_tenants:
                return False
            if error.errno not in _GONE:
                full = error.errno == errno.ENOSPC
                remedy = ": raise fs.inotify.max_user_watches" if full else f" at {path}"
                kind = Degraded.WATCHES if full else Degraded.REFUSED
                self.degrade(kind, f"not everything can be watched ({error.strerror}){remedy}")
            return True
        self.owners[owner.watch] = owner
        return True

    def release(self, owner: Watched) -> None:
        """End the watch by hand: one on a removed cgroup never ends by itself."""
        watch, owner.watch = owner.watch, None
        if watch is not None and self.owners.pop(watch, None) is not None and self._notify is not None:
            self._notify.remove(watch)

    def read(self) -> Iterator[tuple[Watched | None, InotifyEvent]]:
        """Yield events with their owners; None as the owner if events were lost (Q_OVERFLOW)."""
        events = [] if self._notify is None else self._notify.read()
        self.drained = self._notify is None or self._notify.drained
        for event in events:
            owner = self.owners.get(event.watch)
            if event.mask & Q_OVERFLOW:
                yield None, event
            elif owner is None:
                continue
            elif event.mask & IGNORED:
                self.owners.pop(event.watch)
                owner.watch = None
            else:
                yield owner, event

    def retry(self) -> None:
        """Begin a full comparison, which tries each missing watch: perhaps there are enough now."""
        self._degraded = ""
        self.open()

    def retried(self) -> None:
        """End a full comparison."""
        self.degraded = self._degraded
        if self._logged and not self.degraded:
            self._logged = False
            log.info("everything can be watched again")

    def degrade(self, kind: Degraded, reason: str) -> None:
        """Record that events alone do not suffice until a full comparison finds otherwise; `reason` is for people."""
        SHORTFALLS.inc(kind.value)
        if not self._logged:
            log.error("%s; comparing everything every %s s instead", reason, POLL_SECONDS)
        self._logged = True
        self.degraded = self._degraded = reason
