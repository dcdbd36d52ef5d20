"""`kubectl swap top`: who uses how much swap, and how much they may."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
import msgspec

from swapwarden.api import names, sizes, state
from swapwarden.cli.kubectl import completion, flags, main
from swapwarden.cli.kubectl.cluster import agents, session, usage
from swapwarden.cli.kubectl.output import tables
from swapwarden.policy.observed import nodes, pods, states
from swapwarden.policy.observed.pods import WirePod

T = TypeVar("T")
Row = TypeVar("Row", bound="_Listed | usage.Use")
Sorts = Mapping[str, Callable[[Row], Any]]

INTERVAL_SECONDS: Final = 5.0
METRICS: Final = "apis/metrics.k8s.io/v1beta1"
FEW_NODES: Final = 16
"""Up to this number, states are requested one by one; more come as a list."""


class _Kinds(main.Group):
    """Kinds, also by kubectl's short names."""

    aliases = {"pod": "pods", "po": "pods", "node": "nodes", "no": "nodes", "namespace": "namespaces"} | {
        "ns": "namespaces"
    }


class _Listed(msgspec.Struct, frozen=True):
    """One container of a pod, or the pod itself where containers are not asked for."""

    pod: usage.PodUse
    container: usage.LimitedUse | None

    @property
    def use(self) -> usage.LimitedUse:
        return self.pod if self.container is None else self.container

    @property
    def name(self) -> tuple[str, str, str]:
        return self.pod.namespace, self.pod.name, self.container.name if self.container else ""


# Reading


async def pods_of(
    asked: session.Session, chosen: Sequence[str], selector: str, spaces: Sequence[str], *, with_memory: bool = False
) -> list[usage.PodUse]:
    """Return usage and limits of the running pods of these namespaces ("": of all); `with_memory` their memory QoS."""
    paths = [asked.namespaced("api/v1", "pods", space) for space in spaces]
    pages = await asyncio.gather(*(asked.objects(path, WirePod, chosen, selector=selector) for path in paths))
    rows = [row for each in pages for row in map(pods.project, each) if row.node and not row.terminal]
    desired = {row.node for row in rows}
    (scraped, why), (measured, unmeasured) = await asyncio.gather(
        _scrape(asked, desired, usage.OF_PODS),
        _measured(
            asked, [asked.namespaced(METRICS, "pods", space) for space in spaces], usage.WirePodMetrics, selector
        ),
    )
    by_name = {(each.metadata.namespace, each.metadata.name): each for each in measured}
    uses = usage.of_pods(rows, scraped, {}, by_name)
    unlimited = {each.node for each in uses if each.limit_bytes is None}
    needed = desired if with_memory else unlimited
    known = await states_of(asked, needed) if needed else {}
    if unlimited & known.keys():
        specs = {name: one.spec for name, one in known.items() if one.spec is not None}
        uses = usage.of_pods(rows, scraped, specs, by_name)
    if with_memory:
        uses = [_with_memory(use, row, known.get(row.node)) for use, row in zip(uses, rows, strict=True)]
    unknown = [each for each in uses if each.swap_bytes is None]
    if unknown:
        listed = any(each.node in scraped for each in unknown)
        few = "agents list the pods that use most only (agent.metrics.topPods)" if listed else ""
        asked.note(f"swap in use by some pods is not known: {'; '.join(filter(None, (why, few, unmeasured)))}")
    return uses


def _with_memory(use: usage.PodUse, row: pods.PodRow, node_state: state.NodeSwapState | None) -> usage.PodUse:
    if node_state is None:
        return use
    return msgspec.structs.replace(use, memory_qos=usage.memory_of(row, node_state.spec, node_state.status))


async def namespaces_of(asked: session.Session, chosen: Sequence[str], selector: str) -> list[usage.NamespaceUse]:
    """Return usage by namespace; of the user's own only if pods of all may not be listed."""
    try:
        uses = await pods_of(asked, (), selector, tuple(dict.fromkeys(chosen)) or ("",))
    except session.ForbiddenError as error:
        if chosen:
            raise
        asked.note(f"only the namespace {asked.own_namespace} is shown: {error.message}")
        uses = await pods_of(asked, (), selector, (asked.own_namespace,))
    return usage.of_namespaces(uses)


