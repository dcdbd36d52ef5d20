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
from swapwarden.cli.kubectl.cluster import workloads
from swapwarden.cli.kubectl.explain import kernelview, model
from swapwarden.cli.kubectl.output import sizes, tables

MAX_WIDTH: Final = 120
"""Columns of text that are read with ease."""
_LABEL: Final = 9
_PIPE: Final = 2**16

_Line = tuple[rich.text.Text, ...]

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
    """Return signs that an encoding can write."""
    try:
        "".join(msgspec.structs.astuple(UNICODE)).encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return ASCII
    return UNICODE


def text(
    explained: model.PodExplanation,
    now: datetime.datetime,
    *,
    signs: Marks = UNICODE,
    width: int | None = None,
    coloured: bool = False,
) -> str:
    """Return the whole screen; `width` columns wide, None for lines that are never broken."""
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
        draw(console, explained, now, signs)
    return "".join(f"{line.rstrip()}\n" for line in str(capture.get()).splitlines())


def draw(console: rich.console.Console, explained: model.PodExplanation, now: datetime.datetime, signs: Marks) -> None:
    """Print the screen."""
    console.print(_headline(explained))
    console.print()
    console.print(_grid(_facts(explained, now), width=_LABEL))
    for title, about, lines, fold in (
        ("RULES", "the first that matches decides", _rules(explained, signs), 2),
        ("BY BEHAVIOR", "of the profile that governs its node", _behaviors(explained), 1),
        ("NUMBERS", "", _numbers(explained, signs), 1),
        ("TO CHANGE IT", "", _changes(explained, signs), 1),
    ):
        body = _grid(lines, fold)
        if body.row_count:
            console.print()
            console.print(_bold(title, _styled(f"  {about}" if about else "", "dim")))
            console.print(rich.padding.Padding(body, (0, 0, 0, 2), expand=False))
    if explained.unseen:
        console.print()
        console.print(_styled(f"Not seen, for lack of rights: {', '.join(explained.unseen)}", "dim"))


def _styled(content: str, style: str = "") -> rich.text.Text:
    return rich.text.Text(tables.clean(content), style=style)


def _label(name: str) -> rich.text.Text:
    return _styled(name, "bold")


def _bold(*parts: str | rich.text.Text) -> rich.text.Text:
    clean = (tables.clean(part) if isinstance(part, str) else part for part in parts)
    return rich.text.Text.assemble(*clean, style="bold")


def _headline(explained: model.PodExplanation) -> rich.text.Text:
    decided = explained.desired or explained.planned
    reason = decided.reason if decided else None
    why = "" if reason is None else f"  ({reason})"
    return _bold(f"{explained.namespace}/{explained.name}: ", _styled(explained.summary, "bold cyan"), why)


def _grid(lines: Iterable[_Line], fold: int = 1, width: int | None = None) -> rich.table.Table:
    """Return a grid in which one column wraps; the first has at least `width` characters."""
    grid = rich.table.Table.grid(padding=(0, 2, 0, 0))
    for line in lines:
        for place in range(len(line) - len(grid.columns)):
            if place == fold:
                grid.add_column(overflow="fold")
            else:
                grid.add_column(no_wrap=True, min_width=None if place else width)
        grid.add_row(*line)
    return grid


def _facts(explained: model.PodExplanation, now: datetime.datetime) -> Iterator[_Line]:
    yield _label("POLICY"), _styled(explained.policy.text, "" if explained.policy.valid else "red")
    if explained.admission:
        yield _label("ADMISSION"), _styled(explained.admission, "yellow")
    yield _label("QOS"), _styled(explained.qos)
    yield _label("NODE"), _styled(explained.node_text)
    if explained.profile is not None:
        generation = f" generation {explained.profile.generation}" if explained.profile.generation else ""
        yield (
            _label("PROFILE"),
            _styled(f"{explained.profile.name}{generation}, {explained.profile.behavior}: {explained.profile.text}"),
        )
        if explained.profile.override_text:
            yield _label("OVERRIDE"), _styled(explained.profile.override_text)
    if explained.desired_text:
        yield _label("DESIRED"), _styled(explained.desired_text, "yellow")
    if explained.kernel is not None:
        yield _label("KERNEL"), _kernel(explained.kernel, now)
        used = sizes.rounded(explained.used_bytes)
        each = ", ".join(f"{name} {sizes.rounded(number)}" for name, number in explained.used_containers.items())
        yield _label("IN USE"), _styled(f"{used} ({each})" if each else used)
        if explained.kernel.exposed_text:
            yield _label("EXPOSED"), _styled(explained.kernel.exposed_text, "yellow")
        if explained.kernel.drift:
            yield _label("DRIFT"), _styled(f"on the node: {explained.kernel.drift}", "yellow")
    if explained.enforced is not None:
        yield _label("ENFORCED"), _enforced(explained.enforced)
    if explained.secrets:
        yield _label("SECRETS"), _styled(explained.secrets, "yellow" if explained.secrets.startswith("can ") else "")


def _kernel(kernel: kernelview.KernelState, now: datetime.datetime) -> rich.text.Text:
    old = sizes.age(kernel.since, now) if kernel.since else ""
    return _styled(kernel.text + (f", for {old} at least" if old else ""), _HELD.get(kernel.status, ""))


def _enforced(explained: workloads.DetailedPodCondition) -> rich.text.Text:
    style = {"True": "green", "False": "bold red"}.get(explained.status, "yellow")
    return _styled(f"{explained.status}, {explained.reason}: {explained.message}", style)


def _rules(explained: model.PodExplanation, signs: Marks) -> Iterator[_Line]:
    for rule in explained.rules:
        style = "bold green" if rule.matched else "dim"
        mark = signs.matched if rule.matched else signs.passed
        why = _styled(rule.why, "" if rule.matched else "dim")
        yield _styled(mark, style), _styled(rule.reason, style), why


def _behaviors(explained: model.PodExplanation) -> Iterator[_Line]:
    for one in explained.behaviors:
        yield _label(one.of), _styled(one.formula)


def _numbers(explained: model.PodExplanation, signs: Marks) -> Iterator[_Line]:
    for line in explained.numbers:
        formula = line.formula.replace(" x ", f" {signs.times} ")
        yield _label(line.of), _styled(formula), _styled(f"= {_value(line.result)}", "cyan")


def _value(swap_max: str) -> str:
    if swap_max == names.MAX_SWAP:
        return swap_max
    whole = sizes.exact(int(swap_max))
    return whole if whole == swap_max else f"{whole} ({swap_max})"


def _changes(explained: model.PodExplanation, signs: Marks) -> Iterator[_Line]:
    for change in explained.changes:
        command = _styled(f"{signs.command} {change.command}", "green") if change.command else None
        how = _styled(change.how)
        yield _label(change.outcome), rich.text.Text("\n").join([how, command]) if command else how
