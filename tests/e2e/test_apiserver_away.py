"""The API server is away for a minute: nodes continue to enforce their last state, and return without a storm."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.e2e import cgroups
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release, series

AWAY_SECONDS = float(os.environ.get("E2E_AWAY_SECONDS") or 60)
"""More than the leader's lease and the longest pause between two tries of an agent's watch."""
REQUESTS = 100
LISTS = "swapwarden_informer_lists_total"
DISABLED = {"annotations": {"swapwarden.dev/swap-policy": "Disabled"}}


@pytest.fixture
def stopped(cluster: Provider) -> Iterator[list[float]]:
    """The API server can be stopped in the test, by `append`ing the time; it is started again afterwards."""
    since: list[float] = []
    yield since
    if since:
        cluster.start_apiserver()


def requests(cluster: Provider) -> float:
    """How many requests for objects of Swapwarden the API server has had since it started."""
    text = cluster.kubectl("get", "--raw=/metrics").stdout
    found = series(text, "apiserver_request_total").items()
    return sum(count for labels, count in found if 'group="swapwarden.dev"' in labels)


def restarts(swapwarden: Release) -> dict[str, int]:
    """How often the containers of each part were restarted."""
    pods = [pod for component in ("controller", "webhook") for pod in swapwarden.pods(component)]
    return {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}


@pytest.mark.usefixtures("nobody_else")
def test_nodes_enforce_without_an_api_server(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, stopped: list[float], eventually: Wait
) -> None:
    namespace.create_pod("disabled", metadata=DISABLED)
    pod = namespace.wait_ready("disabled")
    uid, folder = pod["metadata"]["uid"], cgroups.of_pod(node, pod)
    eventually(lambda: swapwarden.planned(uid) == "0", "it is planned")
    eventually(lambda: swapwarden.condition("Applied") == "True/AsSpecified", "the plan is in force")
    agent = cgroups.of_container(node, swapwarden.agent(), "agent").parent
    state, before = swapwarden.state(), restarts(swapwarden)
    generation = state["metadata"]["generation"]
    lists = swapwarden.total("controller", LISTS)

    def at_0() -> bool:
        return cgroups.swap_max(node, folder) == "0"

    with node.record() as recording:
        of_pod = cgroups.slice_of(uid)

        def writes() -> int:
            """Return how many writes of the pod's limit were recorded; the kernel may report two as one."""
            samples = recording.samples(of_pod)
            return len([each for each in samples if each.path.endswith(of_pod) and each.event == "written"])

        cluster.stop_apiserver()
        stopped.append(time.monotonic())
        node.daemon_reload()
        eventually(lambda: writes() > 0, "systemd rewrites the pod")
        eventually(at_0, "the agent repairs it without an API server")

        # A restart of the agent: the kubelet also does that without an API server.
        def scopes() -> set[str]:
            # It fails if a cgroup is removed during the search.
            return set(node.run(["find", str(agent), "-name", "*.scope"], timeout=60, check=False).stdout.split())

        old = scopes()
        known = writes()
        for scope in old:
            processes = node.read(f"{scope}/cgroup.procs").split()
            if any("agent" in node.read(f"/proc/{each}/cmdline").split("\0") for each in processes):
                node.write(f"{scope}/cgroup.kill", "1")
        eventually(lambda: not old <= scopes(), "the agent is gone")
        node.daemon_reload()
        eventually(lambda: writes() > known, "systemd rewrites the pod")
        eventually(at_0, "the next agent does, from what it has on disk")
        known = writes()
        node.daemon_reload()
        eventually(lambda: writes() > known, "systemd rewrites the pod once more")
        eventually(at_0, "the next agent also repairs that")

        eventually(lambda: time.monotonic() - stopped[0] >= AWAY_SECONDS, "all that time without an API server")
        assert at_0()
    cluster.start_apiserver()
    stopped.clear()
    eventually(lambda: swapwarden.planned(uid) == "0", "the state is unchanged")
    namespace.create_pod("later", metadata=DISABLED)
    later = namespace.wait_ready("later")
    eventually(lambda: swapwarden.planned(later["metadata"]["uid"]) == "0", "a controller leads again")
    eventually(lambda: swapwarden.condition("Applied") == "True/AsSpecified", "the agent follows again")
    # No storm: one write for the new term, some for the pods that changed (the new one and the agent's), none repeated.
    assert swapwarden.state()["metadata"]["generation"] - generation <= 8
    assert restarts(swapwarden) == before
    # The watches of two controllers and one agent, those that came too early, and the writes above.
    assert requests(cluster) <= REQUESTS
    # Each of two controllers, of three kinds of objects: one list, and one more for each try that came too early.
    assert swapwarden.total("controller", LISTS) - lists <= 2 * 3 * 4
    # A node that was silent is not ready for a while, and its pods are no endpoints then: the next tests need it.
    eventually(lambda: swapwarden.is_served("webhook"), "the webhook has endpoints again")
