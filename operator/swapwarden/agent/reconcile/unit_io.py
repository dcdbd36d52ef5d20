"""How the I/O of the node's slices and services fares on the disks that the node swaps to: io.latency and io.weight.

Both hold a line for each disk. The state says what is to stand there, the agent finds for which disks. Controllers are
turned on by whoever owns the cgroup above, which is systemd: it would turn them off again when it next brings the tree
to what its units say. What is missing is told with the remedy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from swapwarden.agent.desired import problems, spec
from swapwarden.agent.host import cgroup_files, cgroupfs
from swapwarden.agent.ledger import originals
from swapwarden.agent.node import swap_devices
from swapwarden.agent.reconcile import held
from swapwarden.api import names
from swapwarden.kube import backoff

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = (2.0, 120.0)
"""First and longest bound of the wait before trying a refused write again."""
_QOS: Final = "io.cost.qos"
_OFF: Final = "enable=0"


class Line(NamedTuple):
    """What a file says of a disk. The inode tells a cgroup from a later one of the same name."""

    file: str
    disk: str
    """major:minor."""
    inode: int
    path: str

    def __str__(self) -> str:
        return f"{self.file} {self.disk} {self.inode} {self.path}"


def _line(name: str) -> Line | None:
    """As it was named in the originals; None of other settings."""
    file, _, rest = name.partition(" ")
    disk, _, rest = rest.partition(" ")
    inode, _, path = rest.partition(" ")
    return Line(file, disk, int(inode), path) if file in cgroup_files.FILES and inode.isdecimal() and path else None


def _asked(wants: spec.System) -> dict[cgroup_files.File, str]:
    """What is to stand in the files, as the kernel shows it."""
    asked = {}
    if wants.latency is not None:
        asked[cgroup_files.LATENCY] = f"target={wants.latency}"
    if wants.weight is not None:
        asked[cgroup_files.WEIGHT] = str(wants.weight)
    return asked


class UnitIo:
    """Not thread-safe: everything runs in the event loop of the enforcer."""

    def __init__(self, cgroups: cgroupfs.Cgroups, book: originals.Originals, *, again: Callable[[], None]) -> None:
        """`again` is called when `bring` is to be, because something was refused."""
        self._fs = cgroups
        self._originals = book
        self._held = held.Held(book, _Lines(cgroups))
        self._again = again
        self._backoff = backoff.Backoff(*RETRY_SECONDS)
        self._retry: asyncio.TimerHandle | None = None
        self.disks = swap_devices.Disks()
        """Those that the node swaps to; `bring` is to be called when they have become others."""
        self.shortfalls: tuple[problems.SettingProblem, ...] = ()

    @property
    def to_put_back(self) -> int:
        """Lines that are ours and should not be."""
        return self._held.to_put_back

    def close(self) -> None:
        """Try nothing again; what the files hold stays."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def bring(self, wants: spec.System, mode: names.Mode, units: Mapping[str, str]) -> None:
        """Bring the files of these units, which are names by path, to what is wanted of them, and others back."""
        self.close()
        self._held.to_put_back = 0
        asked = _asked(wants) if mode is not names.Mode.RESTORE else {}
        there = {path: inode for path in sorted(units) if (inode := self._fs.inode(path)) is not None}
        found = list(self._put_others_back(asked if mode is names.Mode.ENFORCE else {}, there))
        if asked and units:
            found += self._without_disks(asked)
            for path, inode in there.items():
                found += self._of_unit(units[path], path, inode, asked, mode)
        if any(short.reason is names.Problem.WRITE_FAILED for short in found):
            self._retry = asyncio.get_running_loop().call_later(self._backoff.next(), self._again)
        else:
            self._backoff.reset()
        for short in found:
            if short not in self.shortfalls:
                log.warning("a setting of the node is not as its profile asks: %s: %s", short.name, short.message)
        self.shortfalls = tuple(found)

    def _put_others_back(
        self, asked: Mapping[cgroup_files.File, str], there: Mapping[str, int]
    ) -> Iterator[problems.SettingProblem]:
        """Put back what is not asked for. What is gone took its values along."""
        wanted_files = {file.name for file in asked}
        for line in filter(None, map(_line, self._originals.names())):
            is_wanted = line.file in wanted_files and line.disk in self.disks.numbers
            if is_wanted and there.get(line.path) == line.inode:
                continue
            try:
                if self._fs.inode(line.path) == line.inode and self._fs.has(line.path, line.file):
                    self._held.put_back(str(line))
                else:
                    self._held.forget(str(line))
            except problems.SettingError as short:
                yield problems.SettingProblem(f"{line.path} {line.file}", short.reason, str(short))

    def _without_disks(self, asked: Mapping[cgroup_files.File, str]) -> Iterator[problems.SettingProblem]:
        name = ", ".join(file.field for file in asked)
        if self.disks.unknown:
            yield problems.SettingProblem(
                name,
                names.Problem.NOT_SUPPORTED,
                f"on which disk {', '.join(self.disks.unknown)} is cannot be seen: swap to a partition instead",
            )
        elif not self.disks.numbers:
            why = ", ".join(self.disks.without) or "the node has no swap"
            yield problems.SettingProblem(name, names.Problem.NO_EFFECT, f"there is no disk to wait for: {why}")

    def _of_unit(
        self, name: str, path: str, inode: int, asked: Mapping[cgroup_files.File, str], mode: names.Mode
    ) -> Iterator[problems.SettingProblem]:
        shorts: dict[cgroup_files.File, dict[str, problems.SettingError]] = {file: {} for file in asked}
        for file, value in asked.items():
            for disk in self.disks.numbers:
                try:
                    self._require(name, path, file, disk)
                    line = str(Line(file.name, disk, inode, path))
                    (self._held.bring if mode is names.Mode.ENFORCE else self._held.compare)(line, value)
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

    def _require(self, name: str, path: str, file: cgroup_files.File, disk: str) -> None:
        """ShortError where a cgroup has no such file, or the disk does not follow it."""
        if not self._fs.has(path, file.name):
            if cgroupfs.IO in self._fs.controllers(path):
                lack = f"the node's kernel has none ({file.option})"
            else:
                lack = f"it has no io controller: run `systemctl set-property {name} IOAccounting=yes` on the node"
            raise problems.SettingError(names.Problem.NOT_SUPPORTED, lack)
        if file is cgroup_files.WEIGHT and self._fs.has("", _QOS):
            qos = _of_device(self._fs, "", _QOS, disk)
            if not qos or _OFF in qos.split():
                raise _off(disk)


