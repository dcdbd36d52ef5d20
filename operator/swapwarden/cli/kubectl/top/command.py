"""`kubectl swap top`: who uses how much swap, and how much they may."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import click
import msgspec

from swapwarden.api import state
from swapwarden.cli.kubectl import completion, flags, groups
from swapwarden.cli.kubectl.cluster import agents, samples, session, usage
from swapwarden.cli.kubectl.output import sizes, tables
from swapwarden.cli.kubectl.top import rates
from swapwarden.policy import nodes, pods

Row = TypeVar("Row")
Key = TypeVar("Key", rates.OfPod, rates.OfNode)
Clock = Callable[[], float]

METRICS: Final = "apis/metrics.k8s.io/v1beta1"
INTERVAL_SECONDS: Final = 5.0
FEW_NODES: Final = 16
"""Up to so many states are asked for one by one; more come as a list."""
ALIASES: Final = {"pod": "pods", "po": "pods", "node": "nodes", "no": "nodes", "namespace": "namespaces"} | {
    "ns": "namespaces"
}


class _Kinds(groups.Group):
    """Kinds by kubectl's short names, too."""

    aliases = ALIASES


class _Listed(msgspec.Struct, frozen=True):
    """One container of a pod, or the pod itself where containers are not asked for."""

    pod: usage.PodUse
    container: usage.ContainerUse | None

    @property
    def used(self) -> int | None:
        return self.pod.swap_bytes if self.container is None else self.container.swap_bytes

    @property
    def cpu(self) -> int | None:
        return self.pod.cpu_millicores if self.container is None else self.container.cpu_millicores

    @property
    def memory(self) -> int | None:
        return self.pod.memory_bytes if self.container is None else self.container.memory_bytes

    @property
    def limit(self) -> usage.Limit:
        return self.pod.limit_bytes if self.container is None else self.container.limit_bytes


class _State(msgspec.Struct, frozen=True):
    """A NodeSwapState, as far as it is read."""

    metadata: state.ObjectMeta = state.ObjectMeta()
    spec: state.StateSpec | None = None


@dataclasses.dataclass(frozen=True)
class Look(Generic[Row, Key]):
    """What is known at one time, and the values of it that two looks can be compared by."""

    rows: Sequence[Row]
    points: Mapping[Key, rates.Point]


@dataclasses.dataclass(frozen=True)
class _Scraped:
    """What agents said, by node."""

    samples: Mapping[str, list[samples.Sample]]
    times: Mapping[str, float]
    """When they said it."""
    why: str
    """Why others did not."""


# What is known


async def pods_of(
    asked: session.Session, chosen: Sequence[str], selector: str, spaces: Sequence[str], clock: Clock
) -> Look[usage.PodUse, rates.OfPod]:
    """What the running pods of these namespaces ("": of all) use and may use."""
    paths = [asked.namespaced("api/v1", "pods", space) for space in spaces]
    found = await asyncio.gather(*(asked.objects(path, pods.WirePod, chosen, selector=selector) for path in paths))
    rows = [row for each in found for row in map(pods.project, each) if row.node and not row.terminal]
    wanted = {row.node for row in rows}
    told, (measured, unmeasured) = await asyncio.gather(
        _scrape(asked, wanted, usage.OF_PODS, clock),
        _measured(
            asked, [asked.namespaced(METRICS, "pods", space) for space in spaces], usage.WirePodMetrics, selector
        ),
    )
    by_name = {(each.metadata.namespace, each.metadata.name): each for each in measured}
    uses = usage.of_pods(rows, told.samples, {}, by_name)
    states = await _specs(asked, {each.node for each in uses if each.limit_bytes is None})
    if states:
        uses = usage.of_pods(rows, told.samples, states, by_name)
    unknown = [each for each in uses if each.swap_bytes is None]
    if unknown:
        listed = any(each.node in told.samples for each in unknown)
        few = "agents list the pods that use most only (agent.metrics.topPods)" if listed else ""
        asked.note(f"what some pods use is not known: {'; '.join(filter(None, (told.why, few, unmeasured)))}")
    return Look(uses, rates.of_pods(rows, told.samples, told.times))


