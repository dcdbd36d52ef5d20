"""`kubectl swap explain`: why a pod has its swap limit, or has none, and whether the kernel holds it."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from swapwarden.cli import kubectl
from swapwarden.cli.kubectl import completion, flags
from swapwarden.cli.kubectl.cluster import session
from swapwarden.cli.kubectl.output import tables
from swapwarden.policy.observed.pods import WirePod

EXAMPLES: Final = """\b
Examples:
  kubectl swap explain report-7c9f-x2x4q -n batch
  kubectl swap explain report-7c9f-x2x4q -n batch -o yaml
"""
_PREFIXES: Final = ("pod/", "pods/", "po/")


async def _pod(asked: session.Session, name: str) -> WirePod:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    path = asked.namespaced("api/v1", "pods")
    if "/" in name:
        raise click.UsageError(f"{name!r} is no pod: give the name of one (kubectl get pods -n {asked.namespace})")
    try:
        return await asked.get(f"{path}/{session.quote(name)}", WirePod)
    except session.NotFoundError as error:
        raise session.NotFoundError(
            f"{error.message} in namespace {asked.namespace}; see kubectl get pods -n {asked.namespace}"
        ) from error


@click.command("explain", epilog=EXAMPLES)
@click.argument("pod", shell_complete=completion.pods)
@flags.own_namespace
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", help="Output format. Default: text."
)
@flags.color
@flags.cluster
def command(*, pod: str, output: str, color: str, target: session.Target) -> None:
    """Explain why a pod has its swap limit, or has none, and whether the kernel holds it."""

    async def work(asked: session.Session) -> None:
        read = await _pod(asked, pod)
        # Only now: this takes longer to load than the cluster to answer, and a mistyped name waits for neither.
        report = await asyncio.to_thread(kubectl.load, "explain.report")
        await report.run(asked, read, output, tables.Form(color=color))

    session.run(target, work)
