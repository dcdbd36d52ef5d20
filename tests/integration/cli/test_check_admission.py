"""`kubectl swap check` where the webhook and the policies of build/manifests are in force."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable
from pathlib import Path

from testbed.controlplane import pki
from testbed.product.webhook import Webhook
from tests.integration.cli.conftest import RELEASE, Cluster, Plugin

REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1"


def admission(cluster: Cluster) -> set[tuple[str, str, str]]:
    """Check, reason and object of the problems of admission."""
    done = cluster.admin("check", "-o", "json", "--patience", "1s")
    assert done.returncode in {0, 1}, done.stderr
    about = {"NoAdmission", "WebhookCertificate", "WebhookNotReady", "FailurePolicy"}
    found = json.loads(done.stdout)["problems"]
    return {(one["check"], one["reason"], one["object"]) for one in found if one["check"] in about}


def tried(plugin: Plugin, *arguments: str) -> tuple[list[tuple[str, str]], str]:
    """Reasons and objects of the problems that a try found; and why it was not possible."""
    done = plugin("check", "--try-admission", *arguments, "-o", "json", "--patience", "1s")
    assert done.returncode in {0, 1, 2}, done.stderr
    found = json.loads(done.stdout)
    failed = [(one["reason"], one["object"]) for one in found["problems"] if one["check"] == "AdmissionFails"]
    return failed, found["notLookedAt"].get("admission", "")


def test_admission_is_tried(
    cluster: Cluster, webhook: Webhook, eventually: Callable[[Callable[[], object], str], None], tmp_path: Path
) -> None:
    space = f"/api/v1/namespaces/{cluster.namespace}"
    cluster.patch(space, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    here, namespace = ("-n", cluster.namespace), f"namespace/{cluster.namespace}"
    before = webhook.metric("swapwarden_webhook_requests_total")
    assert tried(cluster.admin, *here) == ([], "")
    assert webhook.metric("swapwarden_webhook_requests_total") > before
    assert cluster.control_plane.get(f"{space}/pods")["items"] == []
    # Pods there are passed by.
    assert tried(cluster.admin, "-n", RELEASE) == ([("NotCompleted", f"namespace/{RELEASE}")], "")
    reading = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]
    failed, why = tried(cluster.user(reading, everywhere=True), *here)
    assert failed == []
    assert "cannot create resource" in why
    failed, why = tried(cluster.admin, "-n", "none-of-that-name")
    assert failed == []
    assert "not found" in why

    path = f"{REGISTRATIONS}/mutatingwebhookconfigurations/swapwarden"
    as_installed = cluster.control_plane.get(path)["webhooks"]
    other = base64.b64encode(pki.Authority(tmp_path).certificate.read_bytes()).decode("ascii")

    def registered(policy: str) -> None:
        """Entries with the other authority."""
        entries = [
            {**one, "failurePolicy": policy, "clientConfig": {**one["clientConfig"], "caBundle": other}}
            for one in as_installed
        ]
        cluster.patch(path, {"webhooks": entries})

    try:
        for policy, reason in (("Fail", "Untrusted"), ("Ignore", "NotCompleted")):
            registered(policy)
            told = functools.partial(lambda reason: tried(cluster.admin, *here)[0] == [(reason, namespace)], reason)
            eventually(told, f"{reason} is told")
    finally:
        cluster.patch(path, {"webhooks": as_installed})
    eventually(lambda: tried(cluster.admin, *here) == ([], ""), "the webhook is asked again")


def test_an_installation_is_recognised_as_whole(cluster: Cluster, webhook: Webhook) -> None:
    assert webhook
    # The authority of the testbed lives for two days.
    soon = ("WebhookCertificate", "ExpiresSoon", "mutatingwebhookconfiguration/swapwarden")
    assert admission(cluster) == {soon}
    policy = "swapwarden-pod-immutable"
    cluster.control_plane.request("DELETE", f"{REGISTRATIONS}/validatingadmissionpolicybindings/{policy}", None)
    assert admission(cluster) == {soon, ("NoAdmission", "NoAdmission", f"validatingadmissionpolicy/{policy}")}