async def namespaces_of(
    asked: session.Session, chosen: Sequence[str], selector: str, clock: Clock
) -> Look[usage.NamespaceUse, rates.OfPod]:
    """What the running pods of each namespace use; of the user's own alone where pods of all may not be listed."""
    try:
        found = await pods_of(asked, (), selector, tuple(dict.fromkeys(chosen)) or ("",), clock)
    except session.ForbiddenError as error:
        if chosen:
            raise
        asked.note(f"only the namespace {asked.own_namespace} is shown: {error.message}")
        found = await pods_of(asked, (), selector, (asked.own_namespace,), clock)
    return Look(usage.of_namespaces(found.rows), found.points)


async def nodes_of(
    asked: session.Session, chosen: Sequence[str], selector: str, clock: Clock
) -> Look[usage.NodeUse, rates.OfNode]:
    """What is used of each node's swap."""
    found = await asked.objects(session.NODES, nodes.WireNode, chosen, selector=selector)
    rows = [nodes.project(node) for node in found]
    told, (measured, unmeasured) = await asyncio.gather(
        _scrape(asked, [row.name for row in rows], usage.OF_NODES, clock),
        _measured(asked, [f"/{METRICS}/nodes"], usage.WireNodeMetrics, selector),
    )
    by_name = {each.metadata.name: each for each in measured}
    uses = []
    for row in rows:
        total = row.swap_bytes if row.tells_swap else None
        uses.append(usage.of_node(row.name, told.samples.get(row.name, ()), total, by_name.get(row.name)))
    if any(each.swap_bytes is None for each in uses):
        asked.note(f"what is used on some nodes is not known: {'; '.join(filter(None, (told.why, unmeasured)))}")
    return Look(uses, rates.of_nodes(rows, told.samples, told.times))


async def _scrape(
    asked: session.Session, wanted: Sequence[str] | set[str], metrics: frozenset[str], clock: Clock
) -> _Scraped:
    """What the agents of these nodes say."""
    running, unseen = await agents.find(asked)
    if running is None:
        return _Scraped({}, {}, unseen)
    times: dict[str, float] = {}
    chosen = (running[name] for name in wanted if name in running)
    scraped, unread = await agents.scrape(
        asked, chosen, metrics, answered=lambda node: times.__setitem__(node, clock())
    )
    absent = [name for name in wanted if name not in running or not running[name].ready]
    missing = f"no agent is Ready on {len(absent)} of {len(wanted)} nodes: {min(absent)}" if absent else ""
    return _Scraped(scraped, times, "; ".join(filter(None, (unread, missing))))


async def _specs(asked: session.Session, wanted: set[str]) -> dict[str, state.StateSpec]:
    """The specs of these nodes' states, as far as they may be read."""
    try:
        if len(wanted) > FEW_NODES:
            listed = await asked.collect(session.STATES, _State)
            return {each.metadata.name: each.spec for each in listed if each.spec is not None}
        names = sorted(wanted)
        found = await asyncio.gather(*(_spec(asked, name) for name in names))
    except (session.ForbiddenError, session.NotInstalledError) as error:
        asked.note(f"limits that no agent tells are not known: {error.message}")
        return {}
    return {name: spec for name, spec in zip(names, found, strict=True) if spec is not None}


async def _spec(asked: session.Session, name: str) -> state.StateSpec | None:
    try:
        return (await asked.get(f"{session.STATES}/{session.quote(name)}", _State)).spec
    except session.NotFoundError:
        return None
    except (session.ForbiddenError, session.NotInstalledError, session.ApiUnreachableError):
        raise
    except session.CommandError as error:  # that of another version: the other nodes' may be understood
        asked.note(f"limits on node {name} that no agent tells are not known: {error.message}")
        return None


