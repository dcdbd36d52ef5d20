from __future__ import annotations

import pathlib
from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.host import block_devices
from swapwarden.api import names

LUKS = "CRYPT-LUKS2-0123456789abcdef0123456789abcdef-swap"


class Sys:
    """A /sys/block."""

    def __init__(self, root: pathlib.Path) -> None:
        self.block = root / "block"
        self.block.mkdir()

    def disk(self, name: str, *partitions: str, rotational: str = "0", **files: str) -> None:
        disk = self.block / name
        for folder in ("queue", "slaves", *partitions):
            (disk / folder).mkdir(parents=True)
        (disk / "queue/rotational").write_text(f"{rotational}\n")
        for partition in partitions:
            (disk / partition / "partition").write_text("1\n")
        for file, content in files.items():
            (disk / file).write_text(f"{content}\n")

    def mapped(self, name: str, *under: str, uuid: str = "", mapping: str = "") -> None:
        self.disk(name)
        (self.block / name / "dm").mkdir()
        (self.block / name / "dm/uuid").write_text(f"{uuid}\n")
        (self.block / name / "dm/name").write_text(f"{mapping}\n")
        self.under(name, *under)

    def under(self, name: str, *under: str) -> None:
        for each in under:
            (self.block / name / "slaves" / each).mkdir()

    def look(self, path: str) -> tuple[str, bool]:
        device = block_devices.look(self.block, path)
        return device.backing, device.encrypted


@pytest.fixture
def sys(tmp_path: pathlib.Path) -> Sys:
    return Sys(tmp_path)


@pytest.mark.parametrize(
    ("disk", "rotational", "backing"),
    [
        ("nvme0n1", "0", "NVMe"),
        ("sda", "0", "SSD"),
        ("sda", "1", "HDD"),
        ("mmcblk0", "0", "SSD"),
        ("vda", "1", "Virtual"),
        ("xvdb", "0", "Virtual"),
        ("nbd3", "0", "Network"),
        ("rbd0", "0", "Network"),
        ("loop7", "0", "Loop"),
        ("cciss!c0d0", "1", "HDD"),
        ("sda", "what", "Unknown"),
    ],
)
def test_the_kind_of_a_whole_disk_is_known_by_its_name_or_from_the_kernel(
    sys: Sys, disk: str, rotational: str, backing: str
) -> None:
    sys.disk(disk, rotational=rotational)
    assert sys.look(f"/dev/{disk.replace('!', '/')}") == (backing, False)


def test_a_partition_is_what_its_disk_is(sys: Sys) -> None:
    sys.disk("sdb", "sdb1", "sdb2", rotational="1")
    sys.disk("nvme1n1", "nvme1n1p2")
    assert sys.look("/dev/sdb2") == ("HDD", False)
    assert sys.look("/dev/nvme1n1p2") == ("NVMe", False)
    assert sys.look("/dev/sdb2 (deleted)") == ("HDD", False)


@pytest.mark.parametrize(
    ("uuid", "encrypted"),
    [
        (LUKS, True),
        ("CRYPT-LUKS1-0123-swap", True),
        ("CRYPT-PLAIN-swap", True),
        ("CRYPT-INTEGRITY-0123-swap", False),
        ("CRYPT-VERITY-0123-swap", False),
        ("CRYPT-SUBDEV-0123-swap", False),
        ("LVM-CRYPT-LUKS2-0123", False),
        ("", False),
    ],
)
def test_a_device_above_dm_crypt_is_encrypted(sys: Sys, uuid: str, encrypted: bool) -> None:
    sys.disk("nvme0n1", "nvme0n1p3")
    sys.mapped("dm-0", "nvme0n1p3", uuid=uuid)
    assert sys.look("/dev/dm-0") == ("NVMe", encrypted)


def test_encryption_may_be_anywhere_on_the_way(sys: Sys) -> None:
    sys.disk("sda", "sda2")
    sys.mapped("dm-0", "sda2", uuid=LUKS)
    sys.mapped("dm-1", "dm-0", uuid="LVM-1", mapping="vg-swap")
    sys.mapped("dm-2", "sda2", uuid="LVM-2", mapping="vg-plain")
    sys.mapped("dm-3", "dm-2", uuid=LUKS)
    assert sys.look("/dev/dm-1") == ("SSD", True)
    assert sys.look("/dev/mapper/vg-swap") == ("SSD", True)
    assert sys.look("/dev/mapper/vg-plain") == ("SSD", False)
    assert sys.look("/dev/mapper/other") == ("Unknown", False)
    assert sys.look("/dev/dm-3") == ("SSD", True)


