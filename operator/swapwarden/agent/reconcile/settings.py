"""Decides what must be written to settings of the node, and records it in the ledger."""

from __future__ import annotations

import logging

import msgspec

from swapwarden.agent.desired import problems
from swapwarden.agent.ledger import ledger
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
    "Repairs of settings of the node after an external write.",
    labels=("setting",),
)


class NextSetting(msgspec.Struct, frozen=True):
    """The next write to a setting."""

    write: str | None
    """None: no write."""
    foreign: bool
    """Whether the setting holds another writer's value, which `write` replaces, or which stays."""


def next_setting(observed: str, wanted: str | None, record: ledger.SettingRecord | None) -> NextSetting:
    """Decide what to write to a setting that holds `observed`; `wanted` is None to restore the earlier value."""
    foreign = record is not None and observed not in {record.found, *record.wrote}
    if wanted is not None:
        return NextSetting(None, foreign=False) if observed == wanted else NextSetting(wanted, foreign)
    if record is None or foreign or observed == record.found:
        return NextSetting(None, foreign)
    return NextSetting(record.found, foreign=False)


class Settings:
    """Not thread-safe."""

    def __init__(self, records: ledger.SettingRecords) -> None:
        self._records = records
        self._in_force: dict[ledger.Key, str] = {}
        """Settings whose wanted value was read back. Any other value is then another writer's, even the earlier one."""

    def next(self, key: ledger.Key, observed: str, wanted: str | None) -> str | None:
        """Return what must be written now, or None. The ledger has it then; SettingError if the ledger cannot take it.

        `wanted` is None to restore the earlier value.
        """
        step = next_setting(observed, wanted, self._records.get(key))
        if wanted is not None and step.write is not None:
            if step.foreign or self._in_force.get(key) == wanted:
                REPAIRS.inc(key.file)
                log.info("another writer changed a setting", extra={**_named(key), "found": observed, "wrote": wanted})
            try:
                self._records.record(key, observed, wanted)
            except OSError as error:
                raise problems.SettingError(
                    names.Problem.WRITE_FAILED, f"--run-dir cannot record its earlier value ({error.strerror})"
                ) from None
        elif wanted is None and step.foreign:
            log.info("a value of another writer is left as it is", extra={**_named(key), "found": observed})
        return step.write

    def done(self, key: ledger.Key, wanted: str | None) -> None:
        """Note that a setting holds `wanted`; None: it was restored or is gone. SettingError if not recorded."""
        if wanted is not None:
            self._in_force[key] = wanted
            return
        self._in_force.pop(key, None)
        try:
            self._records.forget(key)
        except OSError as error:
            raise problems.SettingError(
                names.Problem.WRITE_FAILED, f"was restored, but --run-dir cannot record that ({error.strerror})"
            ) from None


def audit(observed: str, wanted: str) -> None:
    """SettingError if a setting would be written."""
    if observed != wanted:
        raise problems.SettingError(names.Problem.AUDIT, f"{wanted} would be written over {observed}")


def _named(key: ledger.Key) -> dict[str, str]:
    return {"setting": " ".join(filter(None, (key.file, key.device, key.path)))}
