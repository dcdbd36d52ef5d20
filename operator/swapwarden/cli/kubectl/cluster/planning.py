"""A cluster as the controller would see it. Only this module of kubectl swap imports the controller.

Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from swapwarden.api import state
from swapwarden.controller import cluster
from swapwarden.controller.inventory import profile_store, revisions, states
from swapwarden.controller.notices.pod_notices import notices_about
from swapwarden.controller.planning import decisions
from swapwarden.controller.planning import view as planner
from swapwarden.policy.observed import namespaces, nodes, pods
from swapwarden.policy.profile import compiled

StateRow = states.StateRow
WireState = states.WireState
WireRevision = revisions.WireRevision
PAST: Final = "/apis/apps/v1/controllerrevisions"
PAST_SELECTOR: Final = revisions.OWNER_LABEL
project_state: Final = states.project
ProfileEntry = profile_store.Entry
pod_notices: Final = notices_about
"""As the controller writes them to pods' events."""

History = Mapping[state.ProfileRef, compiled.Profile]


@dataclasses.dataclass(frozen=True)
class KnownProfiles:
    """NodeSwapProfiles as the controller understands them."""

    valid: Mapping[str, compiled.Profile]
    """By name, each in its newest valid version."""
    history: History
    """As they were in generations that nodes may still follow."""
    entries: Mapping[str, ProfileEntry]
    """All of them by name, those that are not valid included."""


def known_profiles(bodies: Iterable[Mapping[str, Any]], past: Iterable[WireRevision] = ()) -> KnownProfiles:
    """Compile profiles as they were read; `past` are ControllerRevisions."""
    store = profile_store.ProfileStore(quiet=True)
    for body in bodies:
        store.offer(body)
    store.set_stored(filter(None, map(revisions.project, past)))
    return KnownProfiles(store.valid(), store.history(), store.entries)


class ProfileChange(msgspec.Struct, frozen=True):
    """A change of profiles."""

    put: tuple[compiled.Profile, ...] = ()
    """New, or in place of those of the same names."""
    delete: tuple[str, ...] = ()


class UnknownProfileError(Exception):
    """There is no profile of this name that could be deleted."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        there = ", ".join(sorted(known)) or "none"
        super().__init__(f"there is no NodeSwapProfile {name!r}; there are: {there}")


def apply(known: KnownProfiles, change: ProfileChange) -> dict[str, compiled.Profile]:
    """Return the profiles after a change, with the API server's defaults.

    Raise UnknownProfileError if there is none that could be deleted.
    """
    for name in change.delete:
        if name not in known.entries:
            raise UnknownProfileError(name, known.entries)
    coming = {name: one for name, one in known.valid.items() if name not in change.delete}
    for one in change.put:
        old = coming.get(one.name)
        if old is None:
            coming[one.name] = msgspec.structs.replace(one, generation=1, uid="", created="")
            continue
        same = msgspec.structs.replace(one, generation=old.generation, uid=old.uid, created=old.created)
        coming[one.name] = old if same == old else msgspec.structs.replace(same, generation=old.generation + 1)
    return coming


class PlannedNode(planner.NodeView, frozen=True):
    """A node with all that the controller plans it by, and what follows from that."""

    conflicts: tuple[str, ...]
    """Other profiles of the same priority that also select it."""
    degraded: tuple[str, ...]
    """Problems there, as rollouts compare them; empty if none."""
    has_agent: bool


def view(
    *,
    nodes: Mapping[str, nodes.NodeRow],
    pods: Collection[pods.PodRow],
    states: Mapping[str, StateRow],
    labels: namespaces.Labels | None,
    agent_namespace: str | None,
    profiles: Mapping[str, compiled.Profile],
    history: History,
) -> dict[str, PlannedNode]:
    """Return each node by name, as the controller sees it with these profiles. `labels` are those of namespaces."""
    known = cluster.Cluster(agent_pods=agent_namespace)
    known.profiles_changed(profiles, history)
    for name, node in nodes.items():
        known.node_changed(name, node)
    for name, row in states.items():
        known.state_changed(name, None, row)
    for pod in pods:
        known.pod_changed(f"{pod.namespace}/{pod.name}", None, pod)
    known.namespaces_known(labels)
    return {name: _node(known, seen) for name in nodes if (seen := known.planner.view(name)) is not None}


def _node(known: cluster.Cluster, seen: planner.NodeView) -> PlannedNode:
    name = seen.node.name
    return PlannedNode(
        **{field: getattr(seen, field) for field in seen.__struct_fields__},
        conflicts=known.planner.selection(name).conflicts,
        degraded=decisions.degraded(seen.report, refused=seen.refused) if seen.report is not None else (),
        has_agent=known.inventory.has_agent(name),
    )
