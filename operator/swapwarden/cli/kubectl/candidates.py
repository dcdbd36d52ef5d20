"""What may stand for the word that is being completed: names of objects, asked of the API server for a moment only."""

from __future__ import annotations

import asyncio
from typing import Final

import click
import msgspec

from swapwarden.cli.kubectl.cluster import session
from swapwarden.kube import config

WAIT_SECONDS: Final = 2.0
"""Nobody waits longer for the names after a Tab."""
MOST: Final = 500


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


def nodes(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of nodes."""
    return _names(ctx, "nodes", incomplete, namespaced=False)


def pods(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of pods in the namespace that the command is about."""
    return _names(ctx, "pods", incomplete, namespaced=True)


def namespaces(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of namespaces."""
    return _names(ctx, "namespaces", incomplete, namespaced=False)


def contexts(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of contexts in the kubeconfig."""
    try:
        found = config.contexts(ctx.params.get("kubeconfig"))
    except config.ConfigError:
        return []
    return sorted(name for name in found if name.startswith(incomplete))


def _names(ctx: click.Context, plural: str, incomplete: str, *, namespaced: bool) -> list[str]:
    """At most MOST names that begin with what is there; none where they cannot be had in time."""
    given = ctx.params
    target = session.Target(
        given.get("kubeconfig"), given.get("context"), WAIT_SECONDS, given.get("namespace"), interactive=False
    )

    async def work(asked: session.Session) -> list[str]:
        path = asked.namespaced("api/v1", plural, None if namespaced else "")
        async with asyncio.timeout(WAIT_SECONDS):
            found = await asked.collect(path, _Named, limit=MOST)
        return [each.metadata.name for each in found]

    try:
        names = session.run(target, work)
    except (session.Failure, TimeoutError):
        return []
    taken = set(given.get("names") or ())
    return sorted(name for name in names if name.startswith(incomplete) and name not in taken)
