"""Rows for tests: what a test does not mention has the simplest value."""

from __future__ import annotations

from typing import Any

from swapwarden.api import names
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.profile import compiled

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


def profile(behavior: names.Behavior, **fields: Any) -> compiled.Profile:
    """A profile with this behavior and the fields given."""
    return compiled.Profile(name="test", behavior=behavior, **fields)
