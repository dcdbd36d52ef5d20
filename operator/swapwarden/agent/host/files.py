"""Reads files of the node, of any length and content, and writes those with a setting of the kernel."""

from __future__ import annotations

import errno
import os
import pathlib
from collections.abc import Iterator
from typing import Final

MAX_BYTES: Final = 256 * 1024
"""Longest text that is read; the files read here are far smaller."""
SETTING_BYTES: Final = 64
"""Longest value of a setting; no value that the agent writes is longer."""
_LINE_BYTES: Final = 4096
_LINES: Final = 1 << 18


class SettingFileError(Exception):
    """The kernel refused to read or write a setting; the message says why."""


class AbsentError(SettingFileError):
    """The file does not exist."""


def content(file: pathlib.Path, most: int, *, follow: bool = True) -> bytes:
    """Return the first `most` bytes of a file. OSError if it cannot be read, or is a link unless `follow`."""
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        data = b""
        while len(data) < most and (more := os.read(fd, most - len(data))):
            data += more
    finally:
        os.close(fd)
    return data


def whole(file: pathlib.Path, most: int) -> bytes:
    """Return all of a file. OSError if it cannot be read, ValueError if it has more than `most` bytes."""
    data = content(file, most + 1)
    if len(data) > most:
        raise ValueError(f"it is larger than {most} bytes")
    return data


def text(file: pathlib.Path, most: int = MAX_BYTES) -> str | None:
    """Return the first `most` bytes as text, without white space around it, or None if it cannot be read."""
    try:
        return content(file, most).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None


def lines(file: pathlib.Path) -> Iterator[str]:
    """Yield the lines of a file that may be long (zoneinfo has some for each CPU in each zone), bounded."""
    try:
        with file.open("rb") as opened:
            for _ in range(_LINES):
                line = opened.readline(_LINE_BYTES)
                if not line:
                    return
                yield line.decode("utf-8", "replace")
    except (OSError, ValueError):
        return


def names(directory: pathlib.Path, pattern: str) -> list[str]:
    """Return the sorted names of entries that match a glob pattern; none if the directory cannot be read."""
    try:
        return sorted(entry.name for entry in directory.glob(pattern))
    except OSError:
        return []


def read_setting(file: pathlib.Path) -> str:
    """Return the value of a setting, bytes other than ASCII as replacement characters. SettingFileError on failure."""
    try:
        data = content(file, SETTING_BYTES, follow=False)
    except OSError as error:
        raise _refused(error) from None
    return data.decode("ascii", "replace").partition("\n")[0].strip()


def write_setting(file: pathlib.Path, value: str) -> None:
    """Write a setting. SettingFileError on failure. The kernel may take another value, so the caller must read it."""
    try:
        data = f"{value}\n".encode("ascii")
        fd = os.open(file, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # A plain file must lose the rest of a longer value in the same write (as in cgroupfs). Files of sysfs claim
            # to be a page long, and take no more than that.
            size = os.fstat(fd).st_size
            os.write(fd, data.ljust(size if size <= SETTING_BYTES else 0, b"\n"))
        finally:
            os.close(fd)
    except UnicodeError:
        raise SettingFileError("it is no value of a setting") from None
    except OSError as error:
        raise _refused(error) from None


def _refused(error: OSError) -> SettingFileError:
    absent = error.errno in {errno.ENOENT, errno.ENOTDIR}
    return (AbsentError if absent else SettingFileError)(error.strerror)
