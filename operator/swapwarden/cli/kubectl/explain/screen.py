"""An explanation as text: one screen, coloured on a terminal, unwrapped in a pipe."""

from __future__ import annotations

import datetime
import io
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import rich.console
import rich.padding
import rich.table
import rich.text

from swapwarden.api import names
from swapwarden.cli.kubectl.explain import kernelview, model, numbers
from swapwarden.cli.kubectl.output import sizes, tables

MAX_WIDTH: Final = 120
"""Columns of text that are read with ease."""
_LABEL: Final = 9
_PIPE: Final = 2**16

_Line = tuple[str, rich.console.RenderableType]

_HELD: Final = {
    kernelview.LimitStatus.HELD: "green",
    kernelview.LimitStatus.DRAINING: "yellow",
    kernelview.LimitStatus.YIELDED: "yellow",
    kernelview.LimitStatus.AWAITING_STATE: "yellow",
    kernelview.LimitStatus.BEHIND: "yellow",
    kernelview.LimitStatus.UNREPAIRED: "bold red",
    kernelview.LimitStatus.WRITE_FAILED: "bold red",
}


class Marks(msgspec.Struct, frozen=True):
    """Signs, which not every terminal can show."""

    matched: str
    passed: str
    times: str
    command: str = "$"


UNICODE: Final = Marks("\N{CHECK MARK}", "\N{MIDDLE DOT}", "\N{MULTIPLICATION SIGN}")
ASCII: Final = Marks(">", "-", "x")


def marks(encoding: str | None) -> Marks:
    """Signs that can be written in an encoding."""
    try:
        "".join(msgspec.structs.astuple(UNICODE)).encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return ASCII
    return UNICODE


def text(
    told: model.PodExplanation,
    now: datetime.datetime,
    *,
    signs: Marks = UNICODE,
    width: int | None = None,
    coloured: bool = False,
) -> str:
    """The whole screen; `width` columns wide, None for lines that are never broken."""
    console = rich.console.Console(
        file=io.StringIO(),
        width=min(width, MAX_WIDTH) if width else _PIPE,
        force_terminal=coloured,
        color_system="standard" if coloured else None,
        no_color=not coloured,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        draw(console, told, now, signs)
    return "".join(f"{line.rstrip()}\n" for line in str(capture.get()).splitlines())


def draw(console: rich.console.Console, told: model.PodExplanation, now: datetime.datetime, signs: Marks) -> None:
    """Print the screen."""
    console.print(_headline(told))
    console.print()
    console.print(_grid(_facts(told, now), label=True))
    if told.rules:
        _section(console, "RULES", "the first that matches decides", _rules(told, signs))
    if told.behaviors:
        _section(console, "BY BEHAVIOR", "of the profile that governs its node", _behaviors(told))
    if told.numbers:
        _section(console, "NUMBERS", "", _numbers(told.numbers, signs))
    if told.changes:
        _section(console, "TO CHANGE IT", "", _changes(told, signs))
    if told.unseen:
        console.print()
        console.print(_styled(f"Not seen, for lack of rights: {', '.join(told.unseen)}", "dim"))


def _styled(content: str, style: str = "") -> rich.text.Text:
    return rich.text.Text(tables.clean(content), style=style)


def _headline(told: model.PodExplanation) -> rich.text.Text:
    reason = told.wanted.reason if told.wanted else told.planned.reason if told.planned else None
    line = _styled(f"{told.namespace}/{told.name}", "bold")
    line.append_text(_styled(": "))
    line.append_text(_styled(told.summary, "bold cyan"))
    if reason is not None:
        line.append_text(_styled(f"  ({reason})"))
    return line


def _grid(lines: Iterable[_Line], *, label: bool = False) -> rich.table.Table:
    grid = rich.table.Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=_LABEL if label else None)
    grid.add_column(overflow="fold")
    for name, content in lines:
        grid.add_row(_styled(name, "bold"), content)
    return grid


