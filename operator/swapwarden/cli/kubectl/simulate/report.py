"""What `kubectl swap simulate` does: what other profiles would do to this cluster, before they are applied."""

from __future__ import annotations

import collections
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import click
import msgspec

from swapwarden.api import names
from swapwarden.cli import documents
from swapwarden.cli.inputs import objects
from swapwarden.cli.kubectl.cluster import planning, reading, session, snapshot
from swapwarden.cli.kubectl.output import sizes, tables
from swapwarden.cli.kubectl.simulate import simulation
from swapwarden.cli.kubectl.simulate.simulation import Direction

BAD_INPUT: Final = 2
_STYLES: Final = {Direction.GAINS: "green", Direction.LOSES: "red", Direction.UNKNOWN: "yellow", Direction.SAME: ""}
LESS: Final = frozenset({Direction.LOSES, Direction.UNKNOWN})
"""Directions in which a pod may come to use more than it is to have."""
_WAVES: Final = 3
"""How many waves are told one by one."""
_NAMED: Final = 5
"""How many nodes of a wave are named."""


class NodeLine(msgspec.Struct, frozen=True):
    """A node with the number of its pods in each direction."""

    change: simulation.NodeChange
    counts: dict[Direction, int]
    above: int | None
    """Pods that use more than they would get; None where it is of no pod that would get less known what it uses."""


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _swap(given: simulation.SimulatedLimit) -> str:
    limit = given.bytes
    if limit is None:
        return tables.UNKNOWN
    return names.MAX_SWAP if limit == float("inf") else sizes.rounded(int(limit))


def _reason(given: simulation.SimulatedLimit) -> str:
    reason = given.reason or tables.UNKNOWN
    place = "" if given.override is None else f" (overrides[{given.override}])"
    return f"{reason}{place}{' (Audit)' if given.audit else ''}"


PODS: Final[tuple[tables.Column[simulation.PodChange], ...]] = (
    tables.Column("NAMESPACE", lambda one: one.namespace),
    tables.Column("POD", lambda one: one.name),
    tables.Column("NODE", lambda one: one.node),
    tables.Column("CHANGE", lambda one: tables.Cell(one.direction, _STYLES[one.direction])),
    tables.Column("SWAP", lambda one: _change(_swap(one.before), _swap(one.after))),
    tables.Column("REASON", lambda one: _change(_reason(one.before), _reason(one.after))),
    tables.Column("USED", lambda one: sizes.rounded(one.used), right=True),
    tables.Column("ABOVE", lambda one: tables.Cell(_above(one), "bold red" if one.above else ""), right=True),
    tables.Column("PROFILE", lambda one: _change(one.before.profile, one.after.profile), wide=True),
)


def _above(one: simulation.PodChange) -> str:
    return tables.UNKNOWN if one.used is None else sizes.rounded(one.above)


NODES: Final[tuple[tables.Column[NodeLine], ...]] = (
    tables.Column("NODE", lambda row: row.change.node),
    tables.Column("PROFILE", lambda row: _change(row.change.before.name, row.change.after.name)),
    tables.Column("BEHAVIOR", lambda row: _change(row.change.before.behavior, row.change.after.behavior)),
    tables.Column("GAIN", lambda row: str(row.counts[Direction.GAINS]), right=True),
    tables.Column("LOSE", lambda row: str(row.counts[Direction.LOSES]), right=True),
    tables.Column("SAME", lambda row: str(row.counts[Direction.SAME]), right=True),
    tables.Column("ABOVE", lambda row: tables.UNKNOWN if row.above is None else str(row.above), right=True),
    tables.Column("SETTINGS", lambda row: "; ".join(_settings(row.change)) or tables.NONE, wide=True),
)


def _settings(change: simulation.NodeChange) -> Iterator[str]:
    for name, (before, after) in change.settings.items():
        yield f"{name}: {_change(before or tables.NONE, after or tables.NONE)}"
    if change.swap_label[0] != change.swap_label[1]:
        yield f"label {names.SWAP_LABEL}: {_change(*('true' if one else tables.NONE for one in change.swap_label))}"


