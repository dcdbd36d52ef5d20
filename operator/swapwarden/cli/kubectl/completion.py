"""The program kubectl_complete-swap, which kubectl's own completion runs: candidates for the word being typed.

Names of objects are asked of the API server, for a moment only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import click
import msgspec
from click import shell_completion

from swapwarden.api import decoding
from swapwarden.cli.kubectl.cluster import session
from swapwarden.kube import errors, kubeconfig

WAIT_SECONDS: Final = 2.0
"""Nobody waits longer for the names after a Tab."""
MOST: Final = 500

# Completion directives of cobra (https://pkg.go.dev/github.com/spf13/cobra#ShellCompDirective).
_DEFAULT: Final = 0
"""Complete file names if there is no other candidate."""
_NO_FILES: Final = 4

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def answer(root: click.Command, words: Sequence[str]) -> str:
    """Return the output of kubectl_complete-swap: candidates, each with a description after a tab, and a directive.

    `words` are those after `kubectl swap`; the last one is completed (k/k: plugin_completion.go of kubectl).
    """
    *before, incomplete = words or [""]
    shell = shell_completion.ShellComplete(root, {}, "kubectl swap", "")
    candidates = shell.get_completions(list(before), incomplete)
    files = any(item.type != "plain" for item in candidates)
    lines = [_line(item) for item in candidates if item.type == "plain"]
    return "".join(f"{line}\n" for line in [*lines, f":{_DEFAULT if files else _NO_FILES}"])


def _line(item: shell_completion.CompletionItem[str]) -> str:
    summary = (item.help or "").partition("\n")[0].strip()
    return f"{item.value}\t{summary}" if summary else item.value


def contexts(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return names of contexts in the kubeconfig."""
    try:
        known = kubeconfig.Kubeconfig(kubeconfig.files(ctx.params.get("kubeconfig"))).names("contexts")
    except errors.ConfigError:
        return []
    return sorted(name for name in known if name.startswith(incomplete))


def _names(plural: str, *, namespaced: bool = False) -> Complete:
    """Return at most MOST names that begin with the word; none if the API server does not answer in time."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        given = ctx.params
        target = session.Target(
            given.get("kubeconfig"), given.get("context"), WAIT_SECONDS, given.get("namespace"), interactive=False
        )

        async def work(asked: session.Session) -> list[str]:
            path = asked.namespaced("api/v1", plural, None if namespaced else "")
            async with asyncio.timeout(WAIT_SECONDS):
                page = decoding.page(await asked.body(path, {"limit": str(MOST)}))
            return [decoding.identity(item).name for item in page.items or ()]

        try:
            names = session.run(target, work)
        except (session.CommandError, msgspec.DecodeError, TimeoutError):
            return []
        taken = set(given.get("names") or ())
        return sorted(name for name in names if name.startswith(incomplete) and name not in taken)

    return complete


nodes: Final = _names("nodes")
pods: Final = _names("pods", namespaced=True)
"""Pods of the namespace that the command is about."""
namespaces: Final = _names("namespaces")
