"""Rows for tests: what a test does not mention has the simplest value."""

from __future__ import annotations

from typing import Any

import msgspec
from swapwarden.api import names
from swapwarden.policy.memory import settings as memory_settings
from swapwarden.policy.node.settings import NodeOptions
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import settings as swap_settings
from swapwarden.policy.swap.settings import SwapOptions

MI = 2**20
GI = 2**30
PAGE = 4096

Kind = resources.Kind


def container(name: str = "app", **fields: Any) -> pods.ContainerRow:
    """An app container; with an id, as if it ran."""
    return pods.ContainerRow(**{"name": name, "kind": Kind.APP, "request": 0, "limit": 0, "id": f"id-{name}", **fields})


def pod(*containers: pods.ContainerRow, **fields: Any) -> pods.PodRow:
    """A Burstable pod with the given containers."""
    uid = fields.pop("uid", "uid-1")
    defaults: dict[str, Any] = {
        "key": uid,
        "uid": uid,
        "namespace": "default",
        "name": "pod",
        "node": "node-1",
        "terminal": False,
        "critical": False,
        "qos": resources.Class.BURSTABLE,
        "policy": None,
        "swap_limit": None,
        "created": "2026-01-01T00:00:00Z",
        "started": "",
        "containers": containers,
    }
    return pods.PodRow(**{**defaults, **fields})


def facts(**fields: Any) -> nodes.NodeFacts:
    """A compatible node with 8 GiB of memory and 4 GiB of swap."""
    return nodes.NodeFacts(**{"compatible": True, "memory_bytes": 8 * GI, "swap_bytes": 4 * GI, **fields})


_SWAP = frozenset(SwapOptions.__struct_fields__)
_NODE = frozenset(NodeOptions.__struct_fields__)


def profile(behavior: names.Behavior = names.Behavior.KUBELET, **fields: Any) -> compiled.Profile:
    """A profile with this behavior and the fields given, also those of its settings of swap and of nodes."""
    return changed(compiled.Profile(name="test"), behavior=behavior, **fields)


def changed(base: compiled.Profile, **fields: Any) -> compiled.Profile:
    """The same profile with the fields given, also those of its settings of swap and of nodes."""
    given = {key: fields.pop(key) for key in list(fields) if key in _SWAP}
    own = {key: fields.pop(key) for key in list(fields) if key in _NODE}
    if "mode" in fields:
        own["enforce"] = fields["mode"] is names.Mode.ENFORCE
    swap, node = msgspec.structs.replace(base.swap, **given), msgspec.structs.replace(base.node, **own)
    return msgspec.structs.replace(base, **{"swap": swap, "node": node, **fields})


def swap(behavior: names.Behavior, **fields: Any) -> SwapOptions:
    """The swap settings of a profile with this behavior and the fields given."""
    return SwapOptions(behavior=behavior, **fields)


def make_override(
    name: str = "",
    policy: names.Policy | None = None,
    swap_limit: int | None = None,
    memory_reservation: names.ReservationPolicy | None = None,
    memory_throttling: int | None = None,
    **fields: Any,
) -> compiled.Override:
    """An override of a profile with the fields given."""
    asked = memory_reservation is not None or memory_throttling is not None
    memory = memory_settings.MemoryOverride(memory_reservation, memory_throttling) if asked else None
    return compiled.Override(name, swap=swap_settings.SwapOverride(policy, swap_limit), memory=memory, **fields)
