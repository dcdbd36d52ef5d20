"""`kubectl swap`: picks the command that is asked for and imports nothing of the others."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, Final

import click
from click import shell_completion

import swapwarden
from swapwarden.cli.kubectl import completion, tables

COMMANDS: Final = {
    "nodes": ("swapwarden.cli.kubectl.nodes", "Show each node's swap, how pods get it, and whether that holds."),
    "explain": ("swapwarden.cli.kubectl.explain", "Say why a pod has its swap limit, and whether the kernel holds it."),
    "policy": ("swapwarden.cli.kubectl.policy", "Give the pods of a workload, or of a namespace, another policy."),
    "check": ("swapwarden.cli.kubectl.check", "Find problems of the cluster, or of manifests, with their remedies."),
    "simulate": (
        "swapwarden.cli.kubectl.simulate",
        "Show what profiles would do to this cluster before they are applied.",
    ),
    "top": ("swapwarden.cli.kubectl.top", "Show who uses how much swap, and how much they may."),
    "completion": ("swapwarden.cli.kubectl.completion", "Print the completion script of a shell."),
}
"""Module and summary of each command; a module has a click command of the name `command`."""

INTERRUPTED: Final = 130
"""Exit status after Ctrl-C: 128 and the number of SIGINT, as shells have it."""


class Commands(click.Group):
    """The commands of COMMANDS, each imported when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[shell_completion.CompletionItem]:
        commands = [
            shell_completion.CompletionItem(name, help=summary)
            for name, (_, summary) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        # Those of the group's own options.
        return commands + click.Command.shell_complete(self, ctx, incomplete)


@click.group(name="kubectl swap", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(swapwarden.__version__, message="%(prog)s %(version)s")
def command() -> None:
    """Show which pods and nodes have swap, who uses it, and why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status: 0, 1 where something cannot be shown, 2 where it is not understood."""
    try:
        status: Any = command.main(
            arguments, prog_name="kubectl swap", complete_var=completion.VARIABLE, standalone_mode=False
        )
    except click.ClickException as error:
        _show(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def complete(words: Sequence[str] | None = None) -> int:
    """Run kubectl_complete-swap; the exit status."""
    click.echo(completion.answer(command, sys.argv[1:] if words is None else words), nl=False)
    return 0


def _show(error: click.ClickException) -> None:
    if isinstance(error, click.UsageError):
        error.show()
    else:
        # It may have in it what some server said.
        click.echo("\n".join(map(tables.clean, f"error: {error.format_message()}".splitlines())), err=True)
