"""Lines of logs, with the standard library only, for processes that have nothing else.

Modules log with the standard library (`log = logging.getLogger(__name__)`). Fields in `extra` become keys of the JSON
object, or key=value at the end of a text line. Foreign text can make a line no longer than some dozens of KiB, and can
start no second line.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any, Final

from swapwarden.api import times

FORMATS = ("json", "text")
LEVELS = ("debug", "info", "warning", "error")

MAX_FIELD: Final = 4096
"""Characters of a message, or of a field."""

MAX_EXCEPTION: Final = 16_384
"""Characters of a traceback: its end, which has the error."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: _bounded(value) for key, value in vars(record).items() if key not in _STANDARD}


def _bounded(value: object) -> object:
    """Return the value, or the beginning of its text if that is long."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else str(value)
    return value if len(text) <= MAX_FIELD else _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_FIELD else f"{text[:MAX_FIELD]}... ({len(text) - MAX_FIELD} more)"


def _time(record: logging.LogRecord) -> str:
    return times.rfc3339(record.created, "milliseconds")


def readable(text: str) -> str:
    """Return the text with characters that UTF-8 does not have escaped, as names of files may have them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _printable(text: str) -> str:
    """Return the text on one line, with unprintable characters escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def _value(value: object) -> str:
    """Return a field's value, in quotes if it could be taken for more than one field."""
    text = str(value)
    if text.isprintable() and text and not any(special in text for special in ' "='):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_printable(escaped)}"'


class LineFormatter(logging.Formatter):
    """Formats tracebacks for all forms of lines."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 the standard library calls it so
        """Format a traceback: its end, if it is long."""
        text = super().formatException(ei)
        return text if len(text) <= MAX_EXCEPTION else f"({len(text) - MAX_EXCEPTION} more) ...{text[-MAX_EXCEPTION:]}"


class JsonLines(LineFormatter):
    """One JSON object per line: time (RFC 3339, UTC), level, logger, message, fields, and the exception, if any."""

    def encode(self, entry: dict[str, object]) -> str:
        """Return the object on one line; values may be of any type."""
        raise NotImplementedError

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        entry: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return self.encode(entry)


class TextFormatter(LineFormatter):
    """`TIME LEVEL logger: message key=value`; a traceback follows on lines that are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        fields = "".join(f" {key}={_value(value)}" for key, value in _fields(record).items())
        message = _printable(_cut(record.getMessage()))
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {message}{fields}"
        if not record.exc_info:
            return line
        lines = self.formatException(record.exc_info).splitlines()
        return "\n".join([line, *(f"  {_printable(each)}" for each in lines)])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --log-level and --log-format."""
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="least severe level to log (default: info)")
    parser.add_argument("--log-format", choices=FORMATS, default="json", help="json or text (default: json)")


def configure(level: str, formatter: logging.Formatter) -> None:
    """Send the logs of this process to stderr; replaces any earlier configuration."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
