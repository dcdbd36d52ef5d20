"""`overrides` of a profile, and the Namespaces that they select by."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import pytest

from testbed.product.controller import Controller
from tests.integration import needs
from tests.integration.conftest import Eventually, Json
from tests.integration.controller.cluster import FAST, PROFILES, Cluster, limit

DISABLED_BY_TEAM: Json = {
    "name": "quiet",
    "namespaceSelector": {"matchLabels": {"team": "quiet"}},
    "swap": {"policy": "Disabled"},
}
_NAMESPACE_WATCHES = re.compile(
    r'^apiserver_longrunning_requests\{[^}]*resource="namespaces"[^}]*verb="WATCH"[^}]*\} (\S+)$', re.MULTILINE
)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """One without labels of its own; its pods go with the test."""
    name = f"ns-{uuid.uuid4().hex[:8]}"
    cluster.cp.create_namespace(name)
    yield name
    path = f"/api/v1/namespaces/{name}/pods"
    for item in cluster.cp.get(path)["items"]:
        cluster.cp.request("DELETE", f"{path}/{item['metadata']['name']}?gracePeriodSeconds=0")


def pod(
    cluster: Cluster,
    namespace: str,
    name: str,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Json:
    """One on node n1."""
    body = {
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "none"}]},
    }
    made: Json = cluster.cp.create(f"/api/v1/namespaces/{namespace}/pods", body)
    return made


def label(cluster: Cluster, path: str, **labels: str | None) -> None:
    assert cluster.cp.request("PATCH", path, {"metadata": {"labels": labels}})[0] == 200


def given(cluster: Cluster, made: Json) -> tuple[str | None, str | None]:
    """Value and reason in the state of node n1."""
    spec = cluster.spec("n1")
    found = spec.get("pods", {}).get(made["metadata"]["uid"])
    return (None, None) if found is None else (limit(found), found.get("reason", spec["defaultReason"]))


def watches(cluster: Cluster) -> int:
    """How many watches of Namespaces the API server serves, its own included."""
    status, text = cluster.cp.request("GET", "/metrics")
    assert status == 200
    return sum(int(float(value)) for value in _NAMESPACE_WATCHES.findall(text))


def test_the_next_leader_plans_nothing_before_it_knows_the_namespaces(
    cluster: Cluster, eventually: Eventually, namespace: str
) -> None:
    cluster.node("n1")
    label(cluster, f"/api/v1/namespaces/{namespace}", team="quiet")
    made = pod(cluster, namespace, "app")
    cluster.profile("p1", {"group": "n1"}, overrides=[DISABLED_BY_TEAM])
    with Controller(cluster.cp, FAST) as first:
        first.leads()
        eventually(lambda: given(cluster, made) == ("0", "OverrideDisabled"), "the override")
    generation = cluster.state("n1")["metadata"]["generation"]
    with Controller(cluster.cp, FAST) as second:
        second.leads()
        eventually(lambda: second.metric("swapwarden_informer_synced", resource="namespaces") == 1, "Namespaces")
        # Later pods are planned with it.
        late = pod(cluster, namespace, "late")
        eventually(lambda: given(cluster, late) == ("0", "OverrideDisabled"), "the next plan")
    assert cluster.state("n1")["metadata"]["generation"] == generation + 1, "one write, for the pod that came late"


@needs.NODES_TELL_SWAP
@pytest.mark.usefixtures("controller")
def test_an_override_is_applied_and_its_end_returns_the_swap(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n1")
    machine = pod(cluster, "default", "machine", {"kubevirt.io": "virt-launcher"})
    refusing = pod(
        cluster, "default", "refusing", {"kubevirt.io": "virt-launcher"}, {"swapwarden.dev/swap-policy": "Disabled"}
    )
    small = pod(cluster, "default", "small", {"app": "web"}, {"swapwarden.dev/swap-limit": "1Mi"})
    other = pod(cluster, "default", "other", {"app": "web"})
    cluster.profile(
        "p1",
        {"group": "n1"},
        overrides=[
            {
                "name": "machines",
                "podSelector": {"matchLabels": {"kubevirt.io": "virt-launcher"}},
                "swap": {"policy": "Disabled"},
            },
            {
                "name": "apps",
                "podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
                "swap": {"limit": "2Mi"},
            },
        ],
    )
    eventually(lambda: given(cluster, machine) == ("0", "OverrideDisabled"), "the first override")
    assert given(cluster, refusing) == ("0", "PolicyDisabled")
    assert given(cluster, small) == (str(2**20), "KubeletDecides")
    assert given(cluster, other) == (str(2**21), "OverrideLimit")
    label(cluster, "/api/v1/namespaces/default/pods/machine", app="web", **{"kubevirt.io": None})
    eventually(lambda: given(cluster, machine) == (str(2**21), "OverrideLimit"), "the pod's other labels")
    assert cluster.cp.request("PATCH", f"{PROFILES}/p1", {"spec": {"overrides": None}})[0] == 200
    eventually(lambda: given(cluster, machine) == ("max", "KubeletDecides"), "what it had before")
    assert given(cluster, other) == ("max", "KubeletDecides")
    assert given(cluster, refusing) == ("0", "PolicyDisabled")


@needs.NODES_TELL_SWAP
@pytest.mark.usefixtures("controller")
def test_a_pod_has_an_event_when_an_override_precedes_its_own_limit(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n1")
    cluster.profile("p1", {"group": "n1"}, overrides=[{"name": "all", "podSelector": {}, "swap": {"limit": "1Mi"}}])
    made = pod(cluster, "default", "large", annotations={"swapwarden.dev/swap-limit": "1Gi"})
    query = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid={made['metadata']['uid']}"
    eventually(lambda: cluster.cp.get(query)["items"], "an event")
    [event] = cluster.cp.get(query)["items"]
    assert (event["type"], event["reason"]) == ("Warning", "OverrideLimit")
    assert "an override of profile p1" in event["message"]


def test_namespaces_are_followed_only_while_an_override_selects_by_them(
    cluster: Cluster, eventually: Eventually, namespace: str, controller: Controller
) -> None:
    cluster.node("n1")
    path = f"/api/v1/namespaces/{namespace}"
    made = pod(cluster, namespace, "app")
    by_pod = {"name": "other", "podSelector": {"matchLabels": {"app": "other"}}, "swap": {"policy": "Disabled"}}
    cluster.profile("p1", {"group": "n1"}, overrides=[by_pod])
    eventually(lambda: cluster.spec("n1").get("profileRef", {}).get("name") == "p1", "the profile")
    assert given(cluster, made) == ("max", "KubeletDecides")
    assert controller.metric("swapwarden_informer_lists_total", resource="namespaces") == 0
    before = watches(cluster)
    body = {"spec": {"overrides": [by_pod, DISABLED_BY_TEAM]}}
    assert cluster.cp.request("PATCH", f"{PROFILES}/p1", body)[0] == 200
    eventually(lambda: watches(cluster) == before + 1, "a watch of Namespaces")
    assert given(cluster, made) == ("max", "KubeletDecides")
    label(cluster, path, team="quiet")
    eventually(lambda: given(cluster, made) == ("0", "OverrideDisabled"), "the namespace's new label")
    label(cluster, path, team="loud")
    eventually(lambda: given(cluster, made) == ("max", "KubeletDecides"), "the namespace's other label")
    assert cluster.cp.request("PATCH", f"{PROFILES}/p1", {"spec": {"overrides": [by_pod]}})[0] == 200
    eventually(lambda: watches(cluster) == before, "nobody watches Namespaces any more")
    assert controller.metric("swapwarden_informer_synced", resource="namespaces") == 0


@pytest.mark.usefixtures("controller")
def test_a_namespace_made_for_its_first_pod_is_known_to_it(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("n1")
    cluster.profile("p1", {"group": "n1"}, overrides=[DISABLED_BY_TEAM])
    eventually(lambda: cluster.spec("n1").get("profileRef", {}).get("name") == "p1", "the profile")
    for _ in range(5):
        name = f"ns-{uuid.uuid4().hex[:8]}"
        cluster.cp.create_namespace(name, {"team": "quiet"})
        made = pod(cluster, name, "app")
        eventually(lambda made=made: given(cluster, made)[0], "a plan")  # type: ignore[misc] # a default has no type
        assert given(cluster, made) == ("0", "OverrideDisabled")


@pytest.mark.usefixtures("controller")
def test_a_namespaces_default_can_be_lifted(cluster: Cluster, eventually: Eventually, namespace: str) -> None:
    cluster.node("n1")
    defaulted = {"swapwarden.dev/swap-policy": "Disabled", "swapwarden.dev/policy-source": "namespace"}
    made = pod(cluster, namespace, "app", annotations=defaulted)
    cluster.profile("p1", {"group": "n1"})
    eventually(lambda: given(cluster, made) == ("0", "PolicyDisabled"), "the default")
    by_name = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    body = {"spec": {"overrides": [{"name": "lift", "namespaceSelector": by_name, "swap": {"policy": "NoPreference"}}]}}
    assert cluster.cp.request("PATCH", f"{PROFILES}/p1", body)[0] == 200
    eventually(lambda: given(cluster, made) == ("max", "KubeletDecides"), "the override")
