"""`swapwarden nri` and `swapwarden agent` with each other: from the node's state to the runtime's spec and back."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import pathlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from swapwarden.api import names, runtime_link
from swapwarden.api.runtime_link import SWAP_MAX
from swapwarden.api.state.spec import ID_LENGTH

from testbed.standin.runtime import REQUEST_TIMEOUT, Container, Pod, Runtime
from tests.integration.agent.agent_process import AgentProcess, pods, until
from tests.integration.agent.fake_api import FakeApi
from tests.integration.nri.conftest import StartPlugin
from tests.unit.agent.cgroup_tree import CgroupTree, container_id, swap_max, uid

DISABLED = {names.POLICY_ANNOTATION: names.Policy.DISABLED.value}
KUBELET = "69943296"
PLAN = str(1 << 20)
CONNECTED = "swapwarden_agent_nri_connected"


@dataclasses.dataclass
class Node:
    """A node without a kernel: its cgroups are a folder."""

    tree: CgroupTree
    api: FakeApi
    begin: Callable[[], AgentProcess]

    def start(self, runtime: Runtime, start_plugin: StartPlugin) -> AgentProcess:
        """Start the agent and a plugin, and wait until they know each other and the runtime."""
        agent = self.begin().wait_ready()
        start_plugin(runtime)
        until(lambda: agent.metric(CONNECTED) == 1, "the plugin is connected to both")
        return agent


@pytest.fixture
def node(folder: pathlib.Path) -> Iterator[Node]:
    (own := folder / "node").mkdir()
    tree = CgroupTree(own)
    with FakeApi("n1") as api, contextlib.ExitStack() as stack:

        def begin() -> AgentProcess:
            options = ("--nri-dir", str(folder / "link"))
            return stack.enter_context(AgentProcess(own, tree.root, tree.proc, api.kubeconfig(own), *options))

        yield Node(tree, api, begin)


def spec(runtime: Runtime, name: str) -> dict[str, Any]:
    """Return what the runtime has for a container."""
    return dict(runtime.specs()[container_id(name)]["unified"])


def holds(cgroup: pathlib.Path, value: str) -> bool:
    return swap_max(cgroup) == value


def plan(**containers: str) -> dict[str, Any]:
    """Return the settings of a pod with a limit for each of some containers."""
    return {"swapMax": PLAN, "containers": {name: {"swapMax": value} for name, value in containers.items()}}


def test_a_pod_starts_at_its_value_and_so_do_its_containers(
    oldest_and_newest: Runtime, start_plugin: StartPlugin, node: Node
) -> None:
    runtime = oldest_and_newest
    node.api.put({"pods": {uid(1): {"swapMax": "0"}, uid(2): plan(app="4096")}})
    node.start(runtime, start_plugin)
    cgroups = {number: node.tree.pod(number) for number in (1, 2, 3)}
    for number, expected in ((1, "0"), (2, PLAN), (3, "0")):
        took = runtime.sandbox(Pod(f"sandbox-{number}", uid(number)))
        # The first container is made after this: no waiting here.
        assert swap_max(cgroups[number]) == expected
        assert took < runtime_link.SANDBOX_SECONDS
    for number, name, expected in ((1, "app", "0"), (2, "app", "4096"), (2, "sidecar", KUBELET), (3, "app", KUBELET)):
        made = runtime.create(
            Container(container_id(f"{number}{name}"), f"sandbox-{number}", name, {SWAP_MAX: KUBELET})
        )
        assert (made.error, made.unified[SWAP_MAX]) == ("", expected)


def test_running_containers_come_under_the_hold_and_a_restore_gives_them_back(
    oldest_and_newest: Runtime, start_plugin: StartPlugin, node: Node
) -> None:
    runtime = oldest_and_newest
    # This runtime writes no files; the first has what a real one would write.
    for number, value in ((1, "0"), (2, "max")):
        node.tree.container(node.tree.pod(number), f"{number}app", memory_swap_max=f"{value}\n")
    runtime.populate(
        [Pod(f"sandbox-{number}", uid(number)) for number in (1, 2)],
        [
            Container(container_id("1app"), "sandbox-1", "app", {SWAP_MAX: KUBELET}),
            Container(container_id("2app"), "sandbox-2", "app", {}),
        ],
    )
    limited = plan(app="4096")
    limited["containers"]["app"]["id"] = container_id("2app")[:ID_LENGTH]
    state = {"pods": {uid(1): {"swapMax": "0"}, uid(2): limited}}
    node.api.put(state)
    node.start(runtime, start_plugin)
    until(lambda: spec(runtime, "1app") == {SWAP_MAX: "0"}, "the runtime holds the first")
    until(lambda: spec(runtime, "2app") == {SWAP_MAX: "4096"}, "the runtime holds the second")
    # A resize leaves it so.
    assert runtime.update(container_id("2app"), memory_swap_max=KUBELET).unified == {SWAP_MAX: "4096"}
    node.api.put(state | {"mode": names.Mode.RESTORE})
    until(lambda: spec(runtime, "1app") == {SWAP_MAX: KUBELET}, "the kubelet's number is back")
    until(lambda: spec(runtime, "2app") == {SWAP_MAX: "max"}, "no limit is back")


def test_containers_are_decided_while_the_agent_is_dead(newest: Runtime, start_plugin: StartPlugin, node: Node) -> None:
    node.api.put({"pods": {uid(1): plan(app="4096")}})
    first = node.start(newest, start_plugin)
    newest.populate([Pod("sandbox-1", uid(1)), Pod("sandbox-2", uid(2), DISABLED)], [])
    first.kill()
    for number, expected in ((1, "4096"), (2, "0")):
        made = newest.create(Container(container_id(f"{number}app"), f"sandbox-{number}", unified={SWAP_MAX: KUBELET}))
        assert made.unified[SWAP_MAX] == expected
    # A plugin that starts meanwhile has the mode of the last state.
    node.api.put({"mode": names.Mode.AUDIT, **pods({})})
    second = node.begin().wait_ready()
    until(lambda: second.metric(CONNECTED) == 1, "the plugin is back at the agent")
    second.kill()
    start_plugin(newest)
    made = newest.create(Container(container_id("late"), "sandbox-2", "late", {SWAP_MAX: KUBELET}))
    assert made.adjusted == {}


def test_strict_counts_the_pods_that_the_runtime_holds(newest: Runtime, start_plugin: StartPlugin, node: Node) -> None:
    # The container is older than the plugin, and its cgroup has what a real runtime would write.
    node.tree.container(node.tree.pod(1), "app", memory_swap_max="0\n")
    newest.populate(
        [Pod("sandbox-1", uid(1))], [Container(container_id("app"), "sandbox-1", "app", {SWAP_MAX: KUBELET})]
    )

    def says(status: str, reason: str, message: str) -> bool:
        found: dict[str, str] = next(
            (e for e in node.api.status.get("conditions", []) if e["type"] == "StrictInEffect"), {}
        )
        return (found.get("status"), found.get("reason")) == (status, reason) and message in found["message"]

    node.api.put(pods({1: "0"}, guarantee="Strict"))
    node.begin().wait_ready()
    plugin = start_plugin(newest)
    all_held = functools.partial(says, "True", "HeldByRuntime", "of 1 pods with a limit the container runtime holds 1")
    until(all_held, "the runtime holds the running container")
    plugin.kill()
    until(lambda: says("False", "NriUnavailable", "when its plugin was last connected: 1"), "new pods are not held")
    start_plugin(newest)
    until(all_held, "the runtime holds it still")


def test_an_uninstallation_leaves_nothing_in_the_folder_of_the_link(
    newest: Runtime, start_plugin: StartPlugin, node: Node, folder: pathlib.Path
) -> None:
    """In its order: the nodes restore, the plugin ends, and after that the agent."""
    node.api.put({"mode": names.Mode.RESTORE, **pods({})})
    agent = node.begin().wait_ready()
    plugin = start_plugin(newest)
    until(lambda: agent.metric(CONNECTED) == 1, "the plugin is connected to both")
    assert {each.name for each in (folder / "link").iterdir()} == {runtime_link.SOCKET, runtime_link.MODE_FILE}
    plugin.stop()
    until(lambda: node.api.condition("NriUnavailable")[0] == "True", "the agent says so")
    agent.terminate()
    assert list((folder / "link").iterdir()) == []


def test_a_client_that_floods_the_link_stops_nobody(newest: Runtime, start_plugin: StartPlugin, node: Node) -> None:
    node.api.put({"pods": {uid(1): plan(app="4096")}})
    agent = node.start(newest, start_plugin)
    path = str(node.tree.root.parent.parent / "link" / runtime_link.SOCKET)
    done = threading.Event()
    listed = {"kind": "containers", "more": True, "items": []}
    item = {"uid": uid(7), "name": "app", "value": "0", "original": None}
    packets = [
        b"\x00" * runtime_link.MAX_PACKET,
        b"[" * 60_000,
        json.dumps({"kind": "sandbox", "seq": 1, "uid": uid(1), "id": "s", "cgroup": "/../../etc"}).encode(),
        json.dumps(listed | {"items": [item | {"id": f"{at:064x}"} for at in range(300)]}).encode(),
        json.dumps({"kind": "created", **item, "id": "x" * 5_000}).encode(),
    ]

    def flood() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.settimeout(0.2)
                client.connect(path)
                for each in range(200):
                    client.send(packets[each % len(packets)])

    flooding = [threading.Thread(target=flood) for _ in range(3)]
    for each in flooding:
        each.start()
    try:
        for number in range(10, 20):
            cgroup = node.tree.pod(number)
            assert newest.sandbox(Pod(f"sandbox-{number}", uid(number))) < REQUEST_TIMEOUT
            until(functools.partial(holds, cgroup, "0"), "the cgroup of the pod has 0")
    finally:
        done.set()
        for each in flooding:
            each.join()
    assert agent.process.poll() is None
    until(lambda: agent.metric(CONNECTED) == 1, "the plugin is connected")
    newest.populate([Pod("sandbox-1", uid(1))], [])
    made = newest.create(Container(container_id("app"), "sandbox-1", "app", {SWAP_MAX: KUBELET}))
    assert made.unified[SWAP_MAX] == "4096"
    assert agent.rss < 100 << 20