async def nodes_of(asked: session.Session, chosen: Sequence[str], selector: str) -> list[usage.NodeUse]:
    """Return the swap usage of each node."""
    listed = await asked.objects(session.NODES, nodes.WireNode, chosen, selector=selector)
    rows = [nodes.project(node) for node in listed]
    (scraped, why), (measured, unmeasured) = await asyncio.gather(
        _scrape(asked, [row.name for row in rows], usage.OF_NODES),
        _measured(asked, [f"/{METRICS}/nodes"], usage.WireNodeMetrics, selector),
    )
    by_name = {each.metadata.name: each for each in measured}
    uses = []
    for row in rows:
        total = row.swap_bytes if row.reports_swap else None
        uses.append(usage.of_node(row.name, scraped.get(row.name, ()), total, by_name.get(row.name)))
    if any(each.swap_bytes is None for each in uses):
        asked.note(f"swap in use on some nodes is not known: {'; '.join(filter(None, (why, unmeasured)))}")
    return uses


async def _scrape(
    asked: session.Session, desired: Collection[str], metrics: frozenset[str]
) -> tuple[agents.Scraped, str]:
    """Return the metrics of these nodes' agents, by node; and why others have none."""
    running, scraped, why = await agents.read(asked, desired, metrics)
    absent = [] if running is None else [name for name in desired if name not in running or not running[name].ready]
    missing = f"no agent is Ready on {len(absent)} of {len(desired)} nodes: {min(absent)}" if absent else ""
    return scraped, "; ".join(filter(None, (why, missing)))


async def states_of(asked: session.Session, desired: set[str]) -> dict[str, state.NodeSwapState]:
    """Return the states of these nodes, without those that the user may not read."""
    chosen = sorted(desired) if len(desired) <= FEW_NODES else ()
    try:
        listed = await asked.objects(names.STATES_PATH, states.WireState, chosen, lenient=True)
    except (session.ForbiddenError, session.NotInstalledError) as error:
        asked.note(f"limits that no agent reports are not known: {error.message}")
        return {}
    return {each.metadata.name: each for each in map(states.read, listed) if each.spec is not None}


async def _measured(asked: session.Session, paths: Sequence[str], kind: type[T], selector: str) -> tuple[list[T], str]:
    """Return the metrics of metrics.k8s.io, and why some are missing."""
    try:
        samples = await asyncio.gather(*(asked.collect(path, kind, selector=selector) for path in paths))
        return [each for some in samples for each in some], "metrics.k8s.io does not report all of it"
    except session.ApiUnreachableError:
        raise
    except session.NotFoundError:
        return [], "the cluster has no metrics.k8s.io (metrics-server)"
    except session.CommandError as error:
        return [], f"metrics.k8s.io: {error.message}"


# Tables


def _limit(limit: usage.Limit) -> str:
    return limit if isinstance(limit, str) else tables.size(limit)


def _share(used: int | None, limit: usage.Limit) -> tables.Cell:
    if isinstance(limit, str):
        return tables.Cell(tables.NONE)
    style = "yellow" if used and limit is not None and used * 10 >= limit * 9 else ""
    if used and limit is not None and used > limit:
        style = "bold red"
    if limit == 0 and used:
        return tables.Cell("over", style)
    return tables.Cell(tables.share(used, limit), style)


def _at_least(row: usage.NamespaceUse) -> str:
    text = tables.size(row.swap_bytes)
    return f">={text}" if row.swap_bytes is not None and row.pods_unknown else text


def _cores(millicores: int | None) -> str:
    return tables.UNKNOWN if millicores is None else f"{millicores}m"


