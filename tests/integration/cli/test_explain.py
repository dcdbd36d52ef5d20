"""`kubectl swap explain` against a real API server, by people with more and fewer rights."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from tests.integration import needs
from tests.integration.cli.conftest import API, GIB, Cluster, Plugin, healthy

POLICY = "swapwarden.dev/swap-policy"
LABELS = {"app": "web", "pod-template-hash": "1"}
TEMPLATE: dict[str, Any] = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "app", "image": "none"}]}}
JOB: dict[str, Any] = {"template": {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}
WORKLOADS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Deployment": ("apps/v1", "deployments", {"selector": {"matchLabels": LABELS}, "template": TEMPLATE}),
    "ReplicaSet": ("apps/v1", "replicasets", {"selector": {"matchLabels": LABELS}, "template": TEMPLATE}),
    "Job": ("batch/v1", "jobs", JOB),
    "CronJob": ("batch/v1", "cronjobs", {"schedule": "0 0 * * *", "jobTemplate": {"spec": JOB}}),
}
READ_PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]


def make_profile(cluster: Cluster, **swap: Any) -> str:
    name = cluster.name("batch")
    body = {
        "apiVersion": "swapwarden.dev/v1alpha1",
        "kind": "NodeSwapProfile",
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"matchLabels": {"test": cluster.id}}, **swap},
    }
    cluster.control_plane.create(f"{API}/nodeswapprofiles", body)
    return name


def make_pod(cluster: Cluster, name: str, node: str | None = "batch", **fields: Any) -> str:
    """Its UID."""
    container = {"name": "app", "image": "none", "resources": {"requests": {"memory": "1Gi"}}}
    container |= fields.pop("container", {})
    spec = {"containers": [container], **({"nodeName": cluster.name(node)} if node else {})}
    made = cluster.control_plane.create(
        f"/api/v1/namespaces/{cluster.namespace}/pods",
        {"metadata": {"name": name, **fields}, "spec": {"automountServiceAccountToken": False, **spec}},
    )
    return str(made["metadata"]["uid"])


@pytest.fixture
def planned(cluster: Cluster) -> Cluster:
    """A node, a profile, a pod, and the state that a controller and an agent would have made of them."""
    cluster.node("batch", swap=4 * GIB)
    profile = make_profile(cluster, swap={"behavior": "LimitedSwap", "reserved": "25%"})
    uid = make_pod(cluster, "report")
    limit = {"swapMax": str(384 << 20), "reason": "LimitedSwap"}
    cluster.state(
        "batch",
        {"profileRef": {"name": profile, "generation": 1}, "pods": {uid: limit}},
        healthy(profile, 4 * GIB),
    )
    return cluster


def told(plugin: Plugin, cluster: Cluster, pod: str) -> dict[str, Any]:
    done = plugin("explain", pod, "-n", cluster.namespace, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_an_administrator(planned: Cluster) -> None:
    done = planned.admin("explain", "report", "-n", planned.namespace)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"{planned.namespace}/report: up to 384Mi of swap  (LimitedSwap)"
    profile = planned.name("batch")
    assert f"PROFILE    {profile} generation 1, LimitedSwap: the only one that selects the node" in lines
    # Without an agent's pod, others may have overwritten its values since.
    (kernel,) = (line for line in lines if line.startswith("KERNEL     the kernel holds the planned swap limit"))
    assert "no agent is Ready there, so external writes are not repaired" in kernel
    assert any(line.endswith("= 384Mi (402653184)") and "request 1Gi / memory 8Gi" in line for line in lines)
    found = told(planned.admin, planned, "pod/report")
    assert found["desired"]["swapMax"] == found["planned"]["swapMax"] == found["numbers"][-1]["result"] == "402653184"
    assert [rule["reason"] for rule in found["rules"] if rule["matched"]] == ["LimitedSwap"]


def test_a_terminal_that_knows_ascii_only(planned: Cluster) -> None:
    done = planned.admin("explain", "report", "-n", planned.namespace, "--color=always", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "\x1b[" in done.stdout


def test_a_user_who_may_only_read_pods(planned: Cluster) -> None:
    user = planned.user(READ_PODS)
    done = user("explain", "report", "-n", planned.namespace)
    assert (done.returncode, done.stderr) == (0, "")
    assert "its limit depends on the profile of its node, which cannot be seen" in done.stdout
    assert "LimitedSwap         a share, by the memory request of app" in done.stdout
    assert "Not seen, for lack of rights: nodes, nodeswapprofiles, nodeswapstates" in done.stdout
    found = told(user, planned, "report")
    assert found["unseen"] == ["nodes", "nodeswapprofiles", "nodeswapstates"]
    assert "rules" not in found


def test_a_user_who_may_also_read_profiles_sees_the_rules(planned: Cluster) -> None:
    rules = [
        *READ_PODS,
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": ["swapwarden.dev"], "resources": ["nodeswapprofiles"], "verbs": ["list"]},
    ]
    found = told(planned.user(rules, everywhere=True), planned, "report")
    assert found["unseen"] == ["nodeswapstates"]
    # The node says nothing of its memory, and the agent's word may not be heard.
    assert found["planned"] == {"swapMax": "0", "reason": "LimitedSwap", "containers": {"app": "0"}}
    assert "kernel" not in found


def test_a_user_who_may_not_read_the_pod(planned: Cluster) -> None:
    user = planned.user([{"apiGroups": [""], "resources": ["services"], "verbs": ["get"]}])
    done = user("explain", "report", "-n", planned.namespace)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith('error: pods "report" is forbidden: User')


def test_a_pod_that_is_not_there(planned: Cluster) -> None:
    done = planned.admin("explain", "absent", "-n", planned.namespace)
    assert (done.returncode, done.stdout) == (1, "")
    where = planned.namespace
    assert done.stderr == f'error: pods "absent" not found in namespace {where}; see kubectl get pods -n {where}\n'
    usage = planned.admin("explain", "deployment/report", "-n", planned.namespace)
    assert usage.returncode == 2
    assert "'deployment/report' is no pod" in usage.stderr


def test_a_pod_that_waits_for_a_node(planned: Cluster) -> None:
    make_pod(planned, "waits", node=None)
    found = told(planned.admin, planned, "waits")
    assert found["summary"] == "not on a node yet: its limit depends on the node's profile"
    assert [one["of"] for one in found["behaviors"]] == ["Kubelet", "NoSwap", "LimitedSwap", "WorkloadControlled"]


def test_a_node_that_nobody_planned(cluster: Cluster) -> None:
    cluster.node("new", swap=GIB)
    make_pod(cluster, "early", node="new", annotations={"swapwarden.dev/swap-policy": "Disabled"})
    found = told(cluster.admin, cluster, "early")
    assert found["profile"]["name"] == "(built-in)"
    assert found["planned"]["reason"] == "PolicyDisabled"
    assert found["kernel"]["status"] == "Unknown"


def test_a_pod_that_lacks_what_admission_gives(cluster: Cluster) -> None:
    """Without a webhook, neither the namespace's default nor the policy's place reaches a pod."""
    labels = f"/api/v1/namespaces/{cluster.namespace}"
    cluster.patch(labels, {"metadata": {"labels": {"swapwarden.dev/default-swap-policy": "Disabled"}}})
    make_pod(cluster, "plain", node=None)
    make_pod(cluster, "web", node=None, annotations={"swapwarden.dev/swap-policy": "Required"})
    make_pod(cluster, "free", node=None, annotations={"swapwarden.dev/swap-policy": "NoPreference"})
    default = "the default Disabled of its namespace is not in the pod: "
    assert told(cluster.admin, cluster, "plain")["admission"].startswith(default)
    assert "it lacks spec.nodeSelector and spec.tolerations: " in told(cluster.admin, cluster, "web")["admission"]
    assert "admission" not in told(cluster.admin, cluster, "free")
    # A user who may only read pods sees the pod's own part, and no missing right is named for the rest.
    user = cluster.user(READ_PODS)
    assert told(user, cluster, "web")["admission"]
    found = told(user, cluster, "plain")
    assert "admission" not in found
    assert not {"namespaces", "mutatingwebhookconfigurations"} & set(found["unseen"])
    # Where rules ask for labels of namespaces, it is.
    selector = {"matchLabels": {"team": "shop"}}
    by_team = {"name": "shop", "namespaceSelector": selector, "swap": {"policy": "Disabled"}}
    make_profile(cluster, swap={"behavior": "NoSwap"}, overrides=[by_team])
    profiles = {"apiGroups": ["swapwarden.dev"], "resources": ["nodeswapprofiles"], "verbs": ["list"]}
    user = cluster.user([*READ_PODS, profiles], everywhere=True)
    for pod in ("plain", "web"):
        assert "namespaces" in told(user, cluster, pod)["unseen"]


@needs.NODES_TELL_SWAP
def test_the_share_of_other_pods_and_labels_of_the_namespace(cluster: Cluster) -> None:
    cluster.node("batch", swap=4 * GIB)
    profile = make_profile(
        cluster,
        swap={"behavior": "WorkloadControlled", "workloadControlled": {"overcommitPercent": 50}},
        overrides=[
            {
                "name": "other",
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}},
                "swap": {"policy": "Disabled"},
            }
        ],
    )
    limit = {"swapwarden.dev/swap-limit": "1536Mi"}
    uids = [make_pod(cluster, name, annotations=limit) for name in ("first", "second")]
    # Made within one second they are served by UID.
    later = ("first", "second")[uids.index(max(uids))]
    cluster.patch(
        f"/api/v1/namespaces/{cluster.namespace}/pods/{later}/status", {"status": {"startTime": "2040-01-01T00:00:00Z"}}
    )
    earlier = ("first", "second")[uids.index(min(uids))]
    cluster.patch(
        f"/api/v1/namespaces/{cluster.namespace}/pods/{earlier}/status",
        {"status": {"startTime": "2030-01-01T00:00:00Z"}},
    )
    found = told(cluster.admin, cluster, later)
    assert found["profile"]["name"] == profile
    assert found["profile"]["overrideText"] == "none of 1 selects the pod"
    assert found["planned"] == {
        "swapMax": str(512 << 20),
        "reason": "OvercommitReached",
        "containers": {"app": "max"},
    }
    assert told(cluster.admin, cluster, earlier)["planned"]["reason"] == "WorkloadLimit"


def test_the_place_of_a_pod_while_its_node_is_under_memory_pressure(cluster: Cluster) -> None:
    cluster.node("batch", swap=4 * GIB)
    profile = make_profile(cluster, swap={"behavior": "NoSwap"}, pressure={"mode": "Observe"})
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "owner", "uid": "owner-uid", "controller": True}
    uids = {name: make_pod(cluster, name, ownerReferences=[owner]) for name in ("small", "large")}
    for name in uids:
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/{name}/status"
        cluster.patch(path, {"status": {"phase": "Running"}})
    thresholds = {
        "headroom": {"belowBytes": GIB, "clearBytes": 2 * GIB, "forMilliseconds": 5000},
        "stall": {"fullPermille": 400, "overMilliseconds": 10_000},
    }
    sizes = {"small": 2 * GIB, "large": 3 * GIB}
    measured = [{"pod": uids[name], "workingSetBytes": size} for name, size in sizes.items()]
    report = {"seq": 1, "signal": "Headroom", "scope": "Node", "headroomBytes": GIB // 2, "pods": measured}
    cluster.state(
        "batch",
        {"profileRef": {"name": profile, "generation": 1}, "pressure": thresholds},
        {**healthy(profile, 4 * GIB), "pressure": report},
    )
    found = {name: told(cluster.admin, cluster, name)["pressure"] for name in uids}
    assert {name: each["rank"] for name, each in found.items()} == {"large": 1, "small": 2}
    assert found["large"]["text"].startswith(
        "node headroom 512Mi < 1024Mi; this pod would be evicted first: usage 3072Mi"
    )
    user = cluster.user(READ_PODS)
    assert "pressure" not in told(user, cluster, "large")


# The commands


def workload(cluster: Cluster, kind: str, name: str, **metadata: Any) -> list[dict[str, Any]]:
    """Make a workload; the owner references of what it makes."""
    version, plural, spec = WORKLOADS[kind]
    body = {"metadata": {"name": name, **metadata}, "spec": spec}
    uid = cluster.control_plane.create(f"/apis/{version}/namespaces/{cluster.namespace}/{plural}", body)["metadata"][
        "uid"
    ]
    return [{"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}]


def annotated(cluster: Cluster, kind: str, name: str) -> dict[str, str]:
    """The annotations in a workload's pod template."""
    version, plural, _ = WORKLOADS[kind]
    spec = cluster.control_plane.get(f"/apis/{version}/namespaces/{cluster.namespace}/{plural}/{name}")["spec"]
    template = (spec["jobTemplate"]["spec"] if kind == "CronJob" else spec)["template"]
    return dict(template["metadata"].get("annotations", {}))


