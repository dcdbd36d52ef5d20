"""Structured logs: one line per event, as JSON for machines or as text for people. Their form is in log_lines.py."""

from __future__ import annotations

from typing import Final

import msgspec

from swapwarden.telemetry import log_lines

add_arguments: Final = log_lines.add_arguments


class JsonFormatter(log_lines.JsonLines):
    """JSON by msgspec, which each process that logs so has loaded anyhow."""

    def encode(self, entry: dict[str, object]) -> str:
        """Return the object on one line."""
        try:
            encoded = msgspec.json.encode(entry, enc_hook=str)
        except ValueError:  # Names of files may be invalid UTF-8.
            encoded = msgspec.json.encode({key: log_lines.readable(str(value)) for key, value in entry.items()})
        return msgspec.json.format(encoded, indent=0).decode()


def configure(level: str = "info", format: str = "json") -> None:  # noqa: A002 the flag is called so
    """Send the logs of this process to stderr; replaces any earlier configuration."""
    log_lines.configure(level, JsonFormatter() if format == "json" else log_lines.TextFormatter())
