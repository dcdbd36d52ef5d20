"""Rows for people and for programs: tables, coloured on a terminal and plain in a pipe, JSON, YAML and names.

By hand: to import tabulate takes 20 ms of CPU, the tables of rich 14; `--help` has a budget of 150 (make bench-cli).
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import itertools
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Generic, TextIO, TypeVar

import msgspec

from swapwarden.api import sizes

Row = TypeVar("Row")

FORMATS: Final = ("wide", "json", "yaml", "name")
UNKNOWN: Final = "<unknown>"
NONE: Final = "<none>"
_STYLES: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
    "bold red": "1;31",
    "bold green": "1;32",
}
"""Escape sequences (ECMA-48, SGR)."""


class Cell(msgspec.Struct, frozen=True):
    """A text with one of _STYLES; empty for none."""

    text: str
    style: str = ""


@dataclasses.dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table of rows of one type."""

    header: str
    cell: Callable[[Row], str | Cell]
    wide: bool = False
    """Only with -o wide."""
    right: bool = False
    """Set flush right, as numbers are."""


@dataclasses.dataclass(frozen=True)
class Form:
    """In which form to print; see FORMATS, empty for a table."""

    output: str = ""
    headers: bool = True
    color: str = "auto"

    def is_coloured(self, stream: TextIO) -> bool:
        """Return whether to colour the output to a stream (https://no-color.org)."""
        if self.color != "auto":
            return self.color == "always"
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def show(
    form: Form,
    rows: Sequence[Row],
    columns: Sequence[Column[Row]],
    *,
    name: Callable[[Row], str],
    plain: Callable[[Row], Any] = msgspec.to_builtins,
) -> None:
    """Print rows. `name` gives node/NAME and the like, `plain` what stands in JSON and YAML: a list below `items`."""
    if form.output == "name":
        sys.stdout.write("".join(f"{clean(name(row))}\n" for row in rows))
    elif form.output in {"json", "yaml"}:
        sys.stdout.write(serialized(form.output, {"items": [plain(row) for row in rows]}))
    else:
        sys.stdout.write(table(form, rows, columns))
    sys.stdout.flush()


def serialized(form: str, document: Any) -> str:
    """Return a document as JSON or YAML."""
    if form == "json":
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    # Load the parser only on request.
    text: str = importlib.import_module("yaml").safe_dump(document, sort_keys=False, allow_unicode=True, width=2**16)
    return text


def table(form: Form, rows: Iterable[Row], columns: Sequence[Column[Row]]) -> str:
    """Return the table as text: columns as wide as needed, nothing cut off or wrapped, on any terminal."""
    columns = [column for column in columns if form.output == "wide" or not column.wide]
    lines: list[list[str | Cell]] = [[column.cell(row) for column in columns] for row in rows]
    if not lines:
        return ""  # as kubectl: headers of nothing would be taken for something
    if form.headers:
        lines.insert(0, [Cell(column.header, "bold") for column in columns])
    right = {place for place, column in enumerate(columns) if column.right}
    return grid(lines, right=right, coloured=form.is_coloured(sys.stdout))


def grid(
    lines: Iterable[Iterable[str | Cell]], *, right: Collection[int] = (), gap: str = "   ", coloured: bool = False
) -> str:
    """Return lines of cells as text; columns are as wide as their content, and those in `right` set flush right."""
    cells = [list(map(_cell, line)) for line in lines]
    columns = list(itertools.zip_longest(*cells, fillvalue=Cell("")))
    widths = [max(measure(cell.text) for cell in column) for column in columns]
    shown = []
    for line in cells:
        parts = []
        for place, cell in enumerate(line):
            room, text = " " * (widths[place] - measure(cell.text)), painted(cell, coloured=coloured)
            parts.append(room + text if place in right else text + room)
        shown.append(gap.join(parts).rstrip() + "\n")
    return "".join(shown)


def _cell(given: str | Cell) -> Cell:
    return Cell(clean(given)) if isinstance(given, str) else Cell(clean(given.text), given.style)


def measure(text: str) -> int:
    """Return how many columns of a terminal a text takes: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(not unicodedata.combining(char) and 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def painted(cell: Cell, *, coloured: bool) -> str:
    """Return a cell's text, in its style if coloured."""
    text = clean(cell.text)
    return f"\x1b[{_STYLES[cell.style]}m{text}\x1b[0m" if coloured and cell.style else text


def clean(text: str) -> str:
    """Return text on one line, without control characters, which could control the terminal."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)


def count(number: int, one: str, several: str = "") -> str:
    """Return "1 node" or "2 nodes"; "2 entries" if `several` is given."""
    return f"{number} {one}" if number == 1 else f"{number} {several or one + 's'}"


def share(part: int | None, whole: int | None) -> str:
    """Return `part` in percent of `whole`, rounded down; <unknown> if one is unknown, <none> if `whole` is 0."""
    if part is None or whole is None:
        return UNKNOWN
    return f"{part * 100 // whole}%" if whole else NONE


def permille(value: int | None) -> str:
    """Return thousandths in percent; <unknown> for None."""
    return UNKNOWN if value is None else f"{value / 10:g}%"


def first_few(texts: Sequence[str], most: int = 5) -> str:
    """Return the first of them, and how many more there are."""
    rest = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {rest} more" if rest > 0 else "")


def size(number: int | None) -> str:
    """Return bytes, rounded to the largest unit that fits; <unknown> for None."""
    return UNKNOWN if number is None else sizes.rounded(number)


def age(since: str, now: datetime.datetime) -> str:
    """Return how long ago an RFC 3339 time was, as kubectl shows it: 35s, 5m, 2h5m, 3d; empty if it is none."""
    try:
        seconds = int((now - datetime.datetime.fromisoformat(since)).total_seconds())
    except (TypeError, ValueError):
        return ""
    seconds = max(0, seconds)
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d" if days > 7 or not hours else f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m" if minutes and hours < 8 else f"{hours}h"
    return f"{minutes}m" if minutes > 9 else f"{minutes}m{seconds % 60}s" if minutes else f"{seconds}s"
