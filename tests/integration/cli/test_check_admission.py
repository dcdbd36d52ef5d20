"""`kubectl swap check` where the webhook and the policies of deploy/manifests are in force."""

from __future__ import annotations

import json

from testbed.webhook import Webhook
from tests.integration.cli.conftest import Cluster

REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1"


def admission(cluster: Cluster) -> set[tuple[str, str, str]]:
    """Check, reason and object of the problems of admission."""
    done = cluster.admin("check", "-o", "json", "--patience", "1s")
    assert done.returncode in {0, 1}, done.stderr
    about = {"NoAdmission", "WebhookCertificate", "WebhookNotReady", "FailurePolicy"}
    found = json.loads(done.stdout)["problems"]
    return {(one["check"], one["reason"], one["object"]) for one in found if one["check"] in about}


def test_what_is_installed_is_known_for_whole(cluster: Cluster, webhook: Webhook) -> None:
    assert webhook
    # The authority of the testbed lives for two days.
    soon = ("WebhookCertificate", "ExpiresSoon", "mutatingwebhookconfiguration/swapwarden")
    assert admission(cluster) == {soon}
    policy = "swapwarden-pod-immutable"
    cluster.control_plane.request("DELETE", f"{REGISTRATIONS}/validatingadmissionpolicybindings/{policy}", None)
    assert admission(cluster) == {soon, ("NoAdmission", "NoAdmission", f"validatingadmissionpolicy/{policy}")}
