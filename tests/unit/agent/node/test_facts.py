from __future__ import annotations

import pathlib
import tempfile

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.node import facts
from swapwarden.api import state

from tests.unit.agent.cgroup_tree import PAGE, CgroupTree

SWAPS = """Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority
/dev/vda                                partition\t524284\t\t0\t\t-2
/var/my\\040swap\\134file                  file\t\t1024\t\t8\t\t10
nonsense
"""


def test_devices(tmp_path: pathlib.Path) -> None:
    first, second = facts.devices(SWAPS, tmp_path)
    assert (first.name, first.type, first.size_bytes, first.priority) == ("/dev/vda", "partition", 524284 * 1024, -2)
    assert (second.name, second.type, second.priority) == ("/var/my swap\\file", "file", 10)
    assert (first.backing, second.backing, second.encrypted) == ("unknown", "file", False)
    assert facts.devices("", tmp_path) == []


def test_what_is_under_them(tmp_path: pathlib.Path) -> None:
    (tmp_path / "vda").mkdir()
    (tmp_path / "zram0").mkdir()
    lines = f"{SWAPS}/dev/zram0 partition 1024 0 100\n"
    found = {each.name: (each.backing, each.encrypted) for each in facts.devices(lines, tmp_path)}
    assert found == {
        "/dev/vda": ("virtual", False),
        "/var/my swap\\file": ("file", False),
        "/dev/zram0": ("zram", True),
    }


@pytest.mark.parametrize(
    ("of_the_node", "dedicated"),
    [(frozenset({"vda"}), [False, None, True]), (frozenset(), [True, None, True]), (None, [None, None, None])],
)
def test_whether_they_share_a_disk(
    tmp_path: pathlib.Path, of_the_node: frozenset[str] | None, dedicated: list[bool | None]
) -> None:
    for name in ("vda", "zram0"):
        (tmp_path / name).mkdir()
    lines = f"{SWAPS}/dev/zram0 partition 1024 0 100\n"
    assert [each.dedicated for each in facts.devices(lines, tmp_path, of_the_node)] == dedicated


def test_no_kernel_has_more_than_are_kept(tmp_path: pathlib.Path) -> None:
    lines = "".join(f"/dev/zram{number} partition 1024 0 100\n" for number in range(100))
    assert len(facts.devices(f"Filename\n{lines}", tmp_path)) == 32


@pytest.mark.parametrize(
    ("release", "can"),
    [
        ("6.1.0-25-amd64", False),
        ("6.3.9", False),
        ("6.4.0", True),
        ("6.12", True),
        ("7.0-rc1", True),
        ("", False),
        ("6.40", True),
        ("5.14.0-427.13.1.el9_4.x86_64", False),
        ("6.", False),
        ("x6.4", False),
        ("9" * 5000 + ".1", False),
    ],
)
def test_tmpfs_noswap(release: str, *, can: bool) -> None:
    assert facts.noswap(release) is can


def test_read(tmp_path: pathlib.Path) -> None:
    tree = CgroupTree(tmp_path)
    cgroups = cgroupfs.Cgroups(str(tree.root), PAGE)
    read = facts.read(tree.proc, tmp_path, cgroups, "kubepods.slice")
    assert (read.cgroup_version, read.swap_controller) == (2, True)
    assert (read.swap_bytes, read.memory_bytes, read.page_size) == (1 << 30, 4 << 30, PAGE)
    assert (read.kernel, read.tmpfs_noswap, len(read.devices)) == ("6.1.0-25-amd64", False, 1)
    assert facts.available(tree.proc) == 3 << 30
    token = "9 1 0:9 / /run/secrets/kubernetes.io/serviceaccount ro - tmpfs tmpfs rw,noswap\n"
    (tree.proc / "self").mkdir()
    (tree.proc / "self/mountinfo").write_text(token)
    assert facts.read(tree.proc, tmp_path, cgroups, None).tmpfs_noswap, "the kernel's release is no more than a guess"
    (tree.kubepods / "memory.swap.max").unlink()
    assert not facts.read(tree.proc, tmp_path, cgroups, "kubepods.slice").swap_controller
    assert not facts.read(tree.proc, tmp_path, cgroups, None).swap_controller
    (tree.root / "cgroup.controllers").unlink()
    assert facts.read(tree.proc, tmp_path, cgroups, None).cgroup_version == 0
    (tree.root / "memory").mkdir()
    assert facts.read(tree.proc, tmp_path, cgroups, None).cgroup_version == 1
    cgroups.close()


DIGITS = st.text("0123456789٣²-", max_size=30).map(lambda text: text * 300)


@given(st.data())
def test_no_content_of_the_kernels_files_stops_the_agent(data: st.DataObject) -> None:
    """Not that a kernel writes such things: a mount of something else in its place might."""
    text = st.one_of(st.text(max_size=200), DIGITS)
    line = st.builds("MemTotal: {} kB\n{} partition {} 0 {}\n".format, text, text, text, text)
    content = st.one_of(line, text).map(str.encode) | st.binary(max_size=300)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        proc = folder / "proc"
        (proc / "sys/kernel").mkdir(parents=True)
        for file in ("meminfo", "swaps", "sys/kernel/osrelease"):
            (proc / file).write_bytes(data.draw(content, label=file))
        (folder / "kubepods").mkdir()
        (folder / "kubepods" / "memory.stat").write_bytes(data.draw(content, label="memory.stat"))
        cgroups = cgroupfs.Cgroups(name, PAGE)
        try:
            found = facts.read(proc, folder / "block", cgroups, "kubepods")
            facts.available(proc)
            cgroups.stat("kubepods")
        finally:
            cgroups.close()
    json = msgspec.json.encode(found)
    assert msgspec.json.decode(json, type=state.Facts) == found


def test_what_is_read_of_a_file_is_bounded(tmp_path: pathlib.Path) -> None:
    (tmp_path / "meminfo").symlink_to("/dev/zero")
    assert facts.available(tmp_path) == 0
