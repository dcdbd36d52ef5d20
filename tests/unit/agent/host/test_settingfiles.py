from __future__ import annotations

import pathlib

import pytest
from swapwarden.agent.host import settingfiles


def test_a_value_is_read_and_written(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "swappiness"
    file.write_text("100\n")
    assert settingfiles.read(file) == "100"
    settingfiles.write(file, "7")
    assert settingfiles.read(file) == "7"


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff" * 200, b"x" * 100_000])
def test_no_content_is_too_much(content: bytes, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert len(settingfiles.read(file)) <= 64


def test_what_is_not_there_is_told_from_what_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(settingfiles.AbsentError):
        settingfiles.read(tmp_path / "file")
    with pytest.raises(settingfiles.AbsentError):
        settingfiles.write(tmp_path / "file", "1")
    (tmp_path / "folder").mkdir()
    with pytest.raises(settingfiles.SettingError, match="Is a directory") as refused:
        settingfiles.write(tmp_path / "folder", "1")
    assert not isinstance(refused.value, settingfiles.AbsentError)


def test_what_is_no_value_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("1\n")
    with pytest.raises(settingfiles.SettingError, match="no value of a setting"):
        settingfiles.write(tmp_path / "file", "6é")
    assert settingfiles.read(tmp_path / "file") == "1"


def test_no_link_is_followed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "victim").write_text("1\n")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(settingfiles.SettingError):
        settingfiles.write(tmp_path / "link", "2")
    assert (tmp_path / "victim").read_text() == "1\n"
