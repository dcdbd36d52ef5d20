"""`pressure.mode: Enforce` on a real node: the first pod that may be evicted is, and no other."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from swapwarden.api import names

from deploy.build import image
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release

HOLD = """
import sys, time
held = b"x" * (int(sys.argv[1]) << 20)
open("/tmp/held", "w").close()
time.sleep(86400)
"""
HOLDS = {
    "exec": {"command": ["python3", "-I", "-S", "-c", "open('/tmp/held')"]},
    "periodSeconds": 1,
    "timeoutSeconds": 10,
}
ALWAYS = {"below": "99%", "clear": "100%", "forSeconds": 1}
"""Less than the kernel itself leaves."""
SIZES = {"daemon": 224, "kept": 192, "within": 176, "free": 160}
"""MiB of memory: more than anything else on the node exceeds its request by."""
REQUESTS = {"daemon": "16Mi", "kept": "16Mi", "within": "256Mi", "free": "16Mi"}

GROW = """
import os, sys, time
first, pace = map(int, sys.argv[1:])
block = os.urandom(1 << 20)
held, begun = [bytearray(block) for _ in range(first)], time.monotonic()
while True:
    held.append(bytearray(block))
    time.sleep(max(0.0, begun + (len(held) - first) / pace - time.monotonic()))