async def _measured(
    asked: session.Session, paths: Sequence[str], kind: type[Row], selector: str
) -> tuple[list[Row], str]:
    """What metrics.k8s.io says, and why it does not."""
    try:
        found = await asyncio.gather(*(asked.collect(path, kind, selector=selector) for path in paths))
        return [each for some in found for each in some], "metrics.k8s.io does not tell all of it"
    except session.ApiUnreachableError:
        raise
    except session.NotFoundError:
        return [], "the cluster has no metrics.k8s.io (metrics-server)"
    except session.CommandError as error:
        return [], f"metrics.k8s.io: {error.message}"


# How it is shown


def _limit(limit: usage.Limit) -> str:
    return limit if isinstance(limit, str) else sizes.rounded(limit)


def _share(used: int | None, limit: usage.Limit) -> tables.Cell:
    if isinstance(limit, str):
        return tables.Cell(tables.NONE)
    style = "yellow" if used and limit is not None and used * 10 >= limit * 9 else ""
    if used and limit is not None and used > limit:
        style = "bold red"
    if limit == 0 and used:
        return tables.Cell("over", style)
    return tables.Cell(tables.share(used, limit), style)


def _by_use(used: int | None) -> float:
    """The most first, what is not known last."""
    return 1 if used is None else -used


def _by_limit(limit: usage.Limit) -> float:
    return 1 if limit is None else float("-inf") if isinstance(limit, str) else -limit


def _at_least(row: usage.NamespaceUse) -> str:
    text = sizes.rounded(row.swap_bytes)
    return f">={text}" if row.swap_bytes is not None and row.pods_unknown else text


def _signed(change: float | None) -> str:
    """Bytes per second: +1.2Mi, -300Ki, 0."""
    text = sizes.rounded(None if change is None else round(abs(change)))
    return text if change is None or text == "0" else f"{'+' if change > 0 else '-'}{text}"


def _whole(change: float | None) -> int | None:
    return None if change is None else round(change)


def _cores(millicores: int | None) -> str:
    return tables.UNKNOWN if millicores is None else f"{millicores}m"


def _measures(
    rows: Iterable[Row], cpu: Callable[[Row], int | None], memory: Callable[[Row], int | None]
) -> list[tables.Column[Row]]:
    """The columns of kubectl top; none where nobody tells them."""
    if all(cpu(row) is None and memory(row) is None for row in rows):
        return []
    return [
        tables.Column("CPU", lambda row: _cores(cpu(row)), right=True),
        tables.Column("MEMORY", lambda row: sizes.rounded(memory(row)), right=True),
    ]


def _name(row: _Listed) -> tuple[str, str, str]:
    return row.pod.namespace, row.pod.name, row.container.name if row.container else ""


def _change(header: str, of: Callable[[Row], float | None]) -> tables.Column[Row]:
    """The column of what changed since the look before, in a second."""
    return tables.Column(header, lambda row: _signed(of(row)), right=True)


def _pod_columns(
    rows: Sequence[_Listed],
    changes: Mapping[tuple[str, str, str], float] | None,
    *,
    asked_containers: bool,
    all_namespaces: bool,
) -> list[tables.Column[_Listed]]:
    columns: list[tables.Column[_Listed]] = []
    if all_namespaces:
        columns.append(tables.Column("NAMESPACE", lambda row: row.pod.namespace))
    columns.append(tables.Column("POD", lambda row: row.pod.name))
    if asked_containers:
        columns.append(tables.Column("CONTAINER", lambda row: row.container.name if row.container else tables.NONE))
    return [
        *columns,
        *_measures(rows, lambda row: row.cpu, lambda row: row.memory),
        tables.Column("SWAP", lambda row: sizes.rounded(row.used), right=True),
        tables.Column("LIMIT", lambda row: _limit(row.limit), right=True),
        tables.Column("SWAP%", lambda row: _share(row.used, row.limit), right=True),
        *([] if changes is None else [_change("CHANGE/S", lambda row: changes.get(_name(row)))]),
        tables.Column("POLICY", lambda row: row.pod.policy or tables.NONE, wide=True),
        tables.Column("NODE", lambda row: row.pod.node, wide=True),
    ]


