"""Whom the API server asks the webhook about, and whom not."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from swapwarden.api import names
from swapwarden.kube import errors

from testbed.controlplane.servers import ControlPlane
from testbed.product import helm, manifests
from testbed.product.webhook import Webhook
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


COUNT = 200


async def test_pods_without_policy_cost_no_call(crds: ControlPlane, webhook: Webhook, plain: str) -> None:
    calls = webhook.metric(pods.CALLS)
    # Others' keys, and what only looks like ours.
    foreign = [None, {}, {"example.com/swap-policy": "x"}, {"swapwarden.dev": "y"}]
    bodies = [pods.pod(f"pod-{number}", foreign[number % 4]) for number in range(COUNT)]
    made = await pods.many(crds, [("POST", pods.path(plain), body) for body in bodies])
    assert [each for each in made if isinstance(each, errors.ApiError)] == []
    changes = [
        (
            "PATCH",
            pods.path(plain, f"pod-{number}"),
            {"metadata": {"labels": {"n": f"{number}"}, "annotations": {"example.com/n": "x"}}},
        )
        for number in range(COUNT)
    ]
    changed = await pods.many(crds, changes)
    assert [each for each in changed if isinstance(each, errors.ApiError)] == []
    assert webhook.metric(pods.CALLS) == calls
    assert webhook.metric("swapwarden_webhook_bad_requests_total") == 0
    # The counter would show it.
    assert pods.create(crds, plain, pods.pod("policy", {pods.POLICY: "Disabled"}))[0] == 201
    assert webhook.metric(pods.CALLS) == calls + 1


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {pods.POLICY: "Disabled"}},
        {"annotations": {pods.LIMIT: "1Gi"}},
        {"annotations": {pods.APP_LIMIT: "1Gi"}},
        {"annotations": {pods.SOURCE: "namespace"}},
        {"annotations": {"swapwarden.dev/note": "x"}},
        {"labels": {pods.POLICY: "Disabled"}},
    ],
)
def test_each_key_of_our_domain_is_looked_at_once(
    crds: ControlPlane, webhook: Webhook, plain: str, metadata: pods.Json
) -> None:
    calls, own = webhook.metric(pods.CALLS), webhook.metric(pods.CALLS, path="own")
    body = pods.pod("web")
    body["metadata"].update(metadata)
    assert pods.create(crds, plain, body)[0] == 201
    assert webhook.metric(pods.CALLS) == calls + 1
    assert webhook.metric(pods.CALLS, path="own") == own + 1


def test_pods_excluded_by_the_charts_value_are_not_sent(
    crds: ControlPlane, webhook: Webhook, plain: str, eventually: Callable[[Callable[[], object], str], None]
) -> None:
    excluding = {"matchExpressions": [{"key": "example.com/unmanaged", "operator": "DoesNotExist"}]}
    options = [f"--set-json=admission.objectSelector={json.dumps(excluding)}"]
    options.append("--show-only=templates/webhook/registration.yaml")
    ca = crds.ca_file.read_bytes()
    label = {"labels": {"example.com/unmanaged": ""}}
    near, body = pods.pod("web", {pods.POLICY: "disabled"}), pods.pod("web", {pods.POLICY: "Required"})
    for each in (near, body):
        each["metadata"].update(label)
    try:
        crds.apply(manifests.webhook_manifests(webhook.url, ca, helm.render(*options)))
        eventually(lambda: pods.create(crds, plain, near, pods.DRY_RUN)[0] == 403, "only the policy refuses")
        calls = webhook.metric(pods.CALLS)
        status, answer = pods.create(crds, plain, body)
        assert status == 201, answer
        assert "nodeSelector" not in answer["spec"]
        assert webhook.metric(pods.CALLS) == calls
        assert pods.create(crds, plain, pods.pod("other", {pods.POLICY: "Required"}))[0] == 201
        assert webhook.metric(pods.CALLS) == calls + 1
    finally:
        crds.apply(manifests.webhook_manifests(webhook.url, ca))
        eventually(lambda: pods.create(crds, plain, near, pods.DRY_RUN)[0] == 422, "all are sent again")


@pytest.mark.parametrize("policy", list(names.Policy))
@pytest.mark.parametrize("annotations", [None, {}, {"example.com/note": "a"}])
def test_the_namespaces_default_is_written_to_the_pod(
    crds: ControlPlane, webhook: Webhook, policy: str, annotations: dict[str, str] | None
) -> None:
    namespace = pods.new_namespace(crds, policy)
    patched = webhook.metric(pods.CALLS, path="default", verdict="patched")
    status, answer = pods.create(crds, namespace, pods.pod("web", annotations))
    assert status == 201, answer
    assert answer["metadata"]["annotations"] == {
        **(annotations or {}),
        pods.POLICY: policy,
        pods.SOURCE: "namespace",
    }
    assert webhook.metric(pods.CALLS, path="default", verdict="patched") == patched + 1


def test_a_pods_own_policy_wins_over_the_default(crds: ControlPlane, webhook: Webhook) -> None:
    namespace = pods.new_namespace(crds, "Disabled")
    asked, calls = webhook.metric(pods.CALLS, path="default"), webhook.metric(pods.CALLS)
    status, answer = pods.create(crds, namespace, pods.pod("web", {pods.POLICY: "NoPreference"}))
    assert status == 201
    assert answer["metadata"]["annotations"] == {pods.POLICY: "NoPreference"}
    assert webhook.metric(pods.CALLS, path="default") == asked
    assert webhook.metric(pods.CALLS) == calls + 1


def test_a_pod_with_a_limit_and_a_default_is_sent_for_both(crds: ControlPlane, webhook: Webhook) -> None:
    namespace = pods.new_namespace(crds, "NoPreference")
    calls = webhook.metric(pods.CALLS)
    status, answer = pods.create(crds, namespace, pods.pod("web", {pods.LIMIT: "1Gi"}))
    assert status == 201
    assert answer["metadata"]["annotations"] == {
        pods.LIMIT: "1Gi",
        pods.POLICY: "NoPreference",
        pods.SOURCE: "namespace",
    }
    # For its own key, for the default, and for its own keys again after they have changed.
    assert webhook.metric(pods.CALLS) == calls + 3


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
    status, answer = pods.create(crds, namespace, pods.pod("web", {pods.POLICY: "Disabled"}), pods.DRY_RUN)
    assert status == 201, answer
    status, answer = pods.create(crds, namespace, pods.pod("web", {pods.POLICY: "Sometimes"}), pods.DRY_RUN)
    assert status == 403
    assert "swapwarden-pod-values" in answer["message"]
    assert webhook.metric(pods.CALLS) == calls
