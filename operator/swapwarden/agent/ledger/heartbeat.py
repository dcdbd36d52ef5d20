"""When an agent was last alive on this node: how long nobody can have looked after the pods, at most."""

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
    """A file with a moment of the monotonic clock, which all processes share until a reboot.

    Its folder must not survive a reboot. Whoever opens it is the only agent on the node.
    """

    def __init__(self, file: pathlib.Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Open `file`, or begin it. OSError where its directory cannot be written."""
        self._file = file
        self._clock = clock
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.last_seen = self._read()
        """When the agent before this one was last known to live; None where that is not known."""

    def _read(self) -> float | None:
        text = os.pread(self._fd, _BYTES, 0).decode("ascii", "replace").strip("\x00\n ")
        if not text.replace(".", "", 1).isdecimal():
            return None
        last = float(text)
        return last if last <= self._clock() else None

    def beat(self) -> None:
        """Say that this agent is alive. A failure makes a later account less exact, and is no more than that."""
        try:
            os.pwrite(self._fd, f"{self._clock():.3f}".ljust(_BYTES - 1).encode() + b"\n", 0)
        except OSError as error:
            log.debug("cannot say that this agent is alive", extra={"file": str(self._file), "error": str(error)})

    def close(self) -> None:
        """This agent's last sign."""
        self.beat()
        os.close(self._fd)

    def remove(self) -> None:
        """Leave none: the product is about to be removed. OSError where that fails."""
        with contextlib.suppress(FileNotFoundError):
            self._file.unlink()
