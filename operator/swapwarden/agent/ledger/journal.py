"""What others last wrote to cgroups, and what the agent wrote over it: kept so that it can be put back.

An append-only file of JSON lines in a directory that does not survive a reboot, as cgroups do not. Each line is written
before the deed it tells of; a process that dies in between leaves a file that still tells every value that may be ours.
"""

from __future__ import annotations

import errno
import logging
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Final, NamedTuple

import msgspec

from swapwarden.agent.host import values
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

ENTRIES = metrics.gauge("swapwarden_agent_journal_entries", "Cgroups whose earlier value is kept to be put back.")
BAD_LINES = metrics.counter("swapwarden_agent_journal_bad_lines_total", "Lines of the journal that were not readable.")

FAILURES = metrics.counter("swapwarden_agent_journal_failures_total", "Lines that could not be written to the journal.")

COMPACT_BYTES: Final = 256 * 1024
"""Size beyond which the file is written anew, unless what it must hold is itself as large."""
MAX_BYTES: Final = 16 * 1024 * 1024
"""Read of the file at most: far above what the agent ever leaves there."""
RETRY_SECONDS: Final = 1.0
"""Between tries to write the file anew while that fails: there may be a line for each repair."""
LOG_SECONDS: Final = 60.0
"""Between lines of the log about failures."""
KEPT_VALUES: Final = 2
"""Of the values written to one file: the last, and the one before, should the last not have got there."""


Limit = Annotated[int, msgspec.Meta(ge=0)]
"""As a file of limits takes it, in bytes."""


class Entry(msgspec.Struct, omit_defaults=True):
    """What is known of one cgroup: its identity, what others last gave it, and what the agent did. Limits in bytes."""

    path: str
    inode: int
    found: Limit | None = None
    """None where nothing was written yet: the cgroup was only seen."""
    wrote: list[Limit] = []
    covered: bool = False
    """Whether systemd holds it at 0 by the drop-ins of guarantee Strict: that 0 is ours, not what is to be put back."""
    unit: Limit | None = None
    """What systemd holds for its unit, where others wrote something else since; None: what they last gave it."""

    @property
    def units(self) -> int | None:
        """What systemd holds for its unit, and writes at times; None where that is not known."""
        return self.found if self.unit is None else self.unit


class Line(msgspec.Struct, omit_defaults=True):
    """One line: an entry as a whole, one more value for it, its end, or something of the journal itself.

    That is that an agent has taken in the tree of pods, or that lines were lost.
    """

    entry: Entry | None = None
    path: str = ""
    wrote: Limit | None = None
    gone: bool = False
    begun: bool = False
    lost: bool = False


class Content(NamedTuple):
    """What a journal says."""

    entries: dict[str, Entry]
    """By path."""
    begun: bool
    lost: bool
    """Whether an earlier reader found that lines are missing."""
    bad: int
    """Lines that could not be read, a torn last one among them."""


_decoder = msgspec.json.Decoder(Line)
_encoder = msgspec.json.Encoder()


def replay(data: bytes) -> Content:
    """Read a journal. Lines that cannot be read are passed over."""
    entries: dict[str, Entry] = {}
    begun = lost = False
    bad = 0
    for text in data.split(b"\n"):
        if not text:
            continue
        try:
            line = _decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            bad += 1
            continue
        begun, lost = begun or line.begun, lost or line.lost
        if line.entry is not None:
            entries[line.entry.path] = line.entry
        elif line.gone:
            entries.pop(line.path, None)
        elif line.wrote is not None and line.path in entries:
            _keep(entries[line.path], line.wrote)
    return Content(entries, begun, lost, bad)


def _keep(entry: Entry, value: int) -> None:
    entry.wrote = [*(kept for kept in entry.wrote if kept != value), value][-KEPT_VALUES:]


