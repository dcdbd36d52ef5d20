"""`kubectl swap nodes`: each node's swap, how pods get it, and whether that holds."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
import msgspec

from swapwarden.api import names, state
from swapwarden.cli.kubectl import completion, flags
from swapwarden.cli.kubectl.cluster import agents, session, usage
from swapwarden.cli.kubectl.output import tables
from swapwarden.cli.wire import WireProfile
from swapwarden.policy.node import observations
from swapwarden.policy.node.settings import MIN_FREE, NodeOptions
from swapwarden.policy.observed import nodes, states
from swapwarden.policy.swap import requirements
from swapwarden.policy.swap.settings import SwapOptions
from swapwarden.policy.verdict.node import ORDER, NodeCase, NodeHealth, judge

MEASURES: Final = frozenset({usage.NODE_USED, usage.NODE_HEADROOM, usage.NODE_STALL})
Object = TypeVar("Object", states.WireState, WireProfile)


class NodeReport(msgspec.Struct, frozen=True, rename="camel"):
    """A node as it is shown. Sizes in bytes; None where something is unknown."""

    name: str
    health: NodeHealth = msgspec.field(name="state")
    why: str = ""
    profile: str | None = None
    behavior: str | None = None
    mode: str | None = None
    guarantee: str | None = None
    swap_bytes: int | None = None
    used_bytes: int | None = None
    backing: str | None = None
    """Kinds of backing, joined by commas; empty without swap."""
    encrypted: bool | None = None
    devices: list[state.SwapDevice] = []
    kernel: str = ""
    protected_bytes: int | None = None
    """Memory that is planned to be protected for all its pods: memory.min and memory.low of kubepods."""
    protection_asked_bytes: int | None = None
    """Memory that is planned to be protected for each of its pods, in sum."""
    memory_bytes: int | None = None
    pressure: str | None = None
    """Signal and scope of memory pressure, as Headroom/Node; empty without one, None if the profile asks for none."""
    headroom_bytes: int | None = None
    """Memory that can still be taken, in the scope that has least."""
    stall_permille: int | None = None
    """Share of the time in which all tasks waited for memory at once, in the scope that has most."""


class Measured(msgspec.Struct, frozen=True):
    """Figures of a node's agent; None where it reports nothing."""

    used_bytes: int | None = None
    headroom_bytes: int | None = None
    stall_permille: int | None = None


class Known(msgspec.Struct, frozen=True):
    """Data about a cluster's nodes; None if the user may not see it."""

    states: Mapping[str, states.WireState] | None
    agents: agents.Found | None
    measured: Mapping[str, Measured]
    profiles: Mapping[str, WireProfile]


def row(node: nodes.WireNode, known: Known) -> NodeReport:
    """Return the report of one node."""
    name = node.metadata.name
    wire = known.states.get(name) if known.states is not None else None
    node_state = states.read(wire) if wire is not None else state.NodeSwapState()
    spec, status = node_state.spec, node_state.status
    health, why = NodeHealth.UNKNOWN, ""
    if known.states is not None:
        has_agent = None if known.agents is None else name in known.agents and known.agents[name].ready
        problems = dict(_observed(node, spec, status.facts, known.profiles))
        state_row = states.project(wire) if wire is not None else None
        verdict = judge(NodeCase(state_row, spec.mode if spec else "", has_agent, problems))
        health, why = verdict.health, verdict.why
    facts, kept = status.facts, nodes.project(node)
    swap = facts.swap_bytes if facts else kept.swap_bytes if kept.reports_swap else None
    devices = facts.devices if facts else []
    recursive = facts is None or facts.recursive_protection
    protected = functools.partial(state.protected_bytes, recursive=recursive)
    measured, pressure = known.measured.get(name), status.pressure
    if measured is None:
        # At most so old as reports are apart.
        measured = Measured(None, pressure.headroom_bytes, pressure.stall_permille) if pressure else Measured()
    asked = spec is not None and spec.pressure is not None
    return NodeReport(
        name=name,
        health=health,
        why=why,
        profile=spec.profile_ref.name if spec else None,
        behavior=_behavior(node, spec, known.profiles),
        mode=spec.mode if spec else None,
        guarantee=spec.guarantee if spec else None,
        swap_bytes=swap,
        used_bytes=0 if swap == 0 else measured.used_bytes,
        backing=_backing(node, swap, devices),
        encrypted=_encrypted(node, swap, devices),
        devices=devices,
        kernel=facts.kernel_release if facts else "",
        protected_bytes=protected(spec.kubepods) if spec else None,
        protection_asked_bytes=sum(map(protected, spec.pods.values())) if spec else None,
        memory_bytes=facts.memory_bytes if facts else kept.memory_bytes or None,
        pressure=(f"{pressure.signal}/{pressure.scope}" if pressure else "") if asked else None,
        headroom_bytes=measured.headroom_bytes,
        stall_permille=measured.stall_permille,
    )