NAMESPACE_NAME: Final[tuple[tables.Column[usage.NamespaceUse], ...]] = (
    tables.Column("NAMESPACE", lambda row: row.name),
    tables.Column("PODS", lambda row: str(row.pods), right=True),
)
NAMESPACE_COLUMNS: Final[tuple[tables.Column[usage.NamespaceUse], ...]] = (
    tables.Column("SWAP", _at_least, right=True),
    tables.Column("LIMIT", lambda row: _limit(row.limit_bytes), right=True),
    tables.Column("UNKNOWN", lambda row: str(row.pods_unknown), wide=True, right=True),
)

NODE_NAME: Final[tuple[tables.Column[usage.NodeUse], ...]] = (tables.Column("NAME", lambda row: row.name),)
NODE_COLUMNS: Final[tuple[tables.Column[usage.NodeUse], ...]] = (
    tables.Column("SWAP", lambda row: sizes.rounded(row.swap_bytes), right=True),
    tables.Column("SWAP%", lambda row: _share(row.swap_bytes, row.total_bytes), right=True),
    tables.Column("TOTAL", lambda row: sizes.rounded(row.total_bytes), right=True),
    tables.Column("ACCESSIBLE", lambda row: sizes.rounded(row.accessible_bytes), right=True),
    tables.Column("UNASSIGNED", lambda row: sizes.rounded(row.unassigned_bytes), right=True),
    tables.Column("RESERVED", lambda row: sizes.rounded(row.reserved_bytes), wide=True, right=True),
)


NODE_CHANGES: Final = (
    ("swapChangeBytesPerSecond", usage.NODE_USED),
    ("swapInBytesPerSecond", usage.NODE_IN),
    ("swapOutBytesPerSecond", usage.NODE_OUT),
)
"""Fields of JSON and YAML with -w, and the metrics that they are of."""


def _cpu(row: usage.NamespaceUse | usage.NodeUse) -> int | None:
    return row.cpu_millicores


def _memory(row: usage.NamespaceUse | usage.NodeUse) -> int | None:
    return row.memory_bytes


POD_SORTS: Final[dict[str, Callable[[_Listed], Any]]] = {
    "usage": lambda row: (_by_use(row.used), _name(row)),
    "limit": lambda row: (_by_limit(row.limit), _name(row)),
    "cpu": lambda row: (_by_use(row.cpu), _name(row)),
    "memory": lambda row: (_by_use(row.memory), _name(row)),
    "name": _name,
}
NAMESPACE_SORTS: Final[dict[str, Callable[[usage.NamespaceUse], Any]]] = {
    "usage": lambda row: (_by_use(row.swap_bytes), row.name),
    "limit": lambda row: (_by_limit(row.limit_bytes), row.name),
    "cpu": lambda row: (_by_use(row.cpu_millicores), row.name),
    "memory": lambda row: (_by_use(row.memory_bytes), row.name),
    "name": lambda row: row.name,
}
NODE_SORTS: Final[dict[str, Callable[[usage.NodeUse], Any]]] = {
    "usage": lambda row: (_by_use(row.swap_bytes), row.name),
    "total": lambda row: (_by_use(row.total_bytes), row.name),
    "cpu": lambda row: (_by_use(row.cpu_millicores), row.name),
    "memory": lambda row: (_by_use(row.memory_bytes), row.name),
    "name": lambda row: row.name,
}


