"""The initial file system: module order and archive format."""

import lzma
from pathlib import Path

import pytest

from testbed.base import host
from testbed.vm import initramfs


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A modules folder: top needs middle-part and base, middle-part needs base; core is built in."""
    folder = tmp_path / "kernel/some/where"
    folder.mkdir(parents=True)
    (folder / "base.ko").write_bytes(b"\0license=GPL\0depends=\0")
    (folder / "middle-part.ko.xz").write_bytes(lzma.compress(b"\0depends=base,core\0"))
    (folder / "top.ko").write_bytes(b"\0depends=middle_part,base\0name=top\0")
    (tmp_path / "modules.builtin").write_text("kernel/lib/core.ko\n")
    return tmp_path


def test_dependencies_come_first_and_once(modules: Path) -> None:
    order = initramfs.load_order(modules, ("top", "base", "core"))
    assert [initramfs.module_name(path) for path in order] == ["base", "middle_part", "top"]


def test_an_unknown_module_is_named(modules: Path) -> None:
    with pytest.raises(host.SetupError, match="has no module nowhere"):
        initramfs.load_order(modules, ("nowhere",))


def test_the_archive_is_aligned_and_ends_with_a_trailer() -> None:
    archive = initramfs.Archive()
    archive.folder("bin")
    archive.file("bin/x", b"12345")
    archive.console()
    content = archive.content()
    position, names = 0, []
    while position < len(content):
        assert content[position : position + 6] == b"070701"
        fields = [int(content[position + 6 + 8 * n : position + 14 + 8 * n], 16) for n in range(13)]
        size, name_size = fields[6], fields[11]
        name = content[position + 110 : position + 110 + name_size]
        assert name.endswith(b"\0")
        names.append(name[:-1].decode())
        position += -(-(110 + name_size) // 4) * 4
        if names[-1] == "bin/x":
            assert content[position : position + size] == b"12345"
        position += -(-size // 4) * 4
    assert names == ["bin", "bin/x", "dev/console", "TRAILER!!!"]
