"""`kubectl swap top`: who uses how much swap, and how much they may."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
import msgspec

from swapwarden.api import state
from swapwarden.cli.kubectl import agents, candidates, flags, samples, session, tables, usage
from swapwarden.policy import nodes, pods

Row = TypeVar("Row")

METRICS: Final = "apis/metrics.k8s.io/v1beta1"
INTERVAL_SECONDS: Final = 5.0
FEW_NODES: Final = 16
"""Up to so many states are asked for one by one; more come as a list."""
ALIASES: Final = {"pod": "pods", "po": "pods", "node": "nodes", "no": "nodes", "namespace": "namespaces"} | {
    "ns": "namespaces"
}


class _Kinds(click.Group):
    """Kinds by kubectl's short names, too."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))


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
    status: state.StateStatus = state.StateStatus()


# What is known


async def pods_of(asked: session.Session, chosen: Sequence[str], selector: str, namespace: str) -> list[usage.PodUse]:
    """What the running pods of a namespace, or of all (""), use and may use."""
    path = asked.namespaced("api/v1", "pods", namespace)
    found = await asked.objects(path, pods.WirePod, chosen, selector=selector)
    rows = [row for row in map(pods.project, found) if row.node and not row.terminal]
    wanted = {row.node for row in rows}
    (scraped, why), (measured, unmeasured) = await asyncio.gather(
        _scrape(asked, wanted, usage.OF_PODS),
        _measured(asked, asked.namespaced(METRICS, "pods", namespace), usage.WirePodMetrics, selector),
    )
    by_name = {(each.metadata.namespace, each.metadata.name): each for each in measured}
    uses = usage.of_pods(rows, scraped, {}, by_name)
    states = await _specs(asked, {each.node for each in uses if each.limit_bytes is None})
    if states:
        uses = usage.of_pods(rows, scraped, states, by_name)
    unknown = [each for each in uses if each.swap_bytes is None]
    if unknown:
        listed = any(each.node in scraped for each in unknown)
        few = "agents list the pods that use most only (agent.metrics.topPods)" if listed else ""
        asked.note(f"what some pods use is not known: {'; '.join(filter(None, (why, few, unmeasured)))}")
    return uses


async def namespaces_of(asked: session.Session, selector: str) -> list[usage.NamespaceUse]:
    """What the running pods of each namespace use; of the user's own alone where pods of all may not be listed."""
    try:
        uses = await pods_of(asked, (), selector, "")
    except session.Forbidden as error:
        asked.note(f"only the namespace {asked.own_namespace} is shown: {error.message}")
        uses = await pods_of(asked, (), selector, asked.own_namespace)
    return usage.of_namespaces(uses)


async def nodes_of(asked: session.Session, chosen: Sequence[str], selector: str) -> list[usage.NodeUse]:
    """What is used of each node's swap."""
    found = await asked.objects(session.NODES, nodes.WireNode, chosen, selector=selector)
    names = [node.metadata.name for node in found]
    (scraped, why), (measured, unmeasured) = await asyncio.gather(
        _scrape(asked, names, usage.OF_NODES),
        _measured(asked, f"/{METRICS}/nodes", usage.WireNodeMetrics, selector),
    )
    by_name = {each.metadata.name: each for each in measured}
    uses = []
    for node in found:
        row = nodes.project(node)
        total = row.swap_bytes if row.tells_swap else None
        uses.append(usage.of_node(row.name, scraped.get(row.name, ()), total, by_name.get(row.name)))
    if any(each.swap_bytes is None for each in uses):
        asked.note(f"what is used on some nodes is not known: {'; '.join(filter(None, (why, unmeasured)))}")
    return uses


async def _scrape(
    asked: session.Session, wanted: Sequence[str] | set[str], metrics: frozenset[str]
) -> tuple[Mapping[str, list[samples.Sample]], str]:
    """What the agents of these nodes say, and why others do not."""
    running, unseen = await agents.find(asked)
    if running is None:
        return {}, unseen
    scraped, unread = await agents.scrape(asked, (running[name] for name in wanted if name in running), metrics)
    absent = [name for name in wanted if name not in running or not running[name].ready]
    missing = f"no agent is Ready on {len(absent)} of {len(wanted)} nodes: {min(absent)}" if absent else ""
    return scraped, "; ".join(filter(None, (unread, missing)))


async def _specs(asked: session.Session, wanted: set[str]) -> dict[str, state.StateSpec]:
    """The specs of these nodes' states, as far as they may be read."""
    try:
        if len(wanted) > FEW_NODES:
            listed = await asked.collect(session.STATES, _State)
            return {each.metadata.name: each.spec for each in listed if each.spec is not None}
        names = sorted(wanted)
        found = await asyncio.gather(*(_spec(asked, name) for name in names))
    except (session.Forbidden, session.NotInstalled) as error:
        asked.note(f"limits that no agent tells are not known: {error.message}")
        return {}
    return {name: spec for name, spec in zip(names, found, strict=True) if spec is not None}


async def _spec(asked: session.Session, name: str) -> state.StateSpec | None:
    try:
        return (await asked.get(f"{session.STATES}/{session.quote(name)}", _State)).spec
    except session.NotFound:
        return None


async def _measured(asked: session.Session, path: str, kind: type[Row], selector: str) -> tuple[list[Row], str]:
    """What metrics.k8s.io says, and why it does not."""
    try:
        return await asked.collect(path, kind, selector=selector), "metrics.k8s.io does not tell all of it"
    except session.Unreachable:
        raise
    except session.NotFound:
        return [], "the cluster has no metrics.k8s.io (metrics-server)"
    except session.Failure as error:
        return [], f"metrics.k8s.io: {error.message}"


