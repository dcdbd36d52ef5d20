"""Containers that the runtime and systemd hold by themselves: `swapwarden nri` on a real containerd.

docs/nri.md has the promises. The agent holds limits of pods; the runtime and systemd hold those of containers.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from swapwarden.policy.swap import limits

from tests.e2e import cgroups, release
from tests.e2e.cgroups import MIB, PAGE, TIMEOUT
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Exposed, Release
from tests.e2e.test_disabled import DISABLED, QOS, greedy, pressed, restarts
from tests.e2e.test_strict import is_resized, resize

USED_MIB = 8
RELOADS = 3
FIRST_LINE = ["sh", "-c", "cat /sys/fs/cgroup/memory.swap.max; exec sleep 86400"]
"""The first thing that the container does is to print its own limit."""
RESIZED = {"requests": {"cpu": "150m"}}


@pytest.fixture(scope="module")
def holding(node: Node, swapwarden: Release) -> Release:
    """Swapwarden with its plugin in the runtime."""
    assert node  # no other providers
    return swapwarden


def is_connected(swapwarden: Release) -> bool:
    """Whether the agent has a plugin that the runtime has accepted, and says so.

    For ten minutes it also reports that it was late once, or that the runtime ended the connection for a late answer,
    as may be on a busy machine.
    """
    connected = swapwarden.total("agent", "swapwarden_agent_nri_connected") == 1
    return connected and swapwarden.condition("NriUnavailable") in {"", "True/Slow", "True/Dropped"}


def agent_only(swapwarden: Release) -> list[str]:
    """Return the UIDs of the pods that the state lists as held by the agent alone."""
    found: list[str] = swapwarden.state().get("status", {}).get("holds", {}).get("agentOnly", [])
    return found


def units_value(node: Node, scope: Path) -> str:
    """Return the limit that systemd has for a container's unit, and writes at each reload, as the kernel floors it."""
    said = node.run(["systemctl", "show", "--value", "--property=MemorySwapMax", scope.name], timeout=TIMEOUT).stdout
    limit = said.strip()
    return "max" if limit == "infinity" else str(limits.floor_to_page(int(limit), PAGE))


def held(node: Node, pod: Any, container: str = "main") -> tuple[str, str]:
    """Return what the kernel and systemd have for one container."""
    scope = cgroups.of_container(node, pod, container)
    return cgroups.swap_max(node, scope), units_value(node, scope)


@contextlib.contextmanager
def without(cluster: Provider, swapwarden: Release, component: str, eventually: Wait) -> Iterator[None]:
    """No pod of a DaemonSet of the release runs within."""
    where = ["daemonset", f"{release.NAME}-{component}", f"--namespace={release.NAMESPACE}"]

    def choose(value: str | None) -> None:
        patch = {"spec": {"template": {"spec": {"nodeSelector": {"e2e": value}}}}}
        cluster.kubectl("patch", *where, "--type=merge", f"--patch={json.dumps(patch)}")

    choose("none")
    try:
        eventually(lambda: not swapwarden.pods(component), f"no {component} is left")
        yield
    finally:
        choose(None)
    eventually(lambda: swapwarden.pods(component), f"there is a pod of {component} again")


def above(node: Node, samples: Sequence[Any], pod: Any, container: str = "main") -> list[str]:
    """Return when a container that must not swap held more than 0 after its first process ran."""
    container_id = cgroups.container_id(pod, container)
    scope = f"{container_id}.scope"
    # The runtime writes to the new cgroup before it starts the program in it.
    first = next((each.at for each in samples if each.path.endswith(scope) and each.max_bytes == 0), 0.0)
    assert node
    return [str(each) for each in cgroups.windows(samples, scope, first)]


