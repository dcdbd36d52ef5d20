"""The dashboard's panels as a picture (SVG), from what its own queries gave of a recorded run. Pure.

The titles, units, legends and widths are testbed.dashboard's; Grafana would draw the same with other fonts.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape

from grafana_foundation_sdk.models import units

from testbed import dashboard
from testbed.recording import Answer, Recording, Series

WIDTH: Final = 984
_COLUMN: Final = WIDTH / 24
_PLOT: Final = 116
"""How high values are drawn, at most."""
_GAP: Final = 8
_LEFT, _RIGHT, _TOP, _AXIS = 66, 14, 34, 18
_LINE: Final = 16
_LETTER: Final = 6.6
"""Pixels that a letter of a legend takes, about."""
_COLOURS: Final = (
    "#2f6fd0",
    "#d9822b",
    "#3f9142",
    "#c4314b",
    "#8250b8",
    "#1f9c9c",
    "#b0a000",
    "#6b7280",
    "#d6559a",
    "#5c6bc0",
)
_STYLE: Final = """\
<style>
text { font-family: system-ui, "Segoe UI", "DejaVu Sans", Helvetica, sans-serif; font-size: 12px; fill: #374151 }
.title { font-size: 13.5px; font-weight: 600; fill: #111827 }
.row { font-size: 17px; font-weight: 600; fill: #111827 }
.big { font-size: 24px; font-weight: 600; fill: #1d4e9e }
.faint { fill: #6b7280; font-size: 11px }
.mark { fill: #9a3412; font-size: 10px; font-weight: 600 }
.grid { stroke: #e5e7eb; fill: none }
.curve { stroke-width: 1.8px; stroke-linecap: round; fill: none }
.event { stroke: #ea9a6c; stroke-dasharray: 3 3; fill: none }
</style>
"""


@dataclasses.dataclass(frozen=True)
class _Curve:
    """A series with the name that the legend gives it."""

    name: str
    values: list[float | None]


# --- numbers ---

_PREFIXES: Final = {
    units.BytesIEC: ("B", "KiB", "MiB", "GiB", "TiB"),
    units.BytesPerSecondIEC: ("B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s"),
}
_RATES: Final = {units.OpsPerSecond: "/s", units.RequestsPerSecond: " req/s", units.Short: ""}
_TIMES: Final = ((86400.0, "days"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def number(value: float, unit: str) -> str:
    """A value as people read it, in one of the units that the dashboard has."""
    if value == 0:
        return "0"
    if unit in _PREFIXES:
        power = min(max(int(math.log(abs(value), 1024)), 0), 4)
        return f"{value / 1024**power:.3g} {_PREFIXES[unit][power]}"
    if unit == units.PercentUnit:
        return f"{value * 100:.3g} %"
    if unit == units.Seconds:
        size, name = next((each for each in _TIMES if abs(value) >= each[0]), _TIMES[-1])
        return f"{value / size:.3g} {name}"
    shown = f"{value / 1000:.3g}k" if value >= 1000 else f"{value:.3g}"
    return shown + _RATES[unit]


def ticks(highest: float, unit: str) -> list[float]:
    """Round values from 0 to at least HIGHEST, three to six of them."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / 4
    if unit in _PREFIXES:
        step = 2.0 ** math.ceil(math.log2(rough))
    else:
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * each for each in (1, 2, 2.5, 5, 10) if size * each >= rough * 0.999)
    return [step * each for each in range(math.ceil(highest / step * 0.999) + 1)]


# --- parts of a panel ---


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    attributes = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:.0f}" y="{y:.0f}"{attributes}>{escape(text)}</text>\n'


def _cut(text: str, width: float) -> str:
    room = max(4, int(width / _LETTER))
    return text if len(text) <= room else f"{text[: room - 1]}…"


def legend(pattern: str, labels: dict[str, str]) -> str:
    """A series' name, as Grafana makes it of its labels."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), pattern).strip()


def _curves(panel: dashboard.Panel, answers: Sequence[Answer]) -> list[_Curve]:
    return [
        _Curve(legend(query.legend, each.labels), each.values)
        for query, found in zip(panel.queries, answers, strict=True)
        for each in found.series
        if any(value is not None for value in each.values)
    ]


def _pieces(values: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """The stretches without a gap, as places and values."""
    known = itertools.groupby(enumerate(values), lambda each: each[1] is None)
    for is_gap, piece in known:
        if not is_gap:
            yield [(place, value) for place, value in piece if value is not None]


def _stacked(curves: Sequence[_Curve]) -> list[list[tuple[float, float]]]:
    """For each curve where it begins and ends, upon those before it."""
    floor = [0.0] * len(curves[0].values)
    found = []
    for curve in curves:
        top = [below + (value or 0.0) for below, value in zip(floor, curve.values, strict=True)]
        found.append(list(zip(floor, top, strict=True)))
        floor = top
    return found


@dataclasses.dataclass(frozen=True)
class _Plot:
    """Where values of a panel are on the picture."""

    left: float
    right: float
    top: float
    bottom: float
    highest: float
    steps: int

    def x(self, place: float) -> float:
        return self.left + (self.right - self.left) * place / (self.steps - 1)

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * value / self.highest

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(place):.1f} {self.y(value):.1f}" for place, value in points)


def _entries(curves: Sequence[_Curve], width: float) -> list[tuple[float, int, str]]:
    """Places of a legend's entries from the left, and the lines that they are on."""
    x, line, found = 0.0, 0, []
    width -= 2 * _RIGHT
    for curve in curves:
        shown = _cut(curve.name, width - 30)
        long = len(shown) * _LETTER + 28
        if x and x + long > width:
            x, line = 0.0, line + 1
        found.append((x, line, shown))
        x += long
    return found


def _lines(panel: dashboard.Panel, curves: list[_Curve], recording: Recording, width: float) -> Iterator[str]:
    entries = _entries(curves, width)
    bottom = _TOP + 10 + _PLOT
    stack = _stacked(curves) if panel.kind == "stacked" else []
    tops = [top for each in stack for _, top in each] or [value or 0.0 for each in curves for value in each.values]
    marks = ticks(max(tops), panel.unit)
    plot = _Plot(_LEFT, width - _RIGHT, _TOP + 10, bottom, marks[-1], recording.steps)
    for value in marks if max(tops) else [0.0]:
        yield f'<path class="grid" d="M{plot.left} {plot.y(value):.1f}H{plot.right}"/>\n'
        yield _text(plot.left - 6, plot.y(value) + 4, number(value, panel.unit), "faint", "end")
    yield from _time(plot, recording)
    for place, curve in enumerate(curves):
        colour = _COLOURS[place % len(_COLOURS)]
        if stack:
            edge = [(at, top) for at, (_, top) in enumerate(stack[place])]
            floor = [(at, low) for at, (low, _) in enumerate(stack[place])]
            yield f'<path fill="{colour}" fill-opacity=".55" d="{plot.path([*edge, *reversed(floor)])}Z"/>\n'
        else:
            yield from _curve(plot, curve.values, colour)
        x, line, name = entries[place]
        y = bottom + _AXIS + _LINE * (line + 0.75)
        yield f'<rect x="{_RIGHT + x:.0f}" y="{y - 6:.0f}" width="12" height="4" rx="2" fill="{colour}"/>\n'
        yield _text(_RIGHT + x + 17, y, name, "faint")


def _curve(plot: _Plot, values: Sequence[float | None], colour: str) -> Iterator[str]:
    for piece in _pieces(values):
        if len(piece) == 1:
            ((place, value),) = piece
            yield f'<circle cx="{plot.x(place):.1f}" cy="{plot.y(value):.1f}" r="2" fill="{colour}"/>\n'
        else:
            yield f'<path class="curve" stroke="{colour}" d="{plot.path(piece)}"/>\n'


def _time(plot: _Plot, recording: Recording) -> Iterator[str]:
    """Minutes below, and what was done, by its number."""
    every = 60 if plot.right - plot.left > 360 else 120
    for seconds in range(0, (recording.steps - 1) * recording.step + 1, every):
        x = plot.x(seconds / recording.step)
        yield _text(x, plot.bottom + 14, f"{seconds // 60} min" if seconds else "0", "faint", "middle")
    for count, event in enumerate(recording.events, 1):
        x = plot.x(event.at / recording.step)
        yield f'<path class="event" d="M{x:.1f} {plot.top}V{plot.bottom}"/>\n'
        yield _text(x, plot.top - 5, str(count), "mark", "middle")


def _across(width: float) -> int:
    """How many numbers are beside one another."""
    return 1 if width < 200 else 3


def _numbers(panel: dashboard.Panel, curves: list[_Curve], width: float) -> Iterator[str]:
    """The last value of each."""
    across, x = _across(width), float(_RIGHT)
    for column in range(across):
        for line, curve in enumerate(curves[column::across]):
            last = next(value for value in reversed(curve.values) if value is not None)
            yield _text(x, _TOP + 34 + 48 * line, number(last, panel.unit), "big")
            yield _text(x, _TOP + 50 + 48 * line, curve.name, "faint")
        x += 16 + _LETTER * max((len(curve.name) for curve in curves[column::across]), default=0)


def _table(series: Sequence[Series], width: float) -> Iterator[str]:
    """A line for each series: its labels, and its value on the right."""
    rows = [(each.labels, each.values[0]) for each in series]
    x = float(_RIGHT)
    for name in sorted({name for labels, _ in rows for name in labels}):
        cells = [labels.get(name, "") for labels, _ in rows]
        yield _text(x, _TOP + 18, name, "faint")
        for line, cell in enumerate(cells):
            yield _text(x, _TOP + 40 + 20 * line, cell)
        x += 16 + (_LETTER + 0.6) * max(map(len, [name, *cells]))
    for line, (_, value) in enumerate(rows):
        y = _TOP + 40 + 20 * line
        yield f'<path class="grid" d="M{_RIGHT} {y - 15}H{width - _RIGHT}"/>\n'
        yield _text(width - _RIGHT, y, number(value or 0.0, units.Short), anchor="end")


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """A panel, but for its frame, and the height that it needs."""

    title: str
    width: float
    height: float
    inner: str


def _panel(panel: dashboard.Panel, recording: Recording) -> _Drawn:
    answers = recording.panels[panel.title]
    curves, width = _curves(panel, answers), panel.width * _COLUMN - _GAP
    if not curves:
        inner, height = [_text(width / 2, _TOP + 50, "No data", "faint", "middle")], _TOP + 70.0
    elif panel.kind == "table":
        inner, height = (
            [*_table([each for found in answers for each in found.series], width)],
            _TOP + 34.0 + 20 * len(curves),
        )
    elif panel.kind == "number":
        inner, height = [*_numbers(panel, curves, width)], _TOP + 16.0 + 48 * math.ceil(len(curves) / _across(width))
    else:
        inner = [*_lines(panel, curves, recording, width)]
        height = _TOP + 10.0 + _PLOT + _AXIS + _LINE * (_entries(curves, width)[-1][1] + 1) + _GAP
    return _Drawn(panel.title.replace("$node", recording.facts["node"]), width, height, "".join(inner))


def _framed(drawn: _Drawn, height: float) -> str:
    frame = f'<rect width="{drawn.width:.0f}" height="{height:.0f}" rx="4" fill="#fff" stroke="#d8dce3"/>\n'
    return frame + _text(_RIGHT, 22, drawn.title, "title") + drawn.inner


def _side_by_side(panels: Iterable[dashboard.Panel]) -> Iterator[list[dashboard.Panel]]:
    """Panels that are beside one another: 24 columns."""
    line: list[dashboard.Panel] = []
    for panel in panels:
        if sum(each.width for each in line) + panel.width > 24:
            yield line
            line = []
        line.append(panel)
    if line:
        yield line


# --- the whole ---


def was_recorded(panel: dashboard.Panel, recording: Recording) -> bool:
    """Whether the recording has answers to what the panel asks today."""
    return [each.query for each in recording.panels.get(panel.title, ())] == [each.expression for each in panel.queries]


def draw(rows: Sequence[dashboard.Row], recording: Recording) -> str:
    """An SVG of these rows of the dashboard, with what was done meanwhile above them.

    Panels that have changed since the run, or came later, are left out.
    """
    parts: list[str] = []
    y = 10.0
    for count, event in enumerate(recording.events, 1):
        minutes, seconds = divmod(round(event.at), 60)
        parts.append(_text(14, y + 14, str(count), "mark") + _text(34, y + 14, f"{minutes}:{seconds:02}", "faint"))
        parts.append(_text(72, y + 14, event.text))
        y += 18
    for row in rows:
        y += 14
        parts.append(_text(14, y + 18, row.title.replace("$node", recording.facts["node"]), "row"))
        y += 30
        for line in _side_by_side(each for each in row.panels if was_recorded(each, recording)):
            x, drawn = _GAP / 2, [_panel(panel, recording) for panel in line]
            height = max(each.height for each in drawn)
            for each in drawn:
                parts.append(f'<g transform="translate({x:.0f} {y:.0f})">\n{_framed(each, height)}</g>\n')
                x += each.width + _GAP
            y += height + _GAP
    head = f'<svg viewBox="0 0 {WIDTH} {y + 6:.0f}" xmlns="http://www.w3.org/2000/svg">\n{_STYLE}'
    return f'{head}<rect width="100%" height="100%" rx="8" fill="#f3f4f6"/>\n{"".join(parts)}</svg>\n'
