"""Makes settings of the node's kernel hold what the state says: memory management, and zswap.

The kernel does not tell when another writer changes them, so they are compared from time to time.
"""

from __future__ import annotations

import asyncio
import logging
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from swapwarden.agent import originals, settingfiles, shortfall, wanted
from swapwarden.api import names
from swapwarden.kube import backoff
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

WRITES = metrics.counter(
    "swapwarden_agent_setting_writes_total",
    "Writes to settings of the node (vm.swappiness and the like): ok or error.",
    labels=("setting", "result"),
)
REPAIRS = metrics.counter(
    "swapwarden_agent_setting_repairs_total",
    "Settings of the node that another writer changed, and that were written again.",
    labels=("setting",),
)

RETRY_SECONDS: Final = (2.0, 120.0)
"""First and longest bound of the wait before trying a refused write again."""
_NUMBER: Final = re.compile(r"[0-9]{1,8}")


class Folder(NamedTuple):
    """A folder with settings, on the host, and what gives it to the agent."""

    host: str
    flag: str
    chart: str


VM: Final = Folder("/proc/sys/vm", "--vm-root", "agent.kernel.vm")
ZSWAP: Final = Folder("/sys/module/zswap/parameters", "--zswap-root", "agent.kernel.zswap")


class Setting(NamedTuple):
    """A file that may be written, and with what: a state is no reason to write anything else."""

    folder: Folder
    file: str
    values: re.Pattern[str]
    hint: str = ""
    """What to do where the kernel refuses a value."""


SETTINGS: Final = {
    "vm.swappiness": Setting(VM, "swappiness", _NUMBER),
    "vm.min_free_kbytes": Setting(VM, "min_free_kbytes", _NUMBER),
    "vm.watermark_scale_factor": Setting(VM, "watermark_scale_factor", _NUMBER),
    "vm.page-cluster": Setting(VM, "page-cluster", _NUMBER),
    # The kernel looks for a module of the name that it is given: none but compressors may be named.
    "zswap.compressor": Setting(
        ZSWAP,
        "compressor",
        re.compile(r"lzo|lzo-rle|lz4|lz4hc|zstd|deflate|842"),
        "; load its module on the node, or choose one that /proc/crypto lists",
    ),
    "zswap.max_pool_percent": Setting(ZSWAP, "max_pool_percent", _NUMBER),
    # Last: it begins with the others as they are to be.
    "zswap.enabled": Setting(ZSWAP, "enabled", re.compile(r"[YN]")),
}
"""In the order in which they are written."""