def test_containers_hold_0_from_their_first_instruction(
    cluster: Provider, node: Node, holding: Release, namespace: Namespace, eventually: Wait
) -> None:
    eventually(lambda: is_connected(holding), "the runtime has the plugin")
    extra = {"image": cluster.busybox, "imagePullPolicy": "IfNotPresent"}
    for name, resources in QOS.items():
        first = ["sh", "-c", "cat /sys/fs/cgroup/memory.swap.max"]
        namespace.create_pod(
            name,
            metadata=DISABLED,
            command=FIRST_LINE,
            resources=resources,
            initContainers=[
                {"name": "init", "command": first, "resources": resources, **extra},
                {"name": "side", "command": FIRST_LINE, "resources": resources, "restartPolicy": "Always", **extra},
            ],
        )
    namespace.create_pod("plain", command=FIRST_LINE, resources=QOS["burstable"])
    for name in QOS:
        pod = namespace.wait_ready(name)
        for container in ("main", "side"):
            assert held(node, pod, container) == ("0", "0")
        for container in ("main", "side", "init"):
            logs = cluster.kubectl("logs", name, f"--container={container}", f"--namespace={namespace.name}").stdout
            assert logs.split() == ["0"], (name, container)
    # Others have what the kubelet gave them.
    plain = namespace.wait_ready("plain")
    kernel, unit = held(node, plain)
    assert kernel == unit
    assert int(kernel) > 0


def test_they_hold_it_with_no_agent(
    cluster: Provider, node: Node, holding: Release, namespace: Namespace, eventually: Wait
) -> None:
    eventually(lambda: is_connected(holding), "the runtime has the plugin")
    for name, resources in QOS.items():
        namespace.create_pod(name, metadata=DISABLED, containers=[greedy(USED_MIB, resources, 4)])
    namespace.create_pod("plain", containers=[greedy(USED_MIB, QOS["burstable"], 4)])
    pods = {name: namespace.wait_ready(name) for name in QOS}
    plain = cgroups.of_pod(node, namespace.wait_ready("plain"))
    folders = {name: cgroups.of_container(node, pod) for name, pod in pods.items()}
    with node.record() as recording:
        with without(cluster, holding, "agent", eventually), pressed(node, [*folders.values(), plain]):
            for _ in range(RELOADS):
                node.daemon_reload()
            eventually(lambda: cgroups.swap_used(node, plain) > 0, "a pod without policy swaps under this pressure")
            resize(cluster, namespace, "burstable", RESIZED)
            eventually(lambda: is_resized(namespace, "burstable", RESIZED), "the kubelet has resized it")
            node.daemon_reload()
            before = restarts(namespace.pod("guaranteed"))
            node.write(folders["guaranteed"] / "cgroup.kill", "1")

            def runs_again() -> bool:
                (status,) = namespace.pod("guaranteed")["status"]["containerStatuses"]
                return status["restartCount"] > before and "running" in status["state"]

            eventually(runs_again, "the container is restarted")
            namespace.create_pod("new", metadata=DISABLED, command=FIRST_LINE, resources=QOS["burstable"])
            namespace.wait_ready("new")
            pods = {name: namespace.pod(name) for name in (*QOS, "new")}
            for name, pod in pods.items():
                assert held(node, pod) == ("0", "0"), name
                assert cgroups.swap_used(node, cgroups.of_container(node, pod)) == 0, name
        samples = recording.samples()
    for name, pod in pods.items():
        assert above(node, samples, pod) == [], name
    eventually(lambda: is_connected(holding), "the new agent has the plugin")
    eventually(lambda: holding.condition("Applied") == "True/AsSpecified", "the new agent has all pods at 0")
    for name in ("burstable", "besteffort"):
        # Their slices had no limit meanwhile, and nothing could swap: that is no exposure.
        assert holding.exposed(pods[name]["metadata"]["uid"]) == Exposed(), name


def test_a_pod_that_may_swap_is_held_at_its_number(
    node: Node, holding: Release, namespace: Namespace, eventually: Wait
) -> None:
    with holding.profile("e2e-held") as apply:
        apply(behavior="LimitedSwap", reserved="50%")
        namespace.create_pod("limited", resources=QOS["burstable"])
        pod = namespace.wait_ready("limited")
        uid = pod["metadata"]["uid"]
        eventually(lambda: int(holding.planned(uid) or 0) > 0, "it is planned")
        number = holding.planned(uid)
        assert number is not None
        eventually(lambda: held(node, pod) == (number, number), "the runtime holds the plan's number")
        with node.record() as recording:
            for _ in range(RELOADS):
                node.daemon_reload()
            eventually(lambda: cgroups.swap_max(node, cgroups.of_pod(node, pod)) == number, "the pod holds its number")
            scope = f"{cgroups.container_id(pod)}.scope"
            values = {each.max_bytes for each in recording.samples(scope) if each.event != "gone"}
        assert values == {int(number)}
    # Without the profile it has the kubelet's number again, for good.
    eventually(lambda: held(node, pod)[0] == held(node, pod)[1] != number, "the kubelet's number is given back")
    node.daemon_reload()
    kernel, unit = held(node, pod)
    assert kernel == unit != number


