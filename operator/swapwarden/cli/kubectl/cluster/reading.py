"""Reads a cluster once, for those who judge it as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Coroutine
from typing import Any

import msgspec

from swapwarden.api import names
from swapwarden.cli import wire
from swapwarden.cli.kubectl.cluster import agents, session, snapshot, usage
from swapwarden.policy.observed import namespaces, nodes


async def read(asked: session.Session, only: Collection[str] = ()) -> snapshot.ClusterSnapshot:
    """Return nodes, pods, namespaces, profiles and states, or of these plurals only; `unread` has the forbidden ones.

    Users who may not read the pods of all namespaces get those of the session's namespace.
    """
    view = snapshot.ClusterSnapshot()
    jobs: dict[str, Coroutine[Any, Any, None]] = {
        "nodes": asked.each(session.NODES, nodes.WireNode, view.add_node),
        "namespaces": asked.each(session.NAMESPACES, namespaces.WireNamespace, view.add_namespace),
        "nodeswapprofiles": _profiles(asked, view),
        "nodeswapstates": asked.each(names.STATES_PATH, snapshot.WireState, view.add_state),
        "pods": _pods(asked, view),
    }
    for plural in jobs.keys() - set(only) if only else ():
        jobs.pop(plural).close()
    await asyncio.gather(*(_guarded(view, plural, job) for plural, job in jobs.items()))
    return view


async def _guarded(view: snapshot.ClusterSnapshot, plural: str, job: Awaitable[None]) -> None:
    try:
        await job
    except session.ForbiddenError as error:
        view.unread[plural] = error.message
    except session.NotInstalledError:
        view.installed = False


async def _profiles(asked: session.Session, view: snapshot.ClusterSnapshot) -> None:
    view.profiles, view.past = await asyncio.gather(profiles(asked), past(asked))


async def profiles(asked: session.Session) -> list[dict[str, Any]]:
    """Return all NodeSwapProfiles; those that no API server keeps in this form are left out, and noted."""
    bodies: list[dict[str, Any]] = []

    def take(body: dict[str, Any]) -> None:
        msgspec.convert(body, wire.StoredProfile)
        bodies.append(body)

    await asked.each(names.PROFILES_PATH, dict[str, Any], take)
    return bodies


async def past(asked: session.Session) -> list[snapshot.WireRevision]:
    """Return earlier specs of profiles. Empty if they may not be read: then nodes under way count as done."""
    try:
        return await asked.collect(snapshot.PAST, snapshot.WireRevision, selector=snapshot.PAST_SELECTOR)
    except session.ForbiddenError:
        return []


async def _pods(asked: session.Session, view: snapshot.ClusterSnapshot) -> None:
    try:
        await asked.each(session.PODS, msgspec.Raw, view.add_pod)
    except session.ForbiddenError:
        if not asked.namespace:
            raise
        await asked.each(asked.namespaced("api/v1", "pods"), msgspec.Raw, view.add_pod)
        view.pods_of = asked.namespace


async def labelled(asked: session.Session, view: snapshot.ClusterSnapshot, selector: str) -> set[tuple[str, str]]:
    """Return namespace and name of the pods that a label selector matches, among those that were read."""
    path = asked.namespaced("api/v1", "pods", view.pods_of)
    matching = await asked.collect(path, wire.Named, selector=selector)
    return {(one.metadata.namespace, one.metadata.name) for one in matching}


async def used(asked: session.Session, on: Collection[str]) -> dict[str, int] | None:
    """Return swap in use in bytes, by the pods' keys, on some nodes, as agents report it; None if none does."""
    _, scraped, why = await agents.read(asked, on, frozenset({usage.POD_USED}))
    if why:
        asked.note(f"swap in use is not known everywhere: {why}")
    if not scraped:
        return None
    samples = (sample for some in scraped.values() for sample in some)
    return {one.labels["pod_uid"]: int(one.value) for one in samples if "pod_uid" in one.labels and one.value < 2**63}
