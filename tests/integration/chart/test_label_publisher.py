"""`controller.labelPublisher`: who sets labels, with the rights that the chart gives, beside Node Feature Discovery."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from testbed.base import paths
from testbed.controlplane.servers import ControlPlane
from testbed.product import helm, manifests
from testbed.product.controller import Controller
from tests.integration import needs, preloaded
from tests.integration.chart import nfd
from tests.integration.chart.agents import Agent
from tests.integration.chart.nfd import FEATURES, OWNS
from tests.integration.conftest import Json
from tests.integration.controller.cluster import FAST, STATES, Cluster
from tests.integration.controller.node_labels import (
    BACKING,
    BASE,
    BEHAVIOR,
    CLEAR,
    ENCRYPTED,
    NFD,
    NVME,
    SWAP,
    TRUSTED,
    VOUCHED,
    labels,
    patch,
    report,
)

Eventually = Callable[..., None]

OWN = FEATURES.replace("nodefeatures", f"namespaces/{helm.NAMESPACE}/nodefeatures")
NOT_PODS = {"Deployment", "DaemonSet", "Job", "CustomResourceDefinition", "MutatingWebhookConfiguration"}
NOT_THERE = (
    "no labels are published: the CustomResourceDefinition of NodeFeatures is not there; install Node Feature"
    " Discovery, or let --label-publisher be Auto"
)
ALL = {**BASE, BACKING: "nvme", ENCRYPTED: "true"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Rights and policies of this value, also those of the uninstallation's hook."""
    documents = manifests.read(helm.render("--set=controller.labelPublisher=Auto", "--set=namespace.create=true"))
    text = manifests.written([document for document in documents if document and document["kind"] not in NOT_PODS])
    with ControlPlane() as running:
        running.apply_crds(paths.CRDS)
        running.create_namespace(helm.NAMESPACE)
        running.apply(text)
        running.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        yield Cluster(running)


@pytest.fixture(autouse=True)
def _clean(cluster: Cluster) -> Iterator[None]:
    cluster.cp.apply(manifests.folder() / "uninstall-configmap.yaml")
    nfd.apply_kinds(cluster.cp)
    yield
    for path in ("/api/v1/nodes", STATES, OWN):
        status, found = cluster.cp.request("GET", path)
        for item in found["items"] if status == 200 else ():
            cluster.cp.request("DELETE", f"{path}/{item['metadata']['name']}")


def asked(cluster: Cluster, node: str = "one") -> Json:
    status, found = cluster.cp.request("GET", f"{OWN}/swapwarden-{node}")
    labels: Json = found["spec"].get("labels", {}) if status == 200 else {}
    return labels


def noted(cluster: Cluster, node: str = "one") -> set[str]:
    annotations = cluster.cp.get(f"/api/v1/nodes/{node}")["metadata"].get("annotations", {})
    return {
        each if "/" in each else f"feature.node.kubernetes.io/{each}" for each in annotations.get(OWNS, "").split(",")
    }


@needs.NODES_TELL_SWAP
def test_nfd_sets_the_labels_that_it_is_asked_for_and_takes_them_away(cluster: Cluster, eventually: Eventually) -> None:
    node = cluster.node("one")
    patch(cluster, "one", labels={VOUCHED: "encrypted"})
    options = ("--label-publisher=NodeFeature", "--label-removal-delay=1", f"--vouched-nodes={VOUCHED}=encrypted")
    with Controller(cluster.cp, FAST, *options) as controller:
        eventually(lambda: asked(cluster) == BASE, "a NodeFeature")
        report(cluster, "one", NVME)
        eventually(lambda: asked(cluster) == ALL, "what the agent reports")
        eventually(
            lambda: labels(cluster, "one") == {TRUSTED: "true"}, "of all labels this one is the controller's to set"
        )
        [owner] = cluster.cp.get(f"{OWN}/swapwarden-one")["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"])
        assert controller.metric("swapwarden_controller_node_features") == 1
        with nfd.master(cluster.cp, "one"):
            eventually(lambda: labels(cluster, "one") == {**ALL, TRUSTED: "true"}, "labels on the node")
            assert noted(cluster) == ALL.keys()
            report(cluster, "one", CLEAR)
            eventually(lambda: labels(cluster, "one").get(BACKING) == "hdd", "another value")
            cluster.cp.request("DELETE", f"{OWN}/swapwarden-one")
            eventually(lambda: asked(cluster), "a deleted one is recreated")
            eventually(lambda: labels(cluster, "one").get(BACKING) == "hdd", "and so are the labels")
            report(cluster, "one")
            eventually(lambda: not labels(cluster, "one"), "swap is off, and has been for long")
            assert asked(cluster) == {}


