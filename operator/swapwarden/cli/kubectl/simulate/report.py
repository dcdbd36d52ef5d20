"""`kubectl swap simulate` itself: reads profiles and the cluster, plans, and prints what differs."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import click
import msgspec

from swapwarden.api import names, sizes
from swapwarden.cli import documents, objects
from swapwarden.cli.kubectl.cluster import reading, session, snapshot
from swapwarden.cli.kubectl.output import tables
from swapwarden.cli.kubectl.simulate import simulation
from swapwarden.cli.kubectl.simulate.simulation import Direction

BAD_INPUT: Final = 2
_STYLES: Final = {Direction.GAINS: "green", Direction.LOSES: "red", Direction.UNKNOWN: "yellow", Direction.SAME: ""}
LESS: Final = frozenset({Direction.LOSES, Direction.UNKNOWN})
"""Directions in which a pod may use more than its new limit."""
_WAVES: Final = 3
"""How many waves are listed one by one."""
USE_UNKNOWN: Final = "Whether pods use more swap than they would get is not known."


class NodeLine(msgspec.Struct, frozen=True):
    """A node with the number of its pods in each direction."""

    change: simulation.NodeChange
    counts: collections.Counter[Direction]
    above: int | None
    """Pods that use more than they would get; None if no pod's usage is known that would get less."""


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _why(one: simulation.PodChange, reason: Callable[[simulation.SimulatedMemory], str]) -> str:
    """Return the change of a reason about memory; there is none where nobody asks for memory QoS."""
    return _change(*(reason(each.memory) or tables.NONE for each in (one.before, one.after)))


def _most(given: simulation.SimulatedLimit, shown: Callable[[int], str]) -> str | None:
    """Return the most that the pod can use; None if unknown."""
    limit = given.bytes
    return None if limit is None else names.MAX_SWAP if limit == float("inf") else shown(int(limit))


def _swap(given: simulation.SimulatedLimit) -> str:
    return _most(given, sizes.rounded) or tables.UNKNOWN


def _reason(given: simulation.SimulatedLimit) -> str:
    place = "" if given.override is None else f" (overrides[{given.override}])"
    return f"{given.reason or tables.UNKNOWN}{place}{' (Audit)' if given.audit else ''}"


def _above(one: simulation.PodChange) -> tables.Cell:
    return tables.Cell(
        tables.UNKNOWN if one.used is None else sizes.rounded(one.above), "bold red" if one.above else ""
    )


PODS: Final[tuple[tables.Column[simulation.PodChange], ...]] = (
    tables.Column("NAMESPACE", lambda one: one.namespace),
    tables.Column("POD", lambda one: one.name),
    tables.Column("NODE", lambda one: one.node),
    tables.Column("CHANGE", lambda one: tables.Cell(one.direction, _STYLES[one.direction])),
    tables.Column("SWAP", lambda one: _change(_swap(one.before), _swap(one.after))),
    tables.Column("REASON", lambda one: _change(_reason(one.before), _reason(one.after))),
    tables.Column("USED", lambda one: tables.size(one.used), right=True),
    tables.Column("ABOVE", _above, right=True),
    tables.Column("PROFILE", lambda one: _change(one.before.profile, one.after.profile), wide=True),
)


MEMORY: Final[tuple[tables.Column[simulation.PodChange], ...]] = (
    tables.Column("MEMORY.LOW", lambda one: _change(one.before.memory.protected, one.after.memory.protected)),
    tables.Column("PROTECTION", lambda one: _why(one, lambda memory: memory.protection_reason), wide=True),
    tables.Column("MEMORY.HIGH", lambda one: _change(one.before.memory.throttled, one.after.memory.throttled)),
    tables.Column("THROTTLING", lambda one: _why(one, lambda memory: memory.throttling_reason), wide=True),
)
"""Only if the plan of a pod has memory QoS."""


def _reclaim(given: simulation.SimulatedLimit) -> str:
    """Return the mode with its reason."""
    return tables.NONE if given.reclaim is None else f"{given.reclaim.mode} ({given.reclaim.reason})"


RECLAIM: Final[tuple[tables.Column[simulation.PodChange], ...]] = (
    tables.Column("RECLAIM", lambda one: _change(_reclaim(one.before), _reclaim(one.after))),
)
"""Only if a profile offers reclaim, or a pod asks for it."""

