"""Keeps what cgroup limits and node settings held before the agent wrote to them, and what the agent wrote.

The same file has the values that the container runtime holds (runtime_records).

A file of JSON lines, in a directory that does not survive a reboot: the values do not survive one either. Each line is
written before the write that it records. A process killed in between leaves a file that still names every value that
may be the agent's. Only the event loop may use it.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Final, Generic, NamedTuple, TypeVar

import msgspec

from swapwarden.agent.host import cgroupfs
from swapwarden.agent.ledger import replaced_file, runtime_records
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

LIMITS = metrics.gauge("swapwarden_agent_journal_entries", "Cgroups whose earlier value is kept for a restore.")
BAD_LINES = metrics.counter("swapwarden_agent_journal_bad_lines_total", "Unreadable lines of the ledger.")
SETTINGS = metrics.gauge(
    "swapwarden_agent_originals", "Settings of the node whose earlier value is kept for a restore."
)
BAD_STARTS = metrics.counter(
    "swapwarden_agent_originals_bad_total", "Starts of the agent that found a line of the ledger unreadable."
)

FILE: Final = "ledger.jsonl"
EARLIER: Final = ("journal.jsonl", "originals.json")
"""Files of earlier versions, which this one cannot read."""
VERSION: Final = 1
TEXT_LENGTH: Final = 64
"""Longest value of a setting, in characters."""
KEPT_VALUES: Final = 2
"""Values that are kept for one file: the last written, and the one before, in case the last write did not happen."""

COMPACT_BYTES: Final = 256 * 1024
"""Size beyond which the file is rewritten, unless its content takes half of that."""
RETRY_SECONDS: Final = 1.0
"""Seconds between attempts to rewrite the file while that fails: each repair may have a line."""

Limit = Annotated[int, msgspec.Meta(ge=0)]
"""Bytes; cgroupfs.NO_LIMIT for "max"."""
Text = Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH)]
"""The content of a setting's file, or its line for one device."""


class LedgerError(Exception):
    """The directory has records that this version cannot read; the message says what to do."""


class Key(NamedTuple):
    """One value that the kernel keeps. All but the inode is its name."""

    file: str
    """The name of a cgroup file, such as memory.swap.max, or of a node setting."""
    path: str = ""
    """The cgroup's; empty for node settings."""
    device: str = ""
    """major:minor, for a file with a line for each device."""
    inode: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The cgroup's. It distinguishes a cgroup from a later one of the same name."""


class AppendedFile(replaced_file.ReplacedFile):
    """A killed process leaves all earlier lines, and perhaps the beginning of one more."""

    def append(self, line: bytes) -> OSError | None:
        """Append a line; return why the file lacks it, or None."""
        if self.behind is not None:
            if self.clock() - self.tried < RETRY_SECONDS:
                replaced_file.FAILURES.inc()
                return self.behind
            return self.write_anew()
        try:
            whole = os.write(self.fd, line) == len(line)
        except OSError:
            whole = False
        if not whole:
            # Only a new file that could not be finished shows a later run that this line is missing.
            return self.write_anew()
        self.size += len(line)
        if self.size > max(COMPACT_BYTES, 2 * self.floor):
            # If this fails, the next attempt follows after as many bytes again.
            self.floor = self.size
            self.replace()
        return None


class LimitRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The earlier value of a limit, and the values that the agent wrote to it. Bytes."""

    key: Key
    found: Limit | None = None
    """The value that others last wrote; None while the agent has only seen the file."""
    wrote: tuple[Limit, ...] = ()
    systemd_zero: bool = False
    """Whether systemd holds it at 0 through the agent's drop-ins: a restore does not write that 0."""
    unit: Limit | None = None
    """systemd's value for the unit, if others have written another one since."""

    def __post_init__(self) -> None:
        if self.wrote and self.found is None:
            raise ValueError("a value was written over an unknown one")

    @property
    def last_applied(self) -> int | None:
        """The value that the agent wrote last, in bytes, or None."""
        return self.wrote[-1] if self.wrote else None

    @property
    def unit_value(self) -> int | None:
        """The value of systemd for the unit, in bytes, which it may write at any time; None if unknown."""
        return self.found if self.unit is None else self.unit


