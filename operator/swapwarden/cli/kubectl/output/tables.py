"""Rows for people and for programs: tables, coloured on a terminal and plain in a pipe, JSON, YAML and names."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TextIO, TypeVar

import msgspec

Row = TypeVar("Row")

FORMATS: Final = ("wide", "json", "yaml", "name")
UNKNOWN: Final = "<unknown>"
NONE: Final = "<none>"
_GAP: Final = 3


class Cell(msgspec.Struct, frozen=True):
    """A text with a style of rich (green, bold red); empty for none."""

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
    stream: TextIO | None = None,
) -> None:
    """Print rows. `name` gives node/NAME and the like, `plain` what stands in JSON and YAML: a list below `items`."""
    out = stream or sys.stdout
    if form.output == "name":
        out.write("".join(f"{clean(name(row))}\n" for row in rows))
    elif form.output in {"json", "yaml"}:
        out.write(serialized(form.output, {"items": [plain(row) for row in rows]}))
    else:
        out.write(table(form, rows, columns, out))
    out.flush()


def serialized(form: str, document: Any) -> str:
    """Return a document as JSON or YAML."""
    if form == "json":
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    # Load the parser only on request.
    text: str = importlib.import_module("yaml").safe_dump(document, sort_keys=False, allow_unicode=True, width=2**16)
    return text


def table(form: Form, rows: Iterable[Row], columns: Sequence[Column[Row]], stream: TextIO | None = None) -> str:
    """Return the table as text: columns as wide as needed, nothing cut off or wrapped, on any terminal."""
    columns = [column for column in columns if form.output == "wide" or not column.wide]
    lines = [[_cell(column.cell(row)) for column in columns] for row in rows]
    if not lines:
        return ""  # as kubectl: headers of nothing would be taken for something
    if form.headers:
        lines.insert(0, [Cell(column.header, "bold") for column in columns])
    # Not rich's own table: it takes milliseconds for each line, and there may be thousands.
    measure = importlib.import_module("rich.cells").cell_len
    paint = _painter(coloured=form.is_coloured(stream or sys.stdout))
    widths = [max(measure(cell.text) for cell in column) for column in zip(*lines, strict=True)]
    gap, shown = " " * _GAP, []
    for line in lines:
        parts = []
        for cell, width, column in zip(line, widths, columns, strict=True):
            room = " " * (width - measure(cell.text))
            parts.append(room + paint(cell) if column.right else paint(cell) + room)
        shown.append(gap.join(parts).rstrip() + "\n")
    return "".join(shown)


def _cell(given: str | Cell) -> Cell:
    cell = given if isinstance(given, Cell) else Cell(given)
    return Cell(clean(cell.text), cell.style)


def painted(cell: Cell, *, coloured: bool) -> str:
    """Return a cell's text, in its style if coloured."""
    return _painter(coloured=coloured)(_cell(cell))


def _painter(*, coloured: bool) -> Callable[[Cell], str]:
    if not coloured:
        return lambda cell: cell.text
    styles, system = importlib.import_module("rich.style").Style, importlib.import_module("rich.color").ColorSystem

    def paint(cell: Cell) -> str:
        return (
            str(styles.parse(cell.style).render(cell.text, color_system=system.STANDARD)) if cell.style else cell.text
        )

    return paint


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


def first_few(found: Sequence[str], most: int = 5) -> str:
    """Return the first of them, and how many more there are."""
    rest = len(found) - most
    return ", ".join(found[:most]) + (f" and {rest} more" if rest > 0 else "")
