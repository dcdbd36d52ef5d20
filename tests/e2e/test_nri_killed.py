"""Pods that start while the plugin of the container runtime is killed again and again, and the runtime restarts.

A few pods by default; the long form is `make bench-starts`, whose table is in docs/design/measurements.md.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, Self

import pytest
from swapwarden.api import runtime_link

from testbed.base import term
from tests.e2e import cgroups, release
from tests.e2e.cgroups import TIMEOUT
from tests.e2e.conftest import POLL, Namespace, Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release
from tests.e2e.test_disabled import DISABLED, QOS, restarts
from tests.e2e.test_nri import FIRST_LINE, is_connected

STARTS = int(os.environ.get("E2E_STARTS", "6"))
"""Of pods in each mode."""
BATCH = 40
"""Pods of one recording. Their containers end before the next ones start: while containers stop, the runtime delays the
registration of plugins and with it all starts, for up to a minute."""
MODES = ("auto",) if STARTS < BATCH else ("auto", "required")
STARTS_PER_KILL = 2
PLUGIN_SECONDS = 6.0
"""A new plugin lives at most so long. Its registration waits for starts that are under way, often for two seconds."""
LOOP = """\
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
while True:
    subprocess.call(["swapwarden", *sys.argv[1:]])
"""
PLUGIN_IS_THERE = ["pgrep", "-f", "swapwarden nri"]
KILL_PLUGIN = ["pkill", "-KILL", "-f", "swapwarden nri"]
NOTICED_SECONDS = 0.05
"""Exposures that last longer must be reported."""
CORRECTED = "swapwarden_agent_nri_corrected_total"


@contextlib.contextmanager
def in_a_loop(cluster: Provider) -> Iterator[None]:
    """Have the plugin's container start it again at once. The kubelet takes 10 to 15 s to start the container again."""
    where = ["daemonset", f"{release.NAME}-nri", f"--namespace={release.NAMESPACE}"]

    def choose(command: list[str] | None) -> None:
        patch = {"spec": {"template": {"spec": {"containers": [{"name": "nri", "command": command}]}}}}
        cluster.kubectl("patch", *where, f"--patch={json.dumps(patch)}")
        cluster.kubectl("rollout", "status", "--timeout=300s", *where, timeout=330.0)

    choose(["python3", "-c", LOOP])
    try:
        yield
    finally:
        choose(None)


class Killer:
    """Kills the plugin again and again, at any moment of its life."""

    def __init__(self, node: Node, random: Random) -> None:
        self._node = node
        self._random = random
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._changed = threading.Condition()
        self._lives = 0
        self.kills = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def wait_for_life(self, number: int) -> None:
        """Wait until so many plugins have started."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._lives >= number, TIMEOUT), "the plugin does not come back"

    def wait_for_kill(self, number: int) -> None:
        """Wait until so many were killed."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.kills >= number, TIMEOUT), "the plugin does not come back"

    def _run(self) -> None:
        while not self._ended.wait(POLL):
            if self._node.run(PLUGIN_IS_THERE, timeout=TIMEOUT, check=False).rc:
                continue
            with self._changed:
                self._lives += 1
                self._changed.notify_all()
            self._ended.wait(self._random.uniform(0.0, PLUGIN_SECONDS))
            if self._node.run(KILL_PLUGIN, timeout=TIMEOUT, check=False).rc == 0:
                with self._changed:
                    self.kills += 1
                    self._changed.notify_all()


@pytest.mark.parametrize("mode", MODES)
def test_pods_start_while_the_plugin_is_killed(
    cluster: Provider, node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait, mode: str
) -> None:
    """A kill for each two pods, in the middle of starts, and once the runtime restarts. All pods start, and are held.

    Where the plugin is required, containers wait for it; the runtime refuses one whose plugin dies meanwhile, and the
    kubelet tries again. Else the agent reports what each could use before. It has the runtime hold each that started
    without it.
    """
    above: list[str] = []
    kills = exposed = 0
    if mode != MODES[0]:
        swapwarden.upgrade(**{"nri.mode": mode})
    eventually(lambda: is_connected(swapwarden), "the runtime has the plugin")
    corrected = swapwarden.total("agent", CORRECTED)
    try:
        with in_a_loop(cluster):
            for first in range(0, STARTS, BATCH):
                eventually(lambda: is_connected(swapwarden), "the runtime has the plugin")
                names = [f"pod-{number}" for number in range(first, min(first + BATCH, STARTS))]
                with node.record() as recording:
                    with Killer(node, Random(first)) as killer:  # noqa: S311 it is no secret
                        _start(node, namespace, killer, names, first)
                    pods = _when_ready(cluster, namespace, len(names), eventually)
                    samples = recording.samples()
                kills += killer.kills
                # A container that was made and did not run yet when the runtime restarted is made again.
                most = 1 if STARTS // 2 in range(first, first + BATCH) else 0
                assert [name for name, pod in pods.items() if restarts(pod) > most] == []
                printed = _printed(node, namespace)
                above += [name for name in names if printed[name] != {"0"}]
                eventually(functools.partial(_are_held, node, pods), "all of them are held")
                for name, pod in pods.items():
                    uid = pod["metadata"]["uid"]
                    windows = cgroups.in_effect(samples, cgroups.slice_of(uid), 0.0)
                    if any(each.end is None or each.end - each.start > NOTICED_SECONDS for each in windows):
                        exposed += 1
                        assert swapwarden.exposed(uid).count, (name, windows)
                cluster.kubectl("delete", "pods", "--all", f"--namespace={namespace.name}", timeout=4 * TIMEOUT)
                started = first + len(names)
                term.say(f"{mode}: {started} pods started, {kills} kills, {len(above)} above 0, {exposed} exposed")
        corrected = swapwarden.total("agent", CORRECTED) - corrected
        term.say(f"{mode}: {corrected:.0f} containers corrected; refused: {_refusals(cluster, namespace)}")
    finally:
        if mode != MODES[0]:
            swapwarden.upgrade()
    assert kills >= STARTS // STARTS_PER_KILL
    assert corrected >= len(above), "not every container that started above 0 was counted"
    if mode == "required":
        assert above == []


