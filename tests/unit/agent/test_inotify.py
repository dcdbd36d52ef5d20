from __future__ import annotations

import pathlib
import struct

from swapwarden.agent import inotify


def event(watch: int, mask: int, name: bytes = b"") -> bytes:
    padded = name + b"\0" * (-len(name) % 16) if name else b""
    return struct.pack("iIII", watch, mask, 0, len(padded)) + padded


def test_parse() -> None:
    data = event(1, inotify.CREATE | inotify.ISDIR, b"pod") + event(2, inotify.MODIFY) + event(-1, inotify.Q_OVERFLOW)
    assert inotify.parse(data) == [
        inotify.Event(1, inotify.CREATE | inotify.ISDIR, "pod"),
        inotify.Event(2, inotify.MODIFY, ""),
        inotify.Event(-1, inotify.Q_OVERFLOW, ""),
    ]
    assert inotify.parse(b"") == []


def test_the_kernel_tells_what_happens(tmp_path: pathlib.Path) -> None:
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
    assert events[0] == inotify.Event(children, inotify.CREATE | inotify.ISDIR, "new")
    assert inotify.Event(content, inotify.MODIFY, "") in events
    assert events[-1] == inotify.Event(children, inotify.DELETE | inotify.ISDIR, "new")
    notify.remove(content)
    notify.remove(content)
    notify.close()
