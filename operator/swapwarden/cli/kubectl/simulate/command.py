"""`kubectl swap simulate`: what other profiles would do to this cluster, before they are applied."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click

from swapwarden.cli import kubectl
from swapwarden.cli.kubectl import completion, flags
from swapwarden.cli.kubectl.cluster import session
from swapwarden.cli.kubectl.output import tables

EXAMPLES: Final = """\b
Examples:
  kubectl swap simulate -f profile.yaml             who gains or loses swap, and where
  kubectl swap simulate -f profiles/ --delete old   several profiles at once, and one less
  kubectl swap simulate -f profile.yaml -n shop     effects on the pods of a namespace
"""


@click.command("simulate", epilog=EXAMPLES)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE",
    help="File, directory or -: profiles to try. Repeatable.",
)
@click.option("--delete", multiple=True, metavar="NAME", help="Try the removal of this profile. Repeatable.")
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.nodes,
    help="Show only this node. Repeatable.",
)
@click.option("--all", "everything", is_flag=True, help="Also list pods and nodes that stay as they are.")
@flags.selector
@flags.printing
@flags.namespace
@flags.cluster
def command(*, form: tables.Form, target: session.Target, **options: Any) -> None:
    """Show what profiles would do to this cluster, before they are applied."""
    if not options["files"] and not options["delete"]:
        raise click.UsageError("nothing to try: give profiles with -f, or the name of one with --delete")
    if form.output == "name":
        raise click.UsageError("-o name shows too little here: use wide, json or yaml")

    async def work(asked: session.Session) -> None:
        asked.prefetch(*session.EVERYTHING)
        report = await asyncio.to_thread(kubectl.load, "simulate.report")
        await report.run(asked, target, form, **options)

    session.run(target, work)