def _measures(rows: Sequence[Row], use: Callable[[Row], usage.Use]) -> list[tables.Column[Row]]:
    """Return the columns of kubectl top; none where metrics.k8s.io reports nothing."""
    if all(use(row).cpu_millicores is None and use(row).memory_bytes is None for row in rows):
        return []
    return [
        tables.Column("CPU", lambda row: _cores(use(row).cpu_millicores), right=True),
        tables.Column("MEMORY", lambda row: tables.size(use(row).memory_bytes), right=True),
    ]


def _pod_columns(rows: Sequence[_Listed], *, containers: bool, all_namespaces: bool) -> list[tables.Column[_Listed]]:
    columns: list[tables.Column[_Listed]] = []
    if all_namespaces:
        columns.append(tables.Column("NAMESPACE", lambda row: row.pod.namespace))
    columns.append(tables.Column("POD", lambda row: row.pod.name))
    if containers:
        columns.append(tables.Column("CONTAINER", lambda row: row.container.name if row.container else tables.NONE))
    return [
        *columns,
        *_measures(rows, lambda row: row.use),
        tables.Column("SWAP", lambda row: tables.size(row.use.swap_bytes), right=True),
        tables.Column("LIMIT", lambda row: _limit(row.use.limit_bytes), right=True),
        tables.Column("SWAP%", lambda row: _share(row.use.swap_bytes, row.use.limit_bytes), right=True),
        *_memory_columns(rows),
        tables.Column("POLICY", lambda row: row.pod.policy or tables.NONE, wide=True),
        tables.Column("NODE", lambda row: row.pod.node, wide=True),
    ]


def _memory_columns(rows: Sequence[_Listed]) -> list[tables.Column[_Listed]]:
    """Return the columns about memory QoS; none if no pod has any."""
    if all(row.pod.memory_qos is None for row in rows):
        return []
    return [
        tables.Column("PROTECTED", lambda row: memory_protected(row.pod.memory_qos), wide=True, right=True),
        tables.Column("HIGH", lambda row: memory_high(row.pod.memory_qos, row.name[-1]), wide=True, right=True),
        tables.Column("THROTTLED", lambda row: memory_throttled(row.pod.memory_qos), wide=True, right=True),
    ]


def memory_protected(memory: usage.MemoryUse | None) -> str:
    """Return the planned memory.low or memory.min of a pod."""
    return _size(None if memory is None else memory.protected_bytes)


def memory_high(memory: usage.MemoryUse | None, container: str) -> str:
    """Return memory.high of the pod, else that of the container, or of each with its name if `container` is empty."""
    if memory is None or memory.high_bytes is not None:
        return _size(None if memory is None else memory.high_bytes)
    each = memory.container_high_bytes
    if container:
        return _size(each.get(container))
    return ",".join(f"{name}:{sizes.rounded(amount)}" for name, amount in each.items()) or tables.NONE


def memory_throttled(memory: usage.MemoryUse | None) -> tables.Cell:
    """Return how often and for how long a pod was throttled, and what the guard made of it: 42(4.5s,Released)."""
    if memory is None or not (memory.high_bytes or memory.container_high_bytes):
        return tables.Cell(tables.NONE)
    if memory.throttled is None:
        return tables.Cell(tables.UNKNOWN)
    stalled = f"{memory.stalled_milliseconds / 1000:.1f}s" if memory.stalled_milliseconds else ""
    details = ",".join(filter(None, (stalled, memory.guard)))
    style = "bold red" if memory.guard else "yellow" if memory.throttled else ""
    return tables.Cell(f"{memory.throttled}({details})" if details else str(memory.throttled), style)


def _size(amount: int | None) -> str:
    return tables.NONE if amount is None else sizes.rounded(amount)


def _namespace_columns(rows: Sequence[usage.NamespaceUse]) -> list[tables.Column[usage.NamespaceUse]]:
    return [
        tables.Column("NAMESPACE", lambda row: row.name),
        tables.Column("PODS", lambda row: str(row.pods), right=True),
        *_measures(rows, lambda row: row),
        tables.Column("SWAP", _at_least, right=True),
        tables.Column("LIMIT", lambda row: _limit(row.limit_bytes), right=True),
        tables.Column("UNKNOWN", lambda row: str(row.pods_unknown), wide=True, right=True),
    ]


