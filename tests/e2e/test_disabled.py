"""Policy Disabled on a real node: every value that the kernel ever held for such pods, in quiet times and others."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy.build import image
from testbed.standin import hog
from testbed.vm.nodevm import Sample
from tests.e2e import cgroups, promise, release
from tests.e2e.cgroups import MIB, Window
from tests.e2e.conftest import ARTIFACTS, PATIENCE, POLL, Namespace, Wait, new_namespace
from tests.e2e.provider import Node, Provider, Recording
from tests.e2e.release import Exposed, Release

DISABLED = {"annotations": {"swapwarden.dev/swap-policy": "Disabled"}}
LOG_SECONDS = 20.0
"""So long the container runtime may take to write down what an agent logged."""
LIMIT = 64 * MIB
USED_MIB = 8
# Asks the kernel again and again to take memory from cgroups: those that may swap do so, and no pod gets near its
# limit. Others lose pages of their program, which are read from the disk again: that is dear on an emulated CPU.
PRESS = """
while :; do
    for folder in "$@"; do
        echo 512K > "$folder/memory.reclaim"
    done 2> /dev/null
    sleep 1
done"""
CONTROLLERS = f"/api/v1/namespaces/{release.NAMESPACE}/pods?labelSelector=app.kubernetes.io/component=controller"
QOS: dict[str, Any] = {
    "burstable": {"requests": {"cpu": "10m", "memory": str(LIMIT // 2)}, "limits": {"memory": str(LIMIT)}},
    "guaranteed": {"limits": {"cpu": "100m", "memory": str(LIMIT)}},
    "besteffort": {},
}


def greedy(mib: int, resources: dict[str, Any], pace: float, then: float | None = None) -> dict[str, Any]:
    """A container that wants MIB of memory, and touches all of it again and again, PACE MiB a second, later THEN."""
    paces = ["--pace", str(pace), "--then", str(then or pace)]
    return {
        "name": "main",
        "image": image.REFERENCE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", "-c", inspect.getsource(hog), str(mib), *paces],
        "resources": resources,
    }


def broken(
    node: Node, recording: Recording, uid: str, started: float, earlier: Sequence[dict[str, Any]] = ()
) -> list[str]:
    """Return how the promise was broken for a pod since its first container STARTED, with the evidence.

    EARLIER are log lines about it that the node may have lost.
    """
    of_pod = cgroups.slice_of(uid)
    own = [each for each in recording.samples(of_pod) if each.path.endswith(of_pod)]
    deadline = time.monotonic() + LOG_SECONDS
    while True:
        # The log is read last: it may have more than the recording, and never less.
        told = promise.told(all_lines(earlier, cgroups.agent_log(node, uid)), uid)
        found = list(promise.broken(own, started, told))
        if not found or time.monotonic() > deadline:
            break
        time.sleep(POLL)
    seen = map(str, cgroups.windows(own, of_pod, started))
    return found and [*found, "recorded:", *seen, "logged:", *map(str, told.exposures)]


def all_lines(earlier: Sequence[dict[str, Any]], later: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*(each for each in earlier if each not in later), *later]


@contextlib.contextmanager
def pressed(node: Node, folders: Iterable[Path]) -> Iterator[None]:
    """The kernel is asked to take memory from these cgroups, again and again."""
    argv = ["sh", "-c", 'setsid sh -c "$0" sh "$@" > /dev/null 2>&1 < /dev/null & echo $!', PRESS, *map(str, folders)]
    process = node.run(argv, timeout=cgroups.TIMEOUT).stdout.strip()
    try:
        yield
    finally:
        node.run(["kill", process], timeout=cgroups.TIMEOUT)


@dataclasses.dataclass
class Guarded:
    """Pods with policy Disabled, one of each QoS class, and the evidence about them."""

    node: Node
    swapwarden: Release
    namespace: Namespace
    recording: Recording
    folders: dict[str, Path] = dataclasses.field(default_factory=dict)
    started: dict[str, float] = dataclasses.field(default_factory=dict)
    published: dict[str, Exposed] = dataclasses.field(default_factory=dict)
    """Metrics of agents that have ended, by pod."""
    logged: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)
    """Log lines of these, by pod: on a busy node the kubelet removes a container that ended, and its log, at once."""
    alone_since: float = 0.0
    """When the last agent was killed, on the node's clock: the current one publishes exposures that ended since."""

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

    def exposures(self, name: str) -> Exposed:
        """Return the pod's times above 0 as all agents published them."""
        return self.published.get(name, Exposed()) + self.swapwarden.exposed(self.pod(name)["metadata"]["uid"])

    def told(self, name: str) -> promise.Told:
        """Return the agents' log lines about the pod."""
        uid = self.pod(name)["metadata"]["uid"]
        return promise.told(all_lines(self.logged.get(name, []), cgroups.agent_log(self.node, uid)), uid)

    def is_published(self, name: str, told: promise.Told) -> bool:
        """Whether the present agent's metrics have at least what it logged."""
        own = [each for each in told.exposures if each.end > self.alone_since]
        published = self.swapwarden.exposed(self.pod(name)["metadata"]["uid"])
        logged = Exposed(len(own), sum(each.end - each.start for each in own), sum(each.bytes for each in own))
        # A log has microseconds.
        return (
            published.count >= logged.count
            and published.seconds >= logged.seconds - 1e-5 * logged.count
            and published.bytes >= logged.bytes
        )

    def was_rewritten(self, name: str, known: int) -> bool:
        """Whether agents have published more of the pod's exposures than KNOWN."""
        return self.exposures(name).count > known

    def own(self, name: str) -> list[Sample]:
        """Return the samples of the pod's own cgroup."""
        of_pod = self.folders[name].name
        return [each for each in self.recording.samples(of_pod) if each.path.endswith(of_pod)]

    def using(self, name: str) -> list[Sample]:
        """Return the samples of the pod with swap in use."""
        return [each for each in self.own(name) if each.current_bytes > 0]

    def keep_published(self) -> None:
        """Keep the metrics and the log of an agent that is about to end."""
        self.published = {name: self.exposures(name) for name in QOS}
        self.logged = {name: cgroups.agent_log(self.node, self.pod(name)["metadata"]["uid"]) for name in QOS}


