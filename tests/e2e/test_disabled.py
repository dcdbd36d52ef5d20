"""Policy Disabled on a real node: every value that the kernel ever held for such pods, in quiet times and others."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import hog, image
from tests.e2e import cgroups, release
from tests.e2e.cgroups import MIB, Window
from tests.e2e.conftest import ARTIFACTS, Namespace, Wait, new_namespace
from tests.e2e.provider import Node, Provider, Recording
from tests.e2e.release import Release

DISABLED = {"annotations": {"swapwarden.dev/swap-policy": "Disabled"}}
LIMIT = 64 * MIB
CONTROLLERS = f"/api/v1/namespaces/{release.NAMESPACE}/pods?labelSelector=app.kubernetes.io/component=controller"
QOS: dict[str, Any] = {
    "burstable": {"requests": {"cpu": "10m", "memory": str(LIMIT // 2)}, "limits": {"memory": str(LIMIT)}},
    "guaranteed": {"limits": {"cpu": "100m", "memory": str(LIMIT)}},
    "besteffort": {},
}


def greedy(mib: int, limit: int) -> dict[str, Any]:
    """A container that wants MIB of memory and has LIMIT bytes of it, half of that for sure."""
    # Where the container has no memory limit of its own, the test sets the pod's before the hog fills it.
    source = inspect.getsource(hog)
    return {
        "name": "main",
        "image": image.REFERENCE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", "-c", source, str(mib), "--pace", "16"],
        "resources": {"requests": {"memory": str(limit // 2)}, "limits": {"memory": str(limit)}},
    }


@dataclasses.dataclass
class Guarded:
    """Pods with policy Disabled, one of each QoS class, and what has been seen of them."""

    node: Node
    swapwarden: Release
    namespace: Namespace
    recording: Recording
    folders: dict[str, Path] = dataclasses.field(default_factory=dict)
    started: dict[str, float] = dataclasses.field(default_factory=dict)
    published: dict[str, int] = dataclasses.field(default_factory=dict)
    """Exposures that agents published before they ended, by pod."""

    def pod(self, name: str) -> Any:
        return self.namespace.pod(name)

    def windows(self, name: str) -> list[Window]:
        """When the pod was above 0 since its first container's start."""
        of_pod = self.folders[name].name
        return cgroups.windows(self.recording.samples(of_pod), of_pod, self.started[name])

    def is_at_0(self, name: str) -> bool:
        """Whether the kernel and the recorder say that the pod's limit is 0 now."""
        at_0 = cgroups.swap_max(self.node, self.folders[name]) == "0"
        return at_0 and all(each.end is not None for each in self.windows(name))

    def exposures(self, name: str) -> int:
        """How many times above 0 agents have published of the pod."""
        return self.published.get(name, 0) + self.swapwarden.exposures(self.pod(name)["metadata"]["uid"])

    def was_rewritten(self, name: str, known: int) -> bool:
        """Whether agents have published more of the pod's exposures than KNOWN."""
        return self.exposures(name) > known

    def keep_published(self) -> None:
        """The agent is about to end; what it has published goes with it."""
        self.published = {name: self.exposures(name) for name in QOS}


