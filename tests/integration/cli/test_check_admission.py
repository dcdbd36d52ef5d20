"""`kubectl swap check` where the webhook and the policies of deploy/manifests are in force."""

from __future__ import annotations

import json

from testbed.webhook import Webhook
from tests.integration.cli.conftest import RELEASE, Cluster

EXPIRY = "swapwarden_webhook_certificate_expiry_timestamp_seconds"
REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1"


def admission(cluster: Cluster) -> set[tuple[str, str, str]]:
    """Check, reason and object of the problems of admission."""
    done = cluster.admin("check", "-o", "json", "--patience", "1s")
    assert done.returncode in {0, 1}, done.stderr
    about = {"NoAdmission", "WebhookCertificate", "WebhookNotReady", "FailurePolicy"}
    found = json.loads(done.stdout)["problems"]
    return {(one["check"], one["reason"], one["object"]) for one in found if one["check"] in about}


def test_what_the_webhooks_replicas_serve(cluster: Cluster) -> None:
    config = {"service": {"namespace": RELEASE, "name": "swapwarden-webhook"}}
    entry = {"name": "pods.swapwarden.dev", "clientConfig": config, "sideEffects": "None"}
    entry |= {"admissionReviewVersions": ["v1"], "objectSelector": {"matchLabels": {"test": "none-has-it"}}}
    name, path = cluster.name("serving"), f"{REGISTRATIONS}/mutatingwebhookconfigurations"
    cluster.control_plane.create(path, {"metadata": {"name": name}, "webhooks": [entry]})
    labels = {"app.kubernetes.io/name": "swapwarden", "app.kubernetes.io/component": "webhook"}
    cluster.node("any")
    cluster.pod(cluster.name("webhook"), "any", "webhook", namespace=RELEASE, labels=labels)
    here = f"pod/{RELEASE}/{cluster.name('webhook')}"
    resources = ["pods", "mutatingwebhookconfigurations", "mutatingadmissionpolicies"]
    rules = [{"apiGroups": ["*"], "resources": resources, "verbs": ["get", "list"]}]
    asking = "check", "-o", "json", "--patience", "1s"
    done = cluster.user(rules, everywhere=True)(*asking)
    assert "certificates expire is not known (get on pods/proxy)" in done.stderr
    resources.append("pods/proxy")
    user = cluster.user(rules, everywhere=True)
    done = user(*asking)
    assert f"when the certificate of {here.replace('pod/', 'pod ')} expires is not known" in done.stderr
    cluster.front.metrics[cluster.name("webhook")] = f"{EXPIRY} 1e9\n"
    done = user(*asking)
    assert "not known" not in done.stderr
    assert (here, "Expired") in [(one["object"], one["reason"]) for one in json.loads(done.stdout)["problems"]]
    cluster.control_plane.request("DELETE", f"{path}/{name}", None)


def test_what_is_installed_is_known_for_whole(cluster: Cluster, webhook: Webhook) -> None:
    assert webhook
    # The authority of the testbed lives for two days.
    soon = ("WebhookCertificate", "ExpiresSoon", "mutatingwebhookconfiguration/swapwarden")
    assert admission(cluster) == {soon}
    policy = "swapwarden-pod-immutable"
    cluster.control_plane.request("DELETE", f"{REGISTRATIONS}/validatingadmissionpolicybindings/{policy}", None)
    assert admission(cluster) == {soon, ("NoAdmission", "NoAdmission", f"validatingadmissionpolicy/{policy}")}
