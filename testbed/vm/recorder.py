"""Run inside the node VM and record every value of memory.swap.max of all cgroups below one. Standard library only.

    python3 recorder.py CGROUP OUTPUT [SECONDS]

With SECONDS it reads the swap in use that often, and runs before all other processes, so that it misses nothing on a
busy node. It writes one JSON object per line to OUTPUT: `at` (the VM's clock, seconds since 1970), `path` (relative to
CGROUP), `event` (`found` for existing cgroups, `created`, `written`, `gone`, `used` for a change of swap.current),
`after` (everything up to this time is in earlier lines: the event of this line is later) and, except for `gone`, `max`
and `current` as the kernel returns them. It ends on SIGTERM.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

IN_MODIFY, IN_CREATE, IN_DELETE, IN_Q_OVERFLOW = 0x2, 0x100, 0x200, 0x4000
IN_ONLYDIR, IN_ISDIR = 0x01000000, 0x40000000
_FILE = "memory.swap.max"
_HEADER = struct.Struct("iIII")
_BUFFER = 64 * 1024
_LARGEST = _HEADER.size + 256
"""Bytes of the largest event: a name has at most 255, and a 0 (inotify(7))."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_SAMPLE_EVERY = 0.5
_LOOK_EVERY = 0.1
"""The precision of `after` while nothing happens."""


class Recorder:
    """The watches, and the last known use of swap by cgroup."""

    def __init__(self, root: Path, output: IO[str], sample_every: float = _SAMPLE_EVERY) -> None:
        self._root = root
        self._sample_every = sample_every
        self._output = output
        self._descriptor = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self.folders: dict[int, Path] = {}
        self.files: dict[int, Path] = {}
        self._used: dict[Path, str] = {}
        self._open: dict[Path, int] = {}
        """Files with the swap in use: opening each one again every time would keep a small machine busy."""
        self.after = 0.0
        self._drained = True
        """Whether the last look left nothing behind."""

    def run(self) -> None:
        """Record until the process is ended."""
        self.add(self._root, "found")
        print("recording", flush=True)
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        sampled = time.monotonic()
        while True:
            if not self.follow():
                poll.poll(min(_LOOK_EVERY, self._sample_every) * 1000)
            if time.monotonic() - sampled >= self._sample_every:
                sampled = time.monotonic()
                self.sample()
            self._output.flush()

    def follow(self) -> bool:
        """Record the kernel's pending events; return whether there were any."""
        # Take the time before the look, as this process may have to wait for a CPU anywhere.
        looked = time.time()
        told = False
        for watch, mask, name in self.events():
            self.handle(watch, mask, name)
            told = True
        if self._drained:
            self.after = looked
        return told

    def _watch(self, path: Path, mask: int) -> int:
        number: int = _LIBC.inotify_add_watch(self._descriptor, os.fsencode(path), mask)
        if number < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch", str(path))
        return number

    def add(self, folder: Path, event: str) -> None:
        """Watch a cgroup and those below; it may have been removed meanwhile."""
        if folder in self._used:
            return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self.folders[self._watch(folder, IN_CREATE | IN_DELETE | IN_ONLYDIR)] = folder
            self.files[self._watch(folder / _FILE, IN_MODIFY)] = folder
            self._record(folder, event)
            for below in sorted(path for path in folder.iterdir() if path.is_dir()):
                self.add(below, event)

    def events(self) -> Iterator[tuple[int, int, str]]:
        self._drained = True
        with contextlib.suppress(BlockingIOError):
            buffer = os.read(self._descriptor, _BUFFER)
            self._drained = len(buffer) + _LARGEST <= _BUFFER
            offset = 0
            while offset < len(buffer):
                watch, mask, _, length = _HEADER.unpack_from(buffer, offset)
                name = buffer[offset + _HEADER.size : offset + _HEADER.size + length].rstrip(b"\0")
                offset += _HEADER.size + length
                yield watch, mask, os.fsdecode(name)

    def handle(self, watch: int, mask: int, name: str) -> None:
        if mask & IN_Q_OVERFLOW:
            raise OverflowError("the kernel dropped events")
        if mask & IN_MODIFY and watch in self.files:
            self._record(self.files[watch], "written")
        elif mask & IN_ISDIR and watch in self.folders:
            folder = self.folders[watch] / name
            if mask & IN_CREATE:
                self.add(folder, "created")
            elif mask & IN_DELETE:
                self._remove(folder)

    def _remove(self, folder: Path) -> None:
        if self._used.pop(folder, None) is None:
            return
        if folder in self._open:
            os.close(self._open.pop(folder))
        for watches in (self.folders, self.files):
            # The kernel keeps the marks of a removed cgroup.
            for watch in [watch for watch, path in watches.items() if path == folder]:
                del watches[watch]
                _LIBC.inotify_rm_watch(self._descriptor, watch)
        self._write(folder, "gone", {})

    def _record(self, folder: Path, event: str) -> None:
        with contextlib.suppress(OSError):
            limit, used = _read(folder / _FILE), _read(folder / "memory.swap.current")
            self._used[folder] = used
            self._write(folder, event, {"max": limit, "current": used})

    def sample(self) -> None:
        for folder, known in list(self._used.items()):
            with contextlib.suppress(OSError):
                if self._usage(folder) != known:
                    self._record(folder, "used")

    def _usage(self, folder: Path) -> str:
        if folder not in self._open:
            self._open[folder] = os.open(folder / "memory.swap.current", os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._open[folder], 64, 0).decode("ascii").strip()

    def _write(self, folder: Path, event: str, values: dict[str, str]) -> None:
        line = {
            "at": time.time(),
            "after": self.after,
            "path": str(folder.relative_to(self._root)),
            "event": event,
            **values,
        }
        self._output.write(json.dumps(line) + "\n")


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


def _leave(_number: int, _frame: object) -> None:
    raise SystemExit


def main(root: str, output: str, seconds: str = "") -> None:
    """See the module."""
    signal.signal(signal.SIGTERM, _leave)
    if seconds:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with Path(output).open("a", encoding="utf-8") as file:
        Recorder(Path(root), file, float(seconds or _SAMPLE_EVERY)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