@pytest.fixture(scope="module", autouse=True)
def watched(swapwarden: Release) -> Iterator[None]:
    """Swapwarden without its plugin in the runtime: what the agent alone does."""
    swapwarden.upgrade(**{"nri.mode": "off"})
    yield
    swapwarden.upgrade()


@pytest.fixture(scope="module")
def guarded(cluster: Provider, node: Node, swapwarden: Release) -> Iterator[Guarded]:
    with new_namespace(cluster) as namespace, node.record() as recording:
        made = Guarded(node, swapwarden, namespace, recording)
        for name, resources in QOS.items():
            namespace.create_pod(name, metadata=DISABLED, containers=[greedy(USED_MIB, resources, 2)])
        namespace.create_pod("plain", containers=[greedy(USED_MIB, QOS["burstable"], 2)])
        for name in QOS:
            pod = namespace.wait_ready(name)
            assert pod["status"]["qosClass"].lower() == name
            made.folders[name] = cgroups.of_pod(node, pod)
            container = cgroups.container_id(pod)
            made.started[name] = cgroups.first_start(
                recording.samples(container), cgroups.slice_of(pod["metadata"]["uid"]), container
            )
        made.folders["plain"] = cgroups.of_pod(node, namespace.wait_ready("plain"))
        yield made


@pytest.fixture
def settled(guarded: Guarded, eventually: Wait) -> Callable[[], None]:
    """Wait until all hold 0 again, then compare the recording with logs and metrics."""

    def check() -> None:
        for name in QOS:
            eventually(functools.partial(guarded.is_at_0, name), f"{name} holds 0")
            uid = guarded.pod(name)["metadata"]["uid"]
            found = broken(guarded.node, guarded.recording, uid, guarded.started[name], guarded.logged.get(name, ()))
            if found:
                # One that is broken fails this test, and not each later one too.
                guarded.started[name] = guarded.own(name)[-1].at
            assert not found, "\n".join([name, *found])
            published = functools.partial(guarded.is_published, name, guarded.told(name))
            eventually(published, f"the metrics have of {name} what the log has")

            def is_told(name: str = name, uid: str = uid) -> bool:
                """Return whether the status names a pod with pages that were swapped out in an exposure."""
                reasons = [each["reason"] for each in guarded.swapwarden.violations(uid)]
                return "Draining" in reasons or cgroups.swap_used(guarded.node, guarded.folders[name]) == 0

            eventually(is_told, f"{name} has nothing in swap that the agent does not report")
        # A pod whose pages are on the disk is not as specified, and that is said.
        applied = {"True/AsSpecified", "False/Draining"}
        eventually(lambda: guarded.swapwarden.condition("Applied") in applied, "the agent also reports that")

    return check