def _rows(result: simulation.Simulation) -> list[NodeLine]:
    counts: dict[str, collections.Counter[Direction]] = collections.defaultdict(collections.Counter)
    less: dict[str, list[simulation.PodChange]] = collections.defaultdict(list)
    for one in result.pods:
        counts[one.node][one.direction] += 1
        if one.direction in LESS:
            less[one.node].append(one)
    return [NodeLine(one, dict(_every(counts[one.node])), _number_above(less[one.node])) for one in result.nodes]


def _number_above(less: Collection[simulation.PodChange]) -> int | None:
    if less and all(one.used is None for one in less):
        return None
    return sum(one.above > 0 for one in less)


def _every(counted: collections.Counter[Direction]) -> Iterator[tuple[Direction, int]]:
    for direction in Direction:
        yield direction, counted[direction]


def summary(result: simulation.Simulation, *, known: bool) -> dict[str, Any]:
    """The numbers that come first. `known`: whether agents told what is in use."""
    counted = collections.Counter(one.direction for one in result.pods)
    above = [one.above for one in result.pods if one.above]
    return {
        "pods": {direction.value.lower(): number for direction, number in _every(counted)},
        "above": {"pods": len(above), "bytes": sum(above)} if known else None,
        "nodes": {
            "profile": sum(one.changes_profile for one in result.nodes),
            "version": sum(one.changes and not one.changes_profile for one in result.nodes),
            "same": sum(not one.changes for one in result.nodes),
        },
    }


def told(numbers: dict[str, Any]) -> Iterator[str]:
    """The summary as sentences."""
    pods, nodes, above = numbers["pods"], numbers["nodes"], numbers["above"]
    unknown = f", {pods['unknown']} cannot be told" if pods["unknown"] else ""
    yield f"Pods: {pods['gains']} gain swap, {pods['loses']} lose, {pods['same']} stay as they are{unknown}."
    yield (
        f"Nodes: {nodes['profile']} get another profile, {nodes['version']} another version of theirs,"
        f" {nodes['same']} stay as they are."
    )
    if above is None:
        if pods["loses"]:
            yield "Whether pods use more swap than they would get is not known."
    elif above["pods"]:
        yield (
            f"{tables.count(above['pods'], 'pod uses', 'pods use')} {sizes.rounded(above['bytes'])} of swap more than"
            " they would get: that stays until it is free, and can grow little."
        )


def waves(one: simulation.SimulatedRollout) -> Iterator[str]:
    """A rollout as sentences."""
    total = sum(len(wave.nodes) for wave in one.waves)
    if one.at_once:
        number = tables.count(len(one.at_once), "node")
        yield f"{number} without an agent at once, which does nothing there: {_some(one.at_once)}"
    if total:
        yield f"{tables.count(total, 'node')} in {tables.count(len(one.waves), 'wave')}, at most {one.most} at a time"
    for place, wave in enumerate(one.waves[:_WAVES], 1):
        yield f"wave {place}: {_some(wave.nodes)}"
    if len(one.waves) > _WAVES:
        yield f"and {len(one.waves) - _WAVES} more"
    if one.held:
        yield f"held, because pods there would lose swap that they use: {_some(one.held)}"
    if one.left:
        blame = f" while these do worse than before: {_some(one.stopped_by)}" if one.stopped_by else ""
        yield f"{tables.count(len(one.left), 'node')} would not get it{blame}"


