"""Reads everything that decides on a pod's swap, and prints the explanation."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import sys
from collections.abc import Awaitable
from typing import TypeVar

import msgspec

from swapwarden.api import names, state
from swapwarden.cli.kubectl.cluster import agents, planning, reading, session, usage, workloads
from swapwarden.cli.kubectl.explain import admission, model, screen
from swapwarden.cli.kubectl.output import tables
from swapwarden.policy.observed import namespaces, nodes, pods

T = TypeVar("T")


async def read(asked: session.Session, pod: workloads.DetailedPod) -> model.Observed:
    """Read a pod's node, profiles, state and usage; skip those that the user may not read."""
    unseen: list[str] = []
    hidden: list[str] = []
    on = session.quote(pod.spec.node_name)

    async def read_namespace() -> namespaces.WireNamespace | None:
        path = f"/api/v1/namespaces/{session.quote(pod.metadata.namespace)}"
        return await _seen(hidden, "namespaces", asked.get(path, namespaces.WireNamespace))

    early = admission.default_matters(pod)
    node, bodies, before, found, space = await asyncio.gather(
        _seen(unseen, "nodes", asked.get(f"{session.NODES}/{on}", nodes.WireNode) if on else _nothing()),
        _seen(unseen, names.PROFILE_PLURAL, reading.profiles(asked)),
        reading.past(asked),
        _seen(
            unseen, names.STATE_PLURAL, asked.get(f"{session.STATES}/{on}", state.NodeSwapState) if on else _nothing()
        ),
        read_namespace() if early else _nothing(),
    )
    known = planning.known_profiles(bodies or (), before)
    valid = known.valid
    if any(profile.needs_namespaces() for profile in valid.values()):
        space = space if early else await read_namespace()
        # Whose rules do not need it misses nothing by not seeing it.
        unseen += hidden
    labels, others = namespaces.project(space) if space else None, None
    if node and any(profile.overcommit_percent is not None for profile in valid.values()):
        neighbours = asked.collect("/api/v1/pods", pods.WirePod, fields=f"spec.nodeName={pod.spec.node_name}")
        rows = await _seen(unseen, "pods of all namespaces", neighbours)
        others = (
            None
            if rows is None
            else tuple(pods.project(each) for each in rows if each.metadata.uid != pod.metadata.uid)
        )
    agent, used = await _agent(asked, pod) if found else (None, None)
    return model.Observed(
        pod=pod,
        node=nodes.project(node) if node else None,
        profiles=None if bodies is None else valid,
        history=known.history,
        state=found,
        namespace=labels,
        others=others,
        has_agent=agent,
        used=used,
        unseen=tuple(sorted(unseen)),
    )


async def _nothing() -> None:
    return None


async def _seen(unseen: list[str], what: str, asked: Awaitable[T]) -> T | None:
    """Return the answer; None if there is none, or it is forbidden, which is kept in `unseen`."""
    try:
        return await asked
    except session.ForbiddenError:
        unseen.append(what)
    except session.NotFoundError:
        pass
    return None


async def _agent(asked: session.Session, pod: workloads.DetailedPod) -> tuple[bool | None, usage.PodUse | None]:
    """Return whether the pod's node has a Ready agent, and the usage that it reports; None where unknown."""
    running, why = await agents.find(asked)
    if running is None:
        asked.note(why)
        return None, None
    agent = running.get(pod.spec.node_name)
    if agent is None or not agent.ready:
        return False, None
    scraped, why = await agents.scrape(asked, [agent], usage.OF_PODS)
    if why:
        asked.note(why)
    (used,) = usage.of_pods([pods.project(pod)], scraped, {}, {})
    return True, used


async def run(asked: session.Session, pod: workloads.DetailedPod, output: str, form: tables.Form) -> None:
    """Explain a pod as text, JSON or YAML."""
    explained = model.explain(await read(asked, pod))
    if output != "text":
        sys.stdout.write(tables.serialized(output, msgspec.to_builtins(explained)))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    now, signs = datetime.datetime.now(datetime.UTC), screen.marks(sys.stdout.encoding)
    sys.stdout.write(screen.text(explained, now, signs=signs, width=width, coloured=form.is_coloured(sys.stdout)))
