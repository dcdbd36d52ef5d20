"""What settings of the node held before the agent wrote to them: kept so that it can be put back.

One JSON file in a directory that does not survive a reboot, as the settings do not. It is replaced as a whole and
reaches the disk before the deed that it tells of; a process that dies in between leaves a file that still tells every
value that may be ours.
"""

from __future__ import annotations

import logging
import os
import pathlib
import threading
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from swapwarden.agent.host import files
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

BAD = metrics.counter(
    "swapwarden_agent_originals_bad_total", "Times the file with the settings' original values was not readable."
)
ENTRIES = metrics.gauge(
    "swapwarden_agent_originals", "Settings of the node whose earlier value is kept to be put back."
)

FILE: Final = "originals.json"
NEW: Final = ".new"
MAX_BYTES: Final = 1 << 20
"""More than all units of a state need for all disks of a node."""
KEPT_VALUES: Final = 2
"""Of the values written to one file: the last, and the one before, should the last not have got there."""


class Entry(msgspec.Struct, frozen=True):
    """What others last gave a setting, and what the agent gave it since."""

    found: str
    wrote: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class Originals:
    """The settings of one node that hold, or may hold, a value of ours. May be used from several threads."""

    def __init__(self, directory: pathlib.Path) -> None:
        """Read what an earlier run left. What is not readable counts as nothing, and is told."""
        self._file = directory / FILE
        self._lock = threading.Lock()
        self._entries = _load(self._file)
        ENTRIES.set(len(self._entries))

    def get(self, name: str) -> Entry | None:
        """What is kept of a setting; None of one that holds nothing of ours."""
        return self._entries.get(name)

    def names(self) -> list[str]:
        """The settings that hold, or may hold, a value of ours."""
        return list(self._entries)

    def writing(self, name: str, found: str, value: str) -> None:
        """Note that `value` is about to be written to a setting that holds `found`. OSError where that fails.

        Where `found` is not the agent's own, it is what is to be put back from now on.
        """
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or found not in {entry.found, *entry.wrote}:
                new = Entry(found, (value,))
            else:
                # Of earlier values, the one that got there; else the last.
                before = found if found in entry.wrote else entry.wrote[-1]
                new = Entry(entry.found, tuple(dict.fromkeys((before, value)))[-KEPT_VALUES:])
            if new != entry:
                self._keep({**self._entries, name: new})

    def forget(self, name: str) -> None:
        """The setting holds nothing of ours any more. OSError where that cannot be noted."""
        with self._lock:
            if name in self._entries:
                self._keep({each: entry for each, entry in self._entries.items() if each != name})

    def remove(self) -> None:
        """Leave no file behind: nothing in it is of use any more. OSError where that fails."""
        for file in (self._file, self._file.with_name(FILE + NEW)):
            file.unlink(missing_ok=True)

    def _keep(self, entries: Mapping[str, Entry]) -> None:
        new = self._file.with_name(FILE + NEW)
        with new.open("wb") as file:
            file.write(msgspec.json.encode(entries))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._file)
        folder = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._entries = dict(entries)
        ENTRIES.set(len(self._entries))


def _load(file: pathlib.Path) -> dict[str, Entry]:
    try:
        return msgspec.json.decode(files.whole(file, MAX_BYTES), type=dict[str, Entry])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        BAD.inc()
        log.error(  # noqa: TRY400 the message has it all
            "what settings of the node held before is not readable, and will not be put back: %s",
            error,
            extra={"file": str(file)},
        )
        return {}