def test_containers_from_before_the_plugin_are_held_too(
    cluster: Provider, node: Node, holding: Release, namespace: Namespace, eventually: Wait
) -> None:
    """Under Strict the node reports who holds them."""
    with holding.profile("e2e-strict", guarantee="Strict") as apply:
        apply(behavior="Kubelet")
        namespace.create_pod("first", metadata=DISABLED, resources=QOS["burstable"])
        namespace.wait_ready("first")
        eventually(lambda: holding.condition("StrictInEffect") == "True/HeldByRuntime", "the runtime holds all")
        with without(cluster, holding, "nri", eventually):
            eventually(lambda: holding.condition("NriUnavailable").startswith("True/"), "the agent says so at once")
            namespace.create_pod("early", metadata=DISABLED, resources=QOS["burstable"])
            pod = namespace.wait_ready("early")
            # It starts: a plugin that is away keeps nobody from running. The pod's own limit holds.
            folder = cgroups.of_pod(node, pod)
            eventually(lambda: cgroups.swap_max(node, folder) == "0", "the agent holds the pod")
            assert units_value(node, cgroups.of_container(node, pod)) != "0"
            uid = pod["metadata"]["uid"]
            eventually(lambda: uid in agent_only(holding), "the state names the pod")
            eventually(lambda: holding.condition("StrictInEffect") == "False/NriUnavailable", "no new pod is held")
        eventually(lambda: is_connected(holding), "the runtime has the plugin again")
        eventually(lambda: held(node, pod) == ("0", "0"), "the running container is held")
        eventually(lambda: uid not in agent_only(holding), "the state says so")
        eventually(lambda: holding.condition("StrictInEffect") == "True/HeldByRuntime", "the runtime holds all again")


def test_the_runtime_restarts(node: Node, holding: Release, namespace: Namespace, eventually: Wait) -> None:
    namespace.create_pod("before", metadata=DISABLED, resources=QOS["burstable"])
    before = namespace.wait_ready("before")
    eventually(lambda: held(node, before) == ("0", "0"), "it is held")
    node.restart("containerd")
    eventually(lambda: is_connected(holding), "the plugin has found the new socket")
    namespace.create_pod("after", metadata=DISABLED, resources=QOS["burstable"])
    assert held(node, namespace.wait_ready("after")) == ("0", "0")
    assert held(node, before) == ("0", "0")


def _is_held(node: Node, pod: Any) -> bool:
    return held(node, pod) == ("0", "0")


def test_a_storm_of_reloads_without_an_agent_moves_nobody(
    cluster: Provider, node: Node, holding: Release, namespace: Namespace, eventually: Wait
) -> None:
    """The short form of `make bench-storm`: reloads back to back on a busy node, the agent killed meanwhile."""
    eventually(lambda: is_connected(holding), "the runtime has the plugin")
    names = [f"{name}-{number}" for name in QOS for number in range(2)]
    for each in names:
        namespace.create_pod(each, metadata=DISABLED, containers=[greedy(USED_MIB, QOS[each.partition("-")[0]], 8)])
    namespace.create_pod("swaps", containers=[greedy(USED_MIB, QOS["burstable"], 8)])
    namespace.create_pod("busy", command=["sh", "-c", "while :; do :; done"], resources={"requests": {"cpu": "10m"}})
    pods = {name: namespace.wait_ready(name) for name in names}
    for name, pod in pods.items():
        eventually(functools.partial(_is_held, node, pod), f"{name} is held")
    swaps = namespace.wait_ready("swaps")
    number, _ = held(node, swaps)
    namespace.wait_ready("busy")
    scopes = [cgroups.of_container(node, pod) for pod in pods.values()]
    agent = holding.agent()
    before = restarts(agent)
    may_swap = cgroups.of_container(node, swaps)
    with node.record() as recording, pressed(node, [*scopes, may_swap]):
        for reload in range(3 * RELOADS):
            if reload == RELOADS:
                node.write(cgroups.of_container(node, agent, "agent") / "cgroup.kill", "1")
            node.daemon_reload()
        samples = recording.samples()
        used = {name: cgroups.swap_used(node, scope) for name, scope in zip(pods, scopes, strict=True)}
        assert cgroups.swap_used(node, may_swap), "one that may swap does, under the same pressure"
    assert used == dict.fromkeys(pods, 0)
    assert held(node, swaps) == (number, number)
    assert restarts(namespace.pod("swaps")) == 0, "it was killed for want of memory"
    for name, pod in pods.items():
        assert above(node, samples, pod) == [], name
    name = agent["metadata"]["name"]
    path = f"/api/v1/namespaces/{release.NAMESPACE}/pods/{name}"
    eventually(lambda: restarts(cluster.get(path)) > before, "the agent was killed, and runs again")


