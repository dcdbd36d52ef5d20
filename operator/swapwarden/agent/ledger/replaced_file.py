"""A file of lines that is read once, and replaced as a whole."""

from __future__ import annotations

import errno
import logging
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Final

from swapwarden.agent.host import faults
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

FAILURES = metrics.counter("swapwarden_agent_journal_failures_total", "Lines that could not be written to the ledger.")

MAX_BYTES: Final = 16 * 1024 * 1024
"""Read of the file at most. The agent never leaves as much there."""
LINE_BYTES: Final = 64 * 1024
"""Longest line that is read."""


class ReplacedFile:
    """A file that is replaced as a whole: a killed process leaves either content. A full disk stops nothing."""

    def __init__(self, path: pathlib.Path, content: Callable[[], bytes], clock: Callable[[], float]) -> None:
        """`content` returns all that the file must hold. Nothing is opened before `write_anew`."""
        self.path = path
        self._new = path.with_suffix(".new")
        self._content = content
        self.clock = clock
        self.fd = -1
        self.size = self.floor = 0
        self._logged = self.tried = float("-inf")
        """When a failure was last logged, and when rewriting the file last failed."""
        self.behind: OSError | None = None
        """Why the file lacks something; None if it has all."""

    def lines(self) -> Iterator[bytes]:
        """Yield what an earlier run left, and an empty line for what exceeds MAX_BYTES. OSError if it is unreadable."""
        fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as opened:
            left = MAX_BYTES
            while left > 0 and (line := opened.readline(LINE_BYTES)):
                left -= len(line)
                yield line
            if left <= 0 and opened.read(1):
                yield b""

    def lacks_lines(self) -> bool:
        """Return whether an earlier run began to rewrite the file and could not."""
        return self._new.exists()

    def write_anew(self) -> OSError | None:
        """Write all to a new file in place of this one; return why that failed, or None."""
        self.behind, self.tried = self.replace(), self.clock()
        return self.behind

    def replace(self) -> OSError | None:
        """Write all to a new file in place of this one; return why that failed. `behind` stays as it is."""
        data, fd = self._content(), -1
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(self._new, flags, 0o600)
            _write(fd, data)
            self._new.replace(self.path)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            FAILURES.inc()
            if self.clock() - self._logged >= faults.LOG_SECONDS:
                self._logged = self.clock()
                extra = {"file": str(self.path), "error": str(error)}
                log.error("cannot write the ledger", extra=extra)  # noqa: TRY400 a full disk needs no traceback
            return error
        self.close()
        self.fd = fd
        self.size = self.floor = len(data)
        return None

    def remove(self) -> None:
        """Leave no file behind. OSError if that fails."""
        self._new.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _write(fd: int, data: bytes) -> None:
    """Write all. OSError if there is no room for all."""
    if os.write(fd, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
