"""What cgroups held before the agent's first write, and what it wrote: kept so that it can be put back.

An append-only file of JSON lines in a directory that does not survive a reboot, as cgroups do not. Each line is written
before the deed it tells of; a process that dies in between leaves a file that still tells every value that may be ours.
"""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Iterator
from typing import Final

import msgspec

from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

ENTRIES = metrics.gauge("swapwarden_agent_journal_entries", "Cgroups whose earlier value is kept to be put back.")
BAD_LINES = metrics.counter("swapwarden_agent_journal_bad_lines_total", "Lines of the journal that were not readable.")

FAILURES = metrics.counter("swapwarden_agent_journal_failures_total", "Lines that could not be written to the journal.")

COMPACT_BYTES: Final = 256 * 1024
"""Size beyond which the file is written anew, unless what it must hold is itself as large."""
KEPT_VALUES: Final = 2
"""Of the values written to one file: the last, and the one before, should the last not have got there."""


class Entry(msgspec.Struct, omit_defaults=True):
    """What is known of one cgroup: its identity, what it held first, and what it was given. Limits in bytes."""

    path: str
    inode: int
    found: int | None = None
    """None where nothing was written yet: the cgroup was only seen."""
    wrote: list[int] = []


class Line(msgspec.Struct, omit_defaults=True):
    """One line: an entry as a whole, one more value for it, or its end."""

    entry: Entry | None = None
    path: str = ""
    wrote: int | None = None
    gone: bool = False


_decoder = msgspec.json.Decoder(Line)
_encoder = msgspec.json.Encoder()


def replay(data: bytes) -> tuple[dict[str, Entry], int]:
    """Entries by path, and the number of lines that could not be read (a torn last one among them)."""
    entries: dict[str, Entry] = {}
    bad = 0
    for text in data.split(b"\n"):
        if not text:
            continue
        try:
            line = _decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            bad += 1
            continue
        if line.entry is not None:
            entries[line.entry.path] = line.entry
        elif line.gone:
            entries.pop(line.path, None)
        elif line.wrote is not None and line.path in entries:
            _keep(entries[line.path], line.wrote)
    return entries, bad


def _keep(entry: Entry, value: int) -> None:
    entry.wrote = [*(kept for kept in entry.wrote if kept != value), value][-KEPT_VALUES:]


class Journal:
    """The journal of one node. `restarted` tells whether an agent ran here before, since the last boot."""

    def __init__(self, file: pathlib.Path) -> None:
        """Read `file`, or begin it. OSError where its directory cannot be written."""
        self._file = file
        try:
            data = file.read_bytes()
            self.restarted = True
        except FileNotFoundError:
            data = b""
            self.restarted = False
        self._entries, bad = replay(data)
        if bad:
            BAD_LINES.inc(by=bad)
            log.warning("unreadable lines in the journal were passed over", extra={"file": str(file), "lines": bad})
        self._fd = -1
        self._size = 0
        self._floor = 0
        self._compact()

    def get(self, path: str, inode: int | None) -> Entry | None:
        """What is known of the cgroup at `path`; an entry of an earlier cgroup of that name is none."""
        entry = self._entries.get(path)
        return entry if entry is not None and entry.inode == inode else None

    def paths(self) -> Iterator[str]:
        """All cgroups that are known."""
        return iter(list(self._entries))

    def seen(self, path: str, inode: int) -> None:
        """Note a cgroup that is left alone, so that a later run knows it."""
        self._put(Entry(path, inode))

    def writing(self, path: str, inode: int, found: int, value: int) -> None:
        """Note that `value` is about to be written to a cgroup that holds `found`."""
        entry = self.get(path, inode)
        if entry is None or entry.found is None:
            self._put(Entry(path, inode, found, [value]))
        elif not entry.wrote or entry.wrote[-1] != value:
            _keep(entry, value)
            self._append(Line(path=path, wrote=value))

    def forget(self, path: str) -> None:
        """The cgroup is gone, or holds again what it held."""
        if self._entries.pop(path, None) is not None:
            ENTRIES.set(len(self._entries))
            self._append(Line(path=path, gone=True))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _put(self, entry: Entry) -> None:
        self._entries[entry.path] = entry
        ENTRIES.set(len(self._entries))
        self._append(Line(entry=entry))

    def _append(self, line: Line) -> None:
        data = _encoder.encode(line) + b"\n"
        try:
            os.write(self._fd, data)
            self._size += len(data)
            if self._size > max(COMPACT_BYTES, 2 * self._floor):
                self._compact()
        except OSError as error:
            # To hold the limits matters more than to put back what was there; memory still knows it.
            FAILURES.inc()
            log.error("the journal cannot be written", extra={"file": str(self._file), "error": str(error)})  # noqa: TRY400

    def _compact(self) -> None:
        data = b"".join(_encoder.encode(Line(entry=entry)) + b"\n" for entry in self._entries.values())
        new = self._file.with_suffix(".new")
        new.write_bytes(data)
        new.replace(self._file)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._size = self._floor = len(data)
        ENTRIES.set(len(self._entries))
