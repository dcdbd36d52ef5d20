"""Structured logs: one line per event, as JSON for machines or as text for people.

Modules log with the standard library (`log = logging.getLogger(__name__)`); fields go into `extra` and come out as keys
of the JSON object, or as key=value at the end of a text line.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import sys

import msgspec

FORMATS = ("json", "text")
LEVELS = ("debug", "info", "warning", "error")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encode(entry: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(entry, enc_hook=str)
    except ValueError:  # names of files may be no UTF-8
        return msgspec.json.encode({key: _readable(str(value)) for key, value in entry.items()})


def _readable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (RFC 3339, UTC), level, logger, message, fields, and the exception, if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        entry: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return msgspec.json.format(_encode(entry), indent=0).decode()


class TextFormatter(logging.Formatter):
    """`TIME LEVEL logger: message key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --log-level and --log-format."""
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="least severe level to log (default: info)")
    parser.add_argument("--log-format", choices=FORMATS, default="json", help="json or text (default: json)")


def configure(level: str = "info", format: str = "json") -> None:  # noqa: A002 the flag is called so
    """Send the logs of this process to stderr; replaces what was configured before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
