"""`kubectl swap`: picks the command that is asked for and imports nothing of the others."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from click import shell_completion

import swapwarden
from swapwarden.cli import kubectl
from swapwarden.cli.kubectl.output import tables

COMMANDS: Final = {
    "nodes": ("status", "Show each node's swap, how pods get it, and whether that holds."),
    "explain": ("explain.command", "Explain why a pod has its swap limit, and whether the kernel holds it."),
    "check": ("check.command", "Find problems of the cluster, or of manifests, with their remedies."),
    "simulate": ("simulate.command", "Show what profiles would do to this cluster before they are applied."),
    "top": ("top", "Show swap usage and limits of pods, namespaces and nodes."),
}
"""Module of this package and summary of each command; a module has a click command of the name `command`."""
ALIASES: Final = {"node": "nodes", "no": "nodes"}
"""Other words of kubectl for the kind."""

_VALUED: Final = frozenset(
    {"-n", "--namespace", "--context", "--kubeconfig", "--request-timeout", "--as", "--as-group", "--as-uid"}
    | {"--cluster", "--user", "-s", "--server", "--token"}
)
_BARE: Final = frozenset({"-A", "--all-namespaces", "--insecure-skip-tls-verify"})
"""Flags that also stand before the command, for who is used to `kubectl -n shop get pods`."""
_NO_COMMAND: Final = frozenset({"-h", "--help", "--version"})

INTERRUPTED: Final = 130
"""Exit status after Ctrl-C: 128 and the number of SIGINT, as shells have it."""


def load(name: str) -> click.Command:
    """Import a command of COMMANDS."""
    loaded: click.Command = kubectl.load(COMMANDS[name][0]).command
    return loaded


class Group(click.Group):
    """A command with commands of its own, which are also taken by their aliases; a misspelt name is corrected."""

    aliases: Mapping[str, str] = {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self.aliases.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            import difflib  # noqa: PLC0415 for a mistake only

            words = [*self.list_commands(ctx), *self.aliases]
            close = difflib.get_close_matches(name[:64], words, n=1)
            meant = f'; did you mean "{close[0]}"?' if close else ""
            ctx.fail(f'unknown command "{name}" for "{ctx.command_path}"{meant}')
        return super().resolve_command(ctx, args)


class Commands(Group):
    """The commands of COMMANDS, each imported when it is run."""

    aliases = ALIASES

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        name = ALIASES.get(cmd_name, cmd_name)
        return load(name) if name in COMMANDS else None

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


def command_first(words: Sequence[str]) -> list[str]:
    """Return the words with kubectl's flags behind the command, which is where commands know of them."""
    commands: list[str] = []
    ahead: list[str] = []
    rest = list(words)
    while rest:
        name, equals, _ = rest[0].partition("=")
        if name in _VALUED and len(rest) > 1 and not equals:
            taken = 2
        elif name in _BARE or (name in _VALUED and equals) or (name[:2] == "-n" and name not in _VALUED):
            taken = 1
        elif rest[0] == "top" and not commands:
            commands.append(rest.pop(0))
            continue
        else:
            break
        ahead += rest[:taken]
        del rest[:taken]
    if not rest or rest[0] in _NO_COMMAND:
        return [*commands, *rest]
    if rest[0].startswith("-"):
        return list(words)
    return [*commands, rest[0], *ahead, *rest[1:]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 1 if something cannot be shown, 2 for wrong usage."""
    try:
        status: Any = command.main(
            command_first(sys.argv[1:] if arguments is None else arguments),
            prog_name="kubectl swap",
            standalone_mode=False,
        )
    except click.ClickException as error:
        _show(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def complete(words: Sequence[str] | None = None) -> int:
    """Run kubectl_complete-swap; the exit status."""
    *before, incomplete = (sys.argv[1:] if words is None else words) or [""]
    click.echo(kubectl.load("completion").answer(command, [*command_first(before), incomplete]), nl=False)
    return 0


def _show(error: click.ClickException) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return
    # It may contain a server's text.
    lines = [*map(tables.clean, f"error: {error.format_message()}".splitlines())]
    if isinstance(error, click.UsageError) and error.ctx is not None:
        lines += [error.ctx.get_usage(), f"See '{error.ctx.command_path} --help'."]
    click.echo("\n".join(lines), err=True)