def test_nothing_is_written_in_audit(node: Node, holding: Release, namespace: Namespace, eventually: Wait) -> None:
    with holding.profile("e2e-audit", mode="Audit") as apply:
        apply(behavior="NoSwap")
        eventually(
            lambda: holding.state()["status"].get("observedGeneration") == _generation(holding), "it is in force"
        )
        namespace.create_pod("audited", metadata=DISABLED, resources=QOS["burstable"])
        kernel, unit = held(node, namespace.wait_ready("audited"))
        assert kernel == unit
        assert int(kernel) > MIB
    pod = namespace.pod("audited")
    eventually(functools.partial(_is_held, node, pod), "it is held once a profile enforces")


def _generation(swapwarden: Release) -> Any:
    return swapwarden.state()["metadata"]["generation"]


def test_crun_holds_them_too(
    cluster: Provider, node: Node, holding: Release, namespace: Namespace, eventually: Wait
) -> None:
    """It writes other files than runc: the limit of a cgroup inside of the scope, and the scope's by systemd."""
    handler = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "crun"}, "handler": "crun"}
    cluster.kubectl("apply", "-f", "-", text=json.dumps(handler))
    eventually(lambda: is_connected(holding), "the runtime has the plugin")
    namespace.create_pod(
        "crun", metadata=DISABLED, command=FIRST_LINE, resources=QOS["burstable"], runtimeClassName="crun"
    )
    pod = namespace.wait_ready("crun")
    logs = cluster.kubectl("logs", "crun", f"--namespace={namespace.name}").stdout
    assert logs.split() == ["0"]
    with without(cluster, holding, "agent", eventually):
        node.daemon_reload()
        scope = cgroups.of_container(node, pod)
        inner = node.read(Path("/proc") / first_process_below(node, scope) / "cgroup").strip().partition("::")[2]
        values = {cgroups.swap_max(node, scope), cgroups.swap_max(node, Path("/sys/fs/cgroup") / inner.lstrip("/"))}
        assert "0" in values, values


def first_process_below(node: Node, scope: Path) -> str:
    """The id of a process of a container, wherever below its scope it is."""
    said = node.run(["find", str(scope), "-name", "cgroup.procs", "-exec", "cat", "{}", "+"], timeout=TIMEOUT).stdout
    return said.split()[0]


def test_no_container_starts_without_a_required_plugin(
    cluster: Provider, node: Node, holding: Release, namespace: Namespace, eventually: Wait
) -> None:
    holding.upgrade(**{"nri.mode": "required"})
    try:
        with without(cluster, holding, "nri", eventually):
            namespace.create_pod("held", metadata=DISABLED, resources=QOS["burstable"])
            namespace.create_pod("free", resources=QOS["burstable"])
            namespace.wait_ready("free")

            def is_refused() -> bool:
                statuses = namespace.pod("held")["status"].get("containerStatuses", [])
                waiting = [each["state"].get("waiting", {}).get("reason") for each in statuses]
                return waiting == ["CreateContainerError"]

            eventually(is_refused, "the runtime refuses the container")
        assert held(node, namespace.wait_ready("held")) == ("0", "0")
    finally:
        holding.upgrade()
