"""Appends lines to a file, and rewrites it once it has grown or lacks a line. A full disk stops nothing."""

from __future__ import annotations

import errno
import logging
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Final

from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

FAILURES = metrics.counter("swapwarden_agent_journal_failures_total", "Lines that could not be written to the ledger.")

COMPACT_BYTES: Final = 256 * 1024
"""Size beyond which the file is rewritten, unless its content takes half of that."""
MAX_BYTES: Final = 16 * 1024 * 1024
"""Read of the file at most. The agent never leaves as much there."""
LINE_BYTES: Final = 64 * 1024
"""Longest line that is read."""
RETRY_SECONDS: Final = 1.0
"""Between attempts to rewrite the file while that fails: each repair may have a line."""
LOG_SECONDS: Final = 60.0
"""Between log lines about failures."""


class AppendedFile:
    """A killed process leaves all earlier lines, and perhaps the beginning of one more."""

    def __init__(self, path: pathlib.Path, content: Callable[[], bytes], clock: Callable[[], float]) -> None:
        """`content` returns all that the file must hold. Nothing is opened before `write_anew`."""
        self.path = path
        self._new = path.with_suffix(".new")
        self._content = content
        self._clock = clock
        self._fd = -1
        self._size = self._floor = 0
        self._logged = self._tried = float("-inf")
        """When a failure was last logged, and when rewriting the file last failed."""
        self.behind: OSError | None = None
        """Why the file lacks something."""

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

    def append(self, line: bytes) -> OSError | None:
        """Append a line; return why the file lacks it, or None."""
        if self.behind is not None:
            if self._clock() - self._tried < RETRY_SECONDS:
                FAILURES.inc()
                return self.behind
            return self.write_anew()
        try:
            _write(self._fd, line)
        except OSError:
            # Only a new file that could not be finished shows a later run that this line is missing.
            return self.write_anew()
        self._size += len(line)
        if self._size > max(COMPACT_BYTES, 2 * self._floor):
            # If this fails, the next attempt follows after as many bytes again.
            self._floor = self._size
            try:
                self._replace()
            except OSError as error:
                self._fail(error)
        return None

    def write_anew(self) -> OSError | None:
        """Write all to a new file in place of this one; return why that failed, or None."""
        try:
            self._replace()
        except OSError as error:
            self._fail(error)
            self.behind, self._tried = error, self._clock()
        return self.behind

    def _replace(self) -> None:
        data = self._content()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._new, flags, 0o600)
        try:
            _write(fd, data)
            self._new.replace(self.path)
        except OSError:
            os.close(fd)
            raise
        self.close()
        self._fd, self.behind = fd, None
        self._size = self._floor = len(data)

    def _fail(self, error: OSError) -> None:
        FAILURES.inc()
        now = self._clock()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            log.error("cannot write the ledger", extra={"file": str(self.path), "error": str(error)})

    def remove(self) -> None:
        """Leave no file behind. OSError if that fails."""
        self._new.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _write(fd: int, data: bytes) -> None:
    """Write all. OSError if there is no room for all."""
    if os.write(fd, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
