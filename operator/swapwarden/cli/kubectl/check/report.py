"""`kubectl swap check` itself: reads, judges and prints problems of the cluster, or of manifests."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import sys
import time
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from swapwarden.api import names
from swapwarden.cli import documents, objects, wire
from swapwarden.cli.kubectl.check import catalogue, installation, manifests, problems
from swapwarden.cli.kubectl.check.catalogue import ClusterProblem, Severity
from swapwarden.cli.kubectl.cluster import agents, reading, session, snapshot
from swapwarden.cli.kubectl.output import tables

FOUND: Final = 1
UNREAD: Final = 2
"""Exit status where not all could be looked at, and what could is well."""
SHOWN: Final = 10
"""Objects of one kind of problem that a table has; JSON and YAML have all."""

_STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow"}
_RIGHTS: Final = f"; {session.RIGHTS}"
"""Printed once, not for each resource."""
_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

T = TypeVar("T")


class CheckReport(msgspec.Struct, frozen=True):
    """The problems, and the resources that could not be read."""

    problems: Sequence[ClusterProblem]
    unread: dict[str, str]
    """Why a collection could not be read, by its plural."""

    def status(self, fail_on: Severity) -> int:
        """Return the exit status."""
        counted = {Severity.ERROR, fail_on}
        if any(one.severity in counted for one in self.problems):
            return FOUND
        return UNREAD if self.unread else 0


def summary(report: CheckReport) -> dict[str, int]:
    """Return the number of problems by severity, and of unread resources."""
    counts = {
        f"{severity.value.lower()}s": sum(one.severity is severity for one in report.problems) for severity in Severity
    }
    return {**counts, "notLookedAt": len(report.unread)}


def show(form: tables.Form, report: CheckReport) -> None:
    """Print it: the numbers first, then problems of one kind and remedy together."""
    if form.output in {"json", "yaml"}:
        document = {
            "summary": summary(report),
            "problems": msgspec.to_builtins(list(report.problems)),
            "notLookedAt": report.unread,
        }
        sys.stdout.write(tables.serialized(form.output, document))
        return
    for line in _lines(report, coloured=form.is_coloured(sys.stdout), most=None if form.output == "wide" else SHOWN):
        print(line)


def _lines(report: CheckReport, *, coloured: bool, most: int | None) -> Iterator[str]:
    counted = summary(report)
    yield f"{tables.count(counted['errors'], 'error')}, {tables.count(counted['warnings'], 'warning')}."
    for plural, why in sorted(report.unread.items()):
        yield tables.clean(f"Not looked at: {plural}: {why.removesuffix(_RIGHTS)}")
    if any(why.endswith(_RIGHTS) for why in report.unread.values()):
        yield f"({session.RIGHTS})"

    def kind(one: ClusterProblem) -> tuple[Any, ...]:
        return one.severity, one.check, one.reason, one.remedy

    for (severity, check, reason, remedy), group in itertools.groupby(report.problems, kind):
        problems_of_kind = list(group)
        title = f"{check}: {reason}" if reason != check else str(check)
        word = tables.painted(tables.Cell(severity, _STYLES[severity]), coloured=coloured)
        yield ""
        yield f"{word}  {tables.clean(title)}{f' ({len(problems_of_kind)})' if len(problems_of_kind) > 1 else ''}"
        for one in problems_of_kind[:most]:
            yield f"  {tables.clean(f'{one.object}: {one.message}')}"
        if most is not None and len(problems_of_kind) > most:
            yield f"  and {len(problems_of_kind) - most} more (-o wide, json and yaml have all)"
        yield f"  -> {tables.clean(remedy)}"


# Reading


async def _all(asked: session.Session, patience: float, *, try_admission: bool) -> CheckReport:
    unread: dict[str, str] = {}
    tried = installation.try_admission(asked, asked.own_namespace) if try_admission else asyncio.sleep(0)
    view, installed, trial = await asyncio.gather(reading.read(asked), _installed(asked, unread), tried)
    if isinstance(trial, str):
        unread["admission"] = trial
    now = datetime.datetime.now(datetime.UTC)
    behind = await _behind(asked, view, patience)
    every = [*installation.judge(installed, view, now), *problems.live(view, behind)]
    every += [trial] if isinstance(trial, ClusterProblem) else []
    if view.pods_of:
        unread["pods"] = f"only those of namespace {view.pods_of} may be read"
    return CheckReport(catalogue.worst_first(every), {**view.unread, **unread})


async def _installed(asked: session.Session, unread: dict[str, str]) -> installation.Installed:
    async def read(plural: str, request: Awaitable[list[T]]) -> list[T] | None:
        try:
            return await request
        except session.ForbiddenError as error:
            unread[plural] = error.message
            return None
        except session.NotFoundError:
            return []

    def listed(plural: str, kind: type[T]) -> Awaitable[list[T] | None]:
        return read(plural, asked.collect(f"{session.REGISTRATION}/{plural}", kind))

    made = installation.Installed(
        *await asyncio.gather(
            read("customresourcedefinitions", _crds(asked)),
            listed("mutatingwebhookconfigurations", installation.Webhook),
            listed("mutatingadmissionpolicies", wire.Named),
            listed("validatingadmissionpolicies", wire.Named),
            listed("validatingadmissionpolicybindings", installation.Specified),
            read("leases", _leases(asked)),
        )
    )
    made.own_crds = msgspec.convert(installation.own_definitions(), list[installation.Specified])
    return made


async def _crds(asked: session.Session) -> list[installation.Specified]:
    """Read the product's definitions only: a cluster can have hundreds, which take megabytes."""
    definitions: list[installation.Specified] = []
    for plural in (names.PROFILE_PLURAL, names.STATE_PLURAL):
        # An invalid answer ends the command: it does not show that there is none.
        with contextlib.suppress(session.NotFoundError):
            definitions.append(await asked.get(f"{_CRDS}/{plural}.{names.GROUP}", installation.Specified))
    return definitions