"""
FIRST, PACE = 1500, 30
"""MiB, and MiB a second."""
BEFORE_OOM = {"below": "25%", "clear": "35%", "forSeconds": 1}
"""The kubelet of this slow node may need ten seconds to end a pod while memory is short: at 40 MiB a second, with a
signal at 171 MiB, the kernel killed first."""


@pytest.fixture(scope="module")
def evicting(swapwarden: Release) -> Iterator[Release]:
    """Swapwarden with the right to evict."""
    swapwarden.upgrade(eviction="Enforce")
    try:
        yield swapwarden
    finally:
        swapwarden.upgrade()


def workload(cluster: Provider, namespace: Namespace, name: str) -> list[dict[str, Any]]:
    """A Deployment or a DaemonSet of one pod; of `kept`, also a budget that forbids its eviction."""
    container = {
        "name": "main",
        "image": image.REFERENCE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", "-c", HOLD, str(SIZES[name])],
        "resources": {"requests": {"memory": REQUESTS[name]}},
        "readinessProbe": HOLDS,
    }
    spec = {"nodeName": cluster.node_name, "terminationGracePeriodSeconds": 5, "containers": [container]}
    metadata, selector = {"name": name, "namespace": namespace.name}, {"matchLabels": {"app": name}}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    about = {"apiVersion": "apps/v1", "metadata": metadata, "spec": {"selector": selector, "template": template}}
    made = [{"kind": "DaemonSet" if name == "daemon" else "Deployment", **about}]
    if name == "kept":
        budget = {"minAvailable": 1, "selector": selector}
        made.append({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": budget})
    return made


def test_one_pod_that_exceeds_is_evicted_and_the_node_stays(
    cluster: Provider, evicting: Release, namespace: Namespace, eventually: Wait
) -> None:
    pods = f"/api/v1/namespaces/{namespace.name}/pods"

    def uids() -> dict[str, str]:
        found = cluster.get(pods)["items"]
        return {each["metadata"]["uid"]: each["metadata"]["labels"]["app"] for each in found}

    def told() -> list[tuple[str, str]]:
        selector = "fieldSelector=reason=SwapPressureEviction"
        found = cluster.get(f"/api/v1/namespaces/{namespace.name}/events?{selector}")["items"]
        return [(each["involvedObject"]["uid"], each["message"]) for each in found]

    def ready() -> str:
        conditions = cluster.get(f"/api/v1/nodes/{cluster.node_name}")["status"]["conditions"]
        return next(str(each["status"]) for each in conditions if each["type"] == "Ready")

    for name in SIZES:
        objects = {"apiVersion": "v1", "kind": "List", "items": workload(cluster, namespace, name)}
        cluster.kubectl("create", "-f", "-", text=json.dumps(objects))
    for name in SIZES:
        what = f"{'daemonset' if name == 'daemon' else 'deployment'}/{name}"
        cluster.kubectl("rollout", "status", what, f"--namespace={namespace.name}", "--timeout=120s")
    before = uids()
    bounds = {"perNodePerHour": 1, "settleSeconds": 5}
    pressure = {"mode": "Enforce", "headroom": ALWAYS, "eviction": bounds}
    with evicting.profile("e2e-pressure", pressure=pressure) as apply:
        apply(behavior="LimitedSwap")
        eventually(told, "the eviction")
        [(uid, message)] = told()
        assert before[uid] == "free"
        sums = r"usage 1[67]\dMi \(memory 1[67]\dMi \+ swap \d+Mi\) > request 16Mi \+ swap \d+Mi; priority 0"
        assert re.search(rf": {sums}; (node|pods) headroom \d+Mi < \d+Mi$", message), message
        eventually(lambda: uid not in uids(), "the pod has ended")
        eventually(lambda: "victim" not in evicting.state()["spec"]["pressure"], "the record is removed")
        assert len(evicting.state()["spec"]["pressure"]["evictedAt"]) == 1, "a next leader counts it"
        seq = evicting.state()["status"]["pressure"]["seq"]
        eventually(lambda: evicting.state()["status"]["pressure"]["seq"] > seq + 3, "later reports")
        after = uids()
        assert before.items() - after.items() == {(uid, "free")}
        assert len(told()) == 1
        assert ready() == "True"
    eventually(lambda: "pressure" not in evicting.state()["status"], "the report ends with the profile")


def growth(cluster: Provider, namespace: Namespace) -> dict[str, Any]:
    """The load: a job, so that no other pod follows, which may not swap."""
    container = {
        "name": "main",
        "image": image.REFERENCE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", "-c", GROW, str(FIRST), str(PACE)],
        "resources": {"requests": {"memory": "16Mi"}},
    }
    spec = {"nodeName": cluster.node_name, "restartPolicy": "Never", "containers": [container]}
    metadata = {"annotations": {names.POLICY_ANNOTATION: "Disabled"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "grows", "namespace": namespace.name},
        "spec": {"backoffLimit": 0, "template": {"metadata": metadata, "spec": spec}},
    }


def test_a_pod_that_grows_without_swap_is_evicted_before_the_kernel_kills(
    cluster: Provider,
    evicting: Release,
    namespace: Namespace,
    node: Node,
    eventually: Wait,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pods = f"/api/v1/namespaces/{namespace.name}/pods"

    def kills() -> int:
        words = node.read("/proc/vmstat").split()
        return int(words[words.index("oom_kill") + 1])

    def running() -> bool:
        return any(each["status"].get("phase") == "Running" for each in cluster.get(pods)["items"])

    def reasons() -> dict[str, str]:
        found = cluster.get(f"/api/v1/namespaces/{namespace.name}/events")["items"]
        return {each["reason"]: each["message"] for each in found}

    def ready() -> str:
        conditions = cluster.get(f"/api/v1/nodes/{cluster.node_name}")["status"]["conditions"]
        return next(str(each["status"]) for each in conditions if each["type"] == "Ready")

    pressure = {"mode": "Enforce", "headroom": BEFORE_OOM, "eviction": {"maxGracePeriodSeconds": 1}}
    with evicting.profile("e2e-growth", pressure=pressure) as apply:
        apply(behavior="LimitedSwap")
        before, restarts = kills(), evicting.agent()["status"]["containerStatuses"][0]["restartCount"]
        cluster.kubectl("create", "-f", "-", text=json.dumps(growth(cluster, namespace)))
        eventually(running, "the pod runs")
        begun = time.monotonic()
        eventually(lambda: not running(), "the pod has ended")
        took, killed, told = time.monotonic() - begun, kills() - before, reasons()
        with capsys.disabled():
            sys.stdout.write(f"\nended after {took:.0f} s, {killed} OOM kills\n")
        assert "SwapPressureEviction" in told
        assert killed == 0
        assert ready() == "True"
        assert evicting.agent()["status"]["containerStatuses"][0]["restartCount"] == restarts