def _observed(
    node: nodes.WireNode,
    spec: state.StateSpec | None,
    reported: state.Facts | None,
    profiles: Mapping[str, WireProfile],
) -> tuple[observations.NodeObservation, ...]:
    """Return problems that no agent reports; none if the node follows an earlier generation of its profile."""
    if spec is None or reported is None:
        return ()
    facts = nodes.facts(nodes.project(node), reported)
    profile = profiles.get(spec.profile_ref.name)
    if profile is None or profile.metadata.generation != spec.profile_ref.generation:
        return observations.observe(NodeOptions(), SwapOptions(), facts, spec)
    swap, least = profile.spec.swap, profile.spec.kernel.min_free_kbytes
    own = NodeOptions(kernel=() if least is None else ((MIN_FREE, str(least)),))
    required = SwapOptions(require=requirements.require(swap.requirements, swap.allowed_backing))
    return observations.observe(own, required, facts, spec)


def _behavior(node: nodes.WireNode, spec: state.StateSpec | None, profiles: Mapping[str, WireProfile]) -> str | None:
    """Return the behavior in force by the node's label; without one, as without swap, that of the profile."""
    label = node.metadata.labels.get(names.BEHAVIOR_LABEL)
    if label or spec is None:
        return label
    if spec.profile_ref.name == names.BUILT_IN_PROFILE:
        return names.Behavior.KUBELET
    profile = profiles.get(spec.profile_ref.name)
    return profile.spec.swap.behavior if profile is not None else None


def _backing(node: nodes.WireNode, swap: int | None, devices: Sequence[state.SwapDevice]) -> str | None:
    if swap == 0:
        return ""
    backings = {device.backing.lower() for device in devices}  # as in the label
    label = node.metadata.labels.get(names.BACKING_LABEL)
    return ",".join(sorted(backings)) or (label.replace("_", ",") if label else None)


def _encrypted(node: nodes.WireNode, swap: int | None, devices: Sequence[state.SwapDevice]) -> bool | None:
    if devices:
        return all(device.encrypted for device in devices)
    label = node.metadata.labels.get(names.ENCRYPTED_LABEL) if swap else None
    return label == "true" if label else None


def measured(scraped: Mapping[str, Iterable[agents.MetricSample]]) -> dict[str, Measured]:
    """Return the figures of each node's agent."""
    return {node: _measured(node, samples) for node, samples in scraped.items()}


def _measured(node: str, scraped: Iterable[agents.MetricSample]) -> Measured:
    samples = list(scraped)
    use = usage.of_node(node, samples, None, None)
    stalls = [each.value for each in samples if each.name == usage.NODE_STALL and 0 <= each.value <= 1]
    return Measured(use.swap_bytes, use.headroom_bytes, round(max(stalls) * 1000) if stalls else None)


def _or(text: str | None, otherwise: str = tables.UNKNOWN) -> str:
    return text or otherwise


def _share(shown: NodeReport) -> tables.Cell:
    text = tables.share(shown.used_bytes, shown.swap_bytes)
    full = shown.used_bytes is not None and shown.swap_bytes and shown.used_bytes * 10 >= shown.swap_bytes * 9
    return tables.Cell(text, "yellow" if full else "")


def _protected_share(shown: NodeReport) -> tables.Cell:
    """Return the protection that the pods ask for, of the node's memory; above 100% it is overcommitted."""
    asked, memory = shown.protection_asked_bytes, shown.memory_bytes
    over = asked is not None and memory is not None and asked > memory
    return tables.Cell(tables.share(asked, memory), "yellow" if over else "")


def _pressure_text(shown: NodeReport) -> tables.Cell:
    if shown.pressure is None:
        return tables.Cell(tables.NONE)
    return tables.Cell(shown.pressure, "red") if shown.pressure else tables.Cell("No")


def _encrypted_text(shown: NodeReport) -> str:
    if shown.swap_bytes == 0:
        return tables.NONE
    return tables.UNKNOWN if shown.encrypted is None else str(shown.encrypted).lower()


STYLES: Final = {
    NodeHealth.ENFORCED: "green",
    NodeHealth.AUDIT: "cyan",
    NodeHealth.RESTORED: "cyan",
    NodeHealth.UNKNOWN: "",
    **dict.fromkeys((NodeHealth.DRAINING, NodeHealth.PENDING, NodeHealth.RESTORING, NodeHealth.UNMET), "yellow"),
    **dict.fromkeys((NodeHealth.YIELDED, NodeHealth.NO_STATE), "yellow"),
    **dict.fromkeys((NodeHealth.DEGRADED, NodeHealth.SILENT, NodeHealth.NO_AGENT), "bold red"),
    **dict.fromkeys((NodeHealth.INCOMPATIBLE, NodeHealth.NOT_UNDERSTOOD), "bold red"),
}

