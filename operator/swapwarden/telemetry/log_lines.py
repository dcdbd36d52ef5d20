"""The form of log lines: JSON for machines or text for people.

It needs no module of logging, which would cost the smallest process 1 MB. Foreign text can make a line no longer than
some dozens of KiB, and can start no second line.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

FORMATS = ("json", "text")
LEVELS = ("debug", "info", "warning", "error")

MAX_FIELD: Final = 4096
"""Characters of a message, or of a field."""

MAX_EXCEPTION: Final = 16_384
"""Characters of a traceback: its end, which has the error."""


class Line(NamedTuple):
    """One event."""

    created: float
    """Seconds since 1970."""
    level: str
    logger: str
    message: str
    fields: Mapping[str, object]
    exception: str | None
    """A traceback."""

    def entry(self) -> dict[str, object]:
        """Return the object of a line of JSON: time (RFC 3339, UTC), level, logger, message, fields and exception."""
        made: dict[str, object] = {
            "time": _time(self.created),
            "level": self.level.lower(),
            "logger": self.logger,
            "message": _cut(self.message),
            **{key: _bounded(value) for key, value in self.fields.items()},
        }
        if self.exception is not None:
            made["exception"] = _end(self.exception)
        return made

    def text(self) -> str:
        """Return `TIME LEVEL logger: message key=value`; a traceback follows on lines that are indented."""
        shown = "".join(f" {key}={_value(_bounded(value))}" for key, value in self.fields.items())
        message = _printable(_cut(self.message))
        line = f"{_time(self.created)} {self.level.upper():<7} {self.logger}: {message}{shown}"
        lines = [] if self.exception is None else _end(self.exception).splitlines()
        return "\n".join([line, *(f"  {_printable(each)}" for each in lines)])


def readable(value: str) -> str:
    """Return the text with characters escaped that UTF-8 does not have, but names of files may."""
    return value.encode("utf-8", "backslashreplace").decode()


def _bounded(value: object) -> object:
    """Return the value, or the beginning of its text if that is long."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    shown = value if isinstance(value, str) else str(value)
    return value if len(shown) <= MAX_FIELD else _cut(shown)


def _cut(shown: str) -> str:
    return shown if len(shown) <= MAX_FIELD else f"{shown[:MAX_FIELD]}... ({len(shown) - MAX_FIELD} more)"


def _end(exception: str) -> str:
    """Return a traceback: its end, if it is long."""
    more = len(exception) - MAX_EXCEPTION
    return exception if more <= 0 else f"({more} more) ...{exception[-MAX_EXCEPTION:]}"


def _time(created: float) -> str:
    """Return a time as api.formats does, without the module datetime, which would cost the smallest process 0.4 MB."""
    seconds, microseconds = divmod(round(created * 1_000_000), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{microseconds // 1000:03}Z"


def _printable(shown: str) -> str:
    """Return the text on one line, with unprintable characters escaped as in Python."""
    if shown.isprintable():
        return shown
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in shown)


def _value(value: object) -> str:
    """Return a field's value, in quotes if it could be taken for more than one field."""
    shown = str(value)
    if shown.isprintable() and shown and not any(special in shown for special in ' "='):
        return shown
    escaped = shown.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_printable(escaped)}"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --log-level and --log-format."""
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="least severe level to log (default: info)")
    parser.add_argument("--log-format", choices=FORMATS, default="json", help="json or text (default: json)")
