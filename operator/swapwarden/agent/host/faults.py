"""Bounds the log lines about failures: a tenant can cause any number of them."""

from __future__ import annotations

import logging
import time
from typing import Final

from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

FAULTS = metrics.counter(
    "swapwarden_agent_faults_total",
    "Unexpected errors about one cgroup or one part of the agent; each is logged and retried.",
)

LOG_SECONDS: Final = 60.0
"""Time in which the log has a bounded number of lines about one thing."""
LOG_LINES: Final = 20
"""Log lines about failing cgroups in `LOG_SECONDS`; and one traceback."""


class Lines:
    """A number of log lines for each minute."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun = float("-inf")
        self._count = 0
        self._left_out = 0

    def take(self) -> dict[str, int] | None:
        """Return what a line must add: how many were left out before it. None if it must be left out itself."""
        now = time.monotonic()
        if now - self._begun >= LOG_SECONDS:
            self._begun, self._count = now, 0
        if self._count >= self._most:
            self._left_out += 1
            return None
        self._count += 1
        left, self._left_out = self._left_out, 0
        return {"leftOut": left} if left else {}


_tracebacks = Lines(1)
_lines = Lines(LOG_LINES)


def fault(what: str, error: Exception) -> str:
    """Count an unexpected error, and log it unless one was logged just now. Return what a violation says of it."""
    FAULTS.inc()
    more = _tracebacks.take()
    if more is not None:
        log.error("unexpected error; trying again", exc_info=error, extra={"what": what, **more})
    return f"unexpected error in the agent, please report it: {type(error).__name__}: {error}"


def warn(message: str, what: str, error: str) -> None:
    """Log what failed, unless much was logged just now."""
    more = _lines.take()
    if more is not None:
        log.error(message, extra={"cgroup": what, "error": error, **more})
