from __future__ import annotations

import logging
import pathlib
import struct

import pytest
from swapwarden.agent.host import inotify


def event(watch: int, mask: int, name: bytes = b"") -> bytes:
    padded = name + b"\0" * (-len(name) % 16) if name else b""
    return struct.pack("iIII", watch, mask, 0, len(padded)) + padded


def test_parse() -> None:
    data = event(1, inotify.CREATE | inotify.ISDIR, b"pod") + event(2, inotify.MODIFY) + event(-1, inotify.Q_OVERFLOW)
    assert inotify.parse(data) == [
        inotify.InotifyEvent(1, inotify.CREATE | inotify.ISDIR, "pod"),
        inotify.InotifyEvent(2, inotify.MODIFY, ""),
        inotify.InotifyEvent(-1, inotify.Q_OVERFLOW, ""),
    ]
    assert inotify.parse(b"") == []


def test_the_kernel_reports_events(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "file"
    file.write_text("1")
    notify = inotify.Inotify()
    children = notify.add(str(tmp_path), inotify.CHILDREN)
    content = notify.add(str(file), inotify.CONTENT)
    assert notify.read() == []
    (tmp_path / "new").mkdir()
    file.write_bytes(b"22")
    (tmp_path / "new").rmdir()
    events = notify.read()
    assert events[0] == inotify.InotifyEvent(children, inotify.CREATE | inotify.ISDIR, "new")
    assert inotify.InotifyEvent(content, inotify.MODIFY, "") in events
    assert events[-1] == inotify.InotifyEvent(children, inotify.DELETE | inotify.ISDIR, "new")
    notify.remove(content)
    notify.remove(content)
    notify.close()


def test_it_knows_whether_a_read_gave_all(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "file"
    files = [tmp_path / f"{number:0200}" for number in range(2)]
    for each in (file, *files):
        each.write_text("1")
    notify = inotify.Inotify()
    notify.add(str(file), inotify.CONTENT)
    notify.add(str(tmp_path), inotify.CHILDREN)
    assert notify.read() == []
    assert notify.drained
    for number in range(400):  # each with its name of 208 bytes
        files[number % 2].rename(tmp_path / f"{number:0199}x")
        (tmp_path / f"{number:0199}x").rename(files[number % 2])
    events = notify.read()
    assert not notify.drained
    while not notify.drained:
        events += notify.read()
    assert len(events) == 1600
    notify.close()


KERNELS = pathlib.Path("/proc/swaps")


@pytest.mark.parametrize("name", ["swaps", "gone"])
async def test_a_file_that_cannot_be_watched_is_left_to_the_timer(
    name: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "swaps").write_text("Filename\n")
    with inotify.watch_priority(tmp_path / name, lambda: pytest.fail("nothing changed")):
        pass
    assert "cannot be watched" in caplog.text


@pytest.mark.skipif(not KERNELS.exists(), reason="this kernel has no swap at all")
async def test_the_kernels_own_can_be_watched(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with inotify.watch_priority(KERNELS, lambda: None):
        pass
    assert not caplog.text
