from __future__ import annotations

import pathlib
from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.host import mounts

# Of an agent's container on containerd: the image, the kubelet's files, a host path, and the token volume.
CONTAINER = """\
843 721 0:97 / / ro,relatime master:201 - overlay overlay rw,lowerdir=/a:/b,upperdir=/c,workdir=/d,uuid=on
844 843 0:98 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
850 843 0:23 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro
871 843 8:1 /var/lib/kubelet/pods/0b1c/etc-hosts /etc/hosts rw,relatime - ext4 /dev/sda1 rw,errors=remount-ro
872 843 8:1 /var/lib/swapwarden /var/lib/swapwarden rw,relatime - ext4 /dev/sda1 rw,errors=remount-ro
873 843 0:26 /swapwarden /run/swapwarden rw,nosuid,nodev - tmpfs tmpfs rw,size=817740k,nr_inodes=819200,mode=755,inode64
874 843 0:91 / /run/secrets/kubernetes.io/serviceaccount ro,relatime - tmpfs tmpfs rw,size=131072k,inode64,noswap
"""
# Of the node itself, with /var on a disk of its own and a pod's volumes in it.
NODE = """\
22 1 259:2 / / rw,relatime shared:1 - xfs /dev/nvme0n1p2 rw,attr2,inode64
60 22 8:17 / /var rw,relatime shared:30 - ext4 /dev/sdb1 rw
61 60 0:44 / /var/lib/kubelet/pods/1/volumes/kubernetes.io~projected/access rw - tmpfs tmpfs rw,size=1k,noswap
62 60 0:45 / /var/lib/kubelet/pods/2/volumes/kubernetes.io~secret/s rw - tmpfs tmpfs rw,size=1k,inode64
63 22 0:46 / /mnt/my\\040disk rw - ext4 /dev/sdc rw
"""
STATE = "/var/lib/swapwarden"


class Sys:
    """A /sys with disks, their partitions and their numbers."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root, self.block = root, root / "block"
        (root / "dev/block").mkdir(parents=True)
        self.block.mkdir()

    def disk(self, name: str, number: str, **partitions: str) -> None:
        (self.block / name / "slaves").mkdir(parents=True)
        (self.root / "dev/block" / number).symlink_to(f"../../block/{name}")
        for partition, own in partitions.items():
            (self.block / name / partition).mkdir()
            (self.block / name / partition / "partition").write_text("1\n")
            (self.root / "dev/block" / own).symlink_to(f"../../block/{name}/{partition}")


@pytest.fixture
def sys(tmp_path: pathlib.Path) -> Sys:
    made = Sys(tmp_path)
    made.disk("sda", "8:0", sda1="8:1", sda2="8:2")
    made.disk("sdb", "8:16", sdb1="8:17")
    made.disk("nvme0n1", "259:0", nvme0n1p2="259:2")
    return made


def disks(text: str, sys: Sys, *folders: str) -> AbstractSet[str] | None:
    return mounts.node_disks(mounts.parse(text), sys.block, folders)


def test_in_a_container_the_kubelets_own_files_show_its_disk(sys: Sys) -> None:
    assert disks(CONTAINER, sys, STATE) == {"sda"}
    assert disks(CONTAINER.replace("872 843 8:1", "872 843 8:17"), sys, STATE) == {"sda", "sdb"}


def test_on_the_node_itself_root_and_the_kubelets_folder_do(sys: Sys) -> None:
    assert disks(NODE, sys, STATE) == {"nvme0n1", "sdb"}
    assert disks(NODE.splitlines()[0], sys, STATE) == {"nvme0n1"}


def test_one_file_system_whose_disk_is_not_known_leaves_all_unknown(sys: Sys) -> None:
    assert disks("", sys) is None
    assert disks(CONTAINER.replace("/etc/hosts", "/etc/other"), sys) is None, "the image says nothing"
    assert disks(CONTAINER.replace("872 843 8:1", "872 843 8:99"), sys, STATE) is None
    assert disks(CONTAINER.replace("8:1", "0:50").replace("ext4", "zfs"), sys, STATE) is None


@pytest.mark.parametrize("kind", ["nfs4", "tmpfs"])
def test_a_node_without_disks(sys: Sys, kind: str) -> None:
    assert disks(CONTAINER.replace("8:1", "0:50").replace("ext4", kind), sys, STATE) == frozenset()


def test_btrfs_over_several_disks(sys: Sys) -> None:
    text = CONTAINER.replace("8:1", "0:50").replace("ext4", "btrfs")
    assert disks(text, sys, STATE) is None
    members = sys.root / "fs/btrfs/5c1e/devices"
    members.mkdir(parents=True)
    (sys.root / "fs/btrfs/features").mkdir()
    for name in ("sda1", "sdb1"):
        (members / name).mkdir()
    assert disks(text, sys, STATE) == {"sda", "sdb"}


@pytest.mark.parametrize(
    ("options", "recursive"), [("rw,nsdelegate,memory_recursiveprot", True), ("rw", False), (None, True)]
)
def test_cgroups_show_whether_protection_is_recursive(options: str | None, *, recursive: bool) -> None:
    line = "" if options is None else f"30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup2 {options}\n"
    assert mounts.recursive_protection(mounts.parse(NODE + line)) is recursive


def test_only_the_kubelets_volumes_show_noswap() -> None:
    assert mounts.noswap(mounts.parse(CONTAINER)) is True
    assert mounts.noswap(mounts.parse(CONTAINER.replace(",noswap", ""))) is False
    assert mounts.noswap(mounts.parse(NODE)) is False, "one without it is enough"
    assert mounts.noswap(mounts.parse(NODE.replace("1k,inode64", "1k,noswap"))) is True
    assert mounts.noswap(mounts.parse(CONTAINER.replace("serviceaccount", "other"))) is None


def test_the_last_mount_on_a_point_is_the_one_that_is_seen() -> None:
    twice = mounts.parse(f"{NODE}70 60 8:33 / /var rw - ext4 /dev/sdc1 rw\n")
    mount = mounts.holding(twice, "/var/lib/kubelet")
    assert mount is not None
    assert mount.device == "8:33"
    assert mounts.holding(twice, "/variety") == twice[0]


def test_names_are_taken_out_of_their_escapes() -> None:
    assert mounts.parse(NODE)[-1].point == "/mnt/my disk"


def test_a_table_that_is_too_long_to_be_read_whole_shows_nothing(tmp_path: pathlib.Path) -> None:
    table = tmp_path / "self/mountinfo"
    assert mounts.read(tmp_path) == []
    table.parent.mkdir()
    table.write_text(CONTAINER)
    assert len(mounts.read(tmp_path)) == 7
    table.write_text(CONTAINER + "x" * mounts.MAX_BYTES)
    assert mounts.read(tmp_path) == []


@given(st.text())
def test_garbage_is_no_mount_or_a_harmless_one(text: str) -> None:
    parsed = mounts.parse(text)
    assert mounts.noswap(parsed) in {None, True, False}
    mounts.node_disks(parsed, pathlib.Path("/nonexistent/block"), (STATE,))
