"""Structured logs as all processes write them, without the module logging, which would cost this process 1 MB."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Final

from swapwarden.telemetry import log_lines

PREFIX: Final = "swapwarden.nri."


class _Settings:
    level = "info"
    as_json = True


def configure(level: str, form: str) -> None:
    """Write lines of this level and of more severe ones, in one of log_lines.FORMATS."""
    _Settings.level = level
    _Settings.as_json = form == "json"


def info(part: str, message: str, **fields: object) -> None:
    """Log an event."""
    _write("info", part, message, fields)


def warning(part: str, message: str, **fields: object) -> None:
    """Log what may need somebody's attention."""
    _write("warning", part, message, fields)


def error(part: str, message: str, **fields: object) -> None:
    """Log an error."""
    _write("error", part, message, fields)


def raised(failure: BaseException) -> str:
    """Return the type of an exception, and the function and line that raised it. Its message may have pods' values."""
    trace, place = failure.__traceback__, "?"
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(failure).__name__} in {place}"


def _write(level: str, part: str, message: str, fields: dict[str, object]) -> None:
    if log_lines.LEVELS.index(level) < log_lines.LEVELS.index(_Settings.level):
        return
    line = log_lines.Line(time.time(), level, PREFIX + part, message, fields, None)
    shown = _encoded(line.entry()) if _Settings.as_json else log_lines.readable(line.text())
    with contextlib.suppress(OSError):  # logs must not end the process
        sys.stderr.write(shown + "\n")
        sys.stderr.flush()


def _encoded(entry: dict[str, object]) -> str:
    """Return an object on one line."""
    encoded = json.dumps(entry, default=str, ensure_ascii=False)
    if encoded.isascii() or log_lines.readable(encoded) == encoded:
        return encoded
    return json.dumps({key: log_lines.readable(str(value)) for key, value in entry.items()}, ensure_ascii=False)
