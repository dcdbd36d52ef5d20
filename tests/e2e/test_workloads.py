"""Pods that are unlike others: static ones, those with init containers and sidecars, those that always fail."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from swapwarden.agent.report import status_writer

from tests.e2e import cgroups
from tests.e2e.cgroups import MIB, TIMEOUT
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.planned import plan
from tests.e2e.provider import Node, Provider, ProviderError
from tests.e2e.release import Release
from tests.e2e.test_nri import units_value

DISABLED = {"swapwarden.dev/swap-policy": "Disabled"}
PATCHES = "swapwarden_agent_status_patches_total"
REPAIRS = "swapwarden_agent_repairs_total"
STATIC = "/etc/kubernetes/manifests/e2e-static.yaml"


def test_a_static_pod(cluster: Provider, node: Node, swapwarden: Release, eventually: Wait) -> None:
    main = {"name": "main", "image": cluster.busybox, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "86400"]}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "e2e-static", "namespace": "default", "annotations": DISABLED},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [main]},
    }
    mirror = f"/api/v1/namespaces/default/pods/e2e-static-{cluster.node_name}"

    def found() -> Any:
        try:
            return cluster.get(mirror)
        except ProviderError:
            return None

    node.write(STATIC, json.dumps(body))
    try:
        eventually(lambda: (found() or {}).get("status", {}).get("phase") == "Running", "the static pod runs")
        pod = found()
        key = pod["metadata"]["annotations"]["kubernetes.io/config.hash"]
        assert key != pod["metadata"]["uid"]
        eventually(lambda: swapwarden.planned(key) == "0", "it is planned by what its cgroup is called")
        folder = cgroups.find(node, cgroups.slice_of(key))
        eventually(lambda: cgroups.swap_max(node, folder) == "0", "it holds 0")
        before = swapwarden.total("agent", REPAIRS)
        node.daemon_reload()
        eventually(lambda: swapwarden.total("agent", REPAIRS) > before, "systemd writes over it, and that is repaired")
        eventually(lambda: cgroups.swap_max(node, folder) == "0", "it holds 0 again")
        scope = cgroups.of_container(node, pod)
        eventually(lambda: units_value(node, scope) == "0", "systemd holds its container at 0")
    finally:
        node.run(["rm", STATIC], timeout=TIMEOUT)
    eventually(lambda: found() is None, "the static pod ends with its file")
    eventually(lambda: swapwarden.planned(key) is None, "and leaves the plan")


def test_init_containers_and_a_sidecar(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    def container(name: str, request: int, command: list[str], **more: Any) -> dict[str, Any]:
        resources = {"requests": {"memory": str(request)}, "limits": {"memory": str(2 * request)}}
        image = {"image": cluster.busybox, "imagePullPolicy": "IfNotPresent"}
        return {"name": name, "command": command, "resources": resources, **image, **more}

    sleep = ["sleep", "86400"]
    with swapwarden.profile("e2e-phases") as apply, node.record() as recording:
        apply(behavior="LimitedSwap")
        namespace.create_pod(
            "phases",
            initContainers=[
                container("sidecar", 32 * MIB, sleep, restartPolicy="Always"),
                container("first", 256 * MIB, ["sleep", "10"]),
            ],
            containers=[container("main", 64 * MIB, sleep)],
        )
        pod = namespace.wait_ready("phases")
        uid = pod["metadata"]["uid"]
        planned = plan(cluster)["pods"][uid]
        own = {name: int(each["swapMax"]) for name, each in planned["containers"].items()}
        # The largest step is the init container's, beside the sidecar that started before it.
        assert int(planned["swapMax"]) == own["sidecar"] + own["first"] > own["sidecar"] + own["main"] > 0
        assert own["first"] in {each.max_bytes for each in recording.samples(cgroups.container_id(pod, "first"))}
        folder = cgroups.of_pod(node, pod)
        eventually(lambda: cgroups.swap_max(node, folder) == planned["swapMax"], "the pod holds its plan")
        for name in ("main", "sidecar"):
            scope = cgroups.of_container(node, pod, name)
            eventually(
                lambda scope=scope, name=name: cgroups.swap_max(node, scope) == str(own[name]),  # type: ignore[misc]  # mypy infers no lambda with defaults
                f"{name} holds its plan",
            )


@pytest.mark.usefixtures("nobody_else")
def test_a_pod_that_fails_again_and_again_costs_few_writes(
    node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    resources = {"requests": {"memory": "64Mi"}, "limits": {"memory": "128Mi"}}
    with swapwarden.profile("e2e-crashing") as apply:
        apply(behavior="LimitedSwap")
        namespace.create_pod("crashing", command=["false"], resources=resources)
        uid = namespace.pod("crashing")["metadata"]["uid"]
        eventually(lambda: swapwarden.planned(uid), "it is planned")

        def container() -> Any:
            return next(iter(namespace.pod("crashing")["status"].get("containerStatuses", [])), {"restartCount": 0})

        def restarts() -> int:
            return int(container()["restartCount"])

        def is_waiting() -> bool:
            return bool(container().get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff")

        eventually(lambda: restarts() >= 1, "it has failed once")
        before, generation = restarts(), swapwarden.state()["metadata"]["generation"]
        reported, begun = swapwarden.total("agent", PATCHES), time.monotonic()
        eventually(lambda: restarts() > before and is_waiting(), "it has failed once more, and waits")
        written = swapwarden.state()["metadata"]["generation"] - generation
        # Each of its containers gets the same, and the state says so once; the write for other pods may be on its way.
        assert written <= 1
        # The agent says of each that it follows, once each that it found a container above its value, and what its
        # counters are, every half minute.
        counters = (time.monotonic() - begun) / status_writer.COUNTERS_SECONDS + 1
        assert swapwarden.total("agent", PATCHES) - reported <= 2 * written + 2 + counters
        # systemd's writes at the start of the pod's slice are reported if they followed the first value; no container
        # adds to them.
        assert swapwarden.violations(uid) == []
        assert {cause for each in swapwarden.exposures_of(uid) for cause in each["causes"]} <= {"Start", "StateLate"}
        assert int(cgroups.swap_max(node, cgroups.find(node, cgroups.slice_of(uid)))) > 0
