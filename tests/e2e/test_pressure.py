"""`pressure.mode: Enforce` on a real node: the first pod that may be evicted is, and no other."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from swapwarden.api import names

from deploy.build import image
from testbed.base import term
from tests.e2e import cgroups, kubelets, release
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release
from tests.e2e.test_workloads import STATIC

HOLD = """
import os, sys, time
block, held = bytes(1 << 20), os.memfd_create("held")
for _ in range(int(sys.argv[1])):
    os.write(held, block)
open("/tmp/held", "w").close()
time.sleep(86400)
"""
"""Without a page fault for each page: in user mode they take most of the time."""
HOLDS = {
    "exec": {"command": ["python3", "-I", "-S", "-c", "open('/tmp/held')"]},
    "periodSeconds": 1,
    "timeoutSeconds": 10,
}
ALWAYS = {"below": "99%", "clear": "100%", "forSeconds": 1}
"""Less than the kernel itself leaves."""
NEVER = {"below": "1Mi", "clear": "2Mi", "forSeconds": 1}
TAINTED, LATE = 295, 20
"""Seconds: the controller knows of the end a moment before the test."""
SIZES = {"daemon": 224, "kept": 192, "within": 176, "free": 160}
"""MiB of memory: more than anything else on the node exceeds its request by."""
REQUESTS = {"daemon": "16Mi", "kept": "16Mi", "within": "256Mi", "free": "16Mi"}
STATIC_MIB, BARE_MIB = 240, 208
"""More than that of `free`, which nevertheless is the one that is evicted."""
OWN_GRACE, GRACE = 5, 3
"""Seconds that a pod may take to end: by its own spec, and when it is evicted. Ours use all of it: they have no handler
of SIGTERM, and are the first of their process namespace."""

GROW = """
import os, sys, time
first, pace = map(int, sys.argv[1:])
block, quick = os.urandom(1 << 20), os.memfd_create("held")
for _ in range(first):
    os.write(quick, block)
held, begun = [], time.monotonic()
while True:
    held.append(bytearray(block))
    time.sleep(max(0.0, begun + len(held) / pace - time.monotonic()))
"""
FIRST, PACE = 1500, 30
"""MiB in the same way as above, and MiB a second."""
BEFORE_OOM = {"below": "25%", "clear": "35%", "forSeconds": 1}
"""The kubelet of this slow node may need ten seconds to end a pod while memory is short: at 40 MiB a second, with a
signal at 171 MiB, the kernel killed first."""
KUBELET = "600Mi"
"""The kubelet evicts below. It looks each ten seconds."""
BRIEF = "evictionPressureTransitionPeriod: 10s\n"
"""How long a kubelet reports MemoryPressure at least; five minutes by default."""
WAITS = 60
"""Seconds: as long as a kubelet's pressure holds the controller."""
NO_EVICTION = """\
evictionSoft: {memory.available: 99%}
evictionSoftGracePeriod: {memory.available: 24h}
"""
"""The kubelet reports MemoryPressure as soon as it looks, and would evict a day later."""
HOLDS_TOTAL = "swapwarden_controller_pressure_holds_total"
NEAR = {"below": "20%", "clear": "30%", "forSeconds": 5}
"""Of 3 GiB, little more than the kubelet's: either may be first, as the kubelet looks when it looks."""


@pytest.fixture(scope="module")
def evicting(swapwarden: Release) -> Iterator[Release]:
    """Swapwarden with the right to evict."""
    swapwarden.upgrade(eviction="Enforce")
    try:
        yield swapwarden
    finally:
        swapwarden.upgrade()


def holds(mib: int, request: str = "16Mi") -> dict[str, Any]:
    """A container that holds MIB of memory once it is ready."""
    return {
        "name": "main",
        "image": image.REFERENCE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", "-c", HOLD, str(mib)],
        "resources": {"requests": {"memory": request}},
        "readinessProbe": HOLDS,
    }


