"""Reads files of the node whose length and content nobody vouches for."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Final

MAX_BYTES: Final = 256 * 1024
"""Of a file; none that is read here comes near it."""
_LINE_BYTES: Final = 4096
_LINES: Final = 1 << 18


def text(file: pathlib.Path) -> str | None:
    """What the file holds, its first MAX_BYTES at most, less white space around it; None where it cannot be read."""
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None


def lines(file: pathlib.Path) -> Iterator[str]:
    """The lines of a file that may be long (zoneinfo has some for each CPU in each zone), one at a time, bounded."""
    try:
        with file.open("rb") as opened:
            for _ in range(_LINES):
                line = opened.readline(_LINE_BYTES)
                if not line:
                    return
                yield line.decode("utf-8", "replace")
    except (OSError, ValueError):
        return


def names(directory: pathlib.Path, pattern: str) -> list[str]:
    """Names of the entries that match a glob pattern, sorted; none where the directory cannot be read."""
    try:
        return sorted(entry.name for entry in directory.glob(pattern))
    except OSError:
        return []