class Kernel:
    """Not thread-safe: everything runs in one event loop."""

    def __init__(
        self,
        book: originals.Originals,
        roots: Mapping[Folder, pathlib.Path],
        *,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`roots`: where the folders that the agent was given are. `changed` is called when `shortfalls` is another."""
        self._originals = book
        self._roots = roots
        self._changed = changed
        self._state: wanted.State | None = None
        self._backoff = backoff.Backoff(*RETRY_SECONDS)
        self._retry: asyncio.TimerHandle | None = None
        self._in_force: dict[str, str] = {}
        """What settings were seen to hold, as they should. What others give them then is repaired, the original too."""
        self.shortfalls: tuple[shortfall.Shortfall, ...] = ()
        self.to_put_back = 0
        """Settings that hold a value of ours and should not."""

    @property
    def concerned(self) -> bool:
        """Whether there is anything to tell of."""
        asked = self._state is not None and (self._state.kernel or self._state.refused)
        return bool(asked or self.shortfalls)

    def apply(self, state: wanted.State) -> None:
        """Put a state in force; on return every setting that could be brought to it was."""
        self._state = state
        self._backoff.reset()
        self.resync()

    def resync(self) -> None:
        """Compare every setting with what is wanted. Before there is a state, nothing is."""
        self.close()
        if self._state is None:
            return
        found = tuple(self._settled(self._state))
        if any(short.reason is names.Shortfall.WRITE_FAILED for short in found):
            self._retry = asyncio.get_running_loop().call_later(self._backoff.next(), self.resync)
        else:
            self._backoff.reset()
        before, self.shortfalls = self.shortfalls, found
        for short in found:
            if short not in before:
                log.warning("a setting of the node is not as its profile asks: %s: %s", short.name, short.message)
        self._changed()

    def close(self) -> None:
        """Try nothing again; what the settings hold stays."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _settled(self, state: wanted.State) -> list[shortfall.Shortfall]:
        found = [shortfall.Shortfall(name, names.Shortfall.REFUSED, why) for name, why in state.refused.items()]
        found += [
            shortfall.Shortfall(name, names.Shortfall.NOT_SUPPORTED, "this agent does not know it: update it")
            for name in state.kernel
            if name not in SETTINGS
        ]
        self.to_put_back = 0
        for name in SETTINGS:
            value = state.kernel.get(name)
            try:
                if value is None or state.mode is not names.Mode.ENFORCE:
                    self._put_back(name)
                    if value is not None and state.mode is names.Mode.AUDIT:
                        self._compare(name, value)
                else:
                    self._bring(name, value)
            except shortfall.ShortError as short:
                found.append(shortfall.Shortfall(name, short.reason, str(short)))
        return found

    def _bring(self, name: str, value: str) -> None:
        held = self._read(name, value)
        if held == value:
            self._in_force[name] = value
            return
        entry = self._originals.get(name)
        if self._in_force.get(name) == value or (entry is not None and held not in {entry.found, *entry.wrote}):
            REPAIRS.inc(name)
            log.info("another writer changed a setting", extra={"setting": name, "found": held, "wrote": value})
        try:
            self._originals.writing(name, held, value)
        except OSError as error:
            raise shortfall.ShortError(
                names.Shortfall.WRITE_FAILED, f"what it holds now cannot be kept in --run-dir ({error.strerror})"
            ) from None
        self._write(name, value)
        self._in_force[name] = value

    def _put_back(self, name: str) -> None:
        """Give a setting what others gave it last, if it still holds what the agent wrote."""
        self._in_force.pop(name, None)
        entry = self._originals.get(name)
        if entry is None:
            return
        self.to_put_back += 1
        held = self._read(name)
        if held in entry.wrote:
            self._write(name, entry.found)
        elif held != entry.found:
            log.info("a value of another writer is left as it is", extra={"setting": name, "found": held})
        try:
            self._originals.forget(name)
        except OSError as error:
            raise shortfall.ShortError(
                names.Shortfall.WRITE_FAILED, f"was put back, which cannot be noted in --run-dir ({error.strerror})"
            ) from None
        self.to_put_back -= 1

    def _compare(self, name: str, value: str) -> None:
        held = self._read(name, value)
        if held != value:
            raise shortfall.ShortError(names.Shortfall.AUDIT, f"{value} would be written over {held}")

    def _file(self, name: str) -> pathlib.Path:
        setting = SETTINGS[name]
        root = self._roots.get(setting.folder)
        if root is None:
            folder = setting.folder
            raise shortfall.ShortError(
                names.Shortfall.NO_ACCESS,
                f"the agent has no access to {folder.host}: set {folder.chart} to true in the chart ({folder.flag})",
            )
        return root / setting.file

    def _read(self, name: str, value: str = "") -> str:
        """What a setting holds; fails where `value` is none for it."""
        file, setting = self._file(name), SETTINGS[name]
        if value and not setting.values.fullmatch(value):
            raise shortfall.ShortError(names.Shortfall.NOT_SUPPORTED, f"this agent does not write {value!r}: update it")
        try:
            return settingfiles.read(file)
        except settingfiles.AbsentError:
            message = f"the node's kernel has no {setting.folder.host}/{setting.file}: leave it out of the profile"
            raise shortfall.ShortError(names.Shortfall.NOT_SUPPORTED, message) from None
        except settingfiles.SettingError as error:
            raise shortfall.ShortError(names.Shortfall.WRITE_FAILED, f"cannot be read: {error}") from None

    def _write(self, name: str, value: str) -> None:
        setting = SETTINGS[name]
        try:
            settingfiles.write(self._file(name), value)
        except settingfiles.SettingError as error:
            WRITES.inc(name, "error")
            message = f"the kernel refuses {value} ({error}){setting.hint}"
            raise shortfall.ShortError(names.Shortfall.WRITE_FAILED, message) from None
        held = self._read(name)
        if held != value:
            WRITES.inc(name, "error")
            raise shortfall.ShortError(
                names.Shortfall.WRITE_FAILED, f"holds {held} after {value} was written{setting.hint}"
            )
        WRITES.inc(name, "ok")
