"""`kubectl swap completion`, and the program kubectl_complete-swap, which kubectl's own completion runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click
from click import shell_completion

PROGRAM: Final = "kubectl-swap"
VARIABLE: Final = "_KUBECTL_SWAP_COMPLETE"
"""In the environment of the program while a shell asks it for candidates."""

# Directives of cobra's completion (https://pkg.go.dev/github.com/spf13/cobra#ShellCompDirective).
_DEFAULT: Final = 0
"""Complete names of files where nothing was found."""
_NO_FILES: Final = 4


def answer(root: click.Command, words: Sequence[str]) -> str:
    """What kubectl_complete-swap prints: candidates, each with a description after a tab, and a directive.

    `words` are those after `kubectl swap`; the last one is to be completed (k/k: plugin_completion.go of kubectl).
    """
    *before, incomplete = words or [""]
    shell = shell_completion.ShellComplete(root, {}, "kubectl swap", VARIABLE)
    found = shell.get_completions(list(before), incomplete)
    files = any(item.type != "plain" for item in found)
    lines = [_line(item) for item in found if item.type == "plain"]
    return "".join(f"{line}\n" for line in [*lines, f":{_DEFAULT if files else _NO_FILES}"])


def _line(item: shell_completion.CompletionItem[str]) -> str:
    summary = (item.help or "").partition("\n")[0].strip()
    return f"{item.value}\t{summary}" if summary else item.value


EXAMPLES: Final = """\b
Examples:
  source <(kubectl swap completion bash)
  source <(kubectl swap completion zsh)
  kubectl swap completion fish | source
"""


@click.command("completion", epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(*, shell: str) -> None:
    """Print the completion script of a shell for the program kubectl-swap.

    `kubectl swap` itself is completed by kubectl's own completion (kubectl completion --help), which runs the program
    kubectl_complete-swap; nothing is to be set up for that.
    """
    made = shell_completion.get_completion_class(shell)
    if made is None:
        raise click.ClickException(f"click cannot complete in {shell}")
    sys.stdout.write(made(click.Command(PROGRAM), {}, PROGRAM, VARIABLE).source())
