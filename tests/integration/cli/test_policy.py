"""`kubectl swap policy` against a real API server: its output can be run, and the applied change exists."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import pytest
from swapwarden.policy.admission import pod_annotations

from tests.integration.cli.conftest import Cluster

POLICY = "swapwarden.dev/swap-policy"
LABELS = {"app": "web"}
TEMPLATE: dict[str, Any] = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "app", "image": "none"}]}}
SPECS: dict[str, dict[str, Any]] = {
    "deployments": {"replicas": 3, "selector": {"matchLabels": LABELS}, "template": TEMPLATE},
    "replicasets": {"replicas": 3, "selector": {"matchLabels": LABELS}, "template": TEMPLATE},
    "jobs": {"template": {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}},
    "cronjobs": {
        "schedule": "0 0 * * *",
        "jobTemplate": {"spec": {"template": {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}},
    },
}
GROUPS = {"deployments": "apps", "replicasets": "apps", "jobs": "batch", "cronjobs": "batch"}
KINDS = {"deployments": "Deployment", "replicasets": "ReplicaSet", "jobs": "Job", "cronjobs": "CronJob"}


def outcome(done: subprocess.CompletedProcess[str]) -> str:
    """Return the object, and whether it was patched."""
    return done.stdout.partition(": ")[0]


def path(cluster: Cluster, plural: str, name: str = "") -> str:
    group = f"apis/{GROUPS[plural]}/v1" if plural in GROUPS else "api/v1"
    return f"/{group}/namespaces/{cluster.namespace}/{plural}" + (f"/{name}" if name else "")


def owned_by(owner: dict[str, Any] | None) -> dict[str, Any]:
    if owner is None:
        return {}
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
    return {"ownerReferences": [{**reference, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}]}


def make(cluster: Cluster, plural: str, name: str, owner: dict[str, Any] | None = None) -> dict[str, Any]:
    body = {"metadata": {"name": name, **owned_by(owner)}, "spec": SPECS[plural]}
    made: dict[str, Any] = cluster.control_plane.create(path(cluster, plural), body)
    return {**made, "apiVersion": f"{GROUPS[plural]}/v1", "kind": KINDS[plural]}


def make_pod(cluster: Cluster, name: str, owner: dict[str, Any] | None = None) -> None:
    spec = {**TEMPLATE["spec"], "automountServiceAccountToken": False}
    cluster.control_plane.create(
        path(cluster, "pods"), {"metadata": {"name": name, "labels": LABELS, **owned_by(owner)}, "spec": spec}
    )


def policy_of(cluster: Cluster, plural: str, name: str) -> str | None:
    found: Any = cluster.control_plane.get(path(cluster, plural, name))["spec"]
    if plural == "cronjobs":
        found = found["jobTemplate"]["spec"]
    answer: str | None = found["template"]["metadata"].get("annotations", {}).get(POLICY)
    return answer


@pytest.fixture
def web(cluster: Cluster) -> Cluster:
    """A Deployment with its ReplicaSet and a pod."""
    replicas = make(cluster, "replicasets", "web-1", make(cluster, "deployments", "web"))
    make_pod(cluster, "web-1-x", replicas)
    return cluster


def test_the_workload_that_makes_a_pod_is_patched(web: Cluster) -> None:
    done = web.admin("policy", "web-1-x", "Disabled", "-n", web.namespace)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"kubectl patch deployment web -n {web.namespace} --type=merge -p ")
    assert done.stderr == (
        "note: deployment/web: its 3 pods will be replaced (RollingUpdate, maxUnavailable 25%, maxSurge 25%)\n"
    )
    assert policy_of(web, "deployments", "web") is None

    applied = web.admin("policy", "pod/web-1-x", "Disabled", "-n", web.namespace, "--apply")
    assert (applied.returncode, outcome(applied)) == (0, "deployment/web patched")
    assert policy_of(web, "deployments", "web") == "Disabled"
    again = web.admin("policy", "deploy/web", "Disabled", "-n", web.namespace, "--apply")
    assert (again.returncode, outcome(again)) == (0, "deployment/web unchanged")

    removed = web.admin("policy", "replicaset/web-1", "--remove", "-n", web.namespace, "--apply")
    assert (removed.returncode, outcome(removed)) == (0, "deployment/web patched")
    assert policy_of(web, "deployments", "web") is None


def test_the_printed_command_can_be_run(web: Cluster) -> None:
    printed = web.admin("policy", "deployment/web", "Avoid", "-n", web.namespace).stdout
    web.control_plane.kubectl(*shlex.split(printed)[1:])
    assert policy_of(web, "deployments", "web") == "Avoid"


def test_a_cron_job_above_its_job(cluster: Cluster) -> None:
    job = make(cluster, "jobs", "nightly-1", make(cluster, "cronjobs", "nightly"))
    make_pod(cluster, "nightly-1-x", job)
    done = cluster.admin("policy", "nightly-1-x", "Disabled", "-n", cluster.namespace, "--apply")
    assert (done.returncode, outcome(done)) == (0, "cronjob/nightly patched")
    assert "cronjob" in done.stderr
    assert policy_of(cluster, "cronjobs", "nightly") == "Disabled"


def test_a_job_cannot_change(cluster: Cluster) -> None:
    make(cluster, "jobs", "once")
    done = cluster.admin("policy", "job/once", "Disabled", "-n", cluster.namespace, "--apply")
    assert (done.returncode, done.stdout) == (1, "")
    assert "job/once" in done.stderr


def test_a_pod_of_nobody(cluster: Cluster) -> None:
    make_pod(cluster, "solo")
    done = cluster.admin("policy", "solo", "Disabled", "-n", cluster.namespace)
    assert done.returncode == 0, done.stderr
    assert "nobody manages pod/solo" in done.stderr
    get, annotate, replace = (shlex.split(each)[1:] for each in done.stdout.strip().split(" | "))
    kubectl = cluster.control_plane.kubectl
    kubectl(*replace, text=kubectl(*annotate, text=kubectl(*get).stdout).stdout)
    made = cluster.control_plane.get(path(cluster, "pods", "solo"))
    assert made["metadata"]["annotations"][POLICY] == "Disabled"
    refused = cluster.admin("policy", "solo", "Avoid", "-n", cluster.namespace, "--apply")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "immutable" in refused.stderr


def test_an_owner_of_another_kind(cluster: Cluster) -> None:
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": {"name": "web", "uid": "1"}}
    make_pod(cluster, "web-x", owner)
    done = cluster.admin("policy", "web-x", "Disabled", "-n", cluster.namespace)
    assert done.stdout.startswith("kubectl patch rollout.v1alpha1.argoproj.io web ")
    assert "a kind that is not known here" in done.stderr
    assert cluster.admin("policy", "web-x", "Disabled", "-n", cluster.namespace, "--apply").returncode == 1


def test_a_namespace(cluster: Cluster) -> None:
    namespace = f"namespace/{cluster.namespace}"
    printed = cluster.admin("policy", namespace, "Disabled")
    assert "a default counts for new pods" in printed.stderr
    cluster.control_plane.kubectl(*shlex.split(printed.stdout)[1:])
    unchanged = cluster.admin("policy", namespace, "Disabled", "--apply")
    assert unchanged.stdout == f"{namespace} unchanged: its default is Disabled\n"
    removed = cluster.admin("policy", namespace, "--remove", "--apply")
    assert outcome(removed) == f"{namespace} labelled"
    labels = cluster.control_plane.get(f"/api/v1/namespaces/{cluster.namespace}")["metadata"]["labels"]
    assert "swapwarden.dev/default-swap-policy" not in labels


def test_what_would_be_refused(web: Cluster) -> None:
    done = web.admin("policy", "deployment/web", "disable", "-n", web.namespace)
    assert done.returncode == 2
    assert 'did you mean "Disabled"?' in done.stderr
    annotations = {"annotations": {"swapwarden.dev/swap-limit": "1Gi"}}
    web.patch(path(web, "deployments", "web"), {"spec": {"template": {"metadata": annotations}}})
    refused = web.admin("policy", "deployment/web", "Disabled", "-n", web.namespace, "--apply")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert pod_annotations.DISABLED_HAS_NONE in refused.stderr
    assert policy_of(web, "deployments", "web") is None


def test_a_user_who_may_only_read_pods(web: Cluster) -> None:
    user = web.user([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}])
    done = user("policy", "web-1-x", "Disabled", "-n", web.namespace)
    assert done.returncode == 0, done.stderr
    # The pod has no pod-template-hash, so it names its ReplicaSet only.
    assert done.stdout.startswith("kubectl patch replicaset web-1 ")
    assert "it could not be read" in done.stderr
    refused = user("policy", "web-1-x", "Disabled", "-n", web.namespace, "--apply")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "is forbidden" in refused.stderr


def test_the_server_refuses_users_who_may_not_patch(web: Cluster) -> None:
    user = web.user(
        [{"apiGroups": ["", "apps"], "resources": ["pods", "replicasets", "deployments"], "verbs": ["get"]}]
    )
    done = user("policy", "deployment/web", "Disabled", "-n", web.namespace, "--apply")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot patch resource" in done.stderr


def test_names_that_are_none(cluster: Cluster) -> None:
    done = cluster.admin("policy", "web", "Disabled", "-n", cluster.namespace)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"not found in namespace {cluster.namespace}; name the kind of a workload: deployment/web" in done.stderr
    usage = cluster.admin("policy", "service/web", "Disabled", "-n", cluster.namespace)
    assert usage.returncode == 2
    assert "'service' is not a kind with pods" in usage.stderr
    assert cluster.admin("policy", "deployment/web", "-n", cluster.namespace).returncode == 2
