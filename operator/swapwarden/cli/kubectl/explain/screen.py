"""An explanation as text: one screen, coloured on a terminal, unwrapped in a pipe."""

from __future__ import annotations

import datetime
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from swapwarden.api import names, sizes
from swapwarden.api.violations import ViolationReason
from swapwarden.cli.kubectl.explain import memory, model
from swapwarden.cli.kubectl.output import tables
from swapwarden.cli.kubectl.output.tables import Cell
from swapwarden.policy.observed import pods

MAX_WIDTH: Final = 120
"""Columns of text that are read with ease."""
_PIPE: Final = 2**16
_GAP: Final = "  "
_INDENT: Final = "  "
_PROMPT: Final = "$ "
_LABEL: Final = 9
"""Least width of the labels of facts."""
_MATCHED, _PASSED, _TIMES = "\N{CHECK MARK}", "\N{MIDDLE DOT}", "\N{MULTIPLICATION SIGN}"
_ASCII: Final = str.maketrans({_MATCHED: ">", _PASSED: "-", _TIMES: "x"})

_Line = tuple[Cell, ...]

_STATUS: Final = {"True": "green", "False": "bold red", "Unknown": "yellow"}
_TEMPORARY: Final = frozenset[str]({ViolationReason.DRAINING, ViolationReason.YIELDED})
"""Reasons of verdicts that end by themselves."""


def writable(text: str, encoding: str | None) -> str:
    """Return the text with signs that an encoding can write."""
    try:
        text.encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return text.translate(_ASCII).encode("ascii", "replace").decode()
    return text


def text(
    explained: model.PodExplanation, now: datetime.datetime, *, width: int | None = None, coloured: bool = False
) -> str:
    """Return the whole screen; `width` columns wide, None for lines that are never broken."""
    columns = min(width, MAX_WIDTH) if width else _PIPE

    def block(lines: Iterable[_Line], fold: int, indent: str = "") -> str:
        shown = tables.grid(_wrapped(list(lines), fold, columns - len(indent)), gap=_GAP, coloured=coloured)
        return textwrap.indent(shown, indent)

    behaviors = ((_label(one.of), Cell(one.formula)) for one in explained.behaviors)
    parts = [block([(_headline(explained),)], 0), block(_facts(explained, now), 1)]
    for title, about, lines, fold in (
        ("RULES", "the first that matches decides", _rules(explained), 2),
        ("BY BEHAVIOR", "of the profile that governs its node", behaviors, 1),
        ("NUMBERS", "", _numbers(explained), 1),
        ("MEMORY", "as planned, and in effect", _memory(explained), 1),
        ("TO CHANGE IT", "", _changes(explained), 1),
    ):
        if body := block(lines, fold, _INDENT):
            parts.append(block([(_label(title), Cell(about, "dim"))], 1) + body)
    if explained.unseen:
        parts.append(block([(Cell(f"Not seen, for lack of rights: {', '.join(explained.unseen)}", "dim"),)], 0))
    return "\n".join(parts)


def _wrapped(lines: Sequence[_Line], fold: int, width: int) -> Iterator[_Line]:
    """Yield the lines with one column wrapped, so that all of them but commands fit into the width."""
    columns = itertools.zip_longest(*lines, fillvalue=Cell(""))
    widths = [max(tables.measure(cell.text) for cell in column) for column in columns]
    room = max(1, width - sum(each + len(_GAP) for place, each in enumerate(widths) if place != fold))
    for line in lines:
        if line[fold].text.startswith(_PROMPT):
            # A command stays on one line, so that it can be copied from a terminal.
            yield line
            continue
        first, *rest = textwrap.wrap(tables.clean(line[fold].text), room, break_on_hyphens=False) or [""]
        style = line[fold].style
        yield (*line[:fold], Cell(first, style), *line[fold + 1 :])
        yield from ((*(Cell(""),) * fold, Cell(each, style)) for each in rest)


def _label(name: str) -> Cell:
    return Cell(name, "bold")


