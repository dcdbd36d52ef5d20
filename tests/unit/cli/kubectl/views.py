"""Clusters as kubectl swap reads them: what a test does not mention has the simplest value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from swapwarden.api import state
from swapwarden.cli.kubectl.cluster import snapshot
from swapwarden.policy.observed import nodes, pods, states

from tests.unit.controller.objects import state_row

GI = 2**30


def facts(swap: int = GI, behavior: str = "NoSwap", **fields: Any) -> state.Facts:
    """Facts of an agent on a node with swap and 8 GiB of memory; BEHAVIOR is the kubelet's, empty: not known."""
    kubelet = state.Kubelet(swap_behavior=behavior) if behavior else None
    given = {"cgroup_version": 2, "swap_controller": True, "memory_bytes": 8 * GI, "kubelet": kubelet, **fields}
    return state.Facts(swap_bytes=swap, **given)


def seen(name: str = "node-1", **fields: Any) -> states.StateRow:
    """The state of a node whose agent follows the built-in profile and reported its facts."""
    return state_row(name, **{"observed": 1, "applied": True, "facts": facts(), **fields})


def view(
    nodes: Iterable[nodes.NodeRow] = (),
    pods: Iterable[pods.PodRow] = (),
    states: Iterable[states.StateRow] = (),
    profiles: Iterable[dict[str, Any]] = (),
    **fields: Any,
) -> snapshot.ClusterSnapshot:
    """A snapshot with these objects."""
    return snapshot.ClusterSnapshot(
        nodes={one.name: one for one in nodes},
        pods={(one.namespace, one.name): one for one in pods},
        states={one.name: one for one in states},
        profiles=list(profiles),
        **fields,
    )


def raw(document: Any) -> msgspec.Raw:
    """An object as it stands in a list."""
    return msgspec.Raw(msgspec.json.encode(document))