def advised(plugin: Plugin, cluster: Cluster, pod: str, kind: str = "Policy") -> dict[str, Any]:
    """The only advice of a kind."""
    (found,) = (each for each in told(plugin, cluster, pod)["changes"] if each["kind"] == kind)
    return dict(found)


def run(cluster: Cluster, command: str) -> None:
    """Run the printed command, whose parts are joined by pipes."""
    text = None
    for part in command.split(" | "):
        text = cluster.control_plane.kubectl(*shlex.split(part)[1:], text=text).stdout


def test_the_printed_patch_changes_the_template_that_makes_the_pod(cluster: Cluster) -> None:
    deployment = workload(cluster, "Deployment", "web")
    limits = {"swapwarden.dev/swap-limit": "1Gi"}
    owners = workload(cluster, "ReplicaSet", "web-1", ownerReferences=deployment)
    make_pod(cluster, "web-1-x", node=None, labels=LABELS, ownerReferences=owners, annotations=limits)
    path = f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments/web"
    cluster.patch(path, {"spec": {"template": {"metadata": {"annotations": {**limits, "team": "shop"}}}}})
    found = advised(cluster.admin, cluster, "web-1-x")
    assert found["command"].startswith(f"kubectl patch deployment web -n {cluster.namespace} -p ")
    run(cluster, found["command"])
    # With the limit that admission refuses beside Disabled removed.
    assert annotated(cluster, "Deployment", "web") == {POLICY: "Disabled", "team": "shop"}


