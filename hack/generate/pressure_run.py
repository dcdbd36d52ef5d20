"""docs/images/memory-pressure.svg: the memory of one run on a real kernel, from the file of its samples.

`make pictures-kernel` makes a new run.
"""

import csv
import io
import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from hack.generate import files
from testbed.base import paths

RUN: Final = paths.ROOT / "docs/images/memory-pressure.csv"
PICTURE: Final = RUN.with_suffix(".svg")
LEFT, RIGHT, TOP, BOTTOM = 60, 800, 48, 330
WIDTH, HEIGHT = 980, 392
LINES: Final = {
    "free": ("#2f6fbb", "free memory"),
    "file": ("#8c959f", "page cache"),
    "podSwap": ("#d98324", "swap of the pod"),
}
"""Colors and names of the columns, in MiB."""


class Run(NamedTuple):
    """Samples and events; seconds before the OOM kill are negative."""

    rows: list[dict[str, float]]
    signals: list[tuple[float, str, int]]
    """Time, name, and MiB of headroom."""


def read(text: str) -> Run:
    """Return the run in a file: one comment line of JSON with the signals, then CSV."""
    head, _, body = text.partition("\n")
    rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(io.StringIO(body))]
    return Run(rows, [(float(at), str(name), int(mib)) for at, name, mib in json.loads(head.removeprefix("# "))])


def generated() -> files.Made:
    """Return the picture."""
    return {PICTURE: "\n".join([*_drawn(read(RUN.read_text(encoding="utf-8"))), ""])}


def _drawn(run: Run) -> Iterator[str]:
    begin = run.rows[0]["at"]
    most = max(row[name] for row in run.rows for name in LINES)
    top = -(-most // 100) * 100

    def x(at: float) -> float:
        return round(LEFT + (at - begin) / -begin * (RIGHT - LEFT), 1)

    def y(mib: float) -> float:
        return round(BOTTOM - mib / top * (BOTTOM - TOP), 1)

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' font-family="sans-serif" font-size="13" fill="#1f2328">'
    )
    yield "  <title>Memory of a node until its kernel kills a pod, and the signal before that</title>"
    yield f'  <rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    yield '  <text x="16" y="24" font-size="15" font-weight="bold">A pod grows by 30 MiB a second, into its swap</text>'
    for mib in range(0, int(top) + 1, 200):
        yield f'  <line x1="{LEFT}" y1="{y(mib)}" x2="{RIGHT}" y2="{y(mib)}" stroke="#d0d7de"/>'
        yield f'  <text x="{LEFT - 8}" y="{y(mib) + 4}" text-anchor="end" fill="#57606a">{mib} MiB</text>'
    for second in range(-int(-begin // 10) * 10, 1, 10):
        yield f'  <text x="{x(second)}" y="{BOTTOM + 20}" text-anchor="middle" fill="#57606a">{second}</text>'
    middle = (LEFT + RIGHT) / 2
    yield f'  <text x="{middle}" y="{BOTTOM + 42}" text-anchor="middle" fill="#57606a">seconds from the OOM kill</text>'
    for name, (color, _) in LINES.items():
        points = " ".join(f"{x(row['at'])},{y(row[name])}" for row in run.rows)
        yield f'  <polyline class="{name}" points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
    for number, (color, words) in enumerate(LINES.values()):
        yield f'  <text x="{RIGHT + 16}" y="{TOP + 80 + 22 * number}" fill="{color}">{words}</text>'
    for at, name, mib in run.signals[:1]:
        yield from _mark(x(at), "#1a7f37", f"signal {name},", f"{mib} MiB left")
    yield from _mark(x(0), "#cf222e", "OOM kill")
    yield "</svg>"


def _mark(place: float, color: str, *words: str) -> Iterator[str]:
    yield f'  <line x1="{place}" y1="{TOP}" x2="{place}" y2="{BOTTOM}" stroke="{color}" stroke-dasharray="4 3"/>'
    for number, text in enumerate(words):
        height = TOP + 14 + 16 * number
        yield f'  <text x="{place - 6}" y="{height}" text-anchor="end" fill="{color}">{text}</text>'
