"""Reconciles memory and I/O files of the node's slices and services that a profile names.

The state has the values by names of units, as systemd has them. A name is searched among the existing cgroups; no path
is made of it. Cgroups of pods are never among these. Memory files are watched like those of pods.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.host import cgroup_files, cgroupfs, faults, inotify
from swapwarden.agent.inventory import board, records
from swapwarden.agent.ledger import ledger
from swapwarden.agent.node import swap_devices
from swapwarden.agent.reconcile import file_reconciler, queue, settings
from swapwarden.api import names
from swapwarden.kube import backoff

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
    """Reconciles io.latency and io.weight of slices and services, for the disks that the node swaps to.

    Both files have a line for each disk. The state has the values, the agent finds the disks. It does not enable
    controllers: systemd owns the parent cgroup, and would disable them with its next change. A missing controller is
    reported with the remedy. Not thread-safe: only the event loop may use it.
    """

    def __init__(self, cgroups: cgroupfs.Cgroups, book: ledger.SettingRecords) -> None:
        self._fs = cgroups
        self._records = book
        self._settings = settings.Settings(book)
        self._backoff = backoff.Backoff(*queue.RETRY_SECONDS)
        self.disks = swap_devices.Disks()
        """The disks that the node swaps to. When they change, `reconcile` must be called."""
        self.shortfalls: tuple[board.SettingProblem, ...] = ()
        self.to_restore = 0
        """Lines that still hold a value of the agent's and must not."""
        self.again: float | None = None
        """Seconds after which `reconcile` must be called again, because a write was refused."""

    def reconcile(self, wants: Mapping[str, spec.UnitEntry], mode: names.Mode, units: Mapping[str, str]) -> None:
        """Give the files of `units` (names by path) their values, and restore all others."""
        self.to_restore = 0
        asked = {path: _asked(wants[name]) for path, name in units.items()} if mode is not names.Mode.RESTORE else {}
        there = {path: inode for path in sorted(units) if (inode := self._fs.inode(path)) is not None}
        problems = list(self._restore_others(asked if mode is names.Mode.ENFORCE else {}, there))
        problems += self._without_disks(dict.fromkeys(file for files in asked.values() for file in files))
        for path, inode in there.items():
            problems += self._of_unit(units[path], path, inode, asked.get(path, {}), mode)
        self.again = settings.retry_in(problems, self.shortfalls, self._backoff)
        self.shortfalls = tuple(problems)

    def _restore_others(self, asked: Mapping[str, _Asked], there: Mapping[str, int]) -> Iterator[board.SettingProblem]:
        """Restore lines that are no longer desired; those of removed cgroups are forgotten."""
        desired = {(path, file.name) for path, files in asked.items() for file in files}
        for key in [record.key for record in self._records if record.key.file in cgroup_files.FILES]:
            is_desired = (key.path, key.file) in desired and key.device in self.disks.numbers
            if not key.path or (is_desired and there.get(key.path) == key.inode):
                continue
            is_there = self._fs.inode(key.path) == key.inode and self._fs.has(key.path, key.file)
            try:
                if is_there:
                    self._reconcile_line(key, None)
                else:
                    self._settings.done(key, None)
            except board.SettingError as short:
                self.to_restore += is_there
                yield board.SettingProblem(f"{key.path} {key.file}", short.reason, str(short))

    def _without_disks(self, asked: Iterable[cgroup_files.DeviceFile]) -> Iterator[board.SettingProblem]:
        name = ", ".join(file.field for file in asked)
        if not name:
            return
        if self.disks.unknown:
            yield board.SettingProblem(
                name,
                names.Problem.NOT_SUPPORTED,
                f"the disk of {', '.join(self.disks.unknown)} is unknown: swap to a partition instead",
            )
        elif not self.disks.numbers:
            why = ", ".join(self.disks.without) or "the node has no swap"
            yield board.SettingProblem(name, names.Problem.NO_EFFECT, f"there is no disk to wait for: {why}")

    def _of_unit(
        self, name: str, path: str, inode: int, asked: _Asked, mode: names.Mode
    ) -> Iterator[board.SettingProblem]:
        shorts: dict[cgroup_files.DeviceFile, dict[str, board.SettingError]] = {file: {} for file in asked}
        for file, value in asked.items():
            for disk in self.disks.numbers:
                try:
                    self._require(name, path, file, disk)
                    key = ledger.Key(file.name, path, disk, inode)
                    if mode is names.Mode.ENFORCE:
                        self._reconcile_line(key, value)
                    else:
                        settings.audit(self._read(key), value)
                except board.SettingError as short:
                    shorts[file][str(short)] = short
        helps = [file for file in asked if not any(map(_is_lack, shorts[file].values()))] if self.disks.numbers else []
        for file in asked:
            for message, each in shorts[file].items():
                spared = bool(helps) and _is_lack(each)
                yield board.SettingProblem(
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
            raise board.SettingError(names.Problem.NOT_SUPPORTED, lack)
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
            raise board.SettingError(names.Problem.NOT_SUPPORTED, message) from None
        except cgroupfs.CgroupError as error:
            settings.WRITES.inc(key.file, "error")
            message = f"{value} of disk {key.device}: {error}"
            raise board.SettingError(names.Problem.WRITE_FAILED, message) from None
        observed = self._read(key)
        if observed != value:
            settings.WRITES.inc(key.file, "error")
            message = f"holds {observed} of disk {key.device} after {value} was written"
            raise board.SettingError(names.Problem.WRITE_FAILED, message)
        settings.WRITES.inc(key.file, "ok")

    def _of_device(self, path: str, file: str, disk: str) -> str:
        try:
            return self._fs.of_device(path, file, disk)
        except cgroupfs.CgroupError as error:
            raise board.SettingError(names.Problem.WRITE_FAILED, f"cannot be read: {error}") from None


def _is_lack(short: board.SettingError) -> bool:
    return short.reason is names.Problem.NOT_SUPPORTED


def _off(disk: str) -> board.SettingError:
    return board.SettingError(
        names.Problem.NOT_SUPPORTED,
        f"the kernel heeds no weights on disk {disk} while iocost is off for it: write `{disk} enable=1` to the node's"
        f" /sys/fs/cgroup/{_QOS}",
    )


_SLICE: Final = ".slice"
_SYSTEM: Final = "system.slice"


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Home(inotify.Watched):
    """A cgroup in which named units appear and disappear."""

    inode: int


class Units:
    """Reconciles the units that a state names. Not thread-safe: only the event loop may use it."""

    def __init__(
        self,
        cgroups: cgroupfs.Cgroups,
        book: ledger.Ledger,
        watching: inotify.WatchRegistry,
        files: file_reconciler.FileReconciler,
        io: UnitIoReconciler,
        *,
        reports: board.Board,
    ) -> None:
        """`reports` has the slices that may have a drop-in of the agent, by which systemd holds them at 0."""
        self.io = io
        self._board = reports
        self._fs = cgroups
        self._limits = book.limits
        self._watches = watching
        self._files = files
        self._state: spec.NodeSpec | None = None
        self._homes: dict[str, Home] = {}
        self._heard: frozenset[str] = frozenset()
        """Names of which events matter: units', and those of slices with units, which may be recreated."""
        self._lacking: list[board.SettingProblem] = []
        self.unfinished = ""
        """Why `reconcile` did not finish all units, or empty."""
        self.concerned = False
        """Whether there is a unit or problem to report."""
        self._units: dict[tuple[str, str], records.ControlFile] = {}
        """Files of units, by path and name of the file."""

    def reconcile(self, state: spec.NodeSpec, root: str, noticed: float) -> None:
        """Reconcile the units that the state names, and restore others. `root` is the cgroup above all pods.

        It must be called again whenever units may have appeared or disappeared.
        """
        wants = state.units
        self._state, self._heard = state, frozenset(wants)
        self._lacking = []
        self.unfinished = ""
        paths: dict[str, str] = {}
        for name in wants:
            try:
                paths[self._find(name, root)] = name
            except board.SettingError as short:
                self._lacking.append(board.SettingProblem(name, short.reason, str(short)))
        with self._each("slices and services"):
            self._watch_homes(paths, root)
        self._reconcile_files(paths, wants, state.mode, noticed)
        with self._each("io"):
            self.io.reconcile(wants, state.mode, paths)
        self.concerned = bool(wants or self._units or self.io.shortfalls)

    @contextlib.contextmanager
    def _each(self, name: str) -> Iterator[None]:
        """Turn a failure of one of them into a problem, which stops none of the others."""
        try:
            yield
        except cgroupfs.CgroupError as error:
            self._lack(name, f"cannot be read: {error}")
        except Exception as error:  # noqa: BLE001 a mistake about one of them
            self._lack(name, faults.fault(name, error))

    def _lack(self, name: str, message: str) -> None:
        self.unfinished = message
        self._lacking.append(board.SettingProblem(name, names.Problem.WRITE_FAILED, message))

    def _reconcile_files(
        self, paths: Mapping[str, str], wants: Mapping[str, spec.UnitEntry], mode: names.Mode, noticed: float
    ) -> None:
        """Bring the files of units to their values, by path; files without a value get their earlier one."""
        values: dict[tuple[str, str], resolve.DesiredValue] = {
            key: resolve.Handling.RESTORE
            for key in (*((each.key.path, each.key.file) for each in self._limits), *self._units)
            if not _is_of_pods(key[0])
        }
        for path, name in paths.items():
            if (limit := wants[name].limit) is not None:
                values[path, cgroupfs.SWAP_MAX] = limit
            values.update({(path, file): setting.value for file, setting in wants[name].memory.items()})
        # Ancestors first: a path sorts before those below it.
        for key, value in sorted(values.items(), key=lambda item: item[0]):
            with self._each(_name(key[0])):
                self._reconcile_file(key, value, mode, noticed)

    def _reconcile_file(
        self, key: tuple[str, str], enforced: resolve.DesiredValue, mode: names.Mode, noticed: float
    ) -> None:
        path, _ = key
        if key in self._units and self._fs.inode(path) != self._units[key].inode:
            self._drop(key)
        unit = self._known(key)
        if unit is None:
            return
        value = enforced if mode is names.Mode.ENFORCE else resolve.Handling.RESTORE
        unit.desired = records.Desired(value, enforced)
        self._files.reconcile(unit, noticed)
        done = unit.status.reason is None and not self._files.must_restore(unit) and not self._is_covered(unit)
        if enforced is resolve.Handling.RESTORE and done:
            self._drop(key)

    def concerns(self, owner: inotify.Watched, event: inotify.InotifyEvent) -> bool:
        """Return whether an event is about a named unit: then `reconcile` must be called."""
        return isinstance(owner, Home | records.Parent) and (event.name in self._heard)

    def rewritten(self, file: records.ControlFile) -> bool:
        """Examine a file after an external write. Return whether the evidence that systemd holds it at 0 changed."""
        if not (file.is_units and file.usage):
            return False
        before = self._is_covered(file)
        covered = self._is_at_zero(file.path) and (before or _has_drop_in(self._board, _name(file.path)))
        if covered != before:
            self._limits.set_systemd_zero(file.key, held=covered)
        return covered != before

    def _is_covered(self, unit: records.ControlFile) -> bool:
        entry = self._limits.get(unit.key)
        return entry is not None and entry.systemd_zero

    def _is_at_zero(self, path: str) -> bool:
        return self._fs.number(path, cgroupfs.SWAP_MAX) == 0  # reconciling an unreadable file reports why

    def files(self) -> Iterator[records.ControlFile]:
        """Return all known files."""
        return iter(list(self._units.values()))

    @property
    def to_restore(self) -> int:
        """Files that hold a value that the agent must restore."""
        return sum(map(self._files.must_restore, self._units.values())) + self.io.to_restore

    def shortfalls(self) -> Iterator[board.SettingProblem]:
        """Yield settings that differ from the state."""
        yield from self._lacking
        yield from self.io.shortfalls
        for unit in self._units.values():
            short = self._short(unit)
            if short is not None:
                yield short

    def _short(self, unit: records.ControlFile) -> board.SettingProblem | None:
        if unit.status.reason is not None:
            return board.SettingProblem(_name(unit.path), names.Problem.WRITE_FAILED, unit.status.message)
        if unit.status.draining:
            left = unit.status.in_use >> 20  # to the MiB: it changes all the time
            more = f"{left} MiB of swap are still in use; they can grow little, and fall as pages are touched"
            return board.SettingProblem(_name(unit.path), names.Problem.DRAINING, more)
        if unit.desired.value is resolve.Handling.RESTORE and self._is_covered(unit):
            name = _name(unit.path)
            more = (
                f"its drop-in file takes it back to 0 at each reload: take {name} out of agent.dropIns.slices, remove"
                " the file and run `systemctl daemon-reload` on the node"
                if _has_drop_in(self._board, name)
                else "systemd takes it back to 0 until it reads its units again: run `systemctl daemon-reload` on the"
                " node"
            )
            return board.SettingProblem(_name(unit.path), names.Problem.RELOAD_NEEDED, more)
        if (
            self._state is not None
            and self._state.mode is names.Mode.AUDIT
            and resolve.differs(unit.desired.if_enforced, unit.status.observed, at_most=False)
        ):
            return board.SettingProblem(
                _name(unit.path), names.Problem.AUDIT, f"{unit.spec.name} would be {_changed(unit)}"
            )
        return None

    def _find(self, name: str, root: str) -> str:
        """Return the path of a unit's cgroup. SettingError if there is none, or it has pods."""
        path = self._slice(name) if name.endswith(_SLICE) else self._service(name)
        if path is None:
            raise board.SettingError(names.Problem.NOT_FOUND, "the node has no cgroup of this name now")
        if root == path or root.startswith(f"{path}/"):
            raise board.SettingError(
                names.Problem.REFUSED,
                "the node's pods are in it, and would lose all swap; take it out of systemUnits (for pods there is"
                " swap.behavior: NoSwap)",
            )
        if _is_of_pods(path):
            raise board.SettingError(names.Problem.REFUSED, "it is the kubelet's, for pods; take it out of systemUnits")
        return path

    def _slice(self, name: str) -> str | None:
        """Return the path of a slice: inside those that its name begins with, up to a dash (systemd.slice(5))."""
        path, parts = "", name.removesuffix(_SLICE).split("-")
        for number in range(len(parts)):
            child = "-".join(parts[: number + 1]) + _SLICE
            if child not in self._fs.dirs(path):
                return None
            path = cgroupfs.join(path, child)
        return path

    def _service(self, name: str) -> str | None:
        """Return the path of a service: in system.slice, or in another slice (such as runtime.slice)."""
        slices = [each for each in self._fs.dirs("") if each.endswith(_SLICE) and not records.is_root(each)]
        for each in sorted(slices, key=lambda home: (home != _SYSTEM, home)):
            if name in self._fs.dirs(each):
                return cgroupfs.join(each, name)
        return None

    def _known(self, key: tuple[str, str]) -> records.ControlFile | None:
        """Return the record of the unit's file; None if its cgroup has just been removed."""
        path, file = key
        name = _name(path)
        unit = self._units.get(key)
        inode = self._fs.inode(path)
        if unit is None and inode is not None:
            kind = next(each for each in cgroup_files.OF_PODS if each.name == file)
            unit = self._units[key] = records.ControlFile(path, inode, None, spec=kind, is_units=True)
            entry = self._limits.get(unit.key)
            if unit.usage and entry is None and _has_drop_in(self._board, name) and self._is_at_zero(path):
                # systemd made it so after a boot. A restore writes no limit, its value without the drop-in.
                self._limits.set_systemd_zero(unit.key, held=True)
            self._files.recall(unit)
        return unit

    def _drop(self, key: tuple[str, str]) -> None:
        unit = self._units.pop(key)
        self._watches.release(unit)
        self._files.drop(unit)

    def _watch_homes(self, paths: dict[str, str], root: str) -> None:
        """Watch for new units: a service that restarts has a new cgroup, and a missing one may appear.

        The cgroup above the tree of pods is watched already, and a watch has only one owner.
        """
        homes = (
            {"", _SYSTEM, *(path.rpartition("/")[0] for path in paths)}
            if self._state is not None and self._state.units
            else set()
        )
        homes.discard(root.rpartition("/")[0])
        self._heard |= {path.rpartition("/")[2] for path in homes}
        there = {path: self._fs.inode(path) for path in homes}
        for path in [path for path, home in self._homes.items() if there.get(path) != home.inode]:
            self._watches.release(self._homes.pop(path))
        for path, inode in there.items():
            if inode is not None:
                home = self._homes.setdefault(path, Home(inode))
                self._watches.watch(home, self._fs.absolute(path), inotify.CHILDREN)


def _name(path: str) -> str:
    """Return the name of the unit whose cgroup this is."""
    return path.rpartition("/")[2]


def _changed(unit: records.ControlFile) -> str:
    desired = unit.desired.if_enforced
    return "raised" if isinstance(desired, int) and desired > unit.status.observed else "lowered"


def _is_of_pods(path: str) -> bool:
    return any(records.is_root(part) or records.is_level(part) for part in path.split("/"))


def _has_drop_in(reports: board.Board, name: str) -> bool:
    return name in reports.drop_ins[board.SLICES].held