def test_a_cron_job_is_patched_for_its_jobs_pod(cluster: Cluster) -> None:
    owners = workload(cluster, "Job", "nightly-1", ownerReferences=workload(cluster, "CronJob", "nightly"))
    make_pod(cluster, "nightly-1-x", node=None, ownerReferences=owners)
    run(cluster, advised(cluster.admin, cluster, "nightly-1-x")["command"])
    assert annotated(cluster, "CronJob", "nightly") == {POLICY: "Disabled"}
    # Users who may not read the Job get the advice that the pod alone allows.
    found = advised(cluster.user(READ_PODS), cluster, "nightly-1-x")
    assert found["how"].endswith("in the pod template of job/nightly-1, recreated")
    assert "command" not in found


def test_a_job_cannot_change(cluster: Cluster) -> None:
    make_pod(cluster, "once-x", node=None, ownerReferences=workload(cluster, "Job", "once"))
    found = advised(cluster.admin, cluster, "once-x")
    assert found["how"].endswith("in the pod template of job/once, recreated")
    assert "command" not in found


def test_a_pod_that_nobody_manages_is_recreated(cluster: Cluster) -> None:
    before = make_pod(cluster, "solo", node=None)
    run(cluster, advised(cluster.admin, cluster, "solo")["command"])
    metadata = cluster.control_plane.get(f"/api/v1/namespaces/{cluster.namespace}/pods/solo")["metadata"]
    assert metadata["annotations"][POLICY] == "Disabled"
    assert metadata["uid"] != before


def test_the_printed_command_removes_the_default_of_a_namespace(planned: Cluster) -> None:
    path = f"/api/v1/namespaces/{planned.namespace}"
    planned.patch(path, {"metadata": {"labels": {"swapwarden.dev/default-swap-policy": "Disabled"}}})
    make_pod(planned, "web", annotations={POLICY: "Disabled", "swapwarden.dev/policy-source": "namespace"})
    run(planned, advised(planned.admin, planned, "web", "NamespaceDefault")["command"])
    assert "swapwarden.dev/default-swap-policy" not in planned.control_plane.get(path)["metadata"]["labels"]