def workload(cluster: Provider, namespace: Namespace, name: str) -> list[dict[str, Any]]:
    """A Deployment or a DaemonSet of one pod; of `kept`, also a budget that forbids its eviction."""
    container = holds(SIZES[name], REQUESTS[name])
    spec = {"nodeName": cluster.node_name, "terminationGracePeriodSeconds": OWN_GRACE, "containers": [container]}
    metadata, selector = {"name": name, "namespace": namespace.name}, {"matchLabels": {"app": name}}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    about = {"apiVersion": "apps/v1", "metadata": metadata, "spec": {"selector": selector, "template": template}}
    made = [{"kind": "DaemonSet" if name == "daemon" else "Deployment", **about}]
    if name == "kept":
        budget = {"minAvailable": 1, "selector": selector}
        made.append({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": budget})
    return made


@contextlib.contextmanager
def static_pod(node: Node, namespace: str) -> Iterator[None]:
    """The kubelet runs a pod `static` from a file."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "static", "namespace": namespace, "labels": {"app": "static"}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [holds(STATIC_MIB)]},
    }
    node.write(STATIC, json.dumps(body))
    try:
        yield
    finally:
        node.run(["rm", STATIC], timeout=cgroups.TIMEOUT)


def condition(cluster: Provider, kind: str) -> dict[str, str]:
    """Return a condition of the suite's node."""
    found: list[dict[str, str]] = cluster.get(f"/api/v1/nodes/{cluster.node_name}")["status"]["conditions"]
    return next(each for each in found if each["type"] == kind)


def kills(node: Node) -> int:
    """Return how many processes the kernel's OOM killer has ended."""
    words = node.read("/proc/vmstat").split()
    return int(words[words.index("oom_kill") + 1])


def test_one_pod_that_exceeds_is_evicted_and_the_node_stays(
    cluster: Provider, evicting: Release, namespace: Namespace, node: Node, eventually: Wait
) -> None:
    """Not those that exceed by more: of a DaemonSet, kept by a budget, static, or without a controller."""
    static = f"static-{cluster.node_name}"
    ending: dict[str, int] = {}

    def pods() -> list[dict[str, Any]]:
        return [each["metadata"] for each in cluster.get(f"/api/v1/namespaces/{namespace.name}/pods")["items"]]

    def uids() -> dict[str, str]:
        return {each["uid"]: each["labels"]["app"] for each in pods()}

    def ends() -> bool:
        found = (each for each in pods() if "deletionTimestamp" in each)
        ending.update({each["uid"]: each["deletionGracePeriodSeconds"] for each in found})
        return bool(ending)

    def told() -> list[tuple[str, str]]:
        selector = "fieldSelector=reason=SwapPressureEviction"
        found = cluster.get(f"/api/v1/namespaces/{namespace.name}/events?{selector}")["items"]
        return [(each["involvedObject"]["uid"], each["message"]) for each in found]

    def spared(name: str) -> str:
        said = cluster.swap("explain", name, f"--namespace={namespace.name}", "--output=json").stdout
        return str(json.loads(said)["pressure"]["spared"])

    namespace.create_pod("bare", metadata={"labels": {"app": "bare"}}, containers=[holds(BARE_MIB)])
    for name in SIZES:
        objects = {"apiVersion": "v1", "kind": "List", "items": workload(cluster, namespace, name)}
        cluster.kubectl("create", "-f", "-", text=json.dumps(objects))
    for name in SIZES:
        what = f"{'daemonset' if name == 'daemon' else 'deployment'}/{name}"
        cluster.kubectl("rollout", "status", what, f"--namespace={namespace.name}", "--timeout=120s")
    namespace.wait_ready("bare")
    bounds = {"perNodePerHour": 1, "settleSeconds": 5, "maxGracePeriodSeconds": GRACE}
    pressure = {"mode": "Enforce", "headroom": ALWAYS, "eviction": bounds}
    profile = evicting.profile("e2e-pressure", pressure=pressure)
    with static_pod(node, namespace.name), profile as apply:
        eventually(lambda: namespace.is_ready(static), "the static pod holds its memory")
        before = uids()
        apply(behavior="LimitedSwap")
        eventually(ends, "a pod ends")
        eventually(told, "the eviction")
        [(uid, message)] = told()
        assert before[uid] == "free"
        assert ending == {uid: GRACE}
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
        assert (spared(static), spared("bare")) == ("Static", "Unmanaged")
        assert condition(cluster, "Ready")["status"] == "True"
    eventually(lambda: "pressure" not in evicting.state()["status"], "the report ends with the profile")


def job(cluster: Provider, namespace: Namespace, name: str, container: dict[str, Any], **metadata: Any) -> str:
    """Return a job of one pod, which no other follows: one without figures yet is the first that a kubelet evicts."""
    spec = {"nodeName": cluster.node_name, "restartPolicy": "Never", "containers": [container]}
    template = {"metadata": {"labels": {"app": name}, **metadata}, "spec": spec}
    about = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": namespace.name}}
    disrupted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}
    policy = {"backoffLimit": 0, "podFailurePolicy": {"rules": [disrupted]}}
    return json.dumps({**about, "spec": {**policy, "template": template}})


def growth(cluster: Provider, namespace: Namespace) -> str:
    """The load, which may not swap."""
    command = ["python3", "-I", "-S", "-c", GROW, str(FIRST), str(PACE)]
    grows = {key: value for key, value in holds(0).items() if key != "readinessProbe"} | {"command": command}
    return job(cluster, namespace, "grows", grows, annotations={names.POLICY_ANNOTATION: "Disabled"})


def test_a_pod_that_grows_without_swap_is_evicted_before_the_kernel_kills(
    cluster: Provider,
    evicting: Release,
    namespace: Namespace,
    node: Node,
    eventually: Wait,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pods = f"/api/v1/namespaces/{namespace.name}/pods"

    def running() -> bool:
        return any(each["status"].get("phase") == "Running" for each in cluster.get(pods)["items"])

    def told() -> list[tuple[str, str]]:
        selector = "fieldSelector=reason=SwapPressureEviction"
        found = cluster.get(f"/api/v1/namespaces/{namespace.name}/events?{selector}")["items"]
        return [(each["involvedObject"]["kind"], each["involvedObject"]["uid"]) for each in found]

    def failed() -> list[str]:
        found = cluster.get(f"/apis/batch/v1/namespaces/{namespace.name}/jobs/grows")["status"].get("conditions", [])
        return [each["reason"] for each in found if each["type"] == "Failed"]

    pressure = {"mode": "Enforce", "headroom": BEFORE_OOM, "eviction": {"maxGracePeriodSeconds": 1}}
    with evicting.profile("e2e-growth", pressure=pressure) as apply:
        apply(behavior="LimitedSwap")
        before, restarts = kills(node), evicting.agent()["status"]["containerStatuses"][0]["restartCount"]
        cluster.kubectl("create", "-f", "-", text=growth(cluster, namespace))
        eventually(running, "the pod runs")
        [grows] = cluster.get(pods)["items"]
        begun = time.monotonic()
        eventually(lambda: not running(), "the pod has ended")
        took, killed, evicted = time.monotonic() - begun, kills(node) - before, told()
        with capsys.disabled():
            sys.stdout.write(f"\nended after {took:.0f} s, {killed} OOM kills\n")
        assert evicted == [("Pod", grows["metadata"]["uid"])]
        eventually(failed, "the job has failed")
        assert failed() == ["PodFailurePolicy"], "an eviction is no failure of the job's own"
        assert killed == 0
        assert condition(cluster, "Ready")["status"] == "True"
        assert evicting.agent()["status"]["containerStatuses"][0]["restartCount"] == restarts


def test_beside_the_kubelet_the_controller_evicts_one_pod_at_most(
    cluster: Provider, evicting: Release, namespace: Namespace, node: Node, eventually: Wait
) -> None:
    """The one that grows. Another exceeds its request too: only the kubelet, which may know old sizes, takes it."""
    where = f"namespaces/{namespace.name}"

    def alive() -> dict[str, str]:
        found = cluster.get(f"/api/v1/{where}/pods")["items"]
        running = (each["metadata"] for each in found if each["status"].get("phase") == "Running")
        return {each["uid"]: each["labels"]["app"] for each in running}

    def evicted(reason: str) -> list[str]:
        found = cluster.get(f"/api/v1/{where}/events?fieldSelector=reason={reason}")["items"]
        return [each["involvedObject"]["uid"] for each in found]

    bounds = {"maxGracePeriodSeconds": 1, "settleSeconds": 20}
    pressure = {"mode": "Enforce", "headroom": NEAR, "eviction": bounds}
    with kubelets.configured(node) as configure, evicting.profile("e2e-race", pressure=pressure) as apply:
        configure(BRIEF, evict_below=KUBELET)
        apply(behavior="LimitedSwap")
        cluster.kubectl("create", "-f", "-", text=job(cluster, namespace, "free", holds(SIZES["free"])))
        ready = ["--for=condition=Ready", "pods", "--selector=app=free", f"--namespace={namespace.name}"]
        eventually(alive, "there is a pod")
        cluster.kubectl("wait", *ready, "--timeout=120s")
        before = kills(node)
        cluster.kubectl("create", "-f", "-", text=growth(cluster, namespace))
        eventually(lambda: len(alive()) == 2, "the pod runs")
        both = alive()
        eventually(lambda: "grows" not in alive().values(), "the pod that grows is evicted")
        eventually(lambda: "pressure" not in evicting.state()["status"], "the signal ends")
        eventually(lambda: condition(cluster, "MemoryPressure")["status"] == "False", "the kubelet's ends")
        eventually(lambda: "victim" not in evicting.state()["spec"].get("pressure", {}), "the record is removed")
        ours, kubelets_own = evicted("SwapPressureEviction"), evicted("Evicted")
        mine, its = ([both.get(uid, "another") for uid in uids] for uids in (ours, kubelets_own))
        term.say(f"evicted by the controller: {mine}, by the kubelet: {its}")
        assert mine in ([], ["grows"])
        assert both.keys() - alive().keys() <= {*ours, *kubelets_own}
        assert kills(node) == before
        assert condition(cluster, "Ready")["status"] == "True"


def test_while_the_kubelet_reports_pressure_the_controller_waits(
    cluster: Provider, evicting: Release, namespace: Namespace, node: Node, eventually: Wait
) -> None:
    def told() -> list[dict[str, Any]]:
        selector = "fieldSelector=reason=SwapPressureEviction"
        found: list[dict[str, Any]] = cluster.get(f"/api/v1/namespaces/{namespace.name}/events?{selector}")["items"]
        return found

    def held() -> float:
        texts = [evicting.metrics(pod["metadata"]["name"], "controller") for pod in evicting.pods("controller")]
        found = [one for text in texts for one in release.series(text, HOLDS_TOTAL).items()]
        return sum(value for labels, value in found if "KubeletEvicting" in labels)

    def has_pressure(status: str) -> bool:
        return condition(cluster, "MemoryPressure")["status"] == status

    objects = {"apiVersion": "v1", "kind": "List", "items": workload(cluster, namespace, "free")}
    cluster.kubectl("create", "-f", "-", text=json.dumps(objects))
    cluster.kubectl("rollout", "status", "deployment/free", f"--namespace={namespace.name}", "--timeout=120s")
    pressure = {"mode": "Enforce", "headroom": ALWAYS, "eviction": {"settleSeconds": WAITS}}
    with kubelets.configured(node) as configure, evicting.profile("e2e-waits", pressure=pressure) as apply:
        assert has_pressure("False")
        before = held()
        configure(BRIEF + NO_EVICTION)
        eventually(lambda: has_pressure("True"), "the kubelet reports pressure")
        began = condition(cluster, "MemoryPressure")["lastTransitionTime"]
        apply(behavior="LimitedSwap")
        eventually(lambda: held() > before, "the controller waits for the kubelet")
        eventually(told, "the eviction")
        [event] = told()
        after = datetime.datetime.fromisoformat(event["firstTimestamp"]) - datetime.datetime.fromisoformat(began)
        assert after.total_seconds() >= WAITS
    eventually(lambda: has_pressure("False"), "the kubelet's pressure ends")


def test_the_taint_remains_for_five_minutes(cluster: Provider, swapwarden: Release, eventually: Wait) -> None:
    def tainted() -> bool:
        taints = cluster.get(f"/api/v1/nodes/{cluster.node_name}")["spec"].get("taints", [])
        found = [each["effect"] for each in taints if each["key"] == names.PRESSURE_TAINT]
        assert found in ([], ["NoSchedule"])
        return bool(found)

    def profile(headroom: dict[str, Any]) -> contextlib.AbstractContextManager[Callable[..., None]]:
        pressure = {"mode": "Observe", "taintEffect": "NoSchedule", "headroom": headroom}
        return swapwarden.profile("e2e-taint", pressure=pressure)

    with profile(ALWAYS) as apply:
        apply(behavior="LimitedSwap")
        eventually(tainted, "the node is tainted")
        with profile(NEVER) as calm:
            calm(behavior="LimitedSwap")
            eventually(lambda: "pressure" not in swapwarden.state()["status"], "the signal ends")
            ended = time.monotonic()
            eventually(lambda: not tainted(), "the taint goes")
            assert TAINTED <= time.monotonic() - ended < TAINTED + LATE
