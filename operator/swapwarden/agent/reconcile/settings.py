"""Reconciles settings of the node's kernel: memory management and zswap.

The kernel does not report external writes to them, so they are compared from time to time. A write may take long: for a
zswap compressor the kernel starts modprobe and waits. So a thread reads and writes; the event loop decides and records
in between.

`Settings` also serves system_units, for io.latency and io.weight.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from swapwarden.agent.desired import spec
from swapwarden.agent.host import files, worker
from swapwarden.agent.inventory import board
from swapwarden.agent.ledger import ledger
from swapwarden.agent.reconcile import queue
from swapwarden.api import names
from swapwarden.kube import backoff
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


KEY: Final = "kernel-settings"
"""Key of the worker's jobs."""
WRITE_SECONDS: Final = 30.0
"""How long the kernel may take for all settings before that is reported. The thread continues."""
_NUMBER: Final = re.compile(r"[0-9]{1,8}")


class NextSetting(msgspec.Struct, frozen=True):
    """The next write to a setting."""

    write: str | None
    """The value to write; None: no write."""
    foreign: bool
    """Whether the setting holds another writer's value, which `write` replaces, or which stays."""


def next_setting(observed: str, desired: str | None, record: ledger.SettingRecord | None) -> NextSetting:
    """Decide what to write to a setting that holds `observed`; `desired` is None to restore the earlier value."""
    foreign = record is not None and observed not in {record.found, *record.wrote}
    if desired is not None:
        return NextSetting(None, foreign=False) if observed == desired else NextSetting(desired, foreign)
    if record is None or foreign or observed == record.found:
        return NextSetting(None, foreign)
    return NextSetting(record.found, foreign=False)


class Settings:
    """Decides what must be written to settings of the node, and records it in the ledger. Not thread-safe."""

    def __init__(self, records: ledger.SettingRecords) -> None:
        self._records = records
        self._in_force: dict[ledger.Key, str] = {}
        """Desired values that were read back. Any other value is then another writer's, even the earlier one."""

    def next(self, key: ledger.Key, observed: str, desired: str | None) -> str | None:
        """Return what must be written now, or None. The ledger has it then; SettingError if the ledger cannot take it.

        `desired` is None to restore the earlier value.
        """
        step = next_setting(observed, desired, self._records.get(key))
        if desired is not None and step.write is not None:
            if step.foreign or self._in_force.get(key) == desired:
                REPAIRS.inc(key.file)
                extra = {**_named(key), "observed": observed, "wrote": desired}
                log.info("another writer changed a setting", extra=extra)
            try:
                self._records.record(key, observed, desired)
            except OSError as error:
                raise board.SettingError(
                    names.Problem.WRITE_FAILED, f"--run-dir cannot record its earlier value ({error.strerror})"
                ) from None
        elif desired is None and step.foreign:
            log.info("a value of another writer is left as it is", extra={**_named(key), "observed": observed})
        return step.write

    def done(self, key: ledger.Key, desired: str | None) -> None:
        """Note that a setting holds `desired`; None: it was restored or is gone. SettingError if not recorded."""
        if desired is not None:
            self._in_force[key] = desired
            return
        self._in_force.pop(key, None)
        try:
            self._records.forget(key)
        except OSError as error:
            raise board.SettingError(
                names.Problem.WRITE_FAILED, f"was restored, but --run-dir cannot record that ({error.strerror})"
            ) from None


def retry_in(
    problems: Collection[board.SettingProblem], before: Collection[board.SettingProblem], waits: backoff.Backoff
) -> float | None:
    """Log the problems that were not there before; return the seconds until a refused write is retried, or None."""
    for short in problems:
        if short not in before:
            log.warning("a setting of the node differs from its profile: %s: %s", short.name, short.message)
    if any(short.reason is names.Problem.WRITE_FAILED for short in problems):
        return waits.next()
    waits.reset()
    return None


def audit(observed: str, desired: str) -> None:
    """SettingError if a setting would be written."""
    if observed != desired:
        raise board.SettingError(names.Problem.AUDIT, f"{desired} would be written over {observed}")


def _named(key: ledger.Key) -> dict[str, str]:
    return {"setting": " ".join(filter(None, (key.file, key.device, key.path)))}


class Folder(msgspec.Struct, frozen=True):
    """A folder with settings on the host, and the options that give the agent access."""

    host: str
    flag: str
    chart: str


VM: Final = Folder("/proc/sys/vm", "--vm-root", "agent.kernel.vm")
ZSWAP: Final = Folder("/sys/module/zswap/parameters", "--zswap-root", "agent.kernel.zswap")


