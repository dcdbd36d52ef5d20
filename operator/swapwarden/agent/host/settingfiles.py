"""The boundary to files with settings of the kernel: the only module that reads and writes these.

The folders are mounts of the host's, each of its own, and hold the files that the chart mounts and no others.
"""

from __future__ import annotations

import errno
import os
import pathlib
from typing import Final

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_BYTES: Final = 64
"""Of a value; what is longer is none of those that are written here."""


class SettingError(Exception):
    """The kernel refused; the message says why."""


class AbsentError(SettingError):
    """There is no such file."""


def _open(file: pathlib.Path, flags: int) -> int:
    try:
        return os.open(file, flags)
    except OSError as error:
        absent = error.errno in {errno.ENOENT, errno.ENOTDIR}
        raise (AbsentError if absent else SettingError)(error.strerror) from None


def read(file: pathlib.Path) -> str:
    """The value in a file, without the end of the line. Bytes that are no ASCII come as replacement characters."""
    fd = _open(file, _READ)
    try:
        data = os.read(fd, _MAX_BYTES)
    except OSError as error:
        raise SettingError(error.strerror) from None
    finally:
        os.close(fd)
    return data.decode("ascii", "replace").partition("\n")[0].strip()


def write(file: pathlib.Path, value: str) -> None:
    """Write a value. What the file then holds is for the caller to read: the kernel may have taken it for another."""
    fd = _open(file, _WRITE)
    try:
        # As in cgroupfs.Cgroups.set_limit: a plain file must lose what a longer value left, in the same write. Files of
        # sysfs claim to be a page long, and take no more than that.
        size = os.fstat(fd).st_size
        data = f"{value}\n".encode("ascii")
        os.write(fd, data.ljust(size if size <= _MAX_BYTES else 0, b"\n"))
    except UnicodeError:
        raise SettingError("it is no value of a setting") from None
    except OSError as error:
        raise SettingError(error.strerror) from None
    finally:
        os.close(fd)