def test_one_way_in_the_clear_is_enough_to_be_in_the_clear(sys: Sys) -> None:
    sys.disk("sda", "sda1", rotational="1")
    sys.disk("nvme0n1")
    sys.mapped("dm-0", "sda1", uuid=LUKS)
    sys.disk("md0")
    sys.under("md0", "dm-0", "nvme0n1")
    assert sys.look("/dev/md0") == ("Mixed", False)
    sys.mapped("dm-1", "nvme0n1", uuid=LUKS)
    sys.disk("md1")
    sys.under("md1", "dm-0", "dm-1")
    assert sys.look("/dev/md1") == ("Mixed", True)


@pytest.mark.parametrize(
    ("backing_dev", "encrypted"),
    [(None, True), ("none", True), ("/dev/sda1", False), ("/dev/dm-0", True), ("/var/file", False), ("/dev/no", False)],
)
def test_zram_is_memory_unless_it_writes_back(sys: Sys, backing_dev: str | None, encrypted: bool) -> None:
    sys.disk("sda", "sda1")
    sys.mapped("dm-0", "sda1", uuid=LUKS)
    sys.disk("zram0", **({} if backing_dev is None else {"backing_dev": backing_dev}))
    assert sys.look("/dev/zram0") == ("Zram", encrypted)


def test_a_mapping_of_nothing_is_no_disk(sys: Sys) -> None:
    sys.mapped("dm-0")
    assert sys.look("/dev/dm-0") == ("Unknown", False)


def test_stacks_that_never_end_do(sys: Sys) -> None:
    sys.mapped("dm-0", "dm-1")
    sys.mapped("dm-1", "dm-0")
    assert sys.look("/dev/dm-0") == ("Unknown", False)


@pytest.mark.parametrize("path", ["", "/dev/", "/dev/..", "/dev/.", "/swapfile", "relative", f"/dev/{'x' * 300}"])
def test_a_file_that_is_no_device_is_unknown(sys: Sys, path: str) -> None:
    sys.disk("sda")
    assert sys.look(path) == ("Unknown", False)


def test_without_sys_all_is_unknown(tmp_path: pathlib.Path) -> None:
    for path in ("/dev/sda", "/dev/mapper/x"):
        assert block_devices.look(tmp_path / "none", path) == block_devices.UNKNOWN