def _node_columns(rows: Sequence[usage.NodeUse]) -> list[tables.Column[usage.NodeUse]]:
    return [
        tables.Column("NAME", lambda row: row.name),
        *_measures(rows, lambda row: row),
        tables.Column("SWAP", lambda row: tables.size(row.swap_bytes), right=True),
        tables.Column("SWAP%", lambda row: _share(row.swap_bytes, row.total_bytes), right=True),
        tables.Column("TOTAL", lambda row: tables.size(row.total_bytes), right=True),
        tables.Column("ACCESSIBLE", lambda row: tables.size(row.accessible_bytes), right=True),
        tables.Column("UNASSIGNED", lambda row: tables.size(row.unassigned_bytes), right=True),
        tables.Column("RESERVED", lambda row: tables.size(row.reserved_bytes), wide=True, right=True),
        tables.Column("HEADROOM", lambda row: tables.size(row.headroom_bytes), wide=True, right=True),
    ]


def _sorts(use: Callable[[Row], usage.Use], **more: Callable[[Row], usage.Limit]) -> Sorts[Row]:
    """Return the orders of rows: by a measure, the most first and unknown ones last, or by name."""
    measures: dict[str, Callable[[Row], usage.Limit]] = {
        "usage": lambda row: use(row).swap_bytes,
        **more,
        "cpu": lambda row: use(row).cpu_millicores,
        "memory": lambda row: use(row).memory_bytes,
    }

    def by(measure: Callable[[Row], usage.Limit]) -> Callable[[Row], Any]:
        return lambda row: (_most_first(measure(row)), row.name)

    return {**{key: by(measure) for key, measure in measures.items()}, "name": lambda row: row.name}


def _most_first(value: usage.Limit) -> float:
    return 1 if value is None else float("-inf") if isinstance(value, str) else -value


POD_SORTS: Final[Sorts[_Listed]] = _sorts(lambda row: row.use, limit=lambda row: row.use.limit_bytes)
NAMESPACE_SORTS: Final[Sorts[usage.NamespaceUse]] = _sorts(lambda row: row, limit=lambda row: row.limit_bytes)
NODE_SORTS: Final[Sorts[usage.NodeUse]] = _sorts(lambda row: row, total=lambda row: row.total_bytes)


def _listed(uses: Sequence[usage.PodUse], *, containers: bool) -> list[_Listed]:
    if not containers:
        return [_Listed(each, None) for each in uses]
    return [_Listed(each, container) for each in uses for container in each.containers]


def _plain(row: _Listed) -> Any:
    built = msgspec.to_builtins(row.pod)
    if row.container is not None:
        built["containers"] = [msgspec.to_builtins(row.container)]
    return built


# The commands


EXAMPLES: Final = """\b
Examples:
  kubectl swap top pods -A                  who uses most swap, in all namespaces
  kubectl swap top pods --containers -n shop
  kubectl swap top nodes -w                 again and again
"""


@click.group("top", cls=_Kinds, epilog=EXAMPLES)
def command() -> None:
    """Show swap usage and limits of pods, namespaces and nodes.

    Usage is counted by the agents, else reported by metrics.k8s.io; limits are those in force in the kernel, else
    those of the node's plan. Unknown values are <unknown>, with the reason on standard error.
    """


@dataclasses.dataclass(frozen=True)
class Given:
    """The flags of all three commands."""

    names: tuple[str, ...]
    selector: str
    sort_by: str
    interval: float | None
    """None without -w."""
    form: tables.Form
    target: session.Target


