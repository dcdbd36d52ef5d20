"""Reconciles io.latency and io.weight of the node's slices and services, for the disks that the node swaps to.

Both files have a line for each disk. The state has the values, the agent finds the disks. It does not enable
controllers: systemd owns the parent cgroup, and would disable them with its next change. A missing controller is
reported with the remedy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from swapwarden.agent.desired import problems, spec
from swapwarden.agent.host import cgroup_files, cgroupfs
from swapwarden.agent.ledger import ledger
from swapwarden.agent.node import swap_devices
from swapwarden.agent.reconcile import settings
from swapwarden.api import names
from swapwarden.kube import backoff

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = (2.0, 120.0)
"""First and longest wait before a refused write is retried."""
_QOS: Final = "io.cost.qos"
_OFF: Final = "enable=0"


_Asked = dict[cgroup_files.DeviceFile, str]


def _asked(wants: spec.UnitEntry) -> _Asked:
    """Return the desired values as the kernel shows them."""
    asked = {}
    if wants.latency is not None:
        asked[cgroup_files.LATENCY] = f"target={wants.latency}"
    if wants.weight is not None:
        asked[cgroup_files.WEIGHT] = str(wants.weight)
    return asked


class UnitIoReconciler:
    """Not thread-safe: only the event loop may use it."""

    def __init__(self, cgroups: cgroupfs.Cgroups, book: ledger.SettingRecords) -> None:
        self._fs = cgroups
        self._records = book
        self._settings = settings.Settings(book)
        self._backoff = backoff.Backoff(*RETRY_SECONDS)
        self.disks = swap_devices.Disks()
        """The disks that the node swaps to. When they change, `reconcile` must be called."""
        self.shortfalls: tuple[problems.SettingProblem, ...] = ()
        self.to_restore = 0
        """Lines that still hold a value of the agent's and must not."""
        self.again: float | None = None
        """Seconds after which `reconcile` must be called again, because a write was refused."""

    def reconcile(self, wants: Mapping[str, spec.UnitEntry], mode: names.Mode, units: Mapping[str, str]) -> None:
        """Give the files of `units` (names by path) their values, and restore all others."""
        self.to_restore = 0
        asked = {path: _asked(wants[name]) for path, name in units.items()} if mode is not names.Mode.RESTORE else {}
        there = {path: inode for path in sorted(units) if (inode := self._fs.inode(path)) is not None}
        found = list(self._restore_others(asked if mode is names.Mode.ENFORCE else {}, there))
        found += self._without_disks(dict.fromkeys(file for files in asked.values() for file in files))
        for path, inode in there.items():
            found += self._of_unit(units[path], path, inode, asked.get(path, {}), mode)
        if any(short.reason is names.Problem.WRITE_FAILED for short in found):
            self.again = self._backoff.next()
        else:
            self.again = None
            self._backoff.reset()
        for short in found:
            if short not in self.shortfalls:
                log.warning("a setting of the node differs from its profile: %s: %s", short.name, short.message)
        self.shortfalls = tuple(found)

    def _restore_others(
        self, asked: Mapping[str, _Asked], there: Mapping[str, int]
    ) -> Iterator[problems.SettingProblem]:
        """Restore lines that are no longer desired; those of removed cgroups are forgotten."""
        wanted = {(path, file.name) for path, files in asked.items() for file in files}
        for key in [record.key for record in self._records if record.key.file in cgroup_files.FILES]:
            is_wanted = (key.path, key.file) in wanted and key.device in self.disks.numbers
            if not key.path or (is_wanted and there.get(key.path) == key.inode):
                continue
            is_there = self._fs.inode(key.path) == key.inode and self._fs.has(key.path, key.file)
            try:
                if is_there:
                    self._reconcile_line(key, None)
                else:
                    self._settings.done(key, None)
            except problems.SettingError as short:
                self.to_restore += is_there
                yield problems.SettingProblem(f"{key.path} {key.file}", short.reason, str(short))

    def _without_disks(self, asked: Iterable[cgroup_files.DeviceFile]) -> Iterator[problems.SettingProblem]:
        name = ", ".join(file.field for file in asked)
        if not name:
            return
        if self.disks.unknown:
            yield problems.SettingProblem(
                name,
                names.Problem.NOT_SUPPORTED,
                f"the disk of {', '.join(self.disks.unknown)} is unknown: swap to a partition instead",
            )
        elif not self.disks.numbers:
            why = ", ".join(self.disks.without) or "the node has no swap"
            yield problems.SettingProblem(name, names.Problem.NO_EFFECT, f"there is no disk to wait for: {why}")

    def _of_unit(
        self, name: str, path: str, inode: int, asked: _Asked, mode: names.Mode
    ) -> Iterator[problems.SettingProblem]:
        shorts: dict[cgroup_files.DeviceFile, dict[str, problems.SettingError]] = {file: {} for file in asked}
        for file, value in asked.items():
            for disk in self.disks.numbers:
                try:
                    self._require(name, path, file, disk)
                    key = ledger.Key(file.name, path, disk, inode)
                    if mode is names.Mode.ENFORCE:
                        self._reconcile_line(key, value)
                    else:
                        settings.audit(self._read(key), value)
                except problems.SettingError as short:
                    shorts[file][str(short)] = short
        helps = [file for file in asked if not any(map(_is_lack, shorts[file].values()))] if self.disks.numbers else []
        for file in asked:
            for message, each in shorts[file].items():
                spared = bool(helps) and _is_lack(each)
                yield problems.SettingProblem(
                    f"{name} {file.name}",
                    names.Problem.NO_EFFECT if spared else each.reason,
                    f"{message}; {helps[0].name} is there" if spared else message,
                )

    def _require(self, name: str, path: str, file: cgroup_files.DeviceFile, disk: str) -> None:
        """SettingError if a cgroup has no such file, or the file has no effect on the disk."""
        if not self._fs.has(path, file.name):
            if cgroupfs.IO in self._fs.controllers(path):
                lack = f"the node's kernel has none ({file.option})"
            else:
                lack = f"it has no io controller: run `systemctl set-property {name} IOAccounting=yes` on the node"
            raise problems.SettingError(names.Problem.NOT_SUPPORTED, lack)
        if file is cgroup_files.WEIGHT and self._fs.has("", _QOS):
            qos = self._of_device("", _QOS, disk)
            if not qos or _OFF in qos.split():
                raise _off(disk)

    def _reconcile_line(self, key: ledger.Key, value: str | None) -> None:
        """Give a line its value; None restores what it had before. SettingError if that fails."""
        write = self._settings.next(key, self._read(key), value)
        if write is not None:
            self._write(key, write)
        self._settings.done(key, value)

    def _read(self, key: ledger.Key) -> str:
        return self._of_device(key.path, key.file, key.device) or cgroup_files.FILES[key.file].nothing

    def _write(self, key: ledger.Key, value: str) -> None:
        try:
            self._fs.set_of_device(key.path, key.file, key.device, value)
        except cgroupfs.UnsupportedError:
            settings.WRITES.inc(key.file, "error")
            if key.file == cgroup_files.WEIGHT.name:
                raise _off(key.device) from None
            message = f"the node's kernel does not do that for disk {key.device}"
            raise problems.SettingError(names.Problem.NOT_SUPPORTED, message) from None
        except cgroupfs.CgroupError as error:
            settings.WRITES.inc(key.file, "error")
            message = f"{value} of disk {key.device}: {error}"
            raise problems.SettingError(names.Problem.WRITE_FAILED, message) from None
        found = self._read(key)
        if found != value:
            settings.WRITES.inc(key.file, "error")
            message = f"holds {found} of disk {key.device} after {value} was written"
            raise problems.SettingError(names.Problem.WRITE_FAILED, message)
        settings.WRITES.inc(key.file, "ok")

    def _of_device(self, path: str, file: str, disk: str) -> str:
        try:
            return self._fs.of_device(path, file, disk)
        except cgroupfs.CgroupError as error:
            raise problems.SettingError(names.Problem.WRITE_FAILED, f"cannot be read: {error}") from None


def _is_lack(short: problems.SettingError) -> bool:
    return short.reason is names.Problem.NOT_SUPPORTED


def _off(disk: str) -> problems.SettingError:
    return problems.SettingError(
        names.Problem.NOT_SUPPORTED,
        f"the kernel heeds no weights on disk {disk} while iocost is off for it: write `{disk} enable=1` to the node's"
        f" /sys/fs/cgroup/{_QOS}",
    )
