"""Messages to users about invalid pods, and the changes that stay possible."""

from __future__ import annotations

import json

import pytest

from testbed.base.process import ProcessError
from testbed.controlplane.servers import ControlPlane
from testbed.product.webhook import Webhook
from tests.integration.webhook import pods


@pytest.fixture
def namespace(crds: ControlPlane, webhook: Webhook) -> str:
    assert webhook.process.poll() is None
    return pods.new_namespace(crds)


def kubectl_create(control_plane: ControlPlane, namespace: str, body: pods.Json) -> str:
    """Return kubectl's standard error; ProcessError if the pod is refused."""
    return control_plane.kubectl("create", f"--namespace={namespace}", "-f", "-", text=json.dumps(body)).stderr


def test_kubectl_prints_every_mistake_on_a_line_of_its_own(crds: ControlPlane, namespace: str) -> None:
    wrong = pods.pod("web", {pods.POLICY: "disable", pods.LIMIT: "lots", "swap-limit.swapwarden.dev/ap": "1 GB"})
    with pytest.raises(ProcessError) as caught:
        kubectl_create(crds, namespace, wrong)
    quantity = "not a quantity, which is a number without a sign, with a unit such as Mi, Gi or M"
    supported = '"Avoid", "Disabled", "NoPreference", "Preferred", "Required"'
    wanted = {
        "swap-limit.swapwarden.dev/ap": [
            'Invalid value: "ap": the pod has no container of that name; it has: "app"; did you mean "app"?',
            f'Invalid value: "1 GB": {quantity}; did you mean "1G"?',
        ],
        pods.LIMIT: [f'Invalid value: "lots": {quantity}; write for example 512Mi or 2Gi'],
        pods.POLICY: [f'Unsupported value: "disable": supported values: {supported}; did you mean "Disabled"?'],
    }
    lines = [f"* metadata.annotations[{key}]: {text}" for key, texts in wanted.items() for text in texts]
    said = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert said == ['The Pod "web" is invalid:', *lines]


def test_a_refusal_is_a_status_that_programs_understand(crds: ControlPlane, namespace: str) -> None:
    status, answer = pods.create(crds, namespace, pods.pod("web", {pods.POLICY: "Always"}))
    assert (status, answer["reason"]) == (422, "Invalid")
    supported = '"Avoid", "Disabled", "NoPreference", "Preferred", "Required"'
    assert answer["details"]["causes"] == [
        {
            "reason": "FieldValueNotSupported",
            "message": f'Unsupported value: "Always": supported values: {supported}',
            "field": "metadata.annotations[swapwarden.dev/swap-policy]",
        }
    ]
    assert answer["message"].startswith(
        'admission webhook "pods.swapwarden.dev" denied the request: metadata.annotations'
    )
    assert crds.request("GET", pods.path(namespace, "web"))[0] == 404


def test_kubectl_prints_a_warning_about_annotations_without_effect(crds: ControlPlane, namespace: str) -> None:
    misspelt = pods.pod("misspelt", {"swapwarden.dev/swap-polcy": "Disabled"})
    assert kubectl_create(crds, namespace, misspelt) == (
        "Warning: metadata.annotations[swapwarden.dev/swap-polcy]: no effect: there is no such annotation;"
        ' did you mean "swapwarden.dev/swap-policy"?\n'
    )
    placed = pods.pod("placed", {pods.POLICY: "Required"}, node="node-1")
    assert kubectl_create(crds, namespace, placed) == (
        "Warning: metadata.annotations[swapwarden.dev/swap-policy]: Required has no effect on where the pod runs:"
        " the pod's node is chosen already\n"
    )


def test_kubectl_prints_a_warning_of_a_misspelt_key_beside_an_error(crds: ControlPlane, namespace: str) -> None:
    both = pods.pod("both", {"swapwarden.dev/swap-polcy": "Disabled", pods.LIMIT: "lots"})
    with pytest.raises(ProcessError) as refused:
        kubectl_create(crds, namespace, both)
    said = str(refused.value)
    assert "Warning: metadata.annotations[swapwarden.dev/swap-polcy]: no effect" in said
    assert "metadata.annotations[swapwarden.dev/swap-limit]: Invalid value" in said


def test_a_limit_under_a_default_without_swap_is_worth_a_warning(crds: ControlPlane) -> None:
    said = kubectl_create(crds, pods.new_namespace(crds, "Disabled"), pods.pod("web", {pods.LIMIT: "1Gi"}))
    assert "Warning: metadata.annotations[swapwarden.dev/swap-limit]: no effect: the policy Disabled is the" in said