def _start(node: Node, namespace: Namespace, killer: Killer, names: list[str], first: int) -> None:
    """Start pods: the first of each two while no plugin lives, the second once there is one."""
    for number, name in enumerate(names):
        kill, second = divmod(number, STARTS_PER_KILL)
        if first + number == STARTS // 2:
            node.restart("containerd")
        if second:
            killer.wait_for_life(kill + 1)
        namespace.create_pod(name, metadata=DISABLED, command=FIRST_LINE, resources=QOS["burstable"])
        if second:
            killer.wait_for_kill(kill + 1)


def _when_ready(cluster: Provider, namespace: Namespace, count: int, eventually: Wait) -> dict[str, Any]:
    """The pods of the namespace by name, once so many are Ready: one question for all, which takes the node little."""
    found: dict[str, Any] = {}

    def are_ready() -> bool:
        for pod in cluster.get(f"/api/v1/namespaces/{namespace.name}/pods")["items"]:
            conditions = pod["status"].get("conditions", [])
            if any((each["type"], each["status"]) == ("Ready", "True") for each in conditions):
                found[pod["metadata"]["name"]] = pod
        return len(found) == count

    eventually(are_ready, f"{count} pods are ready")
    return found


def _printed(node: Node, namespace: Namespace) -> dict[str, set[str]]:
    """Return the lines of each pod's containers from the runtime's logs on the node, all of their attempts."""
    logs = f"/var/log/pods/{namespace.name}_*/main/*.log"
    found: dict[str, set[str]] = collections.defaultdict(set)
    for line in node.run(["sh", "-c", f"grep -H . {logs}"], timeout=TIMEOUT).stdout.splitlines():
        path, _, entry = line.partition(".log:")
        # /var/log/pods/NAMESPACE_POD_UID/main/0, and the time, the stream and a tag before the text.
        found[path.split("/")[4].split("_")[1]].add(entry.split(" ", 3)[3])
    return found


def _refusals(cluster: Provider, namespace: Namespace) -> dict[str, int]:
    """How often the runtime refused a container, by why: the required plugin was away, died when asked, or was late."""
    failed = f"validator plugin {runtime_link.INDEX}-{runtime_link.PLUGIN} failed: "
    reasons = {
        "away": f'required plugin "{runtime_link.PLUGIN}" not present',
        "died": f"{failed}ttrpc: closed",
        "late": f"{failed}context deadline exceeded",
    }
    events = cluster.get(f"/api/v1/namespaces/{namespace.name}/events")["items"]
    return {
        reason: sum(each.get("count") or 1 for each in events if text in each.get("message", ""))
        for reason, text in reasons.items()
    }


def _are_held(node: Node, pods: Mapping[str, Any]) -> bool:
    """Whether the kernel and systemd have 0 for the containers of all pods."""
    names = tuple(f"{cgroups.container_id(pod)}.scope" for pod in pods.values())
    # It fails if a cgroup is removed during the search.
    there = node.run(["find", str(node.kubepods), "-name", "*.scope"], timeout=TIMEOUT, check=False).stdout.split()
    scopes = [Path(each) for each in there if each.endswith(names)]
    kernel = node.run(["cat", *(str(each / "memory.swap.max") for each in scopes)], timeout=TIMEOUT).stdout
    units = ["systemctl", "show", "--value", "--property=MemorySwapMax", *(each.name for each in scopes)]
    values = [*kernel.split(), *node.run(units, timeout=TIMEOUT).stdout.split()]
    return values == ["0"] * 2 * len(pods)