def _section(console: rich.console.Console, title: str, about: str, body: rich.table.Table) -> None:
    line = _styled(title, "bold")
    if about:
        line.append_text(_styled(f"  {about}", "dim"))
    console.print()
    console.print(line)
    console.print(rich.padding.Padding(body, (0, 0, 0, 2), expand=False))


def _facts(told: model.PodExplanation, now: datetime.datetime) -> Iterator[_Line]:
    yield "POLICY", _styled(told.policy.text, "" if told.policy.valid else "red")
    if told.admission:
        yield "ADMISSION", _styled(told.admission, "yellow")
    yield "QOS", _styled(told.qos)
    yield "NODE", _styled(told.node_text)
    if told.profile is not None:
        generation = f" generation {told.profile.generation}" if told.profile.generation else ""
        yield "PROFILE", _styled(f"{told.profile.name}{generation}, {told.profile.behavior}: {told.profile.text}")
        if told.profile.override_text:
            yield "OVERRIDE", _styled(told.profile.override_text)
    if told.wanted_text:
        yield "WANTED", _styled(told.wanted_text, "yellow")
    if told.kernel is not None:
        yield "KERNEL", _kernel(told.kernel, now)
        used = sizes.rounded(told.used_bytes)
        each = ", ".join(f"{name} {sizes.rounded(number)}" for name, number in told.used_containers.items())
        yield "IN USE", _styled(f"{used} ({each})" if each else used)
        if told.kernel.exposed_text:
            yield "EXPOSED", _styled(told.kernel.exposed_text, "yellow")
        if told.kernel.drift:
            yield "DRIFT", _styled(f"on the node: {told.kernel.drift}", "yellow")
    if told.enforced is not None:
        yield "ENFORCED", _enforced(told.enforced)
    if told.secrets:
        yield "SECRETS", _styled(told.secrets, "yellow" if told.secrets.startswith("can ") else "")


def _kernel(kernel: kernelview.KernelState, now: datetime.datetime) -> rich.text.Text:
    line = _styled(kernel.text, _HELD.get(kernel.status, ""))
    old = sizes.age(kernel.since, now) if kernel.since else ""
    if old:
        line.append_text(_styled(f", for {old} at least"))
    return line


def _enforced(told: model.PodConditionReport) -> rich.text.Text:
    style = {"True": "green", "False": "bold red"}.get(told.status, "yellow")
    line = _styled(told.status, style)
    line.append_text(_styled(f", {told.reason}: {told.message}"))
    return line


def _rules(told: model.PodExplanation, signs: Marks) -> rich.table.Table:
    grid = rich.table.Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for rule in told.rules:
        style = "bold green" if rule.matched else "dim"
        mark = signs.matched if rule.matched else signs.passed
        why = _styled(rule.why, "" if rule.matched else "dim")
        grid.add_row(_styled(mark, style), _styled(rule.reason, style), why)
    return grid


def _behaviors(told: model.PodExplanation) -> rich.table.Table:
    return _grid((one.of, _styled(one.formula)) for one in told.behaviors)


def _numbers(lines: Iterable[numbers.Number], signs: Marks) -> rich.table.Table:
    grid = rich.table.Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_column(no_wrap=True)
    for line in lines:
        formula = line.formula.replace(" x ", f" {signs.times} ")
        grid.add_row(_styled(line.of, "bold"), _styled(formula), _styled(f"= {_value(line.result)}", "cyan"))
    return grid


def _value(swap_max: str) -> str:
    if swap_max == names.MAX_SWAP:
        return swap_max
    whole = sizes.exact(int(swap_max))
    return whole if whole == swap_max else f"{whole} ({swap_max})"


def _changes(told: model.PodExplanation, signs: Marks) -> rich.table.Table:
    grid = rich.table.Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for change in told.changes:
        how = _styled(change.how)
        if change.command:
            how.append("\n")
            how.append_text(_styled(f"{signs.command} {change.command}", "green"))
        grid.add_row(_styled(change.outcome, "bold"), how)
    return grid
