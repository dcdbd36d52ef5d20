"""Plans and events of others, beside a tenant with the right to edit one namespace."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import ssl
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from swapwarden.api import state

from testbed.product.controller import Controller
from tests.integration.conftest import Eventually, Json
from tests.integration.controller.cluster import FAST, STATES, Cluster

NAMESPACE = "tenant"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DISABLED = {"swapwarden.dev/swap-policy": "Disabled"}
LIMIT = {"swapwarden.dev/swap-limit": "64Mi"}
MIRROR, HASH = "kubernetes.io/config.mirror", "kubernetes.io/config.hash"
CLIENTS = 4


class Tenant:
    """A service account with the rights of `edit` in its own namespace, and nowhere else."""

    def __init__(self, cluster: Cluster) -> None:
        cp = cluster.cp
        self._port = cp.port
        self._context = ssl.create_default_context(cafile=str(cp.ca_file))
        if cp.request("GET", f"/api/v1/namespaces/{NAMESPACE}")[0] == 404:
            cp.create_namespace(NAMESPACE)
            cp.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "editor"}})
            # A controller manager would gather these in the ClusterRole edit.
            for role in ("system:aggregate-to-edit", "system:aggregate-to-view"):
                binding = {
                    "metadata": {"name": role},
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                    "subjects": [{"kind": "ServiceAccount", "name": "editor", "namespace": NAMESPACE}],
                }
                cp.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings", binding)
        self._token = cp.token(NAMESPACE, "editor")

    def requests(self, method: str, wanted: Iterable[tuple[str, Json | None]]) -> list[int]:
        """Send many requests (path and body) over few connections; the statuses, in no order."""
        shares: list[list[tuple[str, Json | None]]] = [[] for _ in range(CLIENTS)]
        for number, each in enumerate(wanted):
            shares[number % CLIENTS].append(each)
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            return [
                status for found in pool.map(lambda share: list(self._sent(method, share)), shares) for status in found
            ]

    def _sent(self, method: str, wanted: list[tuple[str, Json | None]]) -> Iterator[int]:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=60, context=self._context)
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        for path, body in wanted:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            answer.read()
            yield answer.status
        connection.close()


def forged(node: str, name: str, key: str, annotations: dict[str, str], **metadata: Any) -> Json:
    """A pod that says of itself that it is the mirror of a static one."""
    marks = {MIRROR: key[:32], HASH: key, "kubernetes.io/config.source": "file", **annotations}
    return {
        "metadata": {"name": name, "annotations": marks, **metadata},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "none"}]},
    }


@pytest.fixture
def tenant(cluster: Cluster) -> Iterator[Tenant]:
    made = Tenant(cluster)
    yield made
    for pod in cluster.cp.get(PODS)["items"]:
        if pod["metadata"].get("finalizers"):
            change = {"metadata": {"finalizers": None}}
            cluster.cp.request("PATCH", f"{PODS}/{pod['metadata']['name']}", change)
    cluster.cp.request("DELETE", f"{PODS}?gracePeriodSeconds=0")


@pytest.fixture
def controller(cluster: Cluster) -> Iterator[Controller]:
    with Controller(cluster.cp, FAST) as running:
        running.leads()
        yield running


def reasons(cluster: Cluster, namespace: str, name: str = "") -> set[str]:
    """Reasons of the events in a namespace, or about one pod of it."""
    selector = f"?fieldSelector=involvedObject.name={name}" if name else ""
    found = cluster.cp.get(f"/api/v1/namespaces/{namespace}/events{selector}")["items"]
    return {event["reason"] for event in found}


@pytest.mark.usefixtures("controller")
def test_forged_mirrors_with_large_hashes_do_not_keep_a_state_from_being_written(
    cluster: Cluster, tenant: Tenant, eventually: Eventually
) -> None:
    cluster.node("fat")
    eventually(lambda: cluster.state("fat"), "its state")
    bodies = [
        forged("fat", f"fat-{number}", f"{number:02d}" + "a" * 254_000, DISABLED, finalizers=["example.com/keep"])
        for number in range(12)
    ]
    assert set(tenant.requests("POST", ((PODS, body) for body in bodies))) == {201}
    # Their kubelet deletes mirrors of pods that it has not started.
    paths = [f"{PODS}/{body['metadata']['name']}?gracePeriodSeconds=0" for body in bodies[::2]]
    assert set(tenant.requests("DELETE", ((path, None) for path in paths))) == {200}
    victim = cluster.pod("fat", "victim", DISABLED)
    eventually(lambda: cluster.swap_max("fat", victim) == "0", "the plan of another namespace's pod")
    planned = cluster.spec("fat")["pods"]
    left = {
        pod["metadata"]["uid"] for pod in cluster.cp.get(PODS)["items"] if "deletionTimestamp" not in pod["metadata"]
    }
    assert len(left) == 6
    assert planned.keys() == left | {victim["metadata"]["uid"]}, "by their own UIDs, and none that must be deleted"


@pytest.mark.usefixtures("controller")
def test_a_forged_mirror_takes_nothing_from_a_static_pod(
    cluster: Cluster, tenant: Tenant, eventually: Eventually
) -> None:
    node = cluster.node("master")
    key, other = "0123456789abcdef" * 2, "fedcba9876543210" * 2
    owner = {"apiVersion": "v1", "kind": "Node", "name": "master", "uid": node["metadata"]["uid"]}
    forgeries = {
        "none": forged("master", "none", key, DISABLED),
        "uid": forged("master", "uid", key, DISABLED, ownerReferences=[{**owner, "uid": "another"}]),
        # One that knows the Node's UID names an unused pod, and takes nothing from the older one.
        "known": forged("master", "known", other, DISABLED, ownerReferences=[owner]),
    }
    assert set(tenant.requests("POST", ((PODS, body) for body in forgeries.values()))) == {201}
    real = forged("master", "etcd-master", key, {}, ownerReferences=[{**owner, "controller": True}])
    cluster.cp.create("/api/v1/namespaces/default/pods", real)
    eventually(lambda: {key, other} <= cluster.spec("master").get("pods", {}).keys(), "the static pods")
    pods = cluster.spec("master")["pods"]
    assert pods[key] == {}
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.cp.get(PODS)["items"]}
    assert pods.keys() == {key, other, uids["none"], uids["uid"]}


def test_a_tenants_new_pods_on_all_nodes_keep_nobody_elses_waiting(
    cluster: Cluster, tenant: Tenant, eventually: Eventually
) -> None:
    crowd = [f"turns-{number}" for number in range(30)]
    for name in (*crowd, "quiet"):
        cluster.node(name)
    with Controller(cluster.cp, FAST) as first:
        first.leads()
        eventually(
            lambda: all(
                cluster.spec(each["metadata"]["name"])
                and (not cluster.knows_swap() or "node.swapwarden.dev/swap" in each["metadata"]["labels"])
                for each in cluster.cp.get("/api/v1/nodes")["items"]
            ),
            "all is written that is not about pods",
        )
    with Controller(cluster.cp, FAST, "--writes-per-second=2") as slow:
        slow.leads()
        eventually(lambda: slow.metric("swapwarden_queue_depth", queue="nodes") == 0, "all work is done")
        containers = [{"name": "app", "image": "none"}]
        bodies = (
            {
                "metadata": {"name": name, "annotations": DISABLED},
                "spec": {"nodeName": name, "containers": containers},
            }
            for name in crowd
        )
        assert set(tenant.requests("POST", ((PODS, body) for body in bodies))) == {201}
        victim = cluster.pod("quiet", "victim", DISABLED)
        eventually(lambda: cluster.swap_max("quiet", victim) == "0", "the plan of another namespace's pod")
        planned = [name for name in crowd if cluster.spec(name).get("pods")]
        assert len(planned) < len(crowd) / 2, "it did not wait for all of the tenant's"


def test_a_tenants_crowd_takes_no_others_room_turns_or_events(
    cluster: Cluster, tenant: Tenant, eventually: Eventually
) -> None:
    """At the real limit. Each of the tenant's pods is also worth a warning."""
    cluster.node("crowded")
    cluster.profile("none", {"group": "crowded"}, swap={"behavior": "NoSwap", "beforePlan": "Unmanaged"})
    count = state.MAX_PODS + 12
    bodies = (forged("crowded", f"pod-{number}", f"{number:032x}", LIMIT) for number in range(count))
    assert set(tenant.requests("POST", ((PODS, body) for body in bodies))) == {201}
    # With a Lease for long: a busy API server takes a second to store a state of this size.
    with Controller(cluster.cp) as controller:
        controller.leads()
        eventually(
            lambda: len(cluster.spec("crowded").get("pods", {})) == state.MAX_PODS, "as many as there is room for"
        )
        eventually(lambda: controller.metric("swapwarden_events_waiting") > 500, "the flood of warnings")
        victim = cluster.pod("crowded", "victim", DISABLED)
        asking = cluster.pod("crowded", "asking", LIMIT)
        eventually(lambda: cluster.swap_max("crowded", victim) == "0", "the plan of another namespace's pod")
        eventually(lambda: cluster.swap_max("crowded", asking) == "0", "the plan of its neighbour")
        eventually(lambda: "ProfileNoSwap" in reasons(cluster, "default", "asking"), "its warning")
        assert len(cluster.spec("crowded")["pods"]) == state.MAX_PODS
        assert controller.metric("swapwarden_controller_pods_left_out", node="crowded") == count + 2 - state.MAX_PODS
        exposed = {"pod": victim["metadata"]["uid"], "desired": "0", "swapBytes": 4096}
        exposed |= {"milliseconds": 7, "causes": ["OtherWriter"], "since": "2026-01-01T00:00:00.000000Z"}
        code, answer = cluster.cp.request("PATCH", f"{STATES}/crowded/status", {"status": {"exposures": [exposed]}})
        assert code == 200, answer
        eventually(lambda: "SwappedAgainstPolicy" in reasons(cluster, "default", "victim"), "that it swapped")
        assert controller.metric("swapwarden_events_waiting") > 100, "the flood continues"
        eventually(lambda: "NotPlanned" in reasons(cluster, NAMESPACE), "the tenant has a notice")
        assert "NotPlanned" not in reasons(cluster, "default")