@pytest.fixture(scope="module")
def guarded(cluster: Provider, node: Node, swapwarden: Release) -> Iterator[Guarded]:
    with new_namespace(cluster) as namespace, node.record() as recording:
        made = Guarded(node, swapwarden, namespace, recording)
        for name, resources in QOS.items():
            namespace.create_pod(name, metadata=DISABLED, resources=resources)
        for name in QOS:
            pod = namespace.wait_ready(name)
            assert pod["status"]["qosClass"].lower() == name
            made.folders[name] = cgroups.of_pod(node, pod)
            container = cgroups.container_id(pod)
            made.started[name] = cgroups.first_start(
                recording.samples(container), cgroups.slice_of(pod["metadata"]["uid"]), container
            )
        yield made
        lines = []
        for name in QOS:
            lines += [f"{name}: started at {made.started[name]:.3f}", *(f"  {each}" for each in made.windows(name))]
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        (ARTIFACTS / "above-0-after-start.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def settled(guarded: Guarded, eventually: Wait) -> Callable[[], None]:
    """Wait until all hold 0 again, then hold what was recorded against what was published."""

    def check() -> None:
        for name in QOS:
            eventually(functools.partial(guarded.is_at_0, name), f"{name} holds 0")
            seen = guarded.windows(name)
            listed = "\n".join(map(str, seen))
            assert len(seen) <= guarded.exposures(name), f"{name} was above 0 without the agent's saying so:\n{listed}"
            assert cgroups.swap_used(guarded.node, guarded.folders[name]) == 0
        eventually(lambda: guarded.swapwarden.condition("Applied") == "True/AsSpecified", "the agent says so, too")

    return check


def test_a_hog_never_swaps(node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait) -> None:
    hogs = {"disabled": DISABLED, "plain": {}}
    with node.record() as recording:
        for name, metadata in hogs.items():
            namespace.create_pod(name, metadata=metadata, containers=[greedy(2 * LIMIT // MIB, LIMIT)])
        uids = {name: namespace.pod(name)["metadata"]["uid"] for name in hogs}

        def most_used(name: str) -> int:
            return max((each.current_bytes for each in recording.samples(cgroups.slice_of(uids[name]))), default=0)

        def killed(name: str) -> bool:
            statuses = namespace.pod(name)["status"].get("containerStatuses", [])
            ended = [each.get(kind, {}).get("terminated", {}) for each in statuses for kind in ("state", "lastState")]
            return any(each.get("reason") == "OOMKilled" for each in ended)

        # It fills its memory until the kernel has nothing left to give: with swap it goes on for a while there.
        eventually(lambda: most_used("plain") > 0, "a hog without policy swaps")
        eventually(lambda: killed("disabled"), "a hog without swap finds its memory's end")
        assert most_used("disabled") == 0
        of_pod = cgroups.slice_of(uids["disabled"])
        scopes = [each for each in recording.samples(of_pod) if each.event == "created" and each.path.endswith("scope")]
        seen = cgroups.windows(recording.samples(of_pod), of_pod, scopes[1].at)
        assert len(seen) <= swapwarden.exposures(uids["disabled"]), "\n".join(map(str, seen))


def test_at_the_start(guarded: Guarded, settled: Callable[[], None]) -> None:
    settled()
    for name in QOS:
        uid = guarded.pod(name)["metadata"]["uid"]
        assert guarded.swapwarden.planned(uid) == "0"
        samples = guarded.recording.samples(cgroups.slice_of(uid))
        # systemd and the agent wrote after the cgroup was made. The agent may be too quick for the recorder to read
        # what there was in between.
        of_pod = [each.event for each in samples if each.path.endswith(cgroups.slice_of(uid))]
        assert of_pod[0] == "created"
        assert "written" in of_pod


def test_daemon_reload(guarded: Guarded, settled: Callable[[], None], eventually: Wait) -> None:
    before = {name: guarded.exposures(name) for name in QOS}
    guarded.node.daemon_reload()
    for name, known in before.items():
        eventually(functools.partial(guarded.was_rewritten, name, known), f"systemd rewrites {name}, and it is said")
    settled()
    violations = guarded.swapwarden.violations(guarded.pod("burstable")["metadata"]["uid"])
    assert [(each["reason"], each["wanted"], each["found"]) for each in violations] == [("Exposed", "0", "max")]
    assert guarded.swapwarden.condition("Drift") == "True/Rewritten"


@pytest.mark.parametrize("unit", ["kubelet", "containerd"])
def test_restart_of(unit: str, guarded: Guarded, settled: Callable[[], None], eventually: Wait) -> None:
    guarded.node.restart(unit)
    # It works again when a new pod runs.
    name = f"after-{unit}"
    guarded.namespace.create_pod(name, metadata=DISABLED)
    eventually(lambda: guarded.namespace.is_ready(name), f"pods start after a restart of {unit}")
    settled()
    folder = cgroups.of_pod(guarded.node, guarded.pod(name))
    eventually(lambda: cgroups.swap_max(guarded.node, folder) == "0", "the new pod holds 0")


def test_restart_of_a_container(guarded: Guarded, settled: Callable[[], None], eventually: Wait) -> None:
    for name in QOS:
        guarded.node.write(cgroups.of_container(guarded.node, guarded.pod(name)) / "cgroup.kill", "1")
    for name in QOS:

        def restarted(name: str = name) -> bool:
            (status,) = guarded.pod(name)["status"]["containerStatuses"]
            return status["restartCount"] >= 1 and "running" in status["state"]

        eventually(restarted, f"the container of {name} runs anew")
    settled()


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_in_place_resize_of(
    resource: str, cluster: Provider, guarded: Guarded, settled: Callable[[], None], eventually: Wait
) -> None:
    new = {"cpu": "150m", "memory": str(80 * MIB)}[resource]
    kinds = {"burstable": ("requests",) if resource == "cpu" else ("limits",), "guaranteed": ("requests", "limits")}
    before = {name: guarded.exposures(name) for name in kinds}
    for name, wanted in kinds.items():
        patch = {"spec": {"containers": [{"name": "main", "resources": {kind: {resource: new} for kind in wanted}}]}}
        where = [f"--namespace={guarded.namespace.name}", "--subresource=resize"]
        cluster.kubectl("patch", "pod", name, *where, f"--patch={json.dumps(patch)}")
    for name, wanted in kinds.items():

        def resized(name: str = name, kind: str = wanted[-1]) -> bool:
            (status,) = guarded.pod(name)["status"]["containerStatuses"]
            return bool(status.get("resources", {}).get(kind, {}).get(resource) == _canonical(resource, new))

        eventually(resized, f"the kubelet has resized {name}")
        eventually(
            functools.partial(guarded.was_rewritten, name, before[name]), f"systemd rewrites {name}, and it is said"
        )
    settled()


def _canonical(resource: str, value: str) -> str:
    """A quantity as the API server writes it."""
    return f"{int(value) // MIB}Mi" if resource == "memory" else value


def test_while_the_controller_is_down(
    cluster: Provider, guarded: Guarded, settled: Callable[[], None], eventually: Wait
) -> None:
    scale = ["scale", f"deployment/{release.NAME}-controller", f"--namespace={release.NAMESPACE}"]
    cluster.kubectl(*scale, "--replicas=0")
    try:
        eventually(lambda: not cluster.get(CONTROLLERS)["items"], "no controller is left")
        guarded.namespace.create_pod("nobody-plans", metadata=DISABLED)
        pod = guarded.namespace.wait_ready("nobody-plans")
        assert guarded.swapwarden.planned(pod["metadata"]["uid"]) is None
        folder = cgroups.of_pod(guarded.node, pod)
        eventually(lambda: cgroups.swap_max(guarded.node, folder) == "0", "a pod that nobody knows holds 0")
        before = {name: guarded.exposures(name) for name in QOS}
        guarded.node.daemon_reload()
        for name in QOS:
            eventually(functools.partial(guarded.was_rewritten, name, before[name]), f"{name}: the rewrite is repaired")
        eventually(lambda: cgroups.swap_max(guarded.node, folder) == "0", "the unknown pod holds 0 again")
    finally:
        cluster.kubectl(*scale, "--replicas=2")
        cluster.kubectl(
            "rollout", "status", f"deployment/{release.NAME}-controller", f"--namespace={release.NAMESPACE}"
        )
    uid = pod["metadata"]["uid"]
    eventually(lambda: guarded.swapwarden.planned(uid) == "0", "a controller plans it")
    settled()
    of_pod = cgroups.slice_of(uid)
    container = cgroups.container_id(pod)
    started = cgroups.first_start(guarded.recording.samples(container), of_pod, container)
    seen = cgroups.windows(guarded.recording.samples(of_pod), of_pod, started)
    assert len(seen) <= guarded.swapwarden.exposures(uid), "\n".join(map(str, seen))


def test_while_no_agent_runs(
    cluster: Provider, guarded: Guarded, settled: Callable[[], None], eventually: Wait
) -> None:
    guarded.keep_published()
    old = guarded.swapwarden.agent()
    guarded.node.write(cgroups.of_container(guarded.node, old, "agent") / "cgroup.kill", "1")
    # In this time nobody repairs what systemd writes; the next agent does, from what it has on disk.
    guarded.node.daemon_reload()
    name = old["metadata"]["name"]

    def replaced() -> bool:
        (status,) = cluster.get(f"/api/v1/namespaces/{release.NAMESPACE}/pods/{name}")["status"]["containerStatuses"]
        return bool(status["restartCount"] > 0 and status["ready"])

    eventually(replaced, "the agent runs anew")
    settled()
    for each in QOS:
        assert any(window.highest is None for window in guarded.windows(each))
