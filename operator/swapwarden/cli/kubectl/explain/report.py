"""Reads everything that decides on a pod's swap, and prints the explanation."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import sys
from collections.abc import Awaitable
from typing import TypeVar

import msgspec

from swapwarden.api import names
from swapwarden.cli import wire
from swapwarden.cli.kubectl.cluster import agents, reading, session, snapshot, usage, workloads
from swapwarden.cli.kubectl.explain import model, screen
from swapwarden.cli.kubectl.output import tables
from swapwarden.policy.observed import namespaces, nodes, pods, states
from swapwarden.policy.observed.pods import WirePod

T = TypeVar("T")


async def _from_cron_job(asked: session.Session, pod: WirePod) -> WirePod:
    """Return the pod as if its Job's owner were its own: a CronJob's template can be changed, and a Job's cannot."""
    owner = workloads.controller(pod.metadata.owner_references)
    if owner is None or (owner.kind, owner.api_version) != ("Job", "batch/v1"):
        return pod
    path = f"{asked.namespaced('apis/batch/v1', 'jobs', pod.metadata.namespace)}/{session.quote(owner.name)}"
    job = await _seen([], "jobs", asked.get(path, wire.Named))
    if job is None or workloads.controller(job.metadata.owner_references) is None:
        return pod
    metadata = msgspec.structs.replace(pod.metadata, owner_references=job.metadata.owner_references)
    return msgspec.structs.replace(pod, metadata=metadata)


async def read(asked: session.Session, pod: WirePod) -> model.Observed:
    """Read a pod's node, profiles, state and usage; skip those that the user may not read."""
    unseen: list[str] = []
    hidden: list[str] = []
    on = session.quote(pod.spec.node_name)
    space_path = f"{session.NAMESPACES}/{session.quote(pod.metadata.namespace)}"
    state_path = f"{names.STATES_PATH}/{on}"
    pod, node, bodies, before, state_wire, space = await asyncio.gather(
        _from_cron_job(asked, pod),
        _seen(unseen, "nodes", asked.get(f"{session.NODES}/{on}", nodes.WireNode) if on else _nothing()),
        _seen(unseen, names.PROFILE_PLURAL, reading.profiles(asked)),
        reading.past(asked),
        _seen(unseen, names.STATE_PLURAL, asked.get(state_path, states.WireState) if on else _nothing()),
        _seen(hidden, "namespaces", asked.get(space_path, namespaces.WireNamespace)),
    )
    node_state = None if state_wire is None else states.read(state_wire)
    known = snapshot.known_profiles(bodies or (), before)
    valid = known.valid
    if any(profile.needs_namespaces() for profile in valid.values()):
        # Whose rules do not need it misses nothing by not seeing it.
        unseen += hidden
    labels, others, neighbours = namespaces.project(space) if space else None, None, None
    pressed = node_state is not None and node_state.status.pressure is not None
    if node and (pressed or any(profile.swap.overcommit_percent is not None for profile in valid.values())):
        on_node = asked.collect(session.PODS, WirePod, fields=f"spec.nodeName={pod.spec.node_name}")
        listed = await _seen(unseen, "pods of all namespaces", on_node)
        if listed is not None:
            neighbours = tuple(each for each in listed if each.metadata.uid != pod.metadata.uid)
            others = tuple(map(pods.project, neighbours))
    has_agent, used = None, None
    if node_state:
        running, scraped, why = await agents.read(asked, {pod.spec.node_name}, usage.OF_PODS)
        if why:
            asked.note(why)
        if running is not None:
            agent = running.get(pod.spec.node_name)
            has_agent = agent is not None and agent.ready
        (used,) = usage.of_pods([pods.project(pod)], scraped, {}, {}) if has_agent else (None,)
    return model.Observed(
        pod=pod,
        node=nodes.project(node) if node else None,
        profiles=None if bodies is None else valid,
        history=known.history,
        state=node_state,
        state_row=None if state_wire is None else states.project(state_wire),
        namespace=labels,
        others=others,
        neighbours=neighbours,
        has_agent=has_agent,
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


async def run(asked: session.Session, pod: WirePod, output: str, form: tables.Form) -> None:
    """Explain a pod as text, JSON or YAML."""
    explained = model.explain(await read(asked, pod), asked.flags)
    if output != "text":
        sys.stdout.write(tables.serialized(output, msgspec.to_builtins(explained)))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    now = datetime.datetime.now(datetime.UTC)
    text = screen.text(explained, now, width=width, coloured=form.is_coloured(sys.stdout))
    sys.stdout.write(screen.writable(text, sys.stdout.encoding))