async def _leases(asked: session.Session) -> list[installation.LeaderLease]:
    path, chosen = "/apis/coordination.k8s.io/v1/leases", f"metadata.name={installation.LEASE}"
    try:
        return await asked.collect(path, installation.LeaderLease, fields=chosen)
    except session.ForbiddenError:
        path = asked.namespaced("apis/coordination.k8s.io/v1", "leases", agents.NAMESPACE)
        return await asked.collect(path, installation.LeaderLease, fields=chosen)


async def _behind(asked: session.Session, view: snapshot.ClusterSnapshot, patience: float) -> set[str]:
    """Return nodes whose agents do not report the newest generation within `patience` seconds."""
    waited = problems.lagging(view)
    until = time.monotonic() + patience
    while waited and time.monotonic() < until:
        await asyncio.sleep(min(1.0, patience))
        again = await reading.read(asked, ["nodeswapstates"])
        waited = {
            name: generation
            for name, generation in waited.items()
            if name in again.states and again.states[name].observed < generation
        }
    return set(waited)


async def _for_manifests(asked: session.Session, read: list[documents.Found]) -> CheckReport:
    view = await reading.read(asked, ["nodes", "namespaces", "nodeswapprofiles", "nodeswapstates"])
    if not view.installed:
        asked.note(f"this cluster does not know {names.API_VERSION}: effects are not judged, only the manifests")
    every = manifests.judge(read, view, asked.namespace or objects.DEFAULT_NAMESPACE)
    return CheckReport(catalogue.worst_first(every), view.unread)


def _of_namespace(report: CheckReport, namespace: str) -> CheckReport:
    """Return the problems of a namespace and its pods."""
    chosen = f"namespace/{namespace}"
    inside = [one for one in report.problems if one.object == chosen or one.object.startswith(f"pod/{namespace}/")]
    relevant = {"admission", "pods", "namespaces", "nodes", names.PROFILE_PLURAL, names.STATE_PLURAL}
    return CheckReport(inside, {plural: why for plural, why in report.unread.items() if plural in relevant})


async def run(
    asked: session.Session | None,
    target: session.Target,
    form: tables.Form,
    *,
    files: Sequence[str],
    fail_on: str,
    patience: float,
    try_admission: bool,
) -> int:
    """Look at the cluster, or at manifests, and print the problems; the exit status. Without `asked`, no cluster is."""
    log = documents.Log()
    read = list(documents.read(list(files), log))
    if asked is None:
        report = CheckReport(catalogue.worst_first(manifests.judge(read, None, target.namespace or "default")), {})
    elif files:
        report = await _for_manifests(asked, read)
    else:
        report = await _all(asked, patience, try_admission=try_admission)
        if target.namespace and not target.all_namespaces:
            report = _of_namespace(report, target.namespace)
    if log.problems:
        unusable = {str(message.place): message.text for message in log.problems}
        report = CheckReport(report.problems, {**report.unread, **unusable})
    show(form, report)
    return report.status(Severity(fail_on.capitalize()))
