"""Allowed and refused changes of an existing pod, in each of the chart's admission modes."""

from __future__ import annotations

import pytest

from testbed.base.process import ProcessError
from testbed.controlplane.servers import ControlPlane
from tests.integration import needs
from tests.integration.webhook import pods
from tests.integration.webhook.conftest import Admission

STRATEGIC = "application/strategic-merge-patch+json"
REMEDY = "change the pod template of the workload that made it"


@pytest.fixture
def web(crds: ControlPlane, namespace: str) -> str:
    """The path of a pod with a policy and a limit."""
    annotations = {pods.POLICY: "Disabled", pods.APP_LIMIT: "0", "example.com/note": "a"}
    assert pods.create(crds, namespace, pods.pod("web", annotations))[0] == 201
    return pods.path(namespace, "web")


@pytest.mark.parametrize(
    "annotations",
    [
        {pods.POLICY: "NoPreference"},
        {pods.POLICY: None},
        {pods.LIMIT: "2Gi"},
        {pods.APP_LIMIT: "2Gi"},
        {pods.SOURCE: "namespace"},
        {pods.POLICY: None, pods.LIMIT: "lots", "example.com/note": "b"},
    ],
)
def test_our_annotations_cannot_be_changed(crds: ControlPlane, web: str, annotations: dict[str, str | None]) -> None:
    before = crds.get(web)
    for where in (web, f"{web}/status"):
        status, answer = pods.patch(crds, where, {"metadata": {"annotations": annotations}})
        assert (status, answer["reason"]) == (403, "Forbidden"), where
        for key in annotations:
            assert (f"metadata.annotations[{key}]" in answer["message"]) == ("swapwarden" in key)
        assert REMEDY in answer["message"]
    assert crds.get(web) == before


def test_nor_with_kubectl_annotate(crds: ControlPlane, namespace: str, web: str) -> None:
    assert web
    with pytest.raises(
        ProcessError, match=r"metadata\.annotations\[swapwarden.dev/swap-policy\]: cannot be added, changed"
    ):
        crds.kubectl("annotate", "--namespace", namespace, "--overwrite", "pod/web", f"{pods.POLICY}=NoPreference")


def test_nor_by_replacing_the_pod(crds: ControlPlane, web: str) -> None:
    changed = crds.get(web)
    changed["metadata"]["annotations"] = {}
    status, answer = crds.request("PUT", web, changed)
    assert status == 403
    assert answer["message"].count("metadata.annotations[") == 2, "both annotations are named"


def test_nor_through_its_binding(crds: ControlPlane, namespace: str, web: str) -> None:
    def binding(annotations: dict[str, str]) -> pods.Json:
        return {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "web", "annotations": annotations},
            "target": {"kind": "Node", "name": "node-1"},
        }

    changed = binding({pods.POLICY: "NoPreference"})
    for where in (f"{web}/binding", f"/api/v1/namespaces/{namespace}/bindings"):
        status, answer = crds.request("POST", where, changed)
        assert status == 403, where
        assert "a Binding must not carry swapwarden.dev annotations" in answer["message"]
    assert crds.request("POST", f"{web}/binding", binding({"example.com/by": "scheduler"}))[0] == 201
    found = crds.get(web)
    assert found["metadata"]["annotations"][pods.POLICY] == "Disabled"
    # This is why Bindings are looked at.
    assert found["metadata"]["annotations"]["example.com/by"] == "scheduler"


def test_everything_else_can_be_changed_without_a_call(crds: ControlPlane, admission: Admission, web: str) -> None:
    calls = admission.calls()
    for change in (
        {"labels": {"tier": "front"}},
        {"annotations": {"example.com/note": "b", "example.com/new": "c"}},
        {"annotations": {"example.com/note": None}},
        {"finalizers": ["example.com/kept", "example.com/more"]},
    ):
        status, answer = pods.patch(crds, web, {"metadata": change})
        assert status == 200, answer
    status, answer = pods.patch(crds, f"{web}/status", {"status": {"phase": "Running"}})
    assert status == 200, answer
    status, answer = pods.patch(crds, web, {"spec": {"activeDeadlineSeconds": 1000}})
    assert status == 200, answer
    assert crds.request("DELETE", f"{web}?gracePeriodSeconds=0")[0] == 200
    status, answer = pods.patch(crds, web, {"metadata": {"finalizers": None}})
    assert status == 200, answer
    assert crds.request("GET", web)[0] == 404
    assert admission.calls() == calls


def test_a_debug_container_can_be_added_and_changes_no_annotation(crds: ControlPlane, web: str) -> None:
    body = {
        "metadata": {"annotations": {pods.POLICY: "NoPreference"}},
        "spec": {"ephemeralContainers": [{"name": "debug", "image": "none"}]},
    }
    status, answer = pods.patch(crds, f"{web}/ephemeralcontainers", body, STRATEGIC)
    assert status == 200, answer
    found = crds.get(web)
    assert [container["name"] for container in found["spec"]["ephemeralContainers"]] == ["debug"]
    assert found["metadata"]["annotations"][pods.POLICY] == "Disabled"


@needs.RESIZES
def test_a_pod_can_be_resized_and_that_changes_no_annotation(crds: ControlPlane, web: str) -> None:
    body = {
        "metadata": {"annotations": {pods.POLICY: "NoPreference"}},
        "spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "200m"}}}]},
    }
    status, answer = pods.patch(crds, f"{web}/resize", body, STRATEGIC)
    assert status == 200, answer
    found = crds.get(web)
    assert found["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "200m"
    assert found["metadata"]["annotations"][pods.POLICY] == "Disabled"
