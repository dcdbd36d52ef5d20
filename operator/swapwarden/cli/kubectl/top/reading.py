"""Reads what pods, namespaces and nodes use: from agents, states and metrics.k8s.io."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, TypeVar

import msgspec

from swapwarden.api import state
from swapwarden.cli.kubectl.cluster import agents, samples, session, usage
from swapwarden.policy.observed import nodes, pods

Measured = TypeVar("Measured")

METRICS: Final = "apis/metrics.k8s.io/v1beta1"
FEW_NODES: Final = 16
"""Up to this number, states are requested one by one; more come as a list."""


class StateLimits(msgspec.Struct, frozen=True):
    """A NodeSwapState: the fields that are read."""

    metadata: state.ObjectMeta = state.ObjectMeta()
    spec: state.StateSpec | None = None


async def pods_of(
    asked: session.Session, chosen: Sequence[str], selector: str, spaces: Sequence[str]
) -> list[usage.PodUse]:
    """Return usage and limits of the running pods of these namespaces ("": of all)."""
    paths = [asked.namespaced("api/v1", "pods", space) for space in spaces]
    found = await asyncio.gather(*(asked.objects(path, pods.WirePod, chosen, selector=selector) for path in paths))
    rows = [row for each in found for row in map(pods.project, each) if row.node and not row.terminal]
    desired = {row.node for row in rows}
    (scraped, why), (measured, unmeasured) = await asyncio.gather(
        _scrape(asked, desired, usage.OF_PODS),
        _measured(
            asked, [asked.namespaced(METRICS, "pods", space) for space in spaces], usage.WirePodMetrics, selector
        ),
    )
    by_name = {(each.metadata.namespace, each.metadata.name): each for each in measured}
    uses = usage.of_pods(rows, scraped, {}, by_name)
    states = await specs(asked, {each.node for each in uses if each.limit_bytes is None})
    if states:
        uses = usage.of_pods(rows, scraped, states, by_name)
    unknown = [each for each in uses if each.swap_bytes is None]
    if unknown:
        listed = any(each.node in scraped for each in unknown)
        few = "agents list the pods that use most only (agent.metrics.topPods)" if listed else ""
        asked.note(f"swap in use by some pods is not known: {'; '.join(filter(None, (why, few, unmeasured)))}")
    return uses


async def namespaces_of(asked: session.Session, chosen: Sequence[str], selector: str) -> list[usage.NamespaceUse]:
    """Return usage by namespace; of the user's own only if pods of all may not be listed."""
    try:
        found = await pods_of(asked, (), selector, tuple(dict.fromkeys(chosen)) or ("",))
    except session.ForbiddenError as error:
        if chosen:
            raise
        asked.note(f"only the namespace {asked.own_namespace} is shown: {error.message}")
        found = await pods_of(asked, (), selector, (asked.own_namespace,))
    return usage.of_namespaces(found)


async def nodes_of(asked: session.Session, chosen: Sequence[str], selector: str) -> list[usage.NodeUse]:
    """Return the swap usage of each node."""
    found = await asked.objects(session.NODES, nodes.WireNode, chosen, selector=selector)
    rows = [nodes.project(node) for node in found]
    (scraped, why), (measured, unmeasured) = await asyncio.gather(
        _scrape(asked, [row.name for row in rows], usage.OF_NODES),
        _measured(asked, [f"/{METRICS}/nodes"], usage.WireNodeMetrics, selector),
    )
    by_name = {each.metadata.name: each for each in measured}
    uses = []
    for row in rows:
        total = row.swap_bytes if row.tells_swap else None
        uses.append(usage.of_node(row.name, scraped.get(row.name, ()), total, by_name.get(row.name)))
    if any(each.swap_bytes is None for each in uses):
        asked.note(f"swap in use on some nodes is not known: {'; '.join(filter(None, (why, unmeasured)))}")
    return uses


async def _scrape(
    asked: session.Session, desired: Collection[str], metrics: frozenset[str]
) -> tuple[dict[str, list[samples.MetricSample]], str]:
    """Return the metrics of these nodes' agents, by node; and why others have none."""
    running, unseen = await agents.find(asked)
    if running is None:
        return {}, unseen
    scraped, unread = await agents.scrape(asked, (running[name] for name in desired if name in running), metrics)
    absent = [name for name in desired if name not in running or not running[name].ready]
    missing = f"no agent is Ready on {len(absent)} of {len(desired)} nodes: {min(absent)}" if absent else ""
    return scraped, "; ".join(filter(None, (unread, missing)))


async def specs(asked: session.Session, desired: set[str]) -> dict[str, state.StateSpec]:
    """Return the specs of these nodes' states, without those that the user may not read."""
    try:
        if len(desired) > FEW_NODES:
            listed = await asked.collect(session.STATES, StateLimits)
            return {each.metadata.name: each.spec for each in listed if each.spec is not None}
        names = sorted(desired)
        found = await asyncio.gather(*(_spec(asked, name) for name in names))
    except (session.ForbiddenError, session.NotInstalledError) as error:
        asked.note(f"limits that no agent reports are not known: {error.message}")
        return {}
    return {name: spec for name, spec in zip(names, found, strict=True) if spec is not None}


async def _spec(asked: session.Session, name: str) -> state.StateSpec | None:
    try:
        return (await asked.get(f"{session.STATES}/{session.quote(name)}", StateLimits)).spec
    except session.NotFoundError:
        return None
    except (session.ForbiddenError, session.NotInstalledError, session.ApiUnreachableError):
        raise
    except session.CommandError as error:  # that of another version: the other nodes' may be understood
        asked.note(f"limits on node {name} that no agent reports are not known: {error.message}")
        return None


async def _measured(
    asked: session.Session, paths: Sequence[str], kind: type[Measured], selector: str
) -> tuple[list[Measured], str]:
    """Return the metrics of metrics.k8s.io, and why some are missing."""
    try:
        found = await asyncio.gather(*(asked.collect(path, kind, selector=selector) for path in paths))
        return [each for some in found for each in some], "metrics.k8s.io does not report all of it"
    except session.ApiUnreachableError:
        raise
    except session.NotFoundError:
        return [], "the cluster has no metrics.k8s.io (metrics-server)"
    except session.CommandError as error:
        return [], f"metrics.k8s.io: {error.message}"
