"""The I/O of the node's slices and services by a state, on files that behave like the kernel's."""

from __future__ import annotations

import pathlib
import shutil

import msgspec
import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.host import cgroup_files, cgroupfs
from swapwarden.agent.ledger import ledger
from swapwarden.agent.node import swap_devices
from swapwarden.agent.reconcile import queue, reconciler, settings
from swapwarden.api import names

from tests.unit.agent.agent_node import Node, apply, compare, recorded, snapshot, state, until

DISK, OTHER = "254:0", "8:16"
QOS = f"{DISK} enable=1 ctrl=auto model=linear\n{OTHER} enable=1\n"


class Machine:
    """A node with system.slice and a service in it, with files that take a line for each disk."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.refuses: cgroupfs.CgroupError | None = None
        self.writes = 0
        self.root = node.tree.root
        (self.root / "io.cost.qos").write_text(QOS)
        self.system = self.root / "system.slice"
        self.kubelet = self.system / "kubelet.service"
        shutil.rmtree(self.system)
        self.group(self.system)
        self.group(self.kubelet)
        monkeypatch.setattr(cgroupfs.Cgroups, "set_of_device", lambda _, *line: self._written(*line))

    def group(self, path: pathlib.Path) -> None:
        if not path.is_dir():
            self.node.tree.group(path)
        for name, text in (
            ("cgroup.controllers", "cpu io memory\n"),
            ("io.latency", ""),
            ("io.weight", "default 100\n"),
        ):
            (path / name).write_text(text)

    def _written(self, path: str, file: str, device: str, value: str) -> None:
        """As iolatency_set_limit and ioc_weight_write do."""
        if self.refuses is not None:
            raise self.refuses
        self.writes += 1
        self.set(self.root / path, file, device, value)

    @staticmethod
    def set(path: pathlib.Path, file: str, device: str, value: str) -> None:
        lines = [each for each in (path / file).read_text().splitlines() if each.split()[0] != device]
        lines += [] if value in {"target=max", "default"} else [f"{device} {value}"]
        (path / file).write_text("".join(f"{line}\n" for line in lines))

    def start(self, *disks: str) -> reconciler.NodeReconciler:
        agent = self.node.start()
        agent.look(swap_devices.Disks(disks or (DISK,)))
        return agent

    def held(self, path: pathlib.Path | None = None) -> tuple[list[str], list[str]]:
        read = [((path or self.system) / name).read_text().splitlines() for name in ("io.latency", "io.weight")]
        return read[0], read[1]


NOTHING: tuple[list[str], list[str]] = ([], ["default 100"])
BOTH = ([f"{DISK} target=25000"], ["default 100", f"{DISK} 800"])


@pytest.fixture
def machine(plain: Node, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(plain, monkeypatch)


def asking(
    *units: str, latency: int | None = 25_000, weight: int | None = 800, mode: names.Mode = names.Mode.ENFORCE
) -> spec.NodeSpec:
    unit = spec.UnitEntry(None, latency, weight)
    return msgspec.structs.replace(state(mode=mode), units=dict.fromkeys(units or ("system.slice",), unit))


def shorts(agent: reconciler.NodeReconciler) -> dict[str, tuple[str, str]]:
    return {short.name: (short.reason, short.message) for short in snapshot(agent).settings or ()}


async def test_units_get_both_and_the_limit_of_swap_stays(machine: Machine) -> None:
    agent = machine.start(DISK, OTHER)
    apply(agent, asking("system.slice", "kubelet.service"))
    for path in (machine.system, machine.kubelet):
        latency, weight = machine.held(path)
        assert latency == [f"{DISK} target=25000", f"{OTHER} target=25000"]
        assert weight == ["default 100", f"{DISK} 800", f"{OTHER} 800"]
        assert (path / "memory.swap.max").read_text().strip() == "max"
    assert (shorts(agent), snapshot(agent).to_restore) == ({}, 0)
    compare(agent)
    assert machine.writes == 8


@pytest.mark.parametrize("order", [state(), state(mode=names.Mode.RESTORE), asking(mode=names.Mode.AUDIT)])
@pytest.mark.parametrize("again", [False, True])
async def test_earlier_values_are_restored(machine: Machine, order: spec.NodeSpec, *, again: bool) -> None:
    machine.set(machine.system, "io.weight", DISK, "300")
    machine.set(machine.system, "io.latency", OTHER, "target=70000")
    before = machine.held()
    agent = machine.start(DISK, OTHER)
    apply(agent, asking())
    assert machine.held() != before
    if again:
        machine.node.stop()
        agent = machine.start(DISK, OTHER)
    apply(agent, order)
    assert sorted(machine.held()[0]) == sorted(before[0])
    assert sorted(machine.held()[1]) == sorted(before[1])
    assert snapshot(agent).to_restore == 0
    assert recorded(machine.node.folder) == []
    if order.mode is names.Mode.AUDIT:
        assert shorts(agent)["system.slice io.latency"][0] == "Audit"
    else:
        assert snapshot(agent).settings is None


async def test_one_of_two_is_put_back_when_it_is_left_out(machine: Machine) -> None:
    agent = machine.start()
    apply(agent, asking())
    assert machine.held() == BOTH
    apply(agent, asking(latency=None, weight=500))
    assert machine.held() == ([], ["default 100", f"{DISK} 500"])


async def test_audit_writes_nothing(machine: Machine) -> None:
    agent = machine.start()
    apply(agent, asking(mode=names.Mode.AUDIT))
    assert (machine.writes, machine.held()) == (0, NOTHING)
    assert shorts(agent) == {
        "system.slice io.latency": ("Audit", "target=25000 would be written over target=max"),
        "system.slice io.weight": ("Audit", "800 would be written over default"),
    }


async def test_another_writers_value_is_repaired_counted_and_put_back(machine: Machine) -> None:
    agent = machine.start()
    apply(agent, asking())
    before = settings.REPAIRS.value("io.latency")
    machine.set(machine.system, "io.latency", DISK, "target=99")
    compare(agent)
    assert machine.held() == BOTH
    assert settings.REPAIRS.value("io.latency") == before + 1
    apply(agent, state())
    assert machine.held() == ([f"{DISK} target=99"], ["default 100"])


async def test_a_restarted_service_gets_them_again(machine: Machine) -> None:
    agent = machine.start()
    apply(agent, asking("kubelet.service"))
    machine.kubelet.rename(machine.node.folder / "kept")  # its inode must not be given away again
    machine.group(machine.kubelet)
    await until(lambda: machine.held(machine.kubelet) == BOTH)
    assert len(recorded(machine.node.folder)) == 2
    apply(agent, state())
    assert machine.held(machine.kubelet) == NOTHING
    assert machine.held(machine.node.folder / "kept") == BOTH


async def test_it_follows_the_swap_to_other_disks(machine: Machine) -> None:
    agent = machine.start(DISK)
    apply(agent, asking())
    agent.look(swap_devices.Disks((OTHER,)))
    assert machine.held() == ([f"{OTHER} target=25000"], ["default 100", f"{OTHER} 800"])
    agent.look(swap_devices.Disks((), (), ("/dev/zram0 is in memory",)))
    assert machine.held() == NOTHING
    told = "there is no disk to wait for: /dev/zram0 is in memory"
    assert shorts(agent) == {"systemUnits.io.latencyTargetMilliseconds, systemUnits.io.weight": ("NoEffect", told)}
    agent.look(swap_devices.Disks())
    assert shorts(agent).popitem()[1] == ("NoEffect", "there is no disk to wait for: the node has no swap")
    agent.look(swap_devices.Disks((DISK,), ("/swapfile",)))
    assert machine.held() == BOTH
    [(reason, told)] = shorts(agent).values()
    assert (reason, "/swapfile" in told) == ("NotSupported", True)


@pytest.mark.parametrize("other", ["io.weight", "io.latency"])
async def test_one_of_two_that_the_kernel_lacks_is_reported_and_does_no_harm(machine: Machine, other: str) -> None:
    lacking = ({"io.weight", "io.latency"} - {other}).pop()
    (machine.system / lacking).unlink()
    agent = machine.start()
    apply(agent, asking())
    [(name, (reason, told))] = shorts(agent).items()
    assert (name, reason) == (f"system.slice {lacking}", "NoEffect")
    assert told == f"the node's kernel has none ({cgroup_files.FILES[lacking].option}); {other} is there"
    apply(
        agent, asking(latency=None if lacking == "io.weight" else 1000, weight=None if lacking == "io.latency" else 7)
    )
    assert shorts(agent)[name] == ("NotSupported", f"the node's kernel has none ({cgroup_files.FILES[lacking].option})")
    apply(agent, state())
    assert snapshot(agent).settings is None


async def test_a_unit_without_the_controller_is_reported_with_the_remedy(machine: Machine) -> None:
    for name in cgroup_files.FILES:
        (machine.system / name).unlink()
    (machine.system / "cgroup.controllers").write_text("memory pids\n")
    agent = machine.start()
    apply(agent, asking(weight=None))
    told = "it has no io controller: run `systemctl set-property system.slice IOAccounting=yes` on the node"
    assert shorts(agent) == {"system.slice io.latency": ("NotSupported", told)}
    machine.group(machine.system)
    compare(agent)
    assert (shorts(agent), machine.held()[0]) == ({}, BOTH[0])


@pytest.mark.parametrize("qos", ["", f"{DISK} enable=0 ctrl=auto\n", f"{OTHER} enable=1\n", None])
async def test_weights_that_the_kernel_does_not_heed_are_not_written(machine: Machine, qos: str | None) -> None:
    if qos is None:  # in a tree of its own there is none, but the kernel says the same
        (machine.root / "io.cost.qos").unlink()
        machine.refuses = cgroupfs.UnsupportedError("system.slice/io.weight: Operation not supported")
    else:
        (machine.root / "io.cost.qos").write_text(qos)
    agent = machine.start()
    apply(agent, asking(latency=None))
    [(reason, told)] = shorts(agent).values()
    assert reason == "NotSupported"
    assert f"write `{DISK} enable=1` to the node's /sys/fs/cgroup/io.cost.qos" in told
    machine.refuses = None
    (machine.root / "io.cost.qos").write_text(QOS)
    compare(agent)
    assert (shorts(agent), machine.held()[1]) == ({}, BOTH[1])


async def test_a_disk_without_latencies_is_reported(machine: Machine) -> None:
    machine.refuses = cgroupfs.UnsupportedError("system.slice/io.latency: Operation not supported")
    agent = machine.start()
    apply(agent, asking(weight=None))
    told = f"the node's kernel does not do that for disk {DISK}"
    assert shorts(agent) == {"system.slice io.latency": ("NotSupported", told)}


async def test_refused_writes_are_retried(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "RETRY_SECONDS", (0.001, 0.002))
    machine.refuses = cgroupfs.DeniedError("system.slice/io.latency: Permission denied")
    agent = machine.start()
    apply(agent, asking())
    told = "target=25000 of disk 254:0: system.slice/io.latency: Permission denied"
    assert shorts(agent)["system.slice io.latency"] == ("WriteFailed", told)
    before = machine.node.told
    machine.refuses = None
    await until(lambda: machine.held() == BOTH)
    assert shorts(agent) == {}
    assert machine.node.told > before
    machine.refuses = cgroupfs.DeniedError("system.slice/io.latency: Permission denied")
    apply(agent, state())
    assert snapshot(agent).to_restore == 2
    machine.refuses = None
    await until(lambda: machine.held() == NOTHING)
    assert snapshot(agent).to_restore == 0


async def test_a_value_that_the_kernel_takes_for_another_is_reported(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroupfs.Cgroups, "set_of_device", lambda *_: None)
    agent = machine.start()
    apply(agent, asking(weight=None))
    told = f"holds target=max of disk {DISK} after target=25000 was written"
    assert shorts(agent) == {"system.slice io.latency": ("WriteFailed", told)}


async def test_nothing_is_written_whose_original_cannot_be_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    agent = machine.start()
    monkeypatch.setattr("swapwarden.agent.ledger.replaced_file.os.write", full)
    apply(agent, asking())
    assert (machine.writes, machine.held()) == (0, NOTHING)
    assert shorts(agent)["system.slice io.weight"][0] == "WriteFailed"


async def test_what_lost_its_controller_or_is_gone_took_its_values_along(machine: Machine) -> None:
    agent = machine.start()
    apply(agent, asking("system.slice", "kubelet.service"))
    for name in cgroup_files.FILES:
        (machine.system / name).unlink()
    machine.node.tree.remove(machine.kubelet)
    apply(agent, state(mode=names.Mode.RESTORE))
    assert snapshot(agent).to_restore == 0
    assert recorded(machine.node.folder) == []


async def test_records_of_other_settings_are_left_alone(machine: Machine) -> None:
    keys = [ledger.Key("vm.swappiness"), ledger.Key("io.latency"), ledger.Key("io.cost.qos", "system.slice", DISK, 1)]
    book = ledger.Ledger(machine.node.folder)
    for key in keys:
        book.settings.record(key, "60", "10")
    book.close()
    agent = machine.start()
    apply(agent, state(mode=names.Mode.RESTORE))
    assert (snapshot(agent).to_restore, recorded(machine.node.folder)) == (0, keys)
