from __future__ import annotations

import errno
import os
import pathlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.host import cgroupfs

from tests.unit.agent.cgroup_tree import PAGE, CgroupTree, swap_max


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> CgroupTree:
    return CgroupTree(tmp_path)


@pytest.fixture
def cgroups(tree: CgroupTree) -> Iterator[cgroupfs.Cgroups]:
    opened = cgroupfs.Cgroups(str(tree.root), PAGE)
    yield opened
    opened.close()


def test_a_shorter_value_replaces_a_longer_one(tree: CgroupTree, cgroups: cgroupfs.Cgroups) -> None:
    cgroups.write("kubepods.slice/memory.swap.max", 69943296)
    assert cgroups.read("kubepods.slice/memory.swap.max") == 69943296
    cgroups.write("kubepods.slice/memory.swap.max", 0)
    assert (tree.kubepods / "memory.swap.max").read_text().strip() == "0"
    cgroups.write("kubepods.slice/memory.swap.max", cgroupfs.NO_LIMIT)
    assert swap_max(tree.kubepods) == "max"


def test_lines_of_block_devices(tree: CgroupTree, cgroups: cgroupfs.Cgroups) -> None:
    file = tree.kubepods / "io.weight"
    file.write_text("default 100\n8:0 7\n8:16 900\n")
    assert [cgroups.of_device("kubepods.slice", "io.weight", disk) for disk in ("8:16", "8:1", "8:0")] == [
        "900",
        "",
        "7",
    ]
    cgroups.set_of_device("kubepods.slice", "io.weight", "8:0", "800")
    assert file.read_text().strip() == "8:0 800"


def test_controllers(cgroups: cgroupfs.Cgroups) -> None:
    assert cgroups.controllers("") == {"cpu", "io", "memory", "pids"}
    assert cgroups.controllers("nowhere") == frozenset()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EOPNOTSUPP, cgroupfs.UnsupportedError),
        (errno.ENODEV, cgroupfs.GoneError),
        (errno.EINVAL, cgroupfs.ValueRefusedError),
        (errno.EAGAIN, cgroupfs.LessError),
        (errno.EIO, cgroupfs.CgroupError),
    ],
)
def test_what_the_kernel_says_of_a_disk(
    tree: CgroupTree, cgroups: cgroupfs.Cgroups, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def refused(_fd: int, _data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    (tree.kubepods / "io.latency").write_text("")
    monkeypatch.setattr("swapwarden.agent.host.cgroupfs.os.write", refused)
    with pytest.raises(cgroupfs.CgroupError, match=os.strerror(number)) as raised:
        cgroups.set_of_device("kubepods.slice", "io.latency", "8:1", "target=1000")
    assert type(raised.value) is kind


def test_a_cgroup_that_is_gone(cgroups: cgroupfs.Cgroups) -> None:
    with pytest.raises(cgroupfs.GoneError, match="nowhere"):
        cgroups.read("nowhere/memory.swap.max")
    with pytest.raises(cgroupfs.GoneError):
        cgroups.write("nowhere/memory.swap.max", 0)
    assert cgroups.dirs("nowhere") == []
    assert cgroups.inode("nowhere") is None


def test_a_link_is_not_followed(tree: CgroupTree, cgroups: cgroupfs.Cgroups, tmp_path: pathlib.Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "memory.swap.max").write_text("max\n")
    (tree.kubepods / "linked").symlink_to(outside)
    file = tree.kubepods / "memory.swap.max"
    file.unlink()
    file.symlink_to(outside / "memory.swap.max")
    assert "linked" not in cgroups.dirs("kubepods.slice")
    with pytest.raises(cgroupfs.DeniedError):
        cgroups.write("kubepods.slice/memory.swap.max", 0)
    assert swap_max(outside) == "max"


@pytest.mark.parametrize(
    ("text", "over", "value", "shown"),
    [
        ("max\n", cgroupfs.NO_LIMIT, 0, "0"),
        ("4096\n", 4096, cgroupfs.NO_LIMIT, "max"),
        ("8388608\n", 8 << 20, 4096, "4096"),
        ("max\n", 4096, 0, "max"),
        ("4096\n", 40960, 0, "4096"),
    ],
)
def test_only_the_value_that_was_found_is_replaced(
    tree: CgroupTree, cgroups: cgroupfs.Cgroups, text: str, over: int, value: int, shown: str
) -> None:
    (tree.kubepods / "memory.swap.max").write_text(text)
    held = cgroups.read("kubepods.slice/memory.swap.max")
    assert cgroups.replace("kubepods.slice/memory.swap.max", over, value) == held
    assert swap_max(tree.kubepods) == shown


def test_no_link_and_no_missing_file_is_replaced(tree: CgroupTree, cgroups: cgroupfs.Cgroups) -> None:
    file = tree.kubepods / "memory.swap.max"
    file.rename(tree.kubepods / "aside")
    with pytest.raises(cgroupfs.GoneError):
        cgroups.replace("kubepods.slice/memory.swap.max", cgroupfs.NO_LIMIT, 0)
    file.symlink_to(tree.kubepods / "aside")
    with pytest.raises(cgroupfs.DeniedError):
        cgroups.replace("kubepods.slice/memory.swap.max", cgroupfs.NO_LIMIT, 0)


@pytest.mark.parametrize("content", ["", "\n", "junk\n"])
def test_a_file_without_a_value_is_transient(tree: CgroupTree, cgroups: cgroupfs.Cgroups, content: str) -> None:
    (tree.kubepods / "memory.swap.max").write_text(content)
    with pytest.raises(cgroupfs.TransientError):
        cgroups.read("kubepods.slice/memory.swap.max")
    with pytest.raises(cgroupfs.TransientError):
        cgroups.replace("kubepods.slice/memory.swap.max", cgroupfs.NO_LIMIT, 0)


def test_a_root_that_is_no_directory(tmp_path: pathlib.Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        cgroupfs.Cgroups(str(tmp_path / "none"), PAGE)


@pytest.mark.parametrize(
    ("text", "totals"),
    [
        (
            "some avg10=0.00 avg60=0.00 total=2500000\nfull avg10=1.50 total=1250000\n",
            {"some": 2500000, "full": 1250000},
        ),
        ("some avg10=0.00 total=1000000\n", {"some": 1000000}),
        ("other total=5\nfull avg10=1 total=x\nsome\n\n", {}),
    ],
)
def test_stalls(text: str, totals: dict[str, int]) -> None:
    assert cgroupfs.stalls(text) == totals


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max", cgroupfs.NO_LIMIT),
        ("0", 0),
        ("4095", 0),
        ("69943297", 69943296),
        ("9223372036854771712", cgroupfs.NO_LIMIT),  # PAGE_COUNTER_MAX: the kernel shows it as max
        ("9223372036854767616", 9223372036854767616),
        ("9223372036854775807", cgroupfs.NO_LIMIT),
    ],
)
def test_parse_floors_to_the_page_as_the_kernel_does(text: str, limit: int) -> None:
    assert cgroupfs.parse(text, PAGE) == limit


@pytest.mark.parametrize("text", ["", "-1", "1k", " 1", "+1", "Max", "1.0", "٣"])
def test_parse_refuses_what_the_kernel_would(text: str) -> None:
    with pytest.raises(ValueError, match="neither max nor a number"):
        cgroupfs.parse(text, PAGE)


@given(st.integers(0, 2**52))
def test_render_and_parse_are_inverse(pages: int) -> None:
    limit = cgroupfs.parse(str(pages * PAGE), PAGE)
    assert cgroupfs.parse(cgroupfs.render(limit), PAGE) == limit
