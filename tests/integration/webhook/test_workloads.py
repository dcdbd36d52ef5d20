"""Mistakes in pod templates are reported when a workload is applied."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.base.process import ProcessError
from testbed.controlplane.servers import ControlPlane
from testbed.product.webhook import Webhook
from tests.integration.webhook import pods

BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
TEMPLATES = ("swapwarden-templates", "swapwarden-cronjob-templates")
KINDS = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "ReplicaSet": "apps/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    "ReplicationController": "v1",
}
BAD = {pods.POLICY: "disabled", pods.LIMIT: "lots", "swap-limit.swapwarden.dev/app": "1 GB", "example.com/note": "x"}
GOOD = {pods.POLICY: "Disabled", "swap-limit.swapwarden.dev/app": "0", "swapwarden.dev/note": "x"}


def workload(kind: str, name: str, annotations: dict[str, str] | None) -> Any:
    """An object of the kind with this pod template."""
    spec = {**pods.pod("x")["spec"], "restartPolicy": "OnFailure" if "Job" in kind else "Always"}
    metadata: Any = {"labels": {"app": name}}
    if annotations is not None:
        metadata["annotations"] = annotations
    template = {"metadata": metadata, "spec": spec}
    selector: Any = {"app": name} if kind == "ReplicationController" else {"matchLabels": {"app": name}}
    whole: dict[str, Any] = {"template": template, "selector": selector}
    if kind == "Job":
        whole = {"template": template}
    elif kind == "CronJob":
        whole = {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}}
    elif kind == "StatefulSet":
        whole["serviceName"] = "x"
    return {"apiVersion": KINDS[kind], "kind": kind, "metadata": {"name": name}, "spec": whole}


def apply(control_plane: ControlPlane, namespace: str, body: Any) -> str:
    """Return kubectl's standard error; ProcessError if the workload is refused."""
    return control_plane.kubectl("apply", f"--namespace={namespace}", "-f", "-", text=json.dumps(body)).stderr


@pytest.fixture(scope="module")
def namespace(crds: ControlPlane, webhook: Webhook) -> str:
    assert webhook.process.poll() is None
    return pods.new_namespace(crds)


@pytest.fixture
def denying(crds: ControlPlane, webhook: Webhook) -> Iterator[None]:
    """As with the chart's value admission.workloadTemplates: Deny."""
    assert webhook.process.poll() is None
    for name in TEMPLATES:
        assert pods.patch(crds, f"{BINDINGS}/{name}", {"spec": {"validationActions": ["Deny"]}})[0] == 200
    crds.wait_for_policies()
    yield
    for name in TEMPLATES:
        pods.patch(crds, f"{BINDINGS}/{name}", {"spec": {"validationActions": ["Warn"]}})
    crds.wait_for_policies()


def at(kind: str) -> str:
    return "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"


def assert_tells_all(said: str, kind: str) -> None:
    where = f"{at(kind)}.metadata.annotations"
    assert f'{where}[{pods.POLICY}]: Unsupported value: "disabled": supported values: "Avoid", "Disabled"' in said
    assert f'{where}[{pods.LIMIT}]: Invalid value: "lots": not a quantity' in said
    assert f'{where}[swap-limit.swapwarden.dev/app]: Invalid value: "1 GB": not a quantity' in said


@pytest.mark.parametrize("kind", KINDS)
def test_kubectl_prints_a_warning(crds: ControlPlane, namespace: str, kind: str) -> None:
    said = apply(crds, namespace, workload(kind, f"warned-{kind.lower()}", BAD))
    assert said.startswith("Warning: Validation failed for ValidatingAdmissionPolicy")
    assert_tells_all(said, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_or_it_is_refused_on_request(crds: ControlPlane, namespace: str, denying: None, kind: str) -> None:
    assert denying is None
    name = f"refused-{kind.lower()}"
    with pytest.raises(ProcessError) as refused:
        apply(crds, namespace, workload(kind, name, BAD))
    assert_tells_all(str(refused.value), kind)
    for number, good in enumerate((GOOD, {}, None)):
        assert apply(crds, namespace, workload(kind, f"{name}-{number}", good)) == ""


def test_one_from_before_can_be_scaled_and_edited_but_not_spoiled_further(
    crds: ControlPlane, namespace: str, denying: None
) -> None:
    assert denying is None
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    body = workload("Deployment", "old", {pods.POLICY: "disabled"})
    pods.patch(crds, f"{BINDINGS}/{TEMPLATES[0]}", {"spec": {"validationActions": ["Warn"]}})
    crds.wait_for_policies()
    assert crds.request("POST", path, body)[0] == 201
    pods.patch(crds, f"{BINDINGS}/{TEMPLATES[0]}", {"spec": {"validationActions": ["Deny"]}})
    crds.wait_for_policies()
    assert crds.request("POST", path, workload("Deployment", "new", {pods.POLICY: "disabled"}))[0] == 403

    crds.kubectl("scale", "deployment/old", "--replicas=3", f"--namespace={namespace}")
    for change in (
        {"spec": {"replicas": 4}},
        {"metadata": {"labels": {"a": "b"}}},
        {"spec": {"template": {"metadata": {"annotations": {"example.com/restarted": "now"}}}}},
        {"spec": {"template": {"metadata": {"annotations": {pods.LIMIT: "1Gi"}}}}},
    ):
        status, answer = pods.patch(crds, f"{path}/old", change)
        assert status == 200, answer
    assert pods.patch(crds, f"{path}/old/status", {"status": {"observedGeneration": 1}})[0] == 200
    for spoiled in ({pods.POLICY: "disable"}, {pods.LIMIT: "lots"}):
        change = {"spec": {"template": {"metadata": {"annotations": spoiled}}}}
        status, answer = pods.patch(crds, f"{path}/old", change)
        assert status == 403
        (key,) = spoiled
        assert f"spec.template.metadata.annotations[{key}]" in answer["message"]
        assert answer["message"].count("metadata.annotations[") == 1, "earlier mistakes are not named"
    repaired = {"spec": {"template": {"metadata": {"annotations": {pods.POLICY: "Disabled"}}}}}
    assert pods.patch(crds, f"{path}/old", repaired)[0] == 200
    assert crds.request("DELETE", f"{path}/old")[0] == 200