# How it is shown


def _limit(limit: usage.Limit) -> str:
    return limit if isinstance(limit, str) else tables.amount(limit)


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
    text = tables.amount(row.swap_bytes)
    return f">={text}" if row.swap_bytes is not None and row.pods_unknown else text


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
        tables.Column("MEMORY", lambda row: tables.amount(memory(row)), right=True),
    ]


def _name(row: _Listed) -> tuple[str, str, str]:
    return row.pod.namespace, row.pod.name, row.container.name if row.container else ""


def _pod_columns(
    rows: Sequence[_Listed], *, asked_containers: bool, all_namespaces: bool
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
        tables.Column("SWAP", lambda row: tables.amount(row.used), right=True),
        tables.Column("LIMIT", lambda row: _limit(row.limit), right=True),
        tables.Column("SWAP%", lambda row: _share(row.used, row.limit), right=True),
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
    tables.Column("SWAP", lambda row: tables.amount(row.swap_bytes), right=True),
    tables.Column("SWAP%", lambda row: _share(row.swap_bytes, row.total_bytes), right=True),
    tables.Column("TOTAL", lambda row: tables.amount(row.total_bytes), right=True),
    tables.Column("ACCESSIBLE", lambda row: tables.amount(row.accessible_bytes), right=True),
    tables.Column("UNASSIGNED", lambda row: tables.amount(row.unassigned_bytes), right=True),
    tables.Column("RESERVED", lambda row: tables.amount(row.reserved_bytes), wide=True, right=True),
)


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


def _plain(row: _Listed) -> Any:
    built = msgspec.to_builtins(row.pod)
    return built if row.container is None else {**built, "containers": [msgspec.to_builtins(row.container)]}


# The commands


def _follow(
    target: session.Target,
    gather: Callable[[session.Session], Awaitable[Sequence[Row]]],
    show: Callable[[Sequence[Row]], None],
    interval: float | None,
) -> None:
    """Gather and show once, or again and again; an API server that is away for a while is noted then."""

    async def work(asked: session.Session) -> None:
        rows = await gather(asked)
        show(rows)
        while interval is not None:
            await asyncio.sleep(interval)
            try:
                rows = await gather(asked)
            except session.Unreachable as error:
                asked.note(error.message)
                continue
            click.clear()
            show(rows)

    session.run(target, work)


def _common(sorts: Mapping[str, Any]) -> Callable[[flags.Command], flags.Command]:
    """The flags of all three commands; -w and --interval are given to the command as `interval`."""

    def decorate(function: flags.Command) -> flags.Command:
        @click.option("--sort-by", type=click.Choice(list(sorts)), default="usage", help="Default: usage, most first.")
        @click.option("-w", "--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
        @click.option(
            "--interval", type=flags.Seconds(), default=INTERVAL_SECONDS, metavar="TIME", help="Of -w. Default: 5s."
        )
        @flags.printing
        @flags.cluster
        @functools.wraps(function)
        def wrapped(*, watch: bool, interval: float, **others: Any) -> Any:
            return function(interval=interval if watch else None, **others)

        return wrapped

    return decorate


@click.group("top", cls=_Kinds)
def command() -> None:
    """Show who uses how much swap, and how much they may.

    Usage is what the agents count, else what metrics.k8s.io tells; limits are those that the kernel has in force, else
    those that the node's plan gives. What is not known is <unknown>, and why is said.
    """


def _refuse_both(chosen: Sequence[str], selector: str) -> None:
    if chosen and selector:
        raise click.UsageError("give names or a selector, not both")


@command.command("pods")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=candidates.pods)
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

    def show(uses: Sequence[usage.PodUse]) -> None:
        rows = sorted(_listed(uses, containers=containers), key=POD_SORTS[sort_by])
        if not rows:
            click.echo("No running pods found.", err=True)
        columns = _pod_columns(rows, asked_containers=containers, all_namespaces=target.all_namespaces)
        tables.show(form, rows, columns, name=lambda row: f"pod/{row.pod.name}", plain=_plain)

    _follow(target, lambda asked: pods_of(asked, names, selector, asked.namespace), show, interval)


@command.command("namespaces")
@flags.selector
@_common(NAMESPACE_SORTS)
def namespaces_command(
    *, selector: str, sort_by: str, interval: float | None, form: tables.Form, target: session.Target
) -> None:
    """Show the swap that the running pods of each namespace use, and may use, in all; -l selects pods."""

    def show(uses: Sequence[usage.NamespaceUse]) -> None:
        rows = sorted(uses, key=NAMESPACE_SORTS[sort_by])
        columns = [*NAMESPACE_NAME, *_measures(rows, _cpu, _memory), *NAMESPACE_COLUMNS]
        tables.show(form, rows, columns, name=lambda row: f"namespace/{row.name}")

    _follow(target, lambda asked: namespaces_of(asked, selector), show, interval)


@command.command("nodes")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=candidates.nodes)
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

    def show(uses: Sequence[usage.NodeUse]) -> None:
        rows = sorted(uses, key=NODE_SORTS[sort_by])
        columns = [*NODE_NAME, *_measures(rows, _cpu, _memory), *NODE_COLUMNS]
        tables.show(form, rows, columns, name=lambda row: f"node/{row.name}")

    _follow(target, lambda asked: nodes_of(asked, names, selector), show, interval)