class SettingRecord(msgspec.Struct, frozen=True):
    """The earlier value of a setting, and the values that the agent wrote to it."""

    key: Key
    found: Text
    wrote: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        if self.key.device and not self.key.path:
            raise ValueError("a record of a device names no cgroup")


class _LedgerLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record, the end of one, or facts about the ledger itself."""

    version: int = 0
    initialised: bool = False
    incomplete: bool = False
    limit: LimitRecord | None = None
    setting: SettingRecord | None = None
    gone: Key | None = None
    runtime: runtime_records.RuntimeRecord | None = None
    ended: str = ""
    """Id of a container that the runtime has no more."""


R = TypeVar("R", LimitRecord, SettingRecord)
V = TypeVar("V", int, str)

_decoder = msgspec.json.Decoder(_LedgerLine)
_encoder = msgspec.json.Encoder()


def _encode(line: _LedgerLine) -> bytes:
    return _encoder.encode(line) + b"\n"


def _kept(wrote: tuple[V, ...], observed: V, value: V) -> tuple[V, ...]:
    """Return the values to keep; an earlier one that was found shows that later ones were not written."""
    if observed in wrote[:-1]:
        wrote = (observed,)
    values = [kept for kept in wrote if kept != value]
    values.append(value)
    return tuple(values[-KEPT_VALUES:])


class _Records(Generic[R]):
    def __init__(self, append: Callable[[bytes], OSError | None]) -> None:
        self._append = append
        self._records: dict[tuple[str, str, str], R] = {}

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[R]:
        return iter(list(self._records.values()))

    def get(self, key: Key) -> R | None:
        """Return the record of exactly this cgroup's file, or of this setting."""
        record = self._records.get(key[:3])
        return record if record is not None and record.key == key else None

    def load(self, record: R) -> None:
        """Take a record that the file has."""
        self._records[record.key[:3]] = record

    def drop(self, key: Key) -> None:
        """Drop a record of which the file has the end."""
        if self.get(key) is not None:
            del self._records[key[:3]]