def _listed(uses: Sequence[usage.PodUse], *, containers: bool) -> list[_Listed]:
    if not containers:
        return [_Listed(each, None) for each in uses]
    return [_Listed(each, container) for each in uses for container in each.containers]


def _plain(row: _Listed, changes: Mapping[tuple[str, str, str], float] | None) -> Any:
    built = msgspec.to_builtins(row.pod)
    if row.container is not None:
        built["containers"] = [msgspec.to_builtins(row.container)]
    if changes is not None:
        for part, container in ((built, ""), *((each, each["name"]) for each in built["containers"])):
            key = row.pod.namespace, row.pod.name, container
            part["swapChangeBytesPerSecond"] = _whole(changes.get(key))
    return built


# The commands


def _follow(
    target: session.Target,
    look: Callable[[session.Session], Awaitable[Look[Row, Key]]],
    show: Callable[[Sequence[Row], Mapping[Key, float] | None], None],
    interval: float | None,
) -> None:
    """Look and show once, or again and again; an API server that is away for a while is noted then.

    What is shown again comes with what changed since the look before, in bytes per second.
    """

    async def work(asked: session.Session) -> None:
        seen = await look(asked)
        show(seen.rows, None if interval is None else {})
        away = False
        while interval is not None:
            await asyncio.sleep(interval)
            try:
                # With what was on the terminal goes what was noted before.
                with asked.repeat_notes() if sys.stdout.isatty() else contextlib.nullcontext():
                    before, seen = seen, await look(asked)
                    click.clear()
                    show(seen.rows, rates.per_second(before.points, seen.points))
            except session.ApiUnreachableError as error:
                if not away:
                    asked.note(error.message, again=True)
                away = True
            else:
                away = False

    session.run(target, work)


def _common(sorts: Mapping[str, Any]) -> Callable[[flags.Command], flags.Command]:
    """The flags of all three commands; -w and --interval are given to the command as `interval`."""

    def decorate(function: flags.Command) -> flags.Command:
        @click.option("--sort-by", type=click.Choice(list(sorts)), default="usage", help="Default: usage, most first.")
        @click.option("-w", "--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
        @click.option(
            "--interval",
            type=flags.Seconds(),
            default=INTERVAL_SECONDS,
            metavar="TIME",
            help="Of -w; agents look once a second at most. Default: 5s.",
        )
        @flags.printing
        @flags.cluster
        @functools.wraps(function)
        def wrapped(*, watch: bool, interval: float, **others: Any) -> Any:
            return function(interval=interval if watch else None, **others)

        return wrapped

    return decorate


EXAMPLES: Final = """\b
Examples:
  kubectl swap top pods -A                  who uses most swap, in all namespaces
  kubectl swap top pods --containers -n shop
  kubectl swap top nodes -w                 again and again, with rates
"""


@click.group("top", cls=_Kinds, epilog=EXAMPLES)
def command() -> None:
    """Show who uses how much swap, and how much they may.

    Usage is what the agents count, else what metrics.k8s.io tells; limits are those that the kernel has in force, else
    those that the node's plan gives. What is not known is <unknown>, and why is said.
    """


def _refuse_both(chosen: Sequence[str], selector: str) -> None:
    if chosen and selector:
        raise click.UsageError("give names or a selector, not both")


@command.command("pods")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=completion.pods)
@click.option("--containers", is_flag=True, help="Each container by itself.")
@flags.selector
@flags.namespace
@_common(POD_SORTS)
def pods_command(
    *,
    names: tuple[str, ...],
    containers: bool,
    selector: str,
    sort_by: str,
    interval: float | None,
    form: tables.Form,
    target: session.Target,
) -> None:
    """Show the swap that running pods use, and may use."""
    _refuse_both(names, selector)
    if names and target.all_namespaces:
        raise click.UsageError("a pod of this name may be in several namespaces: give -n instead of -A")

    def show(uses: Sequence[usage.PodUse], changes: Mapping[rates.OfPod, float] | None) -> None:
        rows = sorted(_listed(uses, containers=containers), key=POD_SORTS[sort_by])
        if not rows:
            click.echo("No running pods found.", err=True)
        known = None if changes is None else {key[1:]: change for key, change in changes.items()}
        columns = _pod_columns(rows, known, asked_containers=containers, all_namespaces=target.all_namespaces)
        tables.show(form, rows, columns, name=lambda row: f"pod/{row.pod.name}", plain=lambda row: _plain(row, known))

    _follow(target, lambda asked: pods_of(asked, names, selector, (asked.namespace,), time.monotonic), show, interval)


