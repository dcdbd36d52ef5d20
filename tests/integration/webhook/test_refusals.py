"""What users see when they ask for what cannot be, and what stays possible."""

from __future__ import annotations

import json

import pytest

from testbed.controlplane import ControlPlane
from testbed.process import ProcessError
from testbed.webhook import Webhook
from tests.integration.webhook import pods

STRATEGIC = "application/strategic-merge-patch+json"
REMEDY = "change the pod template of the workload that made it"


@pytest.fixture
def namespace(crds: ControlPlane, webhook: Webhook) -> str:
    assert webhook.process.poll() is None
    return pods.new_namespace(crds)


def test_kubectl_prints_the_key_the_value_and_what_is_accepted(crds: ControlPlane, namespace: str) -> None:
    wrong = pods.pod(
        "web",
        {pods.POLICY: "Sometimes", pods.LIMIT: "lots", "swap-limit.swapwarden.dev/ap": "1Gi"},
    )
    with pytest.raises(ProcessError) as caught:
        crds.kubectl("create", "--namespace", namespace, "-f", "-", text=json.dumps(wrong))
    said = str(caught.value)
    assert 'The Pod "web" is invalid' in said
    assert (
        'metadata.annotations[swapwarden.dev/swap-policy]: Unsupported value: "Sometimes": '
        'supported values: "Disabled", "NoPreference"'
    ) in said
    assert 'metadata.annotations[swapwarden.dev/swap-limit]: Invalid value: "lots"' in said
    assert "no container of that name" in said


def test_a_refusal_is_a_status_that_programs_understand(crds: ControlPlane, namespace: str) -> None:
    status, answer = pods.create(crds, namespace, pods.pod("web", {pods.POLICY: "Required"}))
    assert (status, answer["reason"]) == (422, "Invalid")
    assert answer["details"]["causes"] == [
        {
            "reason": "FieldValueNotSupported",
            "message": 'Unsupported value: "Required": supported values: "Disabled", "NoPreference"',
            "field": "metadata.annotations[swapwarden.dev/swap-policy]",
        }
    ]
    assert answer["message"].startswith(
        'admission webhook "pods.swapwarden.dev" denied the request: metadata.annotations'
    )
    assert crds.request("GET", pods.path(namespace, "web"))[0] == 404


@pytest.mark.parametrize("policy", ["Disabled", "NoPreference"])
def test_a_policy_that_is_understood_is_kept_as_it_is(crds: ControlPlane, namespace: str, policy: str) -> None:
    wanted = {pods.POLICY: policy, "swap-limit.swapwarden.dev/app": "512Mi"}
    status, answer = pods.create(crds, namespace, pods.pod("web", wanted))
    assert status == 201
    assert answer["metadata"]["annotations"] == wanted


def test_a_warning_reaches_the_user(crds: ControlPlane, namespace: str) -> None:
    body = pods.pod("web", {pods.POLICY: "Disabled", pods.LIMIT: "1Gi"})
    done = crds.kubectl("create", "--namespace", namespace, "-f", "-", text=json.dumps(body))
    assert "Warning: metadata.annotations[swapwarden.dev/swap-limit]: no effect" in done.stderr


# --- after creation ---


@pytest.fixture
def web(crds: ControlPlane, namespace: str) -> str:
    """The path of a pod with a policy and a limit."""
    annotations = {pods.POLICY: "Disabled", "swap-limit.swapwarden.dev/app": "1Gi", "example.com/note": "a"}
    assert pods.create(crds, namespace, pods.pod("web", annotations))[0] == 201
    return pods.path(namespace, "web")


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        ({pods.POLICY: "NoPreference"}, 'cannot be changed from "Disabled" to "NoPreference"'),
        ({pods.POLICY: None}, 'cannot be removed (it is "Disabled")'),
        ({pods.LIMIT: "2Gi"}, 'cannot be added (as "2Gi")'),
        ({"swap-limit.swapwarden.dev/app": "2Gi"}, 'cannot be changed from "1Gi" to "2Gi"'),
        ({pods.SOURCE: "namespace"}, 'cannot be added (as "namespace")'),
    ],
)
def test_our_annotations_cannot_be_changed(
    crds: ControlPlane, web: str, annotations: dict[str, str | None], says: str
) -> None:
    before = crds.get(web)
    status, answer = pods.patch(crds, web, {"metadata": {"annotations": annotations}})
    assert (status, answer["reason"]) == (422, "Invalid")
    assert says in answer["message"]
    assert REMEDY in answer["message"]
    assert crds.get(web) == before


def test_nor_with_kubectl_annotate(crds: ControlPlane, namespace: str, web: str) -> None:
    assert web
    with pytest.raises(ProcessError, match='cannot be changed from "Disabled" to "NoPreference"'):
        crds.kubectl("annotate", "--namespace", namespace, "--overwrite", "pod/web", f"{pods.POLICY}=NoPreference")


def test_nor_by_replacing_the_pod(crds: ControlPlane, web: str) -> None:
    changed = crds.get(web)
    changed["metadata"]["annotations"] = {}
    status, answer = crds.request("PUT", web, changed)
    assert status == 422
    assert len(answer["details"]["causes"]) == 2, "both annotations are named"


def test_nor_through_its_status(crds: ControlPlane, web: str) -> None:
    for changed in ({pods.POLICY: "NoPreference"}, {pods.POLICY: None}, {pods.LIMIT: "1Gi"}):
        status, answer = pods.patch(crds, f"{web}/status", {"metadata": {"annotations": changed}})
        assert status == 403, changed
        assert "cannot be changed after its creation" in answer["message"]
    assert crds.get(web)["metadata"]["annotations"][pods.POLICY] == "Disabled"


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


def test_everything_else_can_be_changed_without_a_call(crds: ControlPlane, webhook: Webhook, web: str) -> None:
    calls = webhook.metric(pods.CALLS)
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
    assert webhook.metric(pods.CALLS) == calls


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
