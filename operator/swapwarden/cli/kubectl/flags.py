"""Flags that commands share, under kubectl's names."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from swapwarden.cli.kubectl import completion
from swapwarden.cli.kubectl.cluster import connection, session
from swapwarden.cli.kubectl.output import tables

Command = Callable[..., Any]

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
FOREVER: Final = 24 * 3600.0
"""One day: without a limit, nobody waits longer."""
_WISHES: Final = dataclasses.fields(connection.Wishes)
_NUMBER: Final = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_PART: Final = re.compile(f"({_NUMBER})(ms|s|m|h|)", re.ASCII)
_DURATION: Final = re.compile(f"{_NUMBER}|(?:{_NUMBER}(?:ms|s|m|h))+", re.ASCII)


class Seconds(click.ParamType[float]):
    """A time as kubectl takes it: 10s, 1m30s, 2 (seconds)."""

    name = "duration"

    def __init__(self, zero: float | None = None) -> None:
        """`zero` is what 0 stands for; None refuses it."""
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        if not _DURATION.fullmatch(value):
            self.fail(f"{value!r} is no time such as 10s, 500ms or 1m30s", param, ctx)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value)) or self._zero
        if seconds is None:
            self.fail("0 is too short: give a time such as 10s or 500ms", param, ctx)
        return seconds


def cluster(function: Command) -> Command:
    """Add --kubeconfig, --context, --request-timeout and --as; the command gets them as `target`.

    Those that kubectl itself lists under `kubectl options` only, and that few need, are taken and not listed.
    """

    @click.option(
        "--kubeconfig",
        type=click.Path(),
        metavar="FILE",
        help="Kubeconfig to use instead of $KUBECONFIG or ~/.kube/config.",
    )
    @click.option(
        "--context",
        metavar="NAME",
        shell_complete=completion.contexts,
        help="Context of the kubeconfig to use instead of the current one.",
    )
    @click.option(
        "--request-timeout",
        type=Seconds(zero=FOREVER),
        default=session.REQUEST_SECONDS,
        metavar="TIME",
        help="How long to wait for each answer: 10s, 1m; 0 for no limit. Default: 30s.",
    )
    @click.option("--as", "impersonate", default="", metavar="USER", help="User to impersonate.")
    @click.option(
        "--as-group",
        "impersonate_groups",
        multiple=True,
        metavar="GROUP",
        help="Group to impersonate, with --as. Repeatable.",
    )
    @click.option("--as-uid", "impersonate_uid", default="", metavar="UID", hidden=True)
    @click.option("--cluster", default="", metavar="NAME", hidden=True)
    @click.option("--user", default="", metavar="NAME", hidden=True)
    @click.option("-s", "--server", default="", metavar="URL", hidden=True)
    @click.option("--token", default="", metavar="TOKEN", hidden=True)
    @click.option("--insecure-skip-tls-verify", "insecure", is_flag=True, hidden=True)
    @functools.wraps(function)
    def wrapped(
        *,
        kubeconfig: str | None,
        context: str | None,
        request_timeout: float,
        namespace: str | None = None,
        all_namespaces: bool = False,
        **others: Any,
    ) -> Any:
        wishes = connection.Wishes(**{field.name: others.pop(field.name) for field in _WISHES})
        target = session.Target(kubeconfig, context, request_timeout, namespace, all_namespaces, wishes)
        return function(target=target, **others)

    return wrapped


own_namespace: Final = click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    shell_complete=completion.namespaces,
    # A short flag's value also as in -n=shop, which kubectl takes.
    callback=lambda _ctx, _param, value: value if value is None else value.removeprefix("="),
    help="Namespace instead of the context's.",
)
"""-n, which becomes part of `target`: put it above cluster()."""


def namespace(function: Command) -> Command:
    """Add -n and -A, which become part of `target`: put it above cluster()."""
    return own_namespace(click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")(function))


def refuse_both(names: Sequence[str], selector: str) -> None:
    """Refuse names of objects beside a selector of them."""
    if names and selector:
        raise click.UsageError("give names or a selector, not both")


selector: Final = click.option(
    "-l", "--selector", default="", metavar="SELECTOR", help="Only objects with these labels: pool=batch,tier!=web."
)
color: Final = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="auto: on a terminal, unless NO_COLOR is set. Default: auto.",
)


def printing(function: Command) -> Command:
    """Add -o, --no-headers and --color; the command gets them as `form`."""

    @click.option(
        "-o", "--output", type=click.Choice(list(tables.FORMATS)), help="More columns, or another form than a table."
    )
    @click.option("--no-headers", is_flag=True, help="Omit the line of headers.")
    @color
    @functools.wraps(function)
    def wrapped(*, output: str | None, no_headers: bool, color: str, **others: Any) -> Any:
        return function(form=tables.Form(output or "", headers=not no_headers, color=color), **others)

    return wrapped
