"""Objects for tests, as rows and as the API server gives them: what a test does not mention has the simplest value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from swapwarden.api import names, state
from swapwarden.cli.kubectl.cluster import snapshot
from swapwarden.policy.memory import settings as memory_settings
from swapwarden.policy.node.settings import NodeOptions
from swapwarden.policy.observed import nodes, pods, resources, states
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


def node(name: str = "node-1", **fields: Any) -> nodes.NodeRow:
    """A node with 1 GiB of swap and 8 GiB of memory."""
    defaults = {"uid": f"uid-of-{name}", "labels": {}, "swap_bytes": 2**30, "memory_bytes": 2**33}
    return nodes.NodeRow(**{"name": name, **defaults, **fields})


def state_row(
    name: str = "node-1", version: int = 1, spec: state.StateSpec | None = None, **fields: Any
) -> states.StateRow:
    """A state owned by the node of the same name, with a spec as the built-in profile makes it of no pods.

    Where its agent is behind, the last plan that it saw was one of another profile, if nothing else is said.
    """
    spec = spec or state.StateSpec(
        profile_ref=state.ProfileRef(name=names.BUILT_IN_PROFILE), default_reason=names.Reason.KUBELET_DECIDES
    )
    observed = fields.get("observed", 0)
    acted = spec.profile_ref if observed >= fields.get("generation", 1) else state.ProfileRef("earlier")
    defaults: dict[str, Any] = {
        "uid": f"uid-of-state-{name}",
        "owner": f"uid-of-{name}",
        "generation": 1,
        "epoch": spec.epoch,
        "profile": spec.profile_ref,
        "spec": msgspec.json.encode(spec),
        "before": tuple(spec.degraded_before),
        "observed": observed,
        "acted": acted if observed else None,
        "facts": None,
        "applied": False,
        "reported": observed > 0,
        "settled": fields.get("applied", False),
        "degraded": "",
    }
    return states.StateRow(**{"name": name, "version": version, **defaults, **fields})


def named_profile(name: str = "p", **fields: Any) -> compiled.Profile:
    """A profile that selects all nodes."""
    return profile(**{"name": name, "generation": 1, "uid": f"uid-of-{name}", **fields})


def profile_object(
    name: str = "p", version: int = 1, generation: int = 1, uid: str = "", **spec: Any
) -> dict[str, Any]:
    """A NodeSwapProfile as the API server gives it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.PROFILE_KIND,
        "metadata": {
            "name": name,
            "uid": uid or f"uid-of-{name}",
            "generation": generation,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {"nodeSelector": {}, **spec},
    }


def state_object(row: states.StateRow) -> dict[str, Any]:
    """The NodeSwapState that a row was made of, as the API server gives it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": row.name, "uid": row.owner}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.STATE_KIND,
        "metadata": {
            "name": row.name,
            "uid": row.uid,
            "generation": row.generation,
            "resourceVersion": str(row.version),
            "ownerReferences": [owner] if row.owner else [],
        },
        "spec": msgspec.json.decode(row.spec),
    }


def wired(found: state.NodeSwapState) -> states.WireState:
    """A state as the API server sends it."""
    meta = msgspec.structs.replace(found.metadata, uid="s", resource_version="7")
    spec, status = (raw(each) for each in (found.spec, found.status))
    return states.WireState(meta, spec, status)


def sent(**found: state.NodeSwapState) -> dict[str, states.WireState]:
    """States by name (with - for _), as the API server sends them."""
    return {name.replace("_", "-"): wired(each) for name, each in found.items()}


def agent_facts(swap: int = GI, behavior: str = "NoSwap", **fields: Any) -> state.Facts:
    """Facts of an agent on a node with swap and 8 GiB of memory; BEHAVIOR is the kubelet's, empty: not known."""
    kubelet = state.Kubelet(swap_behavior=behavior) if behavior else None
    given = {"cgroup_version": 2, "swap_controller": True, "memory_bytes": 8 * GI, "kubelet": kubelet, **fields}
    return state.Facts(swap_bytes=swap, **given)


def reported_row(name: str = "node-1", **fields: Any) -> states.StateRow:
    """The state of a node whose agent follows the built-in profile and reported its facts."""
    return state_row(name, **{"observed": 1, "applied": True, "facts": agent_facts(), **fields})


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
