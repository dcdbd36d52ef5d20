"""Reads a cluster once, for those who judge it as a whole."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Collection, Coroutine, Mapping
from typing import Any, Final

import msgspec

from swapwarden.cli import wire
from swapwarden.cli.kubectl.cluster import agents, planning, samples, session, snapshot
from swapwarden.policy.observed import namespaces, nodes

USAGE: Final = "swapwarden_pod_swap_usage_bytes"
_PATIENCE: Final = 1.0
"""Seconds after which the terminal shows the pending requests."""


async def read(asked: session.Session, only: Collection[str] = ()) -> snapshot.ClusterSnapshot:
    """Return nodes, pods, namespaces, profiles and states, or of these plurals only; `unread` has the forbidden ones.

    Users who may not read the pods of all namespaces get those of the session's namespace.
    """
    view = snapshot.ClusterSnapshot()
    jobs: dict[str, Coroutine[Any, Any, None]] = {
        "nodes": asked.each(session.NODES, nodes.WireNode, view.add_node),
        "namespaces": asked.each(session.NAMESPACES, namespaces.WireNamespace, view.add_namespace),
        "nodeswapprofiles": _profiles(asked, view),
        "nodeswapstates": asked.each(session.STATES, planning.WireState, view.add_state),
        "pods": _pods(asked, view),
    }
    for plural in jobs.keys() - set(only) if only else ():
        jobs.pop(plural).close()
    await run_jobs({plural: _guarded(view, plural, job) for plural, job in jobs.items()})
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
    found: list[dict[str, Any]] = []

    def take(body: dict[str, Any]) -> None:
        msgspec.convert(body, wire.StoredProfile)
        found.append(body)

    await asked.each(session.PROFILES, dict[str, Any], take)
    return found


async def past(asked: session.Session) -> list[planning.WireRevision]:
    """Return earlier specs of profiles. Empty if they may not be read: then nodes under way count as done."""
    try:
        return await asked.collect(planning.PAST, planning.WireRevision, selector=planning.PAST_SELECTOR)
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
    found = await asked.collect(path, wire.Named, selector=selector)
    return {(one.metadata.namespace, one.metadata.name) for one in found}


async def used(asked: session.Session, on: Collection[str]) -> dict[str, int] | None:
    """Return swap in use in bytes, by the pods' keys, on some nodes, as agents report it; None if none does."""
    found, unseen = await agents.find(asked)
    chosen = [agent for name, agent in (found or {}).items() if name in on]
    scraped, unread = await agents.scrape(asked, chosen, frozenset({USAGE}))
    for why in filter(None, (unseen, unread)):
        asked.note(f"swap in use is not known everywhere: {why}")
    if not scraped:
        return None
    return {
        sample.labels["pod_uid"]: int(sample.value) for some in scraped.values() for sample in some if _is_pod(sample)
    }


def _is_pod(sample: samples.MetricSample) -> bool:
    return sample.name == USAGE and "pod_uid" in sample.labels and sample.value < 2**63


async def run_jobs(jobs: Mapping[str, Awaitable[None]]) -> None:
    """Do these side by side; on a terminal, standard error shows the requests that take longer than a second."""
    tasks = {asyncio.ensure_future(job): name for name, job in jobs.items()}
    pending = set(tasks)
    shown = False
    try:
        while pending:
            done, pending = await asyncio.wait(pending, timeout=_PATIENCE, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            if pending and sys.stderr.isatty():
                shown = True
                print(
                    "\r\x1b[Kreading",
                    ", ".join(tasks[task] for task in pending),
                    end=" ...",
                    file=sys.stderr,
                    flush=True,
                )
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