class Machine:
    """A /sys as it is on a machine: disks stand where their bus puts them, /sys/block has links."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root, self.block = root, root / "block"
        for folder in ("block", "dev/block"):
            (root / folder).mkdir(parents=True)

    def disk(self, path: str, number: str, *under: str, rotational: str = "0", **files: str) -> pathlib.Path:
        """One at devices/PATH, over others; `files` are of its folder, with two underscores for a slash."""
        disk = self.root / "devices" / path
        for folder in ("queue", *(f"slaves/{each}" for each in under)):
            (disk / folder).mkdir(parents=True)
        (disk / "queue/rotational").write_text(f"{rotational}\n")
        for file, content in files.items():
            target = disk / file.replace("__", "/")
            target.parent.mkdir(exist_ok=True)
            target.write_text(f"{content}\n")
        (self.block / disk.name).symlink_to(disk)
        (self.root / "dev/block" / number).symlink_to(disk)
        return disk

    def partition(self, disk: pathlib.Path, name: str, number: str) -> None:
        (disk / name).mkdir()
        (disk / name / "partition").write_text("1\n")
        (self.root / "dev/block" / number).symlink_to(disk / name)

    def look_at(self, path: str) -> tuple[str, bool, AbstractSet[str] | None]:
        device = block_devices.look(self.block, path)
        return device.backing, device.encrypted, device.disks

    def numbered(self, number: str) -> AbstractSet[str] | None:
        return block_devices.disks_of_number(self.block, number)


@pytest.fixture
def machine(tmp_path: pathlib.Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_with_an_nvme_disk_with_partitions(machine: Machine) -> None:
    disk = machine.disk("pci0000:00/0000:00:1d.0/0000:3d:00.0/nvme/nvme0/nvme0n1", "259:0")
    (disk / "device").mkdir()
    (disk / "device/transport").write_text("pcie\n")
    machine.partition(disk, "nvme0n1p2", "259:2")
    machine.partition(disk, "nvme0n1p3", "259:3")
    assert machine.look_at("/dev/nvme0n1p3") == ("NVMe", False, {"nvme0n1"})
    assert machine.numbered("259:2") == {"nvme0n1"}
    assert machine.numbered("259:9") is None


@pytest.mark.parametrize(("transport", "backing"), [("pcie", "NVMe"), ("tcp", "Network"), ("rdma", "Network")])
def test_nvme_with_several_paths_is_what_its_controllers_are(machine: Machine, transport: str, backing: str) -> None:
    disk = machine.disk("virtual/nvme-subsystem/nvme-subsys0/nvme0n1", "259:0")
    (disk / "device/nvme0").mkdir(parents=True)
    (disk / "device/nvme0/transport").write_text(f"{transport}\n")
    assert machine.look_at("/dev/nvme0n1") == (backing, False, {"nvme0n1"})


def test_a_machine_with_dm_crypt_over_lvm_over_a_rotating_disk(machine: Machine) -> None:
    sda = machine.disk("pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda", "8:0", rotational="1")
    machine.partition(sda, "sda3", "8:3")
    lvm = {"dm__uuid": "LVM-Yx", "dm__name": "vg-swap_1"}
    machine.disk("virtual/block/dm-0", "253:0", "sda3", dm__uuid="LVM-Yz", dm__name="vg-root")
    machine.disk("virtual/block/dm-1", "253:1", "sda3", **lvm)
    machine.disk("virtual/block/dm-2", "253:2", "dm-1", dm__uuid="CRYPT-PLAIN-cryptswap", dm__name="cryptswap")
    assert machine.look_at("/dev/dm-2") == machine.look_at("/dev/mapper/cryptswap") == ("HDD", True, {"sda"})
    assert machine.look_at("/dev/dm-1") == ("HDD", False, {"sda"})
    assert machine.numbered("253:0") == {"sda"}, "the root file system is on the same disk"


def test_a_machine_with_zram_and_what_it_writes_back_to(machine: Machine) -> None:
    machine.disk("virtual/block/zram0", "252:0", backing_dev="none")
    sdb = machine.disk("pci0000:00/0000:00:17.0/ata2/host1/target1:0:0/1:0:0:0/block/sdb", "8:16")
    machine.partition(sdb, "sdb1", "8:17")
    machine.disk("virtual/block/zram1", "252:1", backing_dev="/dev/sdb1")
    machine.disk("virtual/block/zram2", "252:2", backing_dev="/var/file")
    assert machine.look_at("/dev/zram0") == ("Zram", True, frozenset())
    assert machine.look_at("/dev/zram1") == ("Zram", False, {"sdb"})
    assert machine.look_at("/dev/zram2") == ("Zram", False, None)


@pytest.mark.parametrize(
    ("path", "backing"),
    [
        ("platform/host6/session1/target6:0:0/6:0:0:1/block/sdc", "Network"),
        ("pci0000:00/0000:03:00.0/host1/rport-1:0-3/target1:0:0/1:0:0:0/block/sdc", "Network"),
        ("pci0000:00/0000:00:05.0/virtio2/host2/target2:0:1/2:0:1:0/block/sdc", "Virtual"),
        ("pci0000:00/0000:02:00.0/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0/block/sdc", "HDD"),
        ("pci0000:00/0000:00:06.0/virtio3/block/vdb", "Virtual"),
        ("virtual/block/nbd0", "Network"),
        ("rbd/0/block/rbd0", "Network"),
    ],
)
def test_disks_that_are_attached_in_other_ways(machine: Machine, path: str, backing: str) -> None:
    name = machine.disk(path, "8:32", rotational="1").name
    assert machine.look_at(f"/dev/{name}") == (backing, False, {name})


def test_a_machine_with_a_mirror_of_two_disks(machine: Machine) -> None:
    for letter, number in (("a", "8:0"), ("b", "8:16")):
        disk = machine.disk(f"pci0000:00/0000:00:17.0/ata1/host0/x{letter}/block/sd{letter}", number)
        machine.partition(disk, f"sd{letter}1", f"{number}1")
        machine.partition(disk, f"sd{letter}2", f"{number}2")
    machine.disk("virtual/block/md0", "9:0", "sda1", "sdb1")
    machine.disk("virtual/block/md1", "9:1", "sda2", "gone")
    assert machine.look_at("/dev/md0") == ("SSD", False, {"sda", "sdb"})
    assert machine.look_at("/dev/md1")[2] is None


def test_disks_under_a_loop_device_or_an_empty_mapping_are_unknown(machine: Machine) -> None:
    machine.disk("virtual/block/loop0", "7:0")
    machine.disk("virtual/block/dm-7", "253:7", dm__uuid="", dm__name="zero")
    for path in ("/dev/loop0", "/dev/dm-7", "/dev/sdz", "/swapfile"):
        assert machine.look_at(path)[2] is None


@given(st.text())
def test_whatever_a_device_is_called_something_is_said(path: str) -> None:
    device = block_devices.look(pathlib.Path("/nonexistent"), f"/dev/{path}")
    assert device.backing in names.Backing