@command.command("namespaces", short_help="Show the swap that the pods of namespaces use in all.")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=completion.namespaces)
@flags.selector
@_common(NAMESPACE_SORTS)
def namespaces_command(
    *,
    names: tuple[str, ...],
    selector: str,
    sort_by: str,
    interval: float | None,
    form: tables.Form,
    target: session.Target,
) -> None:
    """Show the swap that the running pods of each namespace use, and may use, in all; -l selects pods."""

    def show(uses: Sequence[usage.NamespaceUse], changes: Mapping[rates.OfPod, float] | None) -> None:
        rows = sorted(uses, key=NAMESPACE_SORTS[sort_by])
        missing = sorted({*names} - {row.name for row in rows})
        if missing or not rows:
            click.echo(f"No running pods found{' in ' if missing else ''}{', '.join(missing)}.", err=True)
        columns = [*NAMESPACE_NAME, *_measures(rows, _cpu, _memory), *NAMESPACE_COLUMNS]
        known = None if changes is None else rates.by_namespace(changes)
        if known is not None:
            columns.append(_change("CHANGE/S", lambda row: known.get(row.name)))

        def plain(row: usage.NamespaceUse) -> Any:
            told = {} if known is None else {"swapChangeBytesPerSecond": _whole(known.get(row.name))}
            return {**msgspec.to_builtins(row), **told}

        tables.show(form, rows, columns, name=lambda row: f"namespace/{row.name}", plain=plain)

    _follow(target, lambda asked: namespaces_of(asked, names, selector, time.monotonic), show, interval)


@command.command("nodes", short_help="Show the swap that is used on nodes.")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=completion.nodes)
@flags.selector
@_common(NODE_SORTS)
def nodes_command(
    *,
    names: tuple[str, ...],
    selector: str,
    sort_by: str,
    interval: float | None,
    form: tables.Form,
    target: session.Target,
) -> None:
    """Show the swap that is used on nodes, and what of it pods may have."""
    _refuse_both(names, selector)

    def show(uses: Sequence[usage.NodeUse], changes: Mapping[rates.OfNode, float] | None) -> None:
        rows = sorted(uses, key=NODE_SORTS[sort_by])
        if not rows:
            click.echo("No nodes found.", err=True)
        columns = [*NODE_NAME, *_measures(rows, _cpu, _memory), *NODE_COLUMNS]
        known = None if changes is None else {(key.name, key.metric): change for key, change in changes.items()}
        if known is not None:
            columns += [
                _change("CHANGE/S", lambda row: known.get((row.name, usage.NODE_USED))),
                tables.Column(
                    "IN/S", lambda row: sizes.rounded(_whole(known.get((row.name, usage.NODE_IN)))), right=True
                ),
                tables.Column(
                    "OUT/S", lambda row: sizes.rounded(_whole(known.get((row.name, usage.NODE_OUT)))), right=True
                ),
            ]

        def plain(row: usage.NodeUse) -> Any:
            told = {} if known is None else {key: _whole(known.get((row.name, metric))) for key, metric in NODE_CHANGES}
            return {**msgspec.to_builtins(row), **told}

        tables.show(form, rows, columns, name=lambda row: f"node/{row.name}", plain=plain)

    _follow(target, lambda asked: nodes_of(asked, names, selector, time.monotonic), show, interval)
