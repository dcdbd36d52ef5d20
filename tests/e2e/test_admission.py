"""Answers of the API server and its webhook to kubectl, and the resulting values in the kernel."""

from __future__ import annotations

import json

import pytest

from testbed.base import process
from tests.e2e import cgroups
from tests.e2e.conftest import Namespace, Wait, new_namespace
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release

POLICY = "swapwarden.dev/swap-policy"


def test_a_namespaces_default_reaches_the_kernel(
    cluster: Provider, node: Node, swapwarden: Release, eventually: Wait
) -> None:
    with new_namespace(cluster, {"swapwarden.dev/default-swap-policy": "Disabled"}) as namespace:
        namespace.create_pod("by-default")
        namespace.create_pod("by-itself", metadata={"annotations": {POLICY: "NoPreference"}})
        given = {name: namespace.wait_ready(name) for name in ("by-default", "by-itself")}
        annotations = given["by-default"]["metadata"]["annotations"]
        assert (annotations[POLICY], annotations["swapwarden.dev/policy-source"]) == ("Disabled", "namespace")
        folders = {name: cgroups.of_pod(node, pod) for name, pod in given.items()}
        eventually(lambda: swapwarden.planned(given["by-itself"]["metadata"]["uid"]) == "max", "both are planned")
        eventually(lambda: cgroups.swap_max(node, folders["by-default"]) == "0", "the default is in force")
        eventually(lambda: cgroups.swap_max(node, folders["by-itself"]) == "max", "the pod's own policy wins")


@pytest.mark.usefixtures("swapwarden")
def test_a_mistake_in_a_deployment_is_shown_where_people_look(
    cluster: Provider, namespace: Namespace, eventually: Wait
) -> None:
    template = {
        "metadata": {"labels": {"app": "web"}, "annotations": {POLICY: "Sometimes"}},
        "spec": {"containers": [{"name": "main", "image": cluster.busybox, "command": ["sleep", "86400"]}]},
    }
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace.name},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
    }
    cluster.kubectl("create", "-f", "-", text=json.dumps(body))

    def described() -> str:
        return cluster.kubectl("describe", "replicaset", f"--namespace={namespace.name}").stdout

    eventually(lambda: "FailedCreate" in described(), "the ReplicaSet's events say that no pod can be made")
    told = described()
    assert 'Unsupported value: "Sometimes"' in told
    assert POLICY in told
    assert '"Disabled"' in told
    deployment = cluster.kubectl("describe", "deployment", "web", f"--namespace={namespace.name}").stdout
    assert ["ReplicaFailure", "True", "FailedCreate"] in [line.split() for line in deployment.splitlines()]
    assert cluster.get(f"/api/v1/namespaces/{namespace.name}/pods")["items"] == []


@pytest.mark.usefixtures("swapwarden")
def test_a_policy_does_not_change_after_creation(cluster: Provider, namespace: Namespace) -> None:
    namespace.create_pod("fixed", metadata={"annotations": {POLICY: "Disabled"}})
    annotate = ["annotate", "pod", "fixed", f"--namespace={namespace.name}", "--overwrite"]
    with pytest.raises(process.ProcessError, match=POLICY):
        cluster.kubectl(*annotate, f"{POLICY}=NoPreference")
    cluster.kubectl(*annotate, "example.com/note=anything else changes as ever")
    assert namespace.pod("fixed")["metadata"]["annotations"][POLICY] == "Disabled"