class _Lines:
    """As held.Files."""

    def __init__(self, cgroups: cgroupfs.Cgroups) -> None:
        self._fs = cgroups

    def read(self, name: str) -> str:
        line = _named(name)
        return _of_device(self._fs, line.path, line.file, line.disk) or cgroup_files.FILES[line.file].nothing

    def write(self, name: str, value: str) -> None:
        line = _named(name)
        try:
            self._fs.set_of_device(line.path, line.file, line.disk, value)
        except cgroupfs.UnsupportedError:
            held.WRITES.inc(line.file, "error")
            if line.file == cgroup_files.WEIGHT.name:
                raise _off(line.disk) from None
            message = f"the node's kernel does not do that for disk {line.disk}"
            raise problems.SettingError(names.Problem.NOT_SUPPORTED, message) from None
        except cgroupfs.CgroupError as error:
            held.WRITES.inc(line.file, "error")
            raise problems.SettingError(names.Problem.WRITE_FAILED, f"{value} of disk {line.disk}: {error}") from None
        found = self.read(name)
        if found != value:
            held.WRITES.inc(line.file, "error")
            raise problems.SettingError(
                names.Problem.WRITE_FAILED, f"holds {found} of disk {line.disk} after {value} was written"
            )
        held.WRITES.inc(line.file, "ok")

    def label(self, name: str) -> str:
        return _named(name).file


def _named(name: str) -> Line:
    line = _line(name)
    if line is None:
        raise ValueError(f"{name!r} is no line of a file of I/O")
    return line


def _of_device(cgroups: cgroupfs.Cgroups, path: str, file: str, disk: str) -> str:
    try:
        return cgroups.of_device(path, file, disk)
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