@pytest.mark.usefixtures("swapwarden")
def test_a_hog_never_swaps(node: Node, namespace: Namespace, eventually: Wait) -> None:
    hogs = {"disabled": DISABLED, "plain": {}}
    with node.record() as recording:
        for name, metadata in hogs.items():
            namespace.create_pod(name, metadata=metadata, containers=[greedy(2 * LIMIT // MIB, QOS["burstable"], 16)])
        uids = {name: namespace.pod(name)["metadata"]["uid"] for name in hogs}

        def most_used(name: str) -> int:
            return max((each.current_bytes for each in recording.samples(cgroups.slice_of(uids[name]))), default=0)

        def killed(name: str) -> bool:
            statuses = namespace.pod(name)["status"].get("containerStatuses", [])
            ended = [each.get(kind, {}).get("terminated", {}) for each in statuses for kind in ("state", "lastState")]
            return any(each.get("reason") == "OOMKilled" for each in ended)

        # It fills its memory until the kernel has nothing left to give: with swap that takes a while longer.
        eventually(lambda: most_used("plain") > 0, "a hog without policy swaps")
        eventually(lambda: killed("disabled"), "a hog without swap finds its memory's end")
        assert most_used("disabled") == 0
        of_pod = cgroups.slice_of(uids["disabled"])
        scopes = [each for each in recording.samples(of_pod) if each.event == "created" and each.path.endswith("scope")]
        assert not broken(node, recording, uids["disabled"], scopes[1].at)


def test_at_the_start(guarded: Guarded, settled: Callable[[], None], eventually: Wait) -> None:
    with pressed(guarded.node, guarded.folders.values()):
        # The neighbour shows that there is pressure.
        eventually(lambda: guarded.using("plain"), "a pod without policy swaps under this pressure")
    settled()
    assert guarded.swapwarden.condition("Applied") == "True/AsSpecified"
    for name in QOS:
        assert guarded.using(name) == []
        uid = guarded.pod(name)["metadata"]["uid"]
        assert guarded.swapwarden.planned(uid) == "0"
        samples = guarded.recording.samples(cgroups.slice_of(uid))
        # systemd and the agent wrote after the cgroup was made. The agent may be too quick for the recorder to read
        # what there was in between.
        of_pod = [each.event for each in samples if each.path.endswith(cgroups.slice_of(uid))]
        assert of_pod[0] == "created"
        assert "written" in of_pod


def test_daemon_reload(guarded: Guarded, settled: Callable[[], None], eventually: Wait) -> None:
    before = {name: guarded.exposures(name).count for name in QOS}
    with pressed(guarded.node, guarded.folders.values()):
        guarded.node.daemon_reload()
        for name, known in before.items():
            told = f"systemd rewrites {name}, and it is said"
            eventually(functools.partial(guarded.was_rewritten, name, known), told)
    settled()
    uid = guarded.pod("burstable")["metadata"]["uid"]

    def is_told() -> bool:
        return ("0", "max") in [(each["desired"], each["observed"]) for each in guarded.swapwarden.exposures_of(uid)]

    eventually(is_told, "the state names the exposure")
    eventually(lambda: guarded.swapwarden.condition("Drifted") == "True/Rewritten", "and who is to blame")


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
    before = {name: restarts(guarded.pod(name)) for name in QOS}
    for name in QOS:
        guarded.node.write(cgroups.of_container(guarded.node, guarded.pod(name)) / "cgroup.kill", "1")
    for name in QOS:

        def restarted(name: str = name) -> bool:
            (status,) = guarded.pod(name)["status"]["containerStatuses"]
            return status["restartCount"] > before[name] and "running" in status["state"]

        eventually(restarted, f"the container of {name} runs anew")
    settled()


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_in_place_resize_of(
    resource: str, cluster: Provider, guarded: Guarded, settled: Callable[[], None], eventually: Wait
) -> None:
    new = {"cpu": "150m", "memory": str(80 * MIB)}[resource]
    kinds = {"burstable": ("requests",) if resource == "cpu" else ("limits",), "guaranteed": ("requests", "limits")}
    before = {name: guarded.exposures(name).count for name in kinds}
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
        before = {name: guarded.exposures(name).count for name in QOS}
        guarded.node.daemon_reload()
        for name in QOS:
            eventually(functools.partial(guarded.was_rewritten, name, before[name]), f"{name}: the rewrite is repaired")
        eventually(lambda: cgroups.swap_max(guarded.node, folder) == "0", "the unknown pod holds 0 again")
    finally:
        cluster.kubectl(*scale, "--replicas=2")
        rolled_out = ["rollout", "status", f"deployment/{release.NAME}-controller", f"--namespace={release.NAMESPACE}"]
        cluster.kubectl(*rolled_out, f"--timeout={PATIENCE:.0f}s", timeout=PATIENCE + 30)
    uid = pod["metadata"]["uid"]
    eventually(lambda: guarded.swapwarden.planned(uid) == "0", "a controller plans it")
    settled()
    container = cgroups.container_id(pod)
    started = cgroups.first_start(guarded.recording.samples(container), cgroups.slice_of(uid), container)
    assert not broken(guarded.node, guarded.recording, uid, started)


def test_while_no_agent_runs(
    cluster: Provider, guarded: Guarded, settled: Callable[[], None], eventually: Wait
) -> None:
    guarded.keep_published()
    old = guarded.swapwarden.agent()
    before = restarts(old)
    guarded.alone_since = cgroups.now(guarded.node)
    guarded.node.write(cgroups.of_container(guarded.node, old, "agent") / "cgroup.kill", "1")
    # In this time nobody repairs what systemd writes; the next agent does, from what it has on disk.
    guarded.node.daemon_reload()
    name = old["metadata"]["name"]

    def replaced() -> bool:
        pod = cluster.get(f"/api/v1/namespaces/{release.NAMESPACE}/pods/{name}")
        return restarts(pod) > before and pod["status"]["containerStatuses"][0]["ready"]

    with pressed(guarded.node, guarded.folders.values()):
        eventually(replaced, "the agent runs again")
    eventually(lambda: guarded.swapwarden.metrics(name, "agent"), "it answers")
    settled()
    for each in QOS:
        alone = [window for window in guarded.windows(each) if (window.end or 0) > guarded.alone_since]
        assert any(window.highest is None for window in alone)


def test_until_the_end(guarded: Guarded, eventually: Wait) -> None:
    before = {name: guarded.windows(name) for name in QOS}
    for name in QOS:
        guarded.namespace.delete_pod(name)
    lines = []
    for name in QOS:
        of_pod = guarded.folders[name].name

        def own(of_pod: str = of_pod) -> list[Sample]:
            return [each for each in guarded.recording.samples(of_pod) if each.path.endswith(of_pod)]

        eventually(lambda own=own: own()[-1].event == "gone", f"{name} is gone")  # type: ignore[misc]  # mypy infers no lambda with defaults
        # The kubelet lets systemd set the cgroup once more before it removes it (k/k: pkg/kubelet/cm, ReduceCPULimits);
        # nothing runs in it by then.
        scopes = [each for each in guarded.recording.samples(of_pod) if each.path.endswith(".scope")]
        last = max(each.at for each in scopes if each.event == "gone")
        running = [each for each in guarded.windows(name) if each.start < last]
        assert running == before[name], f"{name} was above 0 when it ended"
        written = [each for each in own() if each.event != "used"]
        lines += [f"{name}: its first container started at {guarded.started[name]:.3f}", *map(_line, written)]
        lines += ["  above 0 after that:", *(f"    {each}" for each in guarded.windows(name))]
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    (ARTIFACTS / "disabled.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _line(sample: Sample) -> str:
    held = "" if sample.event == "gone" else f": {'max' if sample.max_bytes is None else sample.max_bytes}"
    return f"  {sample.at:.3f} {sample.event}{held}"


def restarts(pod: Any) -> int:
    """How often the one container of a pod was restarted."""
    (status,) = pod["status"]["containerStatuses"]
    return int(status["restartCount"])
