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
_UNITS: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


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
        """Whether to colour what goes to a stream (https://no-color.org)."""
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
        chosen = [column for column in columns if form.output == "wide" or not column.wide]
        out.write(table(form, rows, chosen, coloured=form.is_coloured(out)))
    out.flush()


def serialized(form: str, document: Any) -> str:
    """A document as JSON or YAML."""
    if form == "json":
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    # Only who asks for it waits for the parser to be loaded.
    text: str = importlib.import_module("yaml").safe_dump(document, sort_keys=False, allow_unicode=True, width=2**16)
    return text


def table(form: Form, rows: Iterable[Row], columns: Sequence[Column[Row]], *, coloured: bool) -> str:
    """The table as text: columns as wide as they must be, nothing cut off or wrapped, however narrow the terminal."""
    made = importlib.import_module("rich.table").Table(
        box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=form.headers, header_style="bold"
    )
    text = importlib.import_module("rich.text").Text
    for column in columns:
        made.add_column(column.header, no_wrap=True, justify="right" if column.right else "left")
    for row in rows:
        cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in (column.cell(row) for column in columns)]
        made.add_row(*(text(clean(cell.text), style=cell.style) for cell in cells))
    console = importlib.import_module("rich.console").Console(
        width=2**16,
        force_terminal=coloured,
        color_system="standard" if coloured else None,
        no_color=not coloured,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(made)
    lines = str(capture.get()).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def clean(text: str) -> str:
    """On one line and without control characters, which could tell the terminal to do something."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)


def amount(number: int | None) -> str:
    """Bytes for people, in the largest unit that leaves one digit before the point: 1.5Gi, 20Mi, 0, <unknown>."""
    if number is None:
        return UNKNOWN
    value, unit = float(number), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    text = f"{value:.1f}" if unit and value < 9.95 else f"{value:.0f}"
    return text.removesuffix(".0") + _UNITS[unit]


def share(part: int | None, whole: int | None) -> str:
    """PART in whole percents of WHOLE, rounded down; <unknown> where one is not known, <none> of nothing."""
    if part is None or whole is None:
        return UNKNOWN
    return f"{part * 100 // whole}%" if whole else NONE
