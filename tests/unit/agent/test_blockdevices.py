from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent import blockdevices
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
        return blockdevices.look(self.block, path)


@pytest.fixture
def sys(tmp_path: pathlib.Path) -> Sys:
    return Sys(tmp_path)


@pytest.mark.parametrize(
    ("disk", "rotational", "backing"),
    [
        ("nvme0n1", "0", "nvme"),
        ("sda", "0", "ssd"),
        ("sda", "1", "hdd"),
        ("mmcblk0", "0", "ssd"),
        ("vda", "1", "virtual"),
        ("xvdb", "0", "virtual"),
        ("nbd3", "0", "network"),
        ("rbd0", "0", "network"),
        ("loop7", "0", "loop"),
        ("cciss!c0d0", "1", "hdd"),
        ("sda", "what", "unknown"),
    ],
)
def test_a_whole_disk_is_told_by_its_name_else_by_what_the_kernel_says(
    sys: Sys, disk: str, rotational: str, backing: str
) -> None:
    sys.disk(disk, rotational=rotational)
    assert sys.look(f"/dev/{disk.replace('!', '/')}") == (backing, False)


def test_a_partition_is_what_its_disk_is(sys: Sys) -> None:
    sys.disk("sdb", "sdb1", "sdb2", rotational="1")
    sys.disk("nvme1n1", "nvme1n1p2")
    assert sys.look("/dev/sdb2") == ("hdd", False)
    assert sys.look("/dev/nvme1n1p2") == ("nvme", False)
    assert sys.look("/dev/sdb2 (deleted)") == ("hdd", False)


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
def test_what_goes_through_dm_crypt_is_encrypted(sys: Sys, uuid: str, encrypted: bool) -> None:
    sys.disk("nvme0n1", "nvme0n1p3")
    sys.mapped("dm-0", "nvme0n1p3", uuid=uuid)
    assert sys.look("/dev/dm-0") == ("nvme", encrypted)


def test_encryption_may_be_anywhere_on_the_way(sys: Sys) -> None:
    sys.disk("sda", "sda2")
    sys.mapped("dm-0", "sda2", uuid=LUKS)
    sys.mapped("dm-1", "dm-0", uuid="LVM-1", mapping="vg-swap")
    sys.mapped("dm-2", "sda2", uuid="LVM-2", mapping="vg-plain")
    sys.mapped("dm-3", "dm-2", uuid=LUKS)
    assert sys.look("/dev/dm-1") == ("ssd", True)
    assert sys.look("/dev/mapper/vg-swap") == ("ssd", True)
    assert sys.look("/dev/mapper/vg-plain") == ("ssd", False)
    assert sys.look("/dev/mapper/other") == ("unknown", False)
    assert sys.look("/dev/dm-3") == ("ssd", True)


def test_one_way_in_the_clear_is_enough_to_be_in_the_clear(sys: Sys) -> None:
    sys.disk("sda", "sda1", rotational="1")
    sys.disk("nvme0n1")
    sys.mapped("dm-0", "sda1", uuid=LUKS)
    sys.disk("md0")
    sys.under("md0", "dm-0", "nvme0n1")
    assert sys.look("/dev/md0") == ("mixed", False)
    sys.mapped("dm-1", "nvme0n1", uuid=LUKS)
    sys.disk("md1")
    sys.under("md1", "dm-0", "dm-1")
    assert sys.look("/dev/md1") == ("mixed", True)


@pytest.mark.parametrize(
    ("backing_dev", "encrypted"),
    [(None, True), ("none", True), ("/dev/sda1", False), ("/dev/dm-0", True), ("/var/file", False), ("/dev/no", False)],
)
def test_zram_is_memory_unless_it_writes_back(sys: Sys, backing_dev: str | None, encrypted: bool) -> None:
    sys.disk("sda", "sda1")
    sys.mapped("dm-0", "sda1", uuid=LUKS)
    sys.disk("zram0", **({} if backing_dev is None else {"backing_dev": backing_dev}))
    assert sys.look("/dev/zram0") == ("zram", encrypted)


def test_a_mapping_of_nothing_is_no_disk(sys: Sys) -> None:
    sys.mapped("dm-0")
    assert sys.look("/dev/dm-0") == ("unknown", False)


def test_stacks_that_never_end_do(sys: Sys) -> None:
    sys.mapped("dm-0", "dm-1")
    sys.mapped("dm-1", "dm-0")
    assert sys.look("/dev/dm-0") == ("unknown", False)


@pytest.mark.parametrize("path", ["", "/dev/", "/dev/..", "/dev/.", "/swapfile", "relative", f"/dev/{'x' * 300}"])
def test_what_is_no_device_is_unknown(sys: Sys, path: str) -> None:
    sys.disk("sda")
    assert sys.look(path) == ("unknown", False)


def test_without_sys_all_is_unknown(tmp_path: pathlib.Path) -> None:
    for path in ("/dev/sda", "/dev/mapper/x"):
        assert blockdevices.look(tmp_path / "none", path) == blockdevices.UNKNOWN


@given(st.text())
def test_whatever_a_device_is_called_something_is_said(path: str) -> None:
    found = blockdevices.look(pathlib.Path("/nonexistent"), f"/dev/{path}")
    assert found.backing in names.Backing