class LimitRecords(_Records[LimitRecord]):
    """The records of cgroup limits. If the file cannot take one, memory keeps it: holding limits matters more."""

    def has_name(self, file: str, path: str) -> bool:
        """Return whether this cgroup, or an earlier one of the same name, has a record."""
        return (file, path, "") in self._records

    def has_names(self, files: Iterable[str], paths: Iterable[str]) -> bool:
        """Return whether any of these cgroups, or earlier ones of their names, has a record of any of these files."""
        return not self._records.keys().isdisjoint(itertools.product(files, paths, ("",)))

    def holds_ours(self, key: Key) -> bool:
        """Return whether the file may hold a value that the agent wrote, in place of one that is known."""
        record = self.get(key)
        return record is not None and record.found is not None

    def hear(self, key: Key, observed: int) -> None:
        """Record that another writer wrote `observed`, even if the agent has written the same value before.

        Only for pods' limits: what a runtime writes to a container may be the agent's wish, by a plugin.
        """
        record = self.get(key)
        if record is not None and observed in record.wrote and not (record.systemd_zero and observed == 0):
            unit = None if observed == record.unit_value else record.unit_value
            self._put(msgspec.structs.replace(record, found=observed, wrote=(observed,), unit=unit))

    def record(self, key: Key, observed: int, value: int) -> None:
        """Record that `value` is about to be written over `observed`.

        If it is not the agent's own value, a restore writes it from now on: runtimes and kubelets write at any time.
        """
        record = self.get(key) or LimitRecord(key)
        if record.systemd_zero and observed == 0:
            observed = record.found or record.unit or cgroupfs.NO_LIMIT
        if observed == record.found and record.wrote == (value,):
            return  # as it stands
        if record.found is None or observed not in {record.found, *record.wrote}:
            unit = None if observed == record.unit_value else record.unit_value
            self._put(msgspec.structs.replace(record, found=observed, wrote=(value,), unit=unit))
        else:
            self._put(msgspec.structs.replace(record, wrote=_kept(record.wrote, observed, value)))

    def record_runtimes(self, key: Key, found: int, ours: int) -> None:
        """Record that `ours`, which the file may have had before the agent wrote to it, is Swapwarden's by the runtime.

        A restore then writes `found`, the kubelet's number, and not `ours`.
        """
        record = self.get(key) or LimitRecord(key)
        if record.found in {None, ours}:
            wrote = tuple(each for each in record.wrote if each != ours)
            self._put(msgspec.structs.replace(record, found=found, wrote=(ours, *wrote)[-KEPT_VALUES:], unit=ours))

    def leave(self, key: Key, observed: int) -> None:
        """Record that another writer's `observed` stays, if the agent would restore another value."""
        record = self.get(key)
        if record is not None and (record.found is not None or record.systemd_zero):
            self.mark_known(key, observed)

    def mark_known(self, key: Key, observed: int | None = None) -> None:
        """Record that the agent has read the file, which has no value (any more) that the agent wrote, but `observed`.

        Where systemd holds it at 0, that is the value to restore after systemd's next 0.
        """
        record = self.get(key)
        if record is None or not record.systemd_zero:
            self._put(LimitRecord(key))
        else:
            self._put(LimitRecord(key, systemd_zero=True, unit=record.unit if observed == 0 else observed))

    def set_systemd_zero(self, key: Key, *, held: bool) -> None:
        """Record whether systemd holds the file at 0. Without the drop-ins there would be no limit: it is restored."""
        record = self.get(key) or LimitRecord(key)
        found = record.unit or cgroupfs.NO_LIMIT if held and not record.found else record.found
        self._put(msgspec.structs.replace(record, found=found, systemd_zero=held))

    def leave_zero(self, key: Key) -> None:
        """Record that a 0 is systemd's own value from now on, and not the agent's by a drop-in."""
        record = self.get(key)
        if record is not None and record.found is not None:
            self._put(LimitRecord(key, systemd_zero=True, unit=record.unit_value))

    def set_unit_value(self, key: Key, value: int) -> None:
        """Record systemd's value for the cgroup's unit from now on."""
        record = self.get(key)
        if record is not None and record.unit_value != value:
            self._put(msgspec.structs.replace(record, unit=None if value == record.found else value))

    def forget(self, key: Key) -> None:
        """Drop the record: the cgroup is gone."""
        if self.get(key) is not None:
            self.drop(key)
            self._append(_encode(_LedgerLine(gone=key)))

    def _put(self, record: LimitRecord) -> None:
        if record != self.get(record.key):
            line = _encode(_LedgerLine(limit=record))
            self.load(record)
            self._append(line)


class SettingRecords(_Records[SettingRecord]):
    """The records of settings. If the file cannot take one, it is not recorded: the setting must not be written."""

    def record(self, key: Key, observed: str, value: str) -> None:
        """Record that `value` is about to be written over `observed`. OSError if the file cannot take that.

        If `observed` is not the agent's own value, a restore writes it from now on.
        """
        if max(len(observed), len(value)) > TEXT_LENGTH:
            raise OSError(errno.EFBIG, f"a value has more than {TEXT_LENGTH} characters")
        record = self.get(key)
        if record is None or observed not in {record.found, *record.wrote}:
            self._put(key, SettingRecord(key, observed, (value,)))
        else:
            self._put(key, msgspec.structs.replace(record, wrote=_kept(record.wrote, observed, value)))

    def forget(self, key: Key) -> None:
        """Drop the record: the setting was restored, or no longer exists. OSError if the file cannot take that."""
        if self.get(key) is not None:
            self._put(key, None)

    def _put(self, key: Key, record: SettingRecord | None) -> None:
        before = self._records.get(key[:3])
        if record == before:
            return
        line = _encode(_LedgerLine(gone=key) if record is None else _LedgerLine(setting=record))
        self._set(key, record)  # first: an append may rewrite the whole file
        error = self._append(line)
        if error is not None:
            self._set(key, before)
            raise error

    def _set(self, key: Key, record: SettingRecord | None) -> None:
        if record is None:
            self.drop(key)
        else:
            self.load(record)


