from __future__ import annotations

import os
import pathlib

import pytest
from swapwarden.agent.host import files


def test_text_is_bounded_and_what_cannot_be_read_is_none(tmp_path: pathlib.Path) -> None:
    (tmp_path / "long").write_text("x" * (files.MAX_BYTES + 1))
    (tmp_path / "odd").write_bytes(b" \xff\n")
    assert len(files.text(tmp_path / "long") or "") == files.MAX_BYTES
    assert files.text(tmp_path / "odd") == "\ufffd"
    assert files.text(tmp_path) is files.text(tmp_path / "gone") is None


def test_lines_are_bounded(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"one\n" + b"x" * 10000 + b"\nthree")
    lines = list(files.lines(tmp_path / "file"))
    assert (lines[0], lines[-1], max(map(len, lines))) == ("one\n", "three", 4096)
    assert list(files.lines(tmp_path / "gone")) == []


def test_names(tmp_path: pathlib.Path) -> None:
    for name in ("b.conf", "a.conf", "c"):
        (tmp_path / name).touch()
    assert files.names(tmp_path, "*.conf") == ["a.conf", "b.conf"]
    assert files.names(tmp_path / "gone", "*") == []


def test_a_file_is_whole_or_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert files.whole(tmp_path / "file", 5) == b"12345"
    with pytest.raises(ValueError, match="larger than 4 bytes"):
        files.whole(tmp_path / "file", 4)


@pytest.mark.parametrize("follow", [False, True])
def test_a_fifo_blocks_no_read_and_links_are_followed_only_on_request(tmp_path: pathlib.Path, *, follow: bool) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert files.content(tmp_path / "fifo", 9, follow=follow) == b""
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    if follow:
        assert files.content(tmp_path / "link", 3) == b"123"
    else:
        with pytest.raises(OSError, match="symbolic"):
            files.content(tmp_path / "link", 3, follow=False)


def test_a_value_is_read_and_written(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "swappiness"
    file.write_text("100\n")
    assert files.read_setting(file) == "100"
    files.write_setting(file, "7")
    assert files.read_setting(file) == "7"


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff" * 200, b"x" * 100_000])
def test_no_content_is_too_much(content: bytes, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert len(files.read_setting(file)) <= 64


def test_an_absent_setting_differs_from_a_refused_one(tmp_path: pathlib.Path) -> None:
    with pytest.raises(files.AbsentError):
        files.read_setting(tmp_path / "file")
    with pytest.raises(files.AbsentError):
        files.write_setting(tmp_path / "file", "1")
    (tmp_path / "folder").mkdir()
    with pytest.raises(files.SettingFileError, match="Is a directory") as refused:
        files.write_setting(tmp_path / "folder", "1")
    assert not isinstance(refused.value, files.AbsentError)


def test_an_invalid_value_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("1\n")
    with pytest.raises(files.SettingFileError, match="no value of a setting"):
        files.write_setting(tmp_path / "file", "6é")
    assert files.read_setting(tmp_path / "file") == "1"


def test_no_link_is_followed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "victim").write_text("1\n")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(files.SettingFileError):
        files.write_setting(tmp_path / "link", "2")
    assert (tmp_path / "victim").read_text() == "1\n"
