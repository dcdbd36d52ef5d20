from __future__ import annotations

import pathlib

import pytest
from swapwarden.agent.node import swap_devices
from swapwarden.api import state


class Machine:
    """A /sys as kernels show it: disks with a queue of requests have a folder `mq`, hardware a link `device`."""

    def __init__(self, root: pathlib.Path) -> None:
        self.block = root / "block"
        self.block.mkdir()

    def disk(
        self,
        name: str,
        number: str,
        *partitions: str,
        queue: bool = True,
        hardware: bool = True,
        under: tuple[str, ...] = (),
        **files: str,
    ) -> None:
        disk = self.block / name
        for folder in (
            "queue",
            *partitions,
            *["mq"] * queue,
            *["device"] * hardware,
            *(f"slaves/{each}" for each in under),
        ):
            (disk / folder).mkdir(parents=True)
        for partition in partitions:
            (disk / partition / "partition").write_text("1\n")
        for file, content in {"dev": number, "removable": "0", **files}.items():
            if content:
                (disk / file).write_text(f"{content}\n")

    def look_at(self, *names: str) -> swap_devices.Disks:
        made = [state.SwapDevice(name, "partition" if name.startswith("/dev/") else "file", 1) for name in names]
        return swap_devices.find(self.block, made)


@pytest.fixture
def machine(tmp_path: pathlib.Path) -> Machine:
    return Machine(tmp_path)


def test_a_partition_stands_for_its_disk(machine: Machine) -> None:
    machine.disk("nvme0n1", "259:0", "nvme0n1p2")
    machine.disk("sda", "8:0", "sda1", "sda2")
    assert machine.look_at("/dev/sda2", "/dev/nvme0n1p2", "/dev/sda1") == swap_devices.Disks(("259:0", "8:0"))


def test_all_disks_under_an_encrypted_mirror(machine: Machine) -> None:
    machine.disk("sda", "8:0", "sda2")
    machine.disk("sdb", "8:16", "sdb2")
    machine.disk("md0", "9:0", queue=False, hardware=False, under=("sda2", "sdb2"))
    machine.disk("dm-0", "253:0", queue=False, hardware=False, under=("md0",))
    assert machine.look_at("/dev/dm-0") == swap_devices.Disks(("8:0", "8:16"))


def test_swap_without_a_disk_or_a_queue_is_reported(machine: Machine) -> None:
    machine.disk("zram0", "252:0", queue=False, hardware=False)
    machine.disk("drbd0", "147:0", queue=False, hardware=False)
    disks = machine.look_at("/dev/zram0", "/dev/drbd0")
    assert (disks.numbers, disks.unknown) == ((), ())
    assert disks.without[0] == "/dev/zram0 is in memory"
    assert disks.without[1].startswith("/dev/drbd0 is on drbd0, which has no queue of requests")
    assert machine.look_at() == swap_devices.Disks()


def test_a_file_is_on_the_only_disk_of_a_node(machine: Machine) -> None:
    machine.disk("vda", "254:0", "vda1")
    machine.disk("sr0", "11:0", removable="1")
    machine.disk("loop0", "7:0", hardware=False)
    machine.disk("zram0", "252:0", queue=False, hardware=False)
    # A path of an NVMe disk with several: the kernel hides it, and gives it no number.
    machine.disk("nvme0c0n1", "")
    assert machine.look_at("/swapfile") == swap_devices.Disks(("254:0",))
    machine.disk("vdb", "254:16")
    assert machine.look_at("/swapfile", "/dev/vdb") == swap_devices.Disks(("254:16",), ("/swapfile",))


def test_a_missing_disk_is_unknown(machine: Machine) -> None:
    assert machine.look_at("/dev/sdz", "/swapfile") == swap_devices.Disks((), ("/dev/sdz", "/swapfile"))
    machine.block.rmdir()
    assert machine.look_at("/swapfile").unknown == ("/swapfile",)
