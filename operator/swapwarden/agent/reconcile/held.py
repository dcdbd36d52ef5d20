"""Values in the kernel's files that are to be as the state says, with what they were before, to be put back.

These are values that are compared from time to time: of some of them the kernel does not tell when others write them.
"""

from __future__ import annotations

import logging
from typing import Protocol

from swapwarden.agent.desired import problems
from swapwarden.agent.ledger import originals
from swapwarden.api import names
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

WRITES = metrics.counter(
    "swapwarden_agent_setting_writes_total",
    "Writes to settings of the node (vm.swappiness, io.weight and the like): ok or error.",
    labels=("setting", "result"),
)
REPAIRS = metrics.counter(
    "swapwarden_agent_setting_repairs_total",
    "Settings of the node that another writer changed, and that were written again.",
    labels=("setting",),
)


class Files(Protocol):
    """Where the values are, by name. Each of these raises ShortError where it fails."""

    def read(self, name: str) -> str:
        """The value now."""

    def write(self, name: str, value: str) -> None:
        """Make it another, count that, and see that it is."""

    def label(self, name: str) -> str:
        """What metrics call it."""


class Held:
    """Not thread-safe."""

    def __init__(self, book: originals.Originals, files: Files) -> None:
        self._originals = book
        self._files = files
        self._in_force: dict[str, str] = {}
        """What values were seen to be, as they should. What others give them then is repaired, the original too."""
        self.to_put_back = 0
        """Of the values that `put_back` was asked for since this was set to 0, those that are still ours."""

    def bring(self, name: str, value: str) -> None:
        """Write the value unless it is there. ShortError where it, or what is there now, cannot be kept."""
        found = self._files.read(name)
        if found == value:
            self._in_force[name] = value
            return
        entry = self._originals.get(name)
        if self._in_force.get(name) == value or (entry is not None and found not in {entry.found, *entry.wrote}):
            REPAIRS.inc(self._files.label(name))
            log.info("another writer changed a setting", extra={"setting": name, "found": found, "wrote": value})
        try:
            self._originals.writing(name, found, value)
        except OSError as error:
            raise problems.SettingError(
                names.Problem.WRITE_FAILED, f"what it holds now cannot be kept in --run-dir ({error.strerror})"
            ) from None
        self._files.write(name, value)
        self._in_force[name] = value

    def put_back(self, name: str) -> None:
        """Give it what others gave it last, if it still is what the agent wrote. ShortError where that fails."""
        self._in_force.pop(name, None)
        entry = self._originals.get(name)
        if entry is None:
            return
        self.to_put_back += 1
        found = self._files.read(name)
        if found in entry.wrote:
            self._files.write(name, entry.found)
        elif found != entry.found:
            log.info("a value of another writer is left as it is", extra={"setting": name, "found": found})
        self.forget(name)
        self.to_put_back -= 1

    def forget(self, name: str) -> None:
        """It is not there any more, or was put back."""
        self._in_force.pop(name, None)
        try:
            self._originals.forget(name)
        except OSError as error:
            raise problems.SettingError(
                names.Problem.WRITE_FAILED, f"was put back, which cannot be noted in --run-dir ({error.strerror})"
            ) from None

    def compare(self, name: str, value: str) -> None:
        """ShortError where it is another value."""
        found = self._files.read(name)
        if found != value:
            raise problems.SettingError(names.Problem.AUDIT, f"{value} would be written over {found}")
