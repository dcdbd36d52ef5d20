"""The worst that a real API server stores, and what reads it: nothing ends, and nothing is blind.

No list of these objects is decoded here, as json also gives up on them.
"""

from __future__ import annotations

import concurrent.futures
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.base import paths
from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests
from testbed.product.controller import Controller
from testbed.run import pythons
from tests.integration.controller.cluster import FAST, PROFILES, STATES, Cluster

Eventually = Callable[..., None]

DEEPEST = 9_995
"""Levels of fieldsV1 that the API server still takes: with those around it they are the 10,000 of its decoder."""
FAT = 8
PODS = "/api/v1/namespaces/default/pods"
DISABLED = {"swapwarden.dev/swap-policy": "Disabled"}
PROFILE: dict[str, Any] = {
    "apiVersion": "swapwarden.dev/v1alpha1",
    "kind": "NodeSwapProfile",
    # The override makes the controller follow namespaces.
    "spec": {
        "nodeSelector": {"matchLabels": {"group": "n2"}},
        "overrides": [{"name": "a", "namespaceSelector": {"matchLabels": {"a": "b"}}, "swap": {"policy": "Disabled"}}],
    },
}
COMMANDS = (
    ("swapwarden.cli.kubectl", "nodes"),
    ("swapwarden.cli.kubectl", "explain", "deep", "-n", "default"),
    ("swapwarden.cli.kubectl", "check"),
    # The last: it takes the states away.
    ("swapwarden", "uninstall", "--timeout=1"),
)
MEMORY_KIB = 400 * 1024
UNWATCHED = 90.0
"""Before Kubernetes 1.33 an object this deep can be neither listed nor watched: it is read by itself once a minute."""


def _with_fields(body: dict[str, Any], fields: str) -> bytes:
    """An object with these fieldsV1 as text, which json could not write."""
    # Of another version, the API server drops it.
    version = body.get("apiVersion", "v1")
    entry = {"manager": "x", "operation": "Update", "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": "HERE"}
    entry["time"] = "2026-01-01T00:00:00Z"
    metadata = {**body["metadata"], "managedFields": [entry]}
    return json.dumps({**body, "metadata": metadata}).replace('"HERE"', fields).encode()


def _deep(levels: int) -> str:
    return '{"f:a":' * levels + "{}" + "}" * levels


def _pod(name: str, value: str = "") -> dict[str, Any]:
    container = {"name": "app", "image": "none", "env": [{"name": "FAT", "value": value}]}
    return {"metadata": {"name": name}, "spec": {"nodeName": "n1", "containers": [container]}}


def _stored(cp: ControlPlane, method: str, path: str, body: bytes) -> None:
    status, answer, _ = cp.send(method, path, body)
    assert status < 300, (method, path, status, answer[:500])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ControlPlane() as running:
        running.apply_crds(paths.CRDS)
        running.apply(*manifests.other_manifests(), manifests.folder() / "uninstall-configmap.yaml")
        running.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        made = Cluster(running)
        for name in ("n1", "n2"):
            made.node(name)
        running.create(PROFILES, {**PROFILE, "metadata": {"name": "hostile"}})
        yield made


@pytest.fixture(scope="module")
def pythons_of_both() -> list[Path]:
    """The one that runs this, and the image's."""
    found = pythons.of_image()
    if isinstance(found, str):
        print(f"not tested with the image's Python: {found}")  # noqa: T201 for who reads the run
        return [Path(sys.executable)]
    return list(dict.fromkeys([Path(sys.executable), found]))


def _spoil(cp: ControlPlane, path: str, note: dict[str, str]) -> None:
    """Make an object as large and deep as possible, even if others write it."""
    status, answer = 409, b""
    while status == 409:
        found = cp.get(path)
        found["metadata"]["annotations"] = {**found["metadata"].get("annotations", {}), **note}
        status, answer, _ = cp.send("PUT", path, _with_fields(found, _deep(DEEPEST)))
    assert status == 200, (path, answer[:500])


