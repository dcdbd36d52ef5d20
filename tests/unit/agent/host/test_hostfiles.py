from __future__ import annotations

import pathlib

from swapwarden.agent.host import hostfiles


def test_text_is_bounded_and_what_cannot_be_read_is_none(tmp_path: pathlib.Path) -> None:
    (tmp_path / "long").write_text("x" * (hostfiles.MAX_BYTES + 1))
    (tmp_path / "odd").write_bytes(b" \xff\n")
    assert len(hostfiles.text(tmp_path / "long") or "") == hostfiles.MAX_BYTES
    assert hostfiles.text(tmp_path / "odd") == "\ufffd"
    assert hostfiles.text(tmp_path) is hostfiles.text(tmp_path / "gone") is None


def test_lines_are_bounded(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"one\n" + b"x" * 10000 + b"\nthree")
    found = list(hostfiles.lines(tmp_path / "file"))
    assert (found[0], found[-1], max(map(len, found))) == ("one\n", "three", 4096)
    assert list(hostfiles.lines(tmp_path / "gone")) == []


def test_names(tmp_path: pathlib.Path) -> None:
    for name in ("b.conf", "a.conf", "c"):
        (tmp_path / name).touch()
    assert hostfiles.names(tmp_path, "*.conf") == ["a.conf", "b.conf"]
    assert hostfiles.names(tmp_path / "gone", "*") == []