def _kind(word: str, sorts: Mapping[str, Any], complete: Any, summary: str) -> Callable[[Callable[..., None]], Any]:
    """Return a command with the flags of all three, given to it as one."""

    def decorate(function: Callable[..., None]) -> Any:
        @command.command(word, short_help=summary)
        @click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete)
        @flags.selector
        @click.option("--sort-by", type=click.Choice(list(sorts)), default="usage", help="Default: usage, most first.")
        @click.option("-w", "--watch", is_flag=True, help="Repeat until Ctrl-C.")
        @click.option(
            "--interval",
            type=flags.Seconds(),
            default=INTERVAL_SECONDS,
            metavar="TIME",
            help="Of -w; agents measure at most once a second. Default: 5s.",
        )
        @flags.printing
        @flags.cluster
        @functools.wraps(function)
        def wrapped(*, watch: bool, interval: float, **flagged: Any) -> None:
            common = {name: flagged.pop(name) for name in ("names", "selector", "sort_by", "form", "target")}
            function(Given(interval=interval if watch else None, **common), **flagged)

        return wrapped

    return decorate


def follow(
    given: Given, read: Callable[[session.Session], Awaitable[Sequence[T]]], show: Callable[[Sequence[T]], None]
) -> None:
    """Read and show once, or at each interval; an API server that is away for a while is noted then."""

    async def work(asked: session.Session) -> None:
        show(await read(asked))
        away = False
        while given.interval is not None:
            await asyncio.sleep(given.interval)
            try:
                # Clearing the terminal also clears earlier notes.
                with asked.repeat_notes() if sys.stdout.isatty() else contextlib.nullcontext():
                    rows = await read(asked)
                    click.clear()
                    show(rows)
            except session.ApiUnreachableError as error:
                if not away:
                    asked.note(error.message, again=True)
                away = True
            else:
                away = False

    session.run(given.target, work)


@_kind("pods", POD_SORTS, completion.pods, "Show swap usage and limits of running pods.")
@click.option("--containers", is_flag=True, help="Show each container.")
@flags.namespace
def pods_command(given: Given, *, containers: bool) -> None:
    """Show swap usage and limits of running pods."""
    flags.refuse_both(given.names, given.selector)
    target = given.target
    if given.names and target.all_namespaces:
        raise click.UsageError("a pod of this name may be in several namespaces: give -n instead of -A")

    def show(uses: Sequence[usage.PodUse]) -> None:
        rows = sorted(_listed(uses, containers=containers), key=POD_SORTS[given.sort_by])
        if not rows:
            click.echo("No running pods found.", err=True)
        columns = _pod_columns(rows, containers=containers, all_namespaces=target.all_namespaces)
        tables.show(given.form, rows, columns, name=lambda row: f"pod/{row.pod.name}", plain=_plain)

    details = given.form.output in {"wide", "json", "yaml"}

    async def read(asked: session.Session) -> Sequence[usage.PodUse]:
        return await pods_of(asked, given.names, given.selector, (asked.namespace,), with_memory=details)

    follow(given, read, show)


@_kind("namespaces", NAMESPACE_SORTS, completion.namespaces, "Show swap usage and limits of namespaces.")
def namespaces_command(given: Given) -> None:
    """Show the swap that the running pods of each namespace use, and may use, in all; -l selects pods."""

    def show(uses: Sequence[usage.NamespaceUse]) -> None:
        rows = sorted(uses, key=NAMESPACE_SORTS[given.sort_by])
        missing = sorted({*given.names} - {row.name for row in rows})
        if missing or not rows:
            click.echo(f"No running pods found{' in ' if missing else ''}{', '.join(missing)}.", err=True)
        tables.show(given.form, rows, _namespace_columns(rows), name=lambda row: f"namespace/{row.name}")

    follow(given, lambda asked: namespaces_of(asked, given.names, given.selector), show)


@_kind("nodes", NODE_SORTS, completion.nodes, "Show swap usage of nodes.")
def nodes_command(given: Given) -> None:
    """Show swap usage of nodes, and how much swap pods may use."""
    flags.refuse_both(given.names, given.selector)

    def show(uses: Sequence[usage.NodeUse]) -> None:
        rows = sorted(uses, key=NODE_SORTS[given.sort_by])
        if not rows:
            click.echo("No nodes found.", err=True)
        tables.show(given.form, rows, _node_columns(rows), name=lambda row: f"node/{row.name}")

    follow(given, lambda asked: nodes_of(asked, given.names, given.selector), show)