COLUMNS: Final[tuple[tables.Column[NodeReport], ...]] = (
    tables.Column("NAME", lambda shown: shown.name),
    tables.Column("STATE", lambda shown: tables.Cell(shown.health, STYLES[shown.health])),
    tables.Column("PROFILE", lambda shown: _or(shown.profile)),
    tables.Column("BEHAVIOR", lambda shown: _or(shown.behavior)),
    tables.Column("GUARANTEE", lambda shown: _or(shown.guarantee)),
    tables.Column("SWAP", lambda shown: tables.size(shown.swap_bytes), right=True),
    tables.Column("USED", lambda shown: tables.size(shown.used_bytes), right=True),
    tables.Column("USED%", _share, right=True),
    tables.Column(
        "BACKING", lambda shown: tables.UNKNOWN if shown.backing is None else _or(shown.backing, tables.NONE)
    ),
    tables.Column("ENCRYPTED", _encrypted_text),
    tables.Column("MODE", lambda shown: _or(shown.mode), wide=True),
    tables.Column("KERNEL", lambda shown: _or(shown.kernel), wide=True),
    tables.Column("PROTECTED", lambda shown: tables.size(shown.protected_bytes), right=True, wide=True),
    tables.Column("PROTECTED%", _protected_share, right=True, wide=True),
    tables.Column("PRESSURE", _pressure_text, wide=True),
    tables.Column("HEADROOM", lambda shown: tables.size(shown.headroom_bytes), right=True, wide=True),
    tables.Column("STALL", lambda shown: tables.permille(shown.stall_permille), right=True, wide=True),
    tables.Column("WHY", lambda shown: shown.why, wide=True),
)

SORTS: Final[dict[str, Callable[[NodeReport], Any]]] = {
    "state": lambda shown: (ORDER[shown.health], shown.name),
    "name": lambda shown: shown.name,
    "swap": lambda shown: (-(shown.swap_bytes or 0), shown.name),
    "used": lambda shown: (-(shown.used_bytes or 0), shown.name),
    "profile": lambda shown: (shown.profile or "", shown.name),
}


async def gather(asked: session.Session, chosen: Sequence[str], selector: str) -> list[NodeReport]:
    """Return rows of the nodes of these names, or of all that the selector matches."""
    listed_nodes, known_states, profiles, (running, unseen) = await asyncio.gather(
        asked.objects(session.NODES, nodes.WireNode, chosen, selector=selector),
        _by_name(asked, "the state of nodes", asked.objects(names.STATES_PATH, states.WireState, chosen, lenient=True)),
        _by_name(asked, "the behavior of nodes without swap", asked.collect(names.PROFILES_PATH, WireProfile)),
        agents.find(asked),
    )
    listed = {node.metadata.name for node in listed_nodes}
    scraped, unread = await agents.scrape(
        asked, (agent for name, agent in (running or {}).items() if name in listed), MEASURES
    )
    for why in filter(None, (unseen, unread)):
        asked.note(f"swap in use is not known everywhere: {why}")
    known = Known(known_states, running, measured(scraped), profiles or {})
    return [row(node, known) for node in listed_nodes]


async def _by_name(asked: session.Session, what: str, request: Awaitable[list[Object]]) -> dict[str, Object] | None:
    """Return objects by name; None, with a note, if the user may not read them."""
    try:
        return {each.metadata.name: each for each in await request}
    except session.ForbiddenError as error:
        asked.note(f"{what} is not shown: {error.message}")
        return None


EXAMPLES: Final = """\b
Examples:
  kubectl swap nodes                  all nodes, those with problems first
  kubectl swap nodes -o wide          why each is in its state
  kubectl swap nodes -l pool=batch --sort-by used
"""


@click.command("nodes", epilog=EXAMPLES)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=completion.nodes)
@flags.selector
@click.option("--sort-by", type=click.Choice(list(SORTS)), default="state", help="Default: state, the worst first.")
@flags.printing
@flags.cluster
def command(*, names: tuple[str, ...], selector: str, sort_by: str, form: tables.Form, target: session.Target) -> None:
    """Show each node's swap, how pods get it, and whether that holds."""
    flags.refuse_both(names, selector)
    rows = session.run(target, lambda asked: gather(asked, names, selector))
    if not rows:
        click.echo("No nodes found.", err=True)
    tables.show(form, sorted(rows, key=SORTS[sort_by]), COLUMNS, name=lambda shown: f"node/{shown.name}")