def _some(nodes: Collection[str]) -> str:
    rest = len(nodes) - _NAMED
    return ", ".join(list(nodes)[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def document(result: simulation.Simulation, numbers: dict[str, Any]) -> dict[str, Any]:
    """All of it, as JSON and YAML have it; sizes in bytes."""
    return {
        "summary": numbers,
        "pods": [_pod(one) for one in result.pods],
        "nodes": [_node(row) for row in _rows(result)],
        "rollouts": [msgspec.to_builtins(one) for one in result.rollouts],
        "notes": list(result.notes),
    }


def _pod(one: simulation.PodChange) -> dict[str, Any]:
    return {
        "namespace": one.namespace,
        "name": one.name,
        "node": one.node,
        "change": one.direction.value,
        "before": _given(one.before),
        "after": _given(one.after),
        "usedBytes": one.used,
        "aboveBytes": None if one.used is None else one.above,
    }


def _given(given: simulation.SimulatedLimit) -> dict[str, Any]:
    limit = given.bytes
    most = None if limit is None else names.MAX_SWAP if limit == float("inf") else str(int(limit))
    return {**msgspec.to_builtins(given), "most": most}


def _node(row: NodeLine) -> dict[str, Any]:
    change = row.change
    return {
        "name": change.node,
        "before": _governed(change.before),
        "after": _governed(change.after),
        "pods": {direction.value.lower(): number for direction, number in row.counts.items()},
        "podsAbove": row.above,
        "settings": {name: list(values) for name, values in change.settings.items()},
        "givesSwap": list(change.swap_label),
        "conflicts": list(change.conflicts),
    }


def _governed(profile: Any) -> dict[str, Any]:
    return {"profile": profile.name, "generation": profile.generation, "behavior": profile.behavior.value}


def show(form: tables.Form, result: simulation.Simulation, numbers: dict[str, Any]) -> None:
    """Print it: the summary, notes, then a table of pods, one of nodes, and rollouts."""
    if form.output in {"json", "yaml"}:
        sys.stdout.write(tables.serialized(form.output, document(result, numbers)))
        return
    for line in (*told(numbers), *(f"Note: {note}." for note in result.notes)):
        print(tables.clean(line))
    coloured = form.is_coloured(sys.stdout)
    if result.pods:
        print()
        chosen = [column for column in PODS if form.output == "wide" or not column.wide]
        sys.stdout.write(tables.table(form, result.pods, chosen, coloured=coloured))
    if result.nodes:
        print()
        rows = _rows(result)
        sys.stdout.write(
            tables.table(
                form, rows, [column for column in NODES if form.output == "wide" or not column.wide], coloured=coloured
            )
        )
    for one in result.rollouts:
        print(f"\nRollout of {tables.clean(one.profile)}:")
        for line in waves(one):
            print(f"  {tables.clean(line)}")


def read_profiles(files: list[str]) -> planning.ProfileChange:
    """The profiles in files; click.exceptions.Exit with status 2 where something is wrong in them, which is told."""
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
    log.note(found.place, f"{version} {kind} is passed over: only {names.PROFILE_KIND}s can be tried out")
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
        asked.note(f"only pods of namespace {view.pods_of} can be read: others may take a share that is not seen here")
    try:
        result = simulation.simulate(view, change)
        losing = {one.node for one in result.pods if one.direction in LESS}
        used = await reading.used(asked, losing) if losing else None
        if used is not None:
            result = simulation.simulate(view, change, used)
    except planning.UnknownProfileError as error:
        raise session.CommandError(str(error)) from error
    chosen = await reading.labelled(asked, view, selector) if selector else None
    return view, result, used is not None or not losing, chosen


def _of_namespace(result: simulation.Simulation, namespace: str) -> set[simulation.Place]:
    return {(one.namespace, one.name) for one in result.pods if one.namespace == namespace}


def _changing(result: simulation.Simulation) -> simulation.Simulation:
    """Without what stays as it is."""
    return msgspec.structs.replace(
        result,
        pods=tuple(one for one in result.pods if one.direction is not Direction.SAME),
        nodes=tuple(one for one in result.nodes if one.changes),
    )


def _missing(chosen: Iterable[str], view: snapshot.ClusterSnapshot) -> str:
    return ", ".join(sorted(set(chosen) - view.nodes.keys()))


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
    if missing := _missing(nodes, view):
        raise session.CommandError(f"there is no node {missing}")
    if target.namespace and not target.all_namespaces:
        inside = _of_namespace(result, target.namespace)
        chosen = inside if chosen is None else chosen & inside
    result = simulation.only(result, nodes=set(nodes) or None, pods=chosen)
    numbers = summary(result, known=known)
    show(form, result if everything else _changing(result), numbers)