class Setting(msgspec.Struct, frozen=True):
    """A file that may be written, and the allowed values: a state cannot make the agent write anything else."""

    folder: Folder
    file: str
    values: re.Pattern[str]
    hint: str = ""
    """A remedy if the kernel refuses a value."""


SETTINGS: Final = {
    "vm.swappiness": Setting(VM, "swappiness", _NUMBER),
    "vm.min_free_kbytes": Setting(VM, "min_free_kbytes", _NUMBER),
    "vm.watermark_scale_factor": Setting(VM, "watermark_scale_factor", _NUMBER),
    "vm.page-cluster": Setting(VM, "page-cluster", _NUMBER),
    # The kernel loads a module by this name: only compressors are allowed.
    "zswap.compressor": Setting(
        ZSWAP,
        "compressor",
        re.compile(r"lzo|lzo-rle|lz4|lz4hc|zstd|deflate|842"),
        "; load its module on the node, or choose one that /proc/crypto lists",
    ),
    "zswap.max_pool_percent": Setting(ZSWAP, "max_pool_percent", _NUMBER),
    # Last, so that zswap starts with the other settings in place.
    "zswap.enabled": Setting(ZSWAP, "enabled", re.compile(r"[YN]")),
}
"""Settings that may be written, in the order of their writes."""


class _Step(msgspec.Struct, eq=False):
    """One setting in a pass. Only one thread uses it at a time."""

    name: str
    desired: str | None
    """The desired value; None: restore the earlier one."""
    audited: str | None
    observed: str = ""
    write: str | None = None
    short: board.SettingError | None = None
    """Why the pass ended for this setting."""


