"""Whom the API server asks the webhook about, and whom not."""

from __future__ import annotations

import pytest

from testbed.controlplane import ControlPlane
from testbed.webhook import Webhook
from tests.integration.webhook import pods

MIRROR = {
    "kubernetes.io/config.mirror": "0123",
    "kubernetes.io/config.hash": "0123",
    "kubernetes.io/config.source": "file",
}


@pytest.fixture
def plain(crds: ControlPlane, webhook: Webhook) -> str:
    assert webhook.process.poll() is None
    return pods.new_namespace(crds)


def test_pods_without_policy_cost_no_call(crds: ControlPlane, webhook: Webhook, plain: str) -> None:
    calls = webhook.metric(pods.CALLS)
    for number in range(200):
        annotations = [None, {}, {"example.com/swap-policy": "x"}, {"swapwarden.dev/note": "y"}][number % 4]
        status, answer = pods.create(crds, plain, pods.pod(f"pod-{number}", annotations))
        assert status == 201, answer
    for number in range(0, 200, 4):
        change = {"metadata": {"labels": {"n": str(number)}, "annotations": {"example.com/n": str(number)}}}
        assert pods.patch(crds, pods.path(plain, f"pod-{number}"), change)[0] == 200
    assert webhook.metric(pods.CALLS) == calls
    assert webhook.metric("swapwarden_webhook_bad_requests_total") == 0


@pytest.mark.parametrize(
    ("annotations", "kind"),
    [
        ({pods.POLICY: "Disabled"}, "validate"),
        ({pods.LIMIT: "1Gi"}, "validate"),
        ({"swap-limit.swapwarden.dev/app": "1Gi"}, "validate"),
        ({pods.SOURCE: "namespace"}, "validate"),
    ],
)
def test_each_annotation_of_ours_is_looked_at_once(
    crds: ControlPlane, webhook: Webhook, plain: str, annotations: dict[str, str], kind: str
) -> None:
    calls, of_kind = webhook.metric(pods.CALLS), webhook.metric(pods.CALLS, path=kind)
    assert pods.create(crds, plain, pods.pod("web", annotations))[0] == 201
    assert webhook.metric(pods.CALLS) == calls + 1
    assert webhook.metric(pods.CALLS, path=kind) == of_kind + 1


@pytest.mark.parametrize("policy", ["Disabled", "NoPreference"])
@pytest.mark.parametrize("annotations", [None, {}, {"example.com/note": "a"}])
def test_the_namespaces_default_is_written_to_the_pod(
    crds: ControlPlane, webhook: Webhook, policy: str, annotations: dict[str, str] | None
) -> None:
    namespace = pods.new_namespace(crds, policy)
    patched = webhook.metric(pods.CALLS, path="mutate", verdict="patched")
    status, answer = pods.create(crds, namespace, pods.pod("web", annotations))
    assert status == 201, answer
    assert answer["metadata"]["annotations"] == {
        **(annotations or {}),
        pods.POLICY: policy,
        pods.SOURCE: "namespace",
    }
    assert webhook.metric(pods.CALLS, path="mutate", verdict="patched") == patched + 1


def test_a_pods_own_policy_wins_over_the_default_without_a_call(crds: ControlPlane, webhook: Webhook) -> None:
    namespace = pods.new_namespace(crds, "Disabled")
    asked = webhook.metric(pods.CALLS, path="mutate")
    status, answer = pods.create(crds, namespace, pods.pod("web", {pods.POLICY: "NoPreference"}))
    assert status == 201
    assert answer["metadata"]["annotations"] == {pods.POLICY: "NoPreference"}
    assert webhook.metric(pods.CALLS, path="mutate") == asked


def test_a_changed_default_counts_for_pods_to_come(crds: ControlPlane, webhook: Webhook, plain: str) -> None:
    assert webhook.process.poll() is None
    assert "annotations" not in pods.create(crds, plain, pods.pod("before"))[1]["metadata"]
    label = {"metadata": {"labels": {pods.LABEL: "Disabled"}}}
    assert crds.request("PATCH", f"/api/v1/namespaces/{plain}", label)[0] == 200
    assert "annotations" not in crds.get(pods.path(plain, "before"))["metadata"]
    # The API server sees namespaces through a watch of its own.
    for number in range(200):
        metadata = pods.create(crds, plain, pods.pod(f"after-{number}"))[1]["metadata"]
        if "annotations" in metadata:
            break
    assert metadata["annotations"][pods.POLICY] == "Disabled"


def test_a_dry_run_says_what_would_be_and_leaves_nothing(crds: ControlPlane, webhook: Webhook) -> None:
    assert webhook.process.poll() is None
    namespace = pods.new_namespace(crds, "Disabled")
    status, answer = pods.create(crds, namespace, pods.pod("web"), pods.DRY_RUN)
    assert status == 201
    assert answer["metadata"]["annotations"][pods.POLICY] == "Disabled"
    assert pods.create(crds, namespace, pods.pod("web", {pods.POLICY: "x"}), pods.DRY_RUN)[0] == 422
    assert crds.get(pods.path(namespace))["items"] == []


def test_mirror_pods_are_neither_refused_nor_changed_nor_sent(crds: ControlPlane, webhook: Webhook) -> None:
    namespace = pods.new_namespace(crds, "Disabled")
    calls = webhook.metric(pods.CALLS)
    for name, own in (("plain", {}), ("bad", {pods.POLICY: "Sometimes", pods.LIMIT: "lots"})):
        wanted = {**MIRROR, **own}
        status, answer = pods.create(crds, namespace, pods.pod(name, wanted, node="node-1"))
        assert status == 201, answer
        assert answer["metadata"]["annotations"] == wanted
    assert webhook.metric(pods.CALLS) == calls


@pytest.mark.parametrize("namespace", ["kube-system", "swapwarden-system"])
def test_namespaces_that_must_come_up_alone_are_never_sent(
    crds: ControlPlane, webhook: Webhook, namespace: str
) -> None:
    calls = webhook.metric(pods.CALLS)
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    crds.request("POST", account, {"metadata": {"name": "default"}})
    status, answer = pods.create(crds, namespace, pods.pod("web", {pods.POLICY: "Sometimes"}), pods.DRY_RUN)
    assert status == 201, answer
    assert webhook.metric(pods.CALLS) == calls