def _headline(explained: model.PodExplanation) -> Cell:
    decided = explained.desired or explained.planned
    why = f"  ({decided.reason})" if decided and decided.reason else ""
    return _label(f"{explained.namespace}/{explained.name}: {explained.summary}{why}")


def _facts(explained: model.PodExplanation, now: datetime.datetime) -> Iterator[_Line]:
    yield _label(f"{'POLICY':{_LABEL}}"), Cell(explained.policy.text, "" if explained.policy.valid else "red")
    if explained.admission:
        yield _label("ADMISSION"), Cell(explained.admission, "yellow")
    yield _label("QOS"), Cell(explained.qos)
    yield _label("NODE"), Cell(explained.node_text)
    if explained.profile is not None:
        generation = f" generation {explained.profile.generation}" if explained.profile.generation else ""
        yield (
            _label("PROFILE"),
            Cell(f"{explained.profile.name}{generation}, {explained.profile.behavior}: {explained.profile.text}"),
        )
        if explained.profile.override_text:
            yield _label("OVERRIDE"), Cell(explained.profile.override_text)
    if explained.desired_text:
        yield _label("DESIRED"), Cell(explained.desired_text, "yellow")
    if explained.kernel is not None:
        yield _label("KERNEL"), _kernel(explained.kernel, now)
        used = tables.size(explained.used_bytes)
        each = ", ".join(f"{name} {tables.size(number)}" for name, number in explained.used_containers.items())
        yield _label("IN USE"), Cell(f"{used} ({each})" if each else used)
        if explained.kernel.exposed_text:
            yield _label("EXPOSED"), Cell(explained.kernel.exposed_text, "yellow")
        if explained.kernel.drift:
            yield _label("DRIFT"), Cell(f"on the node: {explained.kernel.drift}", "yellow")
    if explained.pressure is not None:
        yield _label("PRESSURE"), Cell(explained.pressure.text, "yellow" if explained.pressure.spared is None else "")
    if explained.enforced is not None:
        condition = explained.enforced
        text = f"{condition.status}, {condition.reason}: {condition.message}"
        yield _label("ENFORCED"), Cell(text, _STATUS.get(condition.status, "yellow"))
    if explained.secrets:
        yield _label("SECRETS"), Cell(explained.secrets, "yellow" if explained.secrets.startswith("can ") else "")


def _kernel(kernel: model.KernelState, now: datetime.datetime) -> Cell:
    old = tables.age(kernel.since, now) if kernel.since else ""
    holder = pods.held_by(kernel.holder) if kernel.holder else ""
    held = kernel.text + (f", for {old} at least" if old else "") + holder
    style = "yellow" if kernel.reason in _TEMPORARY or (kernel.status == "True" and kernel.remedy) else ""
    return Cell("; ".join(filter(None, (held, kernel.detail, kernel.remedy))), style or _STATUS[kernel.status])


def _rules(explained: model.PodExplanation) -> Iterator[_Line]:
    for rule in explained.rules:
        style = "bold green" if rule.matched else "dim"
        mark = _MATCHED if rule.matched else _PASSED
        why = Cell(rule.why, "" if rule.matched else "dim")
        yield Cell(mark, style), Cell(rule.reason, style), why


def _numbers(explained: model.PodExplanation) -> Iterator[_Line]:
    for line in explained.numbers:
        formula = line.formula.replace(" x ", f" {_TIMES} ")
        sign = "at most" if line.at_most else "="
        yield _label(line.of), Cell(formula), Cell(f"{sign} {_value(line.result)}" if line.result else "", "cyan")


def _memory(explained: model.PodExplanation) -> Iterator[_Line]:
    for line in explained.memory:
        yield _label(line.of), Cell(line.text), Cell(memory.result(line), "cyan")


def _value(swap_max: str) -> str:
    if swap_max == names.MAX_SWAP:
        return swap_max
    whole = sizes.exact(int(swap_max))
    return whole if whole == swap_max else f"{whole} ({swap_max})"


def _changes(explained: model.PodExplanation) -> Iterator[_Line]:
    for change in explained.changes:
        yield _label(change.outcome), Cell(change.how)
        if change.command:
            yield Cell(""), Cell(_PROMPT + change.command, "green")