def _store_the_worst(cluster: Cluster) -> None:
    cp = cluster.cp
    _stored(cp, "POST", PODS, _with_fields(_pod("deep"), _deep(DEEPEST)))
    # As many brackets as fit: they are slow to skip.
    _stored(cp, "POST", PODS, _with_fields(_pod("brackets"), _deep(DEEPEST)[:-1] + ',"f:b":{}' * 130_000 + "}"))
    note = {"note": '<\u0000\u2028"\\[{' * 12_000}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        fat = [json.dumps(_pod(f"fat-{number}", "<" * 1_450_000)).encode() for number in range(FAT)]
        storing = [pool.submit(_stored, cp, "POST", PODS, body) for body in fat]
        paths = ("/api/v1/nodes/n2", "/api/v1/namespaces/default", f"{PROFILES}/hostile", f"{STATES}/n2")
        storing += [pool.submit(_spoil, cp, path, note) for path in paths]
        for each in storing:
            each.result()


def _memory_kib(controller: Controller) -> int:
    """The most that the process ever had in memory."""
    text = Path(f"/proc/{controller.process.pid}/status").read_text(encoding="ascii")
    return int(text.partition("VmHWM:")[2].split()[0])


def test_controllers_go_on_planning(cluster: Cluster, pythons_of_both: list[Path], eventually: Eventually) -> None:
    def plans(controller: Controller, name: str) -> None:
        controller.leads()
        made = cluster.pod("n1", name, DISABLED)
        eventually(lambda: cluster.swap_max("n1", made) == "0", f"the plan for {name}")
        assert controller.process.poll() is None
        assert controller.health("/readyz")[0] == 200
        assert controller.metric("swapwarden_informer_objects_left_out") == 0
        assert _memory_kib(controller) < MEMORY_KIB

    running = []
    try:
        for python in pythons_of_both:
            running.append(Controller(cluster.cp, FAST, python=python))
            eventually(lambda: running[-1].health("/readyz")[0] == 200, "all is known")
        eventually(lambda: cluster.spec("n1"), "a first plan")
        _store_the_worst(cluster)
        for number, controller in enumerate(running):
            plans(controller, f"seen-live-{number}")
            assert controller.metric("swapwarden_informer_lists_total", resource="pods") == 1
            controller.stop()
    finally:
        for controller in running:
            controller.stop()
    for number, python in enumerate(pythons_of_both):
        with Controller(cluster.cp, FAST, python=python) as controller:
            plans(controller, f"seen-at-the-start-{number}")
            # The profile is as bad as the rest, and still followed.
            _change_profile(cluster, ("NoSwap", "LimitedSwap")[number])
            eventually(functools.partial(_follows, cluster, "n2", 2 + number), "the profile's change", UNWATCHED)


def _follows(cluster: Cluster, node: str, generation: int) -> bool:
    """Whether the node's state is made from this generation; its managedFields are too deep for json."""
    text = cluster.cp.send("GET", f"{STATES}/{node}")[1]
    return b'"profileRef":{"generation":%d,"name":"hostile"}' % generation in text


def _change_profile(cluster: Cluster, behavior: str) -> None:
    path = f"{PROFILES}/hostile"
    status, answer = 409, b""
    while status == 409:  # the controller has just written its status
        found = re.search(rb'"resourceVersion":"(\d+)"', cluster.cp.send("GET", path)[1])
        assert found
        body = {**PROFILE, "metadata": {"name": "hostile", "resourceVersion": found[1].decode()}}
        body["spec"] = {**PROFILE["spec"], "swap": {"behavior": behavior}}
        status, answer, _ = cluster.cp.send("PUT", path, _with_fields(body, _deep(DEEPEST)))
    assert status == 200, answer[:500]
    assert cluster.cp.send("GET", path)[1].count(b"f:a") == DEEPEST


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_go_on(cluster: Cluster, pythons_of_both: list[Path], command: tuple[str, ...]) -> None:
    for python in pythons_of_both if command[0] == "swapwarden" else pythons_of_both[:1]:
        environment = {**os.environ, "PYTHONPATH": str(paths.OPERATOR), "KUBECONFIG": str(cluster.cp.kubeconfig)}
        done = subprocess.run(  # noqa: S603 our own words
            [str(python), "-m", *command], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert "Traceback" not in done.stderr
        assert done.returncode == 0 or command[1] == "check", done.stderr
        assert "left out" not in done.stderr
