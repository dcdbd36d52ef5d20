"""The parts of docs/ that are made from the code: the command line's reference, and the matrix in docs/concepts.md."""

import argparse
import importlib
from collections.abc import Iterator

import click
from swapwarden.__main__ import COMMANDS
from swapwarden.cli.kubectl import main as kubectl

from hack.generate import files, swap_matrix
from testbed.base import paths

CONCEPTS = paths.DOCS / "concepts.md"
BEGIN = "<!-- Made from the planning code by `make generate`; do not edit. -->"
END = "<!-- end -->"
_TABLE = ("| option | meaning |", "|---|---|")
_HEAD = """\
# Command line

Made from the code by `make generate`; do not edit.

`swapwarden` is the program of all parts, in the image and in the Python package; `kubectl swap` is kubectl's plugin, of
which [kubectl-swap.md](kubectl-swap.md) says more. `--help` of each command prints the same text.
"""


class PageError(Exception):
    """A page has no place for its generated part; the text names it."""


def generated() -> files.Made:
    """Return each page that is generated, wholly or in part."""
    concepts = CONCEPTS.read_text(encoding="utf-8")
    return {CONCEPTS: with_matrix(concepts), paths.DOCS / "cli-reference.md": command_line()}


def with_matrix(page: str) -> str:
    """Return the page with the matrix between BEGIN and END; PageError if it lacks one of them."""
    before, found, rest = page.partition(f"{BEGIN}\n")
    _, ends, after = rest.partition(END)
    if not found or not ends:
        raise PageError(f"docs/{CONCEPTS.name} has no lines {BEGIN} and {END} around its matrix")
    return "\n".join([before + BEGIN, "", *swap_matrix.table(), "", END + after])


def command_line() -> str:
    """Return the reference of the command line in Markdown: one section for each command, one row for each option."""
    lines = [_HEAD]
    for name, (module, summary) in COMMANDS.items():
        parser = argparse.ArgumentParser(add_help=False)
        importlib.import_module(module).add_arguments(parser)
        lines += [f"## swapwarden {name}", "", f"{summary[0].upper()}{summary[1:]}.", ""]
        lines += [*_TABLE, *_rows(parser), ""]
    for name, (_, summary) in kubectl.COMMANDS.items():
        lines += _plugin_section(kubectl.load(name), f"kubectl swap {name}", summary)
    return "\n".join(lines)


def _plugin_section(command: click.Command, path: str, summary: str) -> Iterator[str]:
    """Yield a command, or its subcommands if it has some."""
    yield from (f"## {path}", "", summary, "")
    if not isinstance(command, click.Group):
        yield from _plugin_command(command, path)
        return
    context = click.Context(command, info_name=path)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is not None:
            yield from _plugin_section(found, f"{path} {name}", found.get_short_help_str(limit=200))


def _plugin_command(command: click.Command, path: str) -> Iterator[str]:
    """Return the usage and the options of a command, from its own help."""
    context = click.Context(command, info_name=path)
    yield from ("```text", " ".join([path, *command.collect_usage_pieces(context)]), "```", "", *_TABLE)
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record and record[1] and "--help" not in parameter.opts:
            yield f"| {_cell(f'`{record[0]}`')} | {_cell(' '.join(record[1].split()))} |"
    if command.epilog:
        # Behind a mark by click, which keeps lines as they are.
        _, *examples = command.epilog.replace("\b\n", "").strip("\n").split("\n")
        yield from ("", "```text", *(line.removeprefix("  ") for line in examples), "```")
    yield ""


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:  # noqa: SLF001 argparse has no other way to ask what it knows
        value = str(action.metavar or _choices(action) or action.dest.upper())
        value = "" if action.nargs == 0 else f" [{value}]" if action.nargs == "?" else f" {value}"
        flags = ", ".join(f"`{flag}{value}`" for flag in action.option_strings)
        meaning = (action.help or "") % {**vars(action), "prog": parser.prog}
        if "default:" not in meaning and action.default not in (None, False, ""):
            meaning += f" (default: {action.default})"
        if action.required:
            meaning += " (required)"
        yield f"| {_cell(flags)} | {_cell(meaning)} |"


def _choices(action: argparse.Action) -> str:
    return "|".join(map(str, action.choices or ()))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