class Ledger:
    """The ledger of one node."""

    def __init__(self, directory: pathlib.Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file, or begin it; a full disk does not matter. OSError if it is unreadable, or LedgerError."""
        self._file = AppendedFile(directory / FILE, self._content, clock)
        self.limits = LimitRecords(self._file.append)
        self.settings = SettingRecords(self._file.append)
        self.runtime = runtime_records.RuntimeRecords(self._append_runtime)
        self.initialised = False
        """Whether an agent has taken in the tree of pods since the last boot."""
        self.is_new = not self._file.path.exists()
        """Whether no file existed: no agent ran since the last boot, or its records are gone."""
        self.complete = not self._file.lacks_lines()
        """Whether it has all values that agents wrote since the last boot, as far as can be known."""
        if not self.is_new:
            self._replay()
        elif there := [name for name in EARLIER if (directory / name).exists()]:
            raise LedgerError(
                f"--run-dir has the records of an earlier version ({', '.join(there)}), whose values this one cannot"
                f" restore: uninstall that version first, or remove these files to leave values as they are"
            )
        self._file.write_anew()

    def _replay(self) -> None:
        bad, versioned = 0, False
        for text in self._file.lines():
            try:
                line = _decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                bad += 1
                continue
            if line.version > VERSION:
                raise LedgerError(
                    f"--run-dir has the records of a later version, whose values this one cannot restore: install that"
                    f" version again, or remove {self._file.path} to leave values as they are"
                )
            versioned = versioned or line.version == VERSION
            self.initialised = self.initialised or line.initialised
            self.complete = self.complete and not line.incomplete
            if line.limit is not None:
                self.limits.load(line.limit)
            if line.setting is not None:
                self.settings.load(line.setting)
            if line.gone is not None:
                self.limits.drop(line.gone)
                self.settings.drop(line.gone)
            if line.runtime is not None:
                self.runtime.load(line.runtime)
            self.runtime.drop(line.ended)
        if bad:
            BAD_LINES.inc(by=bad)
            BAD_STARTS.inc()
            log.warning("skipped unreadable lines in the ledger", extra={"file": str(self._file.path), "lines": bad})
        self.complete = self.complete and versioned and not bad

    def initialise(self) -> None:
        """Record that the tree of pods has been taken in: pods without a record appear later."""
        if not self.initialised:
            self.initialised = True
            self._file.append(_encode(_LedgerLine(initialised=True)))

    def mark_incomplete(self) -> None:
        """Record that lines are known to be lost."""
        if self.complete:
            self.complete = False
            self._file.append(_encode(_LedgerLine(incomplete=True)))

    def retry(self) -> None:
        """Retry failed writes of the file, if any."""
        if self._file.behind is not None:
            self._file.write_anew()

    def remove(self) -> None:
        """Leave no file behind, once all values are restored. OSError if that fails."""
        self._file.remove()

    def publish(self) -> None:
        """Set the metrics of the records."""
        LIMITS.set(len(self.limits))
        SETTINGS.set(len(self.settings))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append_runtime(self, record: runtime_records.RuntimeRecord | str) -> None:
        line = _LedgerLine(ended=record) if isinstance(record, str) else _LedgerLine(runtime=record)
        self._file.append(_encode(line))

    def _content(self) -> bytes:
        lines = [_LedgerLine(version=VERSION, initialised=self.initialised, incomplete=not self.complete)]
        lines += [_LedgerLine(limit=record) for record in self.limits]
        lines += [_LedgerLine(setting=record) for record in self.settings]
        lines += [_LedgerLine(runtime=record) for record in self.runtime]
        return b"".join(map(_encode, lines))
