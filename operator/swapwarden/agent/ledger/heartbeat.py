"""Records when an agent was last alive on this node: no agent may have run since then."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

_BYTES: Final = 32


class Heartbeat:
    """A file with a time of the monotonic clock, which all processes share until a reboot.

    Its directory must not survive a reboot. Only one agent on the node may open it.
    """

    def __init__(self, file: pathlib.Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Open or create `file`. OSError if its directory cannot be written."""
        self._file = file
        self._clock = clock
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.last_seen = self._read()
        """When the previous agent was last alive, or None."""

    def _read(self) -> float | None:
        text = os.pread(self._fd, _BYTES, 0).decode("ascii", "replace").strip("\x00\n ")
        if not text.replace(".", "", 1).isdecimal():
            return None
        last = float(text)
        return last if last <= self._clock() else None

    def beat(self) -> None:
        """Record that this agent is alive. A failure only makes a later report less exact."""
        try:
            os.pwrite(self._fd, f"{self._clock():.3f}".ljust(_BYTES - 1).encode() + b"\n", 0)
        except OSError as error:
            log.debug("cannot record that this agent is alive", extra={"file": str(self._file), "error": str(error)})

    def close(self) -> None:
        """Record the last time, and close the file."""
        self.beat()
        os.close(self._fd)

    def remove(self) -> None:
        """Remove the file, since the product is being removed. OSError if that fails."""
        with contextlib.suppress(FileNotFoundError):
            self._file.unlink()
