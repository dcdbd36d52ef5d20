"""`kubectl swap simulate` itself: reads profiles and the cluster, plans and prints."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import click
import msgspec

from swapwarden.api import names
from swapwarden.cli import documents
from swapwarden.cli.inputs import objects
from swapwarden.cli.kubectl.cluster import planning, reading, session, snapshot
from swapwarden.cli.kubectl.output import tables
from swapwarden.cli.kubectl.simulate import screen, simulation
from swapwarden.cli.kubectl.simulate.simulation import Direction

BAD_INPUT: Final = 2


def read_profiles(files: list[str]) -> planning.ProfileChange:
    """Return the profiles in files; click.exceptions.Exit with status 2 after printing the errors in them."""
    log = documents.Log()
    found = [one for one in documents.read(files, log) if _is_profile(one, log)]
    read = objects.collect(found, log)
    for note in log.notes:
        click.echo(f"note: {note}", err=True)
    for problem in log.problems:
        click.echo(f"error: {problem}", err=True)
    if files and not found and not log.problems:
        click.echo(f"error: there is no {names.PROFILE_KIND} in {', '.join(files)}", err=True)
        raise click.exceptions.Exit(BAD_INPUT)
    if log.problems:
        raise click.exceptions.Exit(BAD_INPUT)
    return planning.ProfileChange(put=tuple(read.profiles.values()))


def _is_profile(found: documents.Found, log: documents.Log) -> bool:
    version, kind = found.object["apiVersion"], found.object["kind"]
    if kind == names.PROFILE_KIND:
        return True
    log.note(found.place, f"{version} {kind} is ignored: only {names.PROFILE_KIND}s can be simulated")
    return False


async def _gather(
    asked: session.Session, change: planning.ProfileChange, selector: str
) -> tuple[snapshot.ClusterSnapshot, simulation.Simulation, bool, set[simulation.Place] | None]:
    view = await reading.read(asked)
    for needed in ("nodes", "nodeswapprofiles", "pods"):
        if needed in view.unread:
            raise session.ForbiddenError(
                f"without the right to list {needed} nothing can be said: {view.unread[needed]}"
            )
    if not view.installed:
        asked.note(f"this cluster does not know {names.API_VERSION} yet: Swapwarden is not installed")
    if view.pods_of:
        asked.note(f"only pods of namespace {view.pods_of} can be read: others may take a share that is not shown here")
    try:
        result = simulation.simulate(view, change)
        losing = {one.node for one in result.pods if one.direction in screen.LESS}
        used = await reading.used(asked, losing) if losing else None
        if used is not None:
            result = simulation.simulate(view, change, used)
    except planning.UnknownProfileError as error:
        raise session.CommandError(str(error)) from error
    chosen = await reading.labelled(asked, view, selector) if selector else None
    return view, result, used is not None or not losing, chosen


def _changing(result: simulation.Simulation) -> simulation.Simulation:
    """Return the changes only."""
    return msgspec.structs.replace(
        result,
        pods=tuple(one for one in result.pods if one.direction is not Direction.SAME),
        nodes=tuple(one for one in result.nodes if one.changes),
    )


async def run(
    asked: session.Session,
    target: session.Target,
    form: tables.Form,
    *,
    files: Collection[str],
    delete: tuple[str, ...],
    nodes: Collection[str],
    everything: bool,
    selector: str,
) -> None:
    """Read the profiles and the cluster, and print what would become of it."""
    change = msgspec.structs.replace(read_profiles(list(files)), delete=delete)
    view, result, known, chosen = await _gather(asked, change, selector)
    if missing := set(nodes) - view.nodes.keys():
        raise session.CommandError(f"there is no node {', '.join(sorted(missing))}")
    if target.namespace and not target.all_namespaces:
        inside = {(one.namespace, one.name) for one in result.pods if one.namespace == target.namespace}
        chosen = inside if chosen is None else chosen & inside
    result = simulation.only(result, nodes=set(nodes) or None, pods=chosen)
    numbers = screen.summary(result, known=known)
    screen.show(form, result if everything else _changing(result), numbers)