@needs.NODES_TELL_SWAP
def test_what_nfd_found_by_itself_stays_with_it(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    metadata = {"name": "one", "labels": {"nfd.node.kubernetes.io/node-name": "one"}}
    none: Json = {"attributes": {}, "flags": {}, "instances": {}}
    worker = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature", "metadata": metadata}
    cluster.cp.create(OWN, {**worker, "spec": {"features": none, "labels": {"memory-swap": "true"}}})
    with nfd.master(cluster.cp, "one"):
        eventually(lambda: labels(cluster, "one") == {NFD: "true"}, "the label of its own worker")
        with Controller(cluster.cp, FAST, "--label-publisher=NodeFeature", "--label-removal-delay=1"):
            eventually(lambda: labels(cluster, "one") == BASE, "ours besides")
            report(cluster, "one")
            eventually(lambda: asked(cluster) == {}, "nothing is asked for any more")
            eventually(lambda: labels(cluster, "one") == {NFD: "true"}, "ours are gone")


def test_the_kind_may_appear_later_and_disappear_and_no_label_is_missing(
    cluster: Cluster, eventually: Eventually
) -> None:
    cluster.cp.kubectl("delete", "crd", "nodefeatures.nfd.k8s-sigs.io")
    cluster.node("one")
    with Controller(cluster.cp, FAST, "--label-publisher=Auto", "--label-removal-delay=1") as controller:
        eventually(lambda: cluster.state("one"), "a state")
        report(cluster, "one", NVME)
        eventually(lambda: labels(cluster, "one") == ALL, "labels by the controller")
        assert OWNS not in cluster.cp.get("/api/v1/nodes/one")["metadata"].get("annotations", {})
        with nfd.master(cluster.cp, "one"):
            nfd.apply_kinds(cluster.cp)

            def taken_over() -> bool:
                assert labels(cluster, "one") == ALL
                return noted(cluster) == ALL.keys()

            eventually(taken_over, "Node Feature Discovery has them", timeout=60)
            assert asked(cluster) == ALL
            report(cluster, "one", CLEAR)
            eventually(lambda: labels(cluster, "one").get(BACKING) == "hdd", "another value, by way of it")
        cluster.cp.kubectl("delete", "crd", "nodefeatures.nfd.k8s-sigs.io")
        nfd.prune(cluster.cp)
        eventually(lambda: labels(cluster, "one").get(BACKING) == "hdd", "the controller sets them itself", timeout=60)
        assert controller.metric("swapwarden_controller_node_features") == 0


@needs.NODES_TELL_SWAP
def test_without_the_kind_no_label_is_set_where_only_nfd_may(cluster: Cluster, eventually: Eventually) -> None:
    cluster.cp.kubectl("delete", "crd", "nodefeatures.nfd.k8s-sigs.io")
    cluster.node("one")
    with Controller(cluster.cp, FAST, "--label-publisher=NodeFeature") as controller:
        pod = cluster.pod("one", "planned")
        eventually(lambda: cluster.swap_max("one", pod) == "max", "a plan all the same")
        controller.said(NOT_THERE)
        assert labels(cluster, "one") == {}
        nfd.apply_kinds(cluster.cp)
        eventually(lambda: asked(cluster) == BASE, "now there is whom to ask", timeout=60)
    cluster.cp.request("DELETE", "/api/v1/namespaces/default/pods/planned?gracePeriodSeconds=0")


@pytest.mark.parametrize("holders", [set[str](), {SWAP}])
def test_an_uninstallation_leaves_none_but_those_that_pods_select(
    cluster: Cluster, eventually: Eventually, holders: set[str]
) -> None:
    cluster.node("one")
    container = {"name": "app", "image": "none"}
    pods = "/api/v1/namespaces/default/pods"
    token = cluster.cp.token(helm.NAMESPACE, "swapwarden-uninstall")
    kubeconfig = cluster.cp.kubeconfig_for(token, "uninstall")
    command = [sys.executable, "-m", "swapwarden", "uninstall", f"--kubeconfig={kubeconfig}", "--node-features"]
    with (
        nfd.master(cluster.cp, "one"),
        Controller(cluster.cp, FAST, "--label-publisher=NodeFeature"),
        Agent(cluster, "one"),
    ):
        eventually(lambda: labels(cluster, "one") == BASE, "labels")
        if holders:
            spec = {"nodeName": "one", "containers": [container], "nodeSelector": dict.fromkeys(holders, "true")}
            cluster.cp.create(pods, {"metadata": {"name": "selects"}, "spec": spec})
        said = preloaded.run(command, timeout=120).stdout
        assert asked(cluster).keys() == holders
        eventually(lambda: labels(cluster, "one").keys() == holders, "labels gone")
    assert ("node one keeps the label" in said) is bool(holders)
    assert bool(cluster.cp.get(OWN)["items"]) is bool(holders)
    cluster.cp.request("DELETE", f"{pods}/selects?gracePeriodSeconds=0")


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"labels": {SWAP: "true", BEHAVIOR: "NoSwap"}}, 201),
        ({"labels": {SWAP: "true"}, "features": {"attributes": {}, "flags": {}, "instances": {}}}, 201),
        ({"labels": {}}, 201),
        ({"labels": {SWAP: "true", "pool": "other"}}, 403),
        ({"labels": {TRUSTED: "true"}}, 403),
        ({"features": {"attributes": {}, "flags": {"cpu.x": {"elements": {}}}, "instances": {}}}, 403),
    ],
)
def test_the_controller_may_ask_for_its_own_labels_only(
    cluster: Cluster, eventually: Eventually, spec: Json, status: int
) -> None:
    token = cluster.cp.token(helm.NAMESPACE, "swapwarden-controller")

    def asks(spec: Json, path: str = f"{OWN}?dryRun=All") -> tuple[int, Json]:
        body = {
            "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
            "kind": "NodeFeature",
            "metadata": {"name": "x"},
            "spec": spec,
        }
        return cluster.cp.request("POST", path, body, token=token)

    eventually(lambda: asks({"labels": {"a": "b"}})[0] == 403, "the policy in force")
    found, answer = asks(spec)
    assert found == status, answer
    if status == 403:
        assert "may only ask for these labels of a node" in answer["message"]
    assert asks({"labels": {}}, OWN.replace(helm.NAMESPACE, "default"))[0] == 403, "the namespace of the release only"
    assert cluster.cp.request("DELETE", f"{OWN}/x", token=token)[0] == 403
