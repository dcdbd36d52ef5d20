"""A pod on a node with a profile, as `kubectl swap explain` reads them; a test names the differences."""

from __future__ import annotations

from typing import Any

import msgspec
from swapwarden.api import names, state
from swapwarden.cli.kubectl.explain import model
from swapwarden.policy import plan
from swapwarden.policy.observed import namespaces, nodes, pods, states
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.profile import compiled

from tests.unit import objects

GI = 2**30
MI = 2**20
NODE = nodes.NodeRow("batch-1", "uid-node", {"pool": "batch"}, 4 * GI, 8 * GI)
DISK = state.SwapDevice("/dev/nvme1n1", "partition", 4 * GI, backing="NVMe")
FACTS = state.Facts(2, True, 4 * GI, 8 * GI, devices=[DISK], kernel_release="6.1.0")
POOL = (compiled.LabelExpression("pool", "In", frozenset({"batch"})),)
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "report-6d5f8b7c9", "controller": True}


def container(name: str = "app", request: str = "", limit: str = "", **fields: Any) -> dict[str, Any]:
    resources = {
        **({"requests": {"memory": request}} if request else {}),
        **({"limits": {"memory": limit}} if limit else {}),
    }
    return {"name": name, "resources": resources, **fields}


def pod(*containers: dict[str, Any], status: dict[str, Any] | None = None, **fields: Any) -> WirePod:
    """A running pod of a Deployment; `annotations` and more go to its metadata, but for `spec`."""
    spec = {"nodeName": "batch-1", "priority": 0, **fields.pop("spec", {})}
    running = [
        {"name": one["name"], "containerID": f"containerd://id-{one['name']}", "state": {"running": {}}}
        for one in containers
    ]
    metadata = {
        "name": "report-6d5f8b7c9-x2x4q",
        "namespace": "batch",
        "uid": "uid-1",
        "labels": {"pod-template-hash": "6d5f8b7c9"},
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [OWNER],
        **fields,
    }
    body = {
        "metadata": metadata,
        "spec": {**spec, "containers": list(containers) or [container(request="1Gi", limit="2Gi")]},
        "status": {
            "phase": "Running",
            "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": running,
            **(status or {}),
        },
    }
    return msgspec.convert(body, WirePod)


def profile(behavior: names.Behavior = names.Behavior.LIMITED_SWAP, **fields: Any) -> compiled.Profile:
    made: dict[str, Any] = {"name": "batch-nodes", "generation": 3, "priority": 100, "selector": POOL, **fields}
    return objects.profile(behavior, **made)


def reported(
    spec: state.StateSpec, *violations: state.Violation, conditions: tuple[state.Condition, ...] = (), **fields: Any
) -> state.NodeSwapState:
    """A state with the status of an agent on whose node all is well, but for these."""
    found = (
        state.Condition("Compatible", "True", "Compatible"),
        state.Condition("Applied", "True", "AsSpecified", last_transition_time="2026-01-01T00:10:00Z"),
        *conditions,
    )
    made: dict[str, Any] = {
        "observed_generation": 12,
        "profile_ref": spec.profile_ref,
        "facts": FACTS,
        "conditions": list({one.type: one for one in found}.values()),
        "violations": list(violations),
        **fields,
    }
    return state.NodeSwapState(
        metadata=state.ObjectMeta(name="batch-1", generation=12), spec=spec, status=state.StateStatus(**made)
    )


def planned(
    found: WirePod,
    governing: compiled.Profile,
    facts: state.Facts = FACTS,
    known: namespaces.Labels | None = None,
) -> state.StateSpec:
    return plan.plan_node(governing, nodes.facts(NODE, facts), [pods.project(found)], known or {})


def seen(found: WirePod, *known: compiled.Profile, **fields: Any) -> model.Observed:
    """All of it, planned by the first of the profiles."""
    governing = known[0] if known else compiled.BUILT_IN
    made: dict[str, Any] = {
        "node": NODE,
        "profiles": {one.name: one for one in known},
        "state": reported(planned(found, governing)),
        "others": (),
        "has_agent": True,
        **fields,
    }
    if made["state"] is not None:
        made["state_row"] = states.project(objects.wired(made["state"]))
    return model.Observed(found, **made)
