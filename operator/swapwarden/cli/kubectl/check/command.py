"""`kubectl swap check`: problems of the cluster, or of manifests, each with its remedy."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click

from swapwarden.cli import kubectl
from swapwarden.cli.kubectl import flags
from swapwarden.cli.kubectl.cluster import session
from swapwarden.cli.kubectl.output import tables

EXAMPLES: Final = """\b
Examples:
  kubectl swap check                                  the whole cluster
  kubectl swap check -n shop                          a namespace and its pods
  kubectl swap check -f manifests/ --offline -o json  in CI, without a cluster
"""


@click.command("check", epilog=EXAMPLES)
@click.option(
    "-f", "--filename", "files", multiple=True, metavar="FILE", help="Check manifests in this file, directory or -."
)
@click.option("--offline", is_flag=True, help="With -f: ask no cluster, and judge by the files alone.")
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning"]),
    default="error",
    help="Lowest severity that makes the exit status 1. Default: error.",
)
@click.option(
    "--patience",
    type=flags.Seconds(zero=0.0),
    default=10.0,
    metavar="TIME",
    help="How long agents may take to report the newest plan. Default: 10s.",
)
@click.option(
    "--try-admission",
    is_flag=True,
    help="Also ask for a pod in the namespace, in a dry run that keeps nothing: whether admission answers.",
)
@flags.printing
@flags.namespace
@flags.cluster
def command(*, offline: bool, form: tables.Form, target: session.Target, **options: Any) -> int:
    """Find problems with their remedies: in the cluster, or in manifests before they are applied.

    Exit status: 0 if all is well, 1 if there are problems, 2 if not all could be looked at.
    """
    if offline and not options["files"]:
        raise click.UsageError("--offline needs manifests: give them with -f")
    if options["try_admission"] and options["files"]:
        raise click.UsageError("--try-admission tests the cluster as it is: omit -f")
    if form.output == "name":
        raise click.UsageError("-o name shows too little here: use wide, json or yaml")
    if offline:
        offline_status: int = asyncio.run(kubectl.load("check.report").run(None, target, form, **options))
        return offline_status

    async def work(asked: session.Session) -> int:
        # Manifests are judged by the cluster's profiles and nodes, not by its pods.
        asked.prefetch(*(path for path in session.EVERYTHING if not options["files"] or path != session.PODS))
        report = await asyncio.to_thread(kubectl.load, "check.report")
        status: int = await report.run(asked, target, form, **options)
        return status

    return session.run(target, work)