class Journal:
    """The journal of one node."""

    def __init__(self, file: pathlib.Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read `file`, or begin it. A full disk stops nothing, here as later. OSError where it is unreadable."""
        self._file = file
        self._new = file.with_suffix(".new")
        self._clock = clock
        self._logged = float("-inf")
        self._is_new = False
        try:
            with file.open("rb") as opened:
                data = opened.read(MAX_BYTES)
        except FileNotFoundError:
            self._is_new, data = True, b""
        self._entries, self._begun, lost, bad = replay(data)
        # One that is begun to be written anew, and not there, could not be written.
        self._lost = lost or bad > 0 or self._new.exists()
        if bad:
            BAD_LINES.inc(by=bad)
            log.warning("unreadable lines in the journal were passed over", extra={"file": str(file), "lines": bad})
        self._fd = -1
        self._size = 0
        self._floor = 0
        self._behind = False
        """Whether the file lacks something that could not be written: it is then written anew."""
        self._tried = float("-inf")
        """When that last failed."""
        self._catch_up()

    @property
    def new(self) -> bool:
        """Whether there was none: no agent ran since the last boot, or what it wrote down is gone."""
        return self._is_new

    @property
    def begun(self) -> bool:
        """Whether an agent has taken in the tree of pods since the last boot."""
        return self._begun

    @property
    def whole(self) -> bool:
        """Whether it tells of all that agents wrote since the last boot, as far as can be known."""
        return not self._lost

    def doubt(self) -> None:
        """Something that it should tell of is known to have been: lines of it were lost."""
        if not self._lost:
            self._lost = True
            self._append(Line(lost=True))

    def begin(self) -> None:
        """The tree of pods has been taken in: what is not known from now on came later."""
        if not self._begun:
            self._begun = True
            self._append(Line(begun=True))

    def retry(self) -> None:
        """Write what could not be written before, if there is anything."""
        if self._behind:
            self._catch_up()

    def get(self, path: str, inode: int | None) -> Entry | None:
        """What is known of the cgroup at `path`; an entry of an earlier cgroup of that name is none."""
        entry = self._entries.get(path)
        return entry if entry is not None and entry.inode == inode else None

    def __contains__(self, path: str) -> bool:
        """Whether anything is known of a cgroup of that name, be it an earlier one."""
        return path in self._entries

    def wrote(self, path: str) -> bool:
        """Whether anything was written to a cgroup of that name."""
        entry = self._entries.get(path)
        return entry is not None and bool(entry.wrote)

    def holds_ours(self, path: str, inode: int) -> bool:
        """Whether a cgroup may hold a value of the agent's, in place of one that is known."""
        entry = self.get(path, inode)
        return entry is not None and entry.found is not None

    def paths(self) -> Iterator[str]:
        """All cgroups that are known."""
        return iter(list(self._entries))

    def seen(self, path: str, inode: int) -> None:
        """Note a cgroup that holds nothing of ours (any more), so that a later run knows it."""
        self._put(Entry(path, inode, covered=self._is_covered(path, inode)))

    def cover(self, path: str, inode: int, *, covered: bool) -> None:
        """Note whether systemd holds a cgroup at 0. Without the drop-ins it would have no limit, which is put back."""
        entry = self.get(path, inode) or Entry(path, inode)
        found = values.NO_LIMIT if covered and not entry.found else entry.found
        self._put(Entry(path, inode, found, entry.wrote, covered, entry.unit))

    def _is_covered(self, path: str, inode: int) -> bool:
        entry = self.get(path, inode)
        return entry is not None and entry.covered

    def writing(self, path: str, inode: int, found: int, value: int) -> None:
        """Note that `value` is about to be written to a cgroup that holds `found`.

        Where that is not the agent's own, it is what is to be put back from now on: a runtime writes to a container
        when its first process is ready, long after making the cgroup, and the kubelet when a container is resized.
        """
        entry = self.get(path, inode)
        covered = entry is not None and entry.covered
        if covered and found == 0:
            found = values.NO_LIMIT
        if entry is None or entry.found is None:
            self._put(Entry(path, inode, found, [value], covered))
        elif found not in {entry.found, *entry.wrote}:
            self._put(Entry(path, inode, found, [value], covered, None if found == entry.units else entry.units))
        elif found in entry.wrote[:-1]:  # the last value did not get there
            self._put(Entry(path, inode, entry.found, [found, value], covered, entry.unit))
        elif entry.wrote[-1:] != [value]:
            _keep(entry, value)
            self._append(Line(path=path, wrote=value))

    def unit_holds(self, path: str, inode: int, value: int) -> None:
        """Note what systemd holds for the cgroup's unit from now on."""
        entry = self.get(path, inode)
        if entry is not None and entry.units != value:
            unit = None if value == entry.found else value
            self._put(Entry(path, inode, entry.found, entry.wrote, entry.covered, unit))

    def forget(self, path: str) -> None:
        """The cgroup is gone."""
        if self._entries.pop(path, None) is not None:
            ENTRIES.set(len(self._entries))
            self._append(Line(path=path, gone=True))

    def remove(self) -> None:
        """Leave no journal behind: nothing in it is of use any more. OSError where that fails."""
        self._new.unlink(missing_ok=True)
        self._file.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)

    def _put(self, entry: Entry) -> None:
        self._entries[entry.path] = entry
        ENTRIES.set(len(self._entries))
        self._append(Line(entry=entry))

    def _append(self, line: Line) -> None:
        data = _encoder.encode(line) + b"\n"
        if self._behind:
            if self._clock() - self._tried < RETRY_SECONDS:
                FAILURES.inc()
            else:
                self._catch_up()
            return
        try:
            self._behind = True
            _write(self._fd, data)
            self._behind = False
            self._size += len(data)
            if self._size > max(COMPACT_BYTES, 2 * self._floor):
                # Should this fail, the next try comes after as much again.
                self._floor = self._size
                self._compact()
        except OSError as error:
            if self._behind:
                # Nothing tells a later run that this line is missing, but a new file that could not be written.
                self._catch_up()
            else:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        # To hold the limits matters more than to put back what was there; memory still knows it.
        FAILURES.inc()
        now = self._clock()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            log.error("the journal cannot be written", extra={"file": str(self._file), "error": str(error)})

    def _catch_up(self) -> None:
        try:
            self._compact()
        except OSError as error:
            self._fail(error)
            self._behind, self._tried = True, self._clock()

    def _compact(self) -> None:
        lines = [Line(begun=self._begun, lost=self._lost)] if self._begun or self._lost else []
        lines += [Line(entry=entry) for entry in self._entries.values()]
        data = b"".join(_encoder.encode(line) + b"\n" for line in lines)
        fd = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, data)
            self._new.replace(self._file)
        except OSError:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._behind = fd, False
        self._size = self._floor = len(data)
        ENTRIES.set(len(self._entries))


def _write(fd: int, data: bytes) -> None:
    """Write all. OSError where there is no room for all."""
    if os.write(fd, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