NODES: Final[tuple[tables.Column[NodeLine], ...]] = (
    tables.Column("NODE", lambda row: row.change.node),
    tables.Column("PROFILE", lambda row: _change(row.change.before.name, row.change.after.name)),
    tables.Column("BEHAVIOR", lambda row: _change(row.change.before.swap.behavior, row.change.after.swap.behavior)),
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


def _rows(result: simulation.Simulation) -> Iterator[NodeLine]:
    by_node = collections.defaultdict[str, list[simulation.PodChange]](list)
    for one in result.pods:
        by_node[one.node].append(one)
    for change in result.nodes:
        changes = by_node[change.node]
        less = [one for one in changes if one.direction in LESS]
        unknown = bool(less) and all(one.used is None for one in less)
        counts = collections.Counter(one.direction for one in changes)
        yield NodeLine(change, counts, None if unknown else sum(one.above > 0 for one in less))


def _by_direction(counts: collections.Counter[Direction]) -> dict[str, int]:
    return {direction.value.lower(): counts[direction] for direction in Direction}


def summary(result: simulation.Simulation, *, known: bool) -> dict[str, Any]:
    """Return the numbers at the top. `known`: whether agents reported swap in use."""
    above = [one.above for one in result.pods if one.above]
    return {
        "pods": _by_direction(collections.Counter(one.direction for one in result.pods)),
        "above": {"pods": len(above), "bytes": sum(above)} if known else None,
        "memory": {
            "protection": sum(one.protection_changes for one in result.pods),
            "throttling": sum(one.throttling_changes for one in result.pods),
        },
        "reclaim": sum(one.reclaim_changes for one in result.pods),
        "nodes": {
            "profile": sum(one.changes_profile for one in result.nodes),
            "version": sum(one.changes and not one.changes_profile for one in result.nodes),
            "same": sum(not one.changes for one in result.nodes),
        },
    }


def sentences(numbers: dict[str, Any]) -> Iterator[str]:
    """Yield the summary as sentences."""
    pods, nodes, above = numbers["pods"], numbers["nodes"], numbers["above"]
    unknown = f", {pods['unknown']} unknown" if pods["unknown"] else ""
    yield f"Pods: {pods['gains']} gain swap, {pods['loses']} lose, {pods['same']} stay as they are{unknown}."
    other = numbers["memory"]
    if any(other.values()):
        yield f"Memory: {other['protection']} pods get another protection, {other['throttling']} another memory.high."
    if numbers["reclaim"]:
        yield f"Reclaim: {tables.count(numbers['reclaim'], 'pod gets', 'pods get')} another mode."
    yield (
        f"Nodes: {nodes['profile']} get another profile, {nodes['version']} another version of theirs,"
        f" {nodes['same']} stay as they are."
    )
    if above is None:
        if pods["loses"]:
            yield USE_UNKNOWN
    elif above["pods"]:
        yield (
            f"{tables.count(above['pods'], 'pod uses', 'pods use')} {sizes.rounded(above['bytes'])} of swap more than"
            " they would get: it stays until it is free, and can hardly grow."
        )


def waves(one: simulation.SimulatedRollout) -> Iterator[str]:
    """Yield a rollout as sentences."""
    total = sum(len(wave.nodes) for wave in one.waves)
    if one.at_once:
        number = tables.count(len(one.at_once), "node")
        yield f"{number} without an agent at once, which does nothing there: {tables.first_few(one.at_once)}"
    if total:
        yield f"{tables.count(total, 'node')} in {tables.count(len(one.waves), 'wave')}, at most {one.most} at a time"
    for place, wave in enumerate(one.waves[:_WAVES], 1):
        yield f"wave {place}: {tables.first_few(wave.nodes)}"
    if len(one.waves) > _WAVES:
        yield f"and {len(one.waves) - _WAVES} more"
    if one.held:
        yield f"held, because pods there would lose swap that they use: {tables.first_few(one.held)}"
    if one.left:
        blame = f" while these are worse than before: {tables.first_few(one.stopped_by)}" if one.stopped_by else ""
        yield f"{tables.count(len(one.left), 'node')} would not get it{blame}"


def document(result: simulation.Simulation, numbers: dict[str, Any]) -> dict[str, Any]:
    """Return all of it, as JSON and YAML have it; sizes in bytes."""
    return {
        "summary": numbers,
        "pods": [_pod(one) for one in result.pods],
        "nodes": [_node(row) for row in _rows(result)],
        "rollouts": msgspec.to_builtins(result.rollouts),
        "notes": list(result.notes),
    }


def _pod(one: simulation.PodChange) -> dict[str, Any]:
    return {
        "namespace": one.namespace,
        "name": one.name,
        "node": one.node,
        "change": one.direction.value,
        "before": {**msgspec.to_builtins(one.before), "most": _most(one.before, str)},
        "after": {**msgspec.to_builtins(one.after), "most": _most(one.after, str)},
        "usedBytes": one.used,
        "aboveBytes": None if one.used is None else one.above,
    }


def _node(row: NodeLine) -> dict[str, Any]:
    change = row.change
    before, after = (
        {"profile": profile.name, "generation": profile.generation, "behavior": profile.swap.behavior.value}
        for profile in (change.before, change.after)
    )
    return {
        "name": change.node,
        "before": before,
        "after": after,
        "pods": _by_direction(row.counts),
        "podsAbove": row.above,
        "settings": {name: list(values) for name, values in change.settings.items()},
        "givesSwap": list(change.swap_label),
        "conflicts": list(change.conflicts),
    }


def show(form: tables.Form, result: simulation.Simulation, numbers: dict[str, Any]) -> None:
    """Print it: the summary, notes, then a table of pods, one of nodes, and rollouts."""
    if form.output in {"json", "yaml"}:
        sys.stdout.write(tables.serialized(form.output, document(result, numbers)))
        return
    for line in (*sentences(numbers), *(f"Note: {note}." for note in result.notes)):
        print(tables.clean(line))
    given = [limit for one in result.pods for limit in (one.before, one.after)]
    memory_qos = MEMORY if any(limit.memory != simulation.NO_MEMORY_QOS for limit in given) else ()
    reclaim = RECLAIM if any(limit.reclaim for limit in given) else ()
    columns = (*PODS, *memory_qos, *reclaim)
    for table in (tables.table(form, result.pods, columns), tables.table(form, _rows(result), NODES)):
        if table:
            sys.stdout.write(f"\n{table}")
    for one in result.rollouts:
        print(f"\nRollout of {tables.clean(one.profile)}:")
        for line in waves(one):
            print(f"  {tables.clean(line)}")


def read_profiles(files: list[str]) -> snapshot.ProfileChange:
    """Return the profiles in files; click.exceptions.Exit with status 2 after printing the errors in them."""
    log, manifests = documents.Log(), list[documents.Found]()
    for one in documents.read(files, log):
        if one.object["kind"] == names.PROFILE_KIND:
            manifests.append(one)
        else:
            what = f"{one.object['apiVersion']} {one.object['kind']}"
            log.note(one.place, f"{what} is ignored: only {names.PROFILE_KIND}s can be simulated")
    read = objects.collect(manifests, log)
    wrong = [*map(str, log.problems)]
    if files and not manifests and not wrong:
        wrong = [f"there is no {names.PROFILE_KIND} in {', '.join(files)}"]
    for kind, texts in (("note", log.notes), ("error", wrong)):
        for text in texts:
            click.echo(f"{kind}: {text}", err=True)
    if wrong:
        raise click.exceptions.Exit(BAD_INPUT)
    return snapshot.ProfileChange(put=tuple(read.profiles.values()))


def _changes(one: simulation.PodChange) -> bool:
    return (
        one.direction is not Direction.SAME or one.protection_changes or one.throttling_changes or one.reclaim_changes
    )


def changing(result: simulation.Simulation) -> simulation.Simulation:
    """Return the changes only."""
    return msgspec.structs.replace(
        result,
        pods=tuple(one for one in result.pods if _changes(one)),
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
    if missing := set(nodes) - view.nodes.keys():
        raise session.CommandError(f"there is no node {', '.join(sorted(missing))}")
    try:
        result = simulation.simulate(view, change)
    except snapshot.UnknownProfileError as error:
        raise session.CommandError(str(error)) from error
    losing = {one.node for one in result.pods if one.direction in LESS}
    used = await reading.used(asked, losing) if losing else {}
    if used:
        result = simulation.simulate(view, change, used)
    chosen = await reading.labelled(asked, view, selector) if selector else None
    if target.namespace and not target.all_namespaces:
        inside = {(one.namespace, one.name) for one in result.pods if one.namespace == target.namespace}
        chosen = inside if chosen is None else chosen & inside
    result = simulation.only(result, nodes=set(nodes) or None, pods=chosen)
    numbers = summary(result, known=used is not None)
    show(form, result if everything else changing(result), numbers)