class Sysctls:
    """Reconciles settings of the node's kernel. Not thread-safe: only the event loop may use it."""

    def __init__(
        self,
        book: ledger.SettingRecords,
        roots: Mapping[Folder, pathlib.Path],
        reports: board.Board,
        kernel: worker.Worker,
    ) -> None:
        """`roots`: the folders that the agent has access to. `reports` has the status; `kernel` waits for it."""
        self._records = book
        self._settings = Settings(book)
        self._roots = roots
        self._board = reports
        self._state: spec.NodeSpec | None = None
        self.due = asyncio.Event()
        """Whether a pass over all settings is due."""
        self._kernel = kernel
        self._backoff = backoff.Backoff(*queue.RETRY_SECONDS)

    @property
    def status(self) -> board.SettingStatus:
        """How the settings stand."""
        return self._board.sysctls

    def _report(self, state: spec.NodeSpec, problems: tuple[board.SettingProblem, ...]) -> None:
        concerned = bool(state.kernel or problems)
        self._board.sysctls = board.SettingStatus(concerned, problems, len(self._recorded() - _in_force(state).keys()))
        self._board.touch()

    def set_desired(self, state: spec.NodeSpec) -> None:
        """Take a new state. `run` applies it, and until then the settings are reported as pending."""
        before, self._state = self._state, state
        if before is not None and _asked(before) == _asked(state):
            return
        pending = sorted(self._recorded() | state.kernel.keys())
        if pending:
            # The failures so far were about other values: the new ones are tried at once.
            self._backoff.reset()
            self.due.set()
        pends = "the agent is about to write it"
        self._report(state, tuple(board.SettingProblem(name, names.Problem.PENDING, pends) for name in pending))

    def check(self) -> None:
        """Have `run` compare all settings soon, if there is a state."""
        if self._state is not None and (self._state.kernel or self.status.problems):
            self.due.set()

    async def run(self) -> None:
        """Reconcile whenever it is due, until cancelled."""
        while True:
            await self.due.wait()
            wait = await self.reconcile()
            if wait is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self.due.wait()
                self.due.set()

    async def reconcile(self) -> float | None:
        """Reconcile all settings. Return the seconds until a retry is due, or None."""
        self.due.clear()
        state = self._state
        if state is None:
            return None
        try:
            problems = await self._reconcile(state)
        except TimeoutError:
            message = f"the kernel has not finished in {WRITE_SECONDS:.0f} s: look for a hanging modprobe on the node"
            concerned = sorted(state.kernel.keys() | self._recorded())
            problems = tuple(board.SettingProblem(name, names.Problem.WRITE_FAILED, message) for name in concerned)
        except Exception:
            self.due.set()  # the next run must not lose this pass
            raise
        if self._state is None or _asked(self._state) != _asked(state):
            return None  # `set_desired` has already set what to report until the next pass
        wait = retry_in(problems, self.status.problems, self._backoff)
        self._report(state, problems)
        return wait

    def _recorded(self) -> frozenset[str]:
        """Return the settings that hold, or may hold, a value of the agent's."""
        return frozenset(record.key.file for record in self._records) & SETTINGS.keys()

    async def _reconcile(self, state: spec.NodeSpec) -> tuple[board.SettingProblem, ...]:
        """Reconcile the settings, and return the problems."""
        problems = [
            board.SettingProblem(name, names.Problem.NOT_SUPPORTED, "this agent does not know it: update it")
            for name in state.kernel
            if name not in SETTINGS
        ]
        desired = _in_force(state)
        audited = state.kernel if state.mode is names.Mode.AUDIT else {}
        concerned = self._recorded() | desired.keys() | audited.keys()
        steps = [_Step(name, desired.get(name), audited.get(name)) for name in SETTINGS if name in concerned]
        await self._kernel.do(KEY, lambda: _each(self._observe, steps), WRITE_SECONDS)
        if self._state is None or _asked(self._state) != _asked(state):
            return ()
        _each(self._decide, steps)
        if any(step.write is not None for step in steps):
            await self._kernel.do(KEY, lambda: _each(self._carry_out, steps), WRITE_SECONDS)
        _each(self._finish, steps)
        failed = ((step.name, step.short) for step in steps if step.short)
        return (*problems, *(board.SettingProblem(name, short.reason, str(short)) for name, short in failed))

    def _observe(self, step: _Step) -> None:
        step.observed = self._read(step.name)

    def _decide(self, step: _Step) -> None:
        if step.desired is not None:
            self._check(step.name, step.desired)
        step.write = self._settings.next(ledger.Key(step.name), step.observed, step.desired)

    def _carry_out(self, step: _Step) -> None:
        if step.write is not None:
            self._write(step.name, step.write)
            step.observed = step.write

    def _finish(self, step: _Step) -> None:
        self._settings.done(ledger.Key(step.name), step.desired)
        if step.audited is not None:
            self._check(step.name, step.audited)
            audit(step.observed, step.audited)

    def _check(self, name: str, value: str) -> None:
        self._file(name)
        if not SETTINGS[name].values.fullmatch(value):
            raise board.SettingError(names.Problem.NOT_SUPPORTED, f"this agent does not write {value!r}: update it")

    def _file(self, name: str) -> pathlib.Path:
        setting = SETTINGS[name]
        root = self._roots.get(setting.folder)
        if root is None:
            folder = setting.folder
            raise board.SettingError(
                names.Problem.NO_ACCESS,
                f"the agent has no access to {folder.host}: set {folder.chart} to true in the chart ({folder.flag})",
            )
        return root / setting.file

    def _read(self, name: str) -> str:
        file, setting = self._file(name), SETTINGS[name]
        try:
            return files.read_setting(file)
        except files.AbsentError:
            message = f"the node's kernel has no {setting.folder.host}/{setting.file}: leave it out of the profile"
            raise board.SettingError(names.Problem.NOT_SUPPORTED, message) from None
        except files.SettingFileError as error:
            raise board.SettingError(names.Problem.WRITE_FAILED, f"cannot be read: {error}") from None

    def _write(self, name: str, value: str) -> None:
        setting = SETTINGS[name]
        try:
            files.write_setting(self._file(name), value)
        except files.SettingFileError as error:
            WRITES.inc(name, "error")
            message = f"the kernel refuses {value} ({error}){setting.hint}"
            raise board.SettingError(names.Problem.WRITE_FAILED, message) from None
        observed = self._read(name)
        if observed != value:
            WRITES.inc(name, "error")
            raise board.SettingError(
                names.Problem.WRITE_FAILED, f"holds {observed} after {value} was written{setting.hint}"
            )
        WRITES.inc(name, "ok")


def _asked(state: spec.NodeSpec) -> tuple[object, ...]:
    return state.mode, state.kernel


def _in_force(state: spec.NodeSpec) -> Mapping[str, str]:
    """Return the values to hold; settings without one are restored."""
    return state.kernel if state.mode is names.Mode.ENFORCE else {}


def _each(run: Callable[[_Step], None], steps: Iterable[_Step]) -> None:
    """Run one part of a pass for the settings that have not failed."""
    for step in steps:
        if step.short is None:
            try:
                run(step)
            except board.SettingError as short:
                step.short = short
