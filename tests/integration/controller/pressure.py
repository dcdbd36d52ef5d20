"""Nodes under memory pressure without kubelets: tests are their agents, and the controller of disruption budgets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from swapwarden.kube import client, config
from swapwarden.policy.pressure.candidates import Candidate
from swapwarden.policy.pressure.handling import EvictionAnswer

from testbed.product.controller import ACCOUNT, NAMESPACE
from tests.integration.conftest import Eventually
from tests.integration.controller.cluster import STATES, Cluster

PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
MI = 2**20
SINCE = "2026-01-01T00:00:00Z"
HOLDS = "swapwarden_controller_pressure_holds_total"
ANSWERS = "swapwarden_controller_eviction_dry_runs_total"
NUMBERS = itertools.count(1)


def governed(cluster: Cluster, **pressure: Any) -> str:
    """A new node with a profile of its own that has this `pressure`."""
    name = f"full-{next(NUMBERS)}"
    cluster.node(name)
    cluster.profile(name, {"group": name}, swap={"behavior": "NoSwap"}, pressure=pressure)
    return name


def no_budgets(cluster: Cluster) -> None:
    """Delete all disruption budgets."""
    for item in cluster.cp.get(BUDGETS)["items"]:
        cluster.cp.request("DELETE", f"{BUDGETS}/{item['metadata']['name']}")


def running(cluster: Cluster, node: str, name: str, request: str = "100Mi", owner: str = "ReplicaSet") -> str:
    """A running pod with a label of its name, and a controller of this kind and name, if any; its UID."""
    controller = {"apiVersion": "apps/v1", "kind": owner, "name": name, "uid": f"uid-of-{name}", "controller": True}
    resources = {"requests": {"memory": request}}
    body = {
        "metadata": {"name": name, "labels": {"app": name}, "ownerReferences": [controller] if owner else []},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "none", "resources": resources}]},
    }
    made = cluster.cp.create(PODS, body)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": SINCE}
    code, answer = cluster.cp.request(
        "PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Running", "conditions": [ready]}}
    )
    assert code == 200, answer
    return str(made["metadata"]["uid"])


def evicted_by_kubelet(cluster: Cluster, name: str) -> None:
    """Be the kubelet, which evicted the pod for want of memory: it says so once the pod has ended."""
    message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52880Ki. "
    target = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": message}
    status = {"phase": "Failed", "reason": "Evicted", "message": message}
    body = {"status": {**status, "conditions": [{**target, "lastTransitionTime": SINCE}]}}
    code, answer = cluster.cp.request("PATCH", f"{PODS}/{name}/status", body)
    assert code == 200, answer


def budget(cluster: Cluster, name: str, pod: str, disruptions: int, *, processed: bool = True) -> None:
    """Make a disruption budget of a pod, and be the controller that fills in its status."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": pod}}}
    made = cluster.cp.create(BUDGETS, {"metadata": {"name": name}, "spec": spec})
    counts = {"currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2, "disruptionsAllowed": disruptions}
    status = {**counts, "observedGeneration": made["metadata"]["generation"] if processed else 0}
    code, answer = cluster.cp.request("PATCH", f"{BUDGETS}/{name}/status", {"status": status})
    assert code == 200, answer


def report(cluster: Cluster, node: str, seq: int, **mebibytes: int) -> None:
    """Be the agent of the node, and report the memory of pods by UID."""
    found = [{"pod": uid, "workingSetBytes": size * MI} for uid, size in mebibytes.items()]
    about = {"signal": "Headroom", "scope": "Node", "headroomBytes": 50 * MI, "since": SINCE}
    body = {"status": {"pressure": {"seq": seq, **about, "pods": found}}}
    code, answer = cluster.cp.request("PATCH", f"{STATES}/{node}/status", body)
    assert code == 200, answer


def begin(cluster: Cluster, node: str, eventually: Eventually) -> None:
    """Wait for the plan, and be the agent that has it in force."""
    eventually(lambda: "pressure" in cluster.spec(node), "the thresholds")
    cluster.report(node)


def told(cluster: Cluster, kind: str, name: str, reason: str) -> list[str]:
    selector = f"involvedObject.kind={kind},involvedObject.name={name},reason={reason}"
    found = cluster.cp.get(f"/api/v1/namespaces/default/events?fieldSelector={selector}")["items"]
    return [each["message"] for each in found]


def answers(
    cluster: Cluster, request: Callable[[client.Client, Candidate], Awaitable[EvictionAnswer]], *pods: tuple[str, str]
) -> list[EvictionAnswer]:
    """The answers to the controller's requests about pods with these UIDs and names."""
    kubeconfig = cluster.cp.kubeconfig_for(cluster.cp.token(NAMESPACE, ACCOUNT), "evicts")

    async def requests() -> list[EvictionAnswer]:
        async with client.Client(config.load(str(kubeconfig)), user_agent="test") as api:
            return [await request(api, Candidate(uid, uid, "default", name)) for uid, name in pods]

    return asyncio.run(requests())


def eviction(name: str, **options: Any) -> dict[str, Any]:
    """The eviction of a pod, with these options for its deletion."""
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
