from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.cli import uninstall

SWAP = "node.swapwarden.dev/swap"


def state(
    mode: str = "Restore", observed: int = 4, *, status: str = "True", reason: str = "Restored", pods: int = 0
) -> uninstall.State:
    applied = {"type": "Applied", "status": status, "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    body = {
        "metadata": {"name": "one", "generation": 4},
        "spec": {"mode": mode, "pods": {str(number): {} for number in range(pods)}},
        "status": {"observedGeneration": observed, "conditions": [applied]},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=uninstall.State)


@pytest.mark.parametrize(
    ("found", "answered"),
    [
        (state(), True),
        (state(observed=3), False),
        (state(mode="Enforce"), False),
        (state(status="False", reason="Restoring"), False),
        (state(status="False", reason="WriteFailed"), False),
        # Nothing can have been written there.
        (state(status="False", reason="Incompatible"), True),
        # No agent ever ran there.
        (state(observed=0, mode="Enforce"), True),
    ],
)
def test_when_a_node_has_answered(found: uninstall.State, answered: bool) -> None:
    assert uninstall.answered(found) is answered


def test_the_report_says_what_was_planned_where_nobody_answered() -> None:
    before = state(mode="Enforce", pods=3)
    assert list(uninstall.report([], [before])) == ["all agents have put back what was there"]
    assert list(uninstall.report([state()], [before]))[1:] == ["  one: up to 3 pods"]


def pod(name: str, phase: str = "Running", node: str = "one", **spec: Any) -> uninstall.Pod:
    body = {
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"nodeName": node, **spec},
        "status": {"phase": phase},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=uninstall.Pod)


def test_labels_are_held_by_running_pods_that_select_them() -> None:
    selector = {SWAP: "true", "pool": "batch"}
    expression = {"key": SWAP, "operator": "Exists"}
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {kind: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}
    preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
    pods = [
        pod("selects", nodeSelector=selector),
        pod("requires", "Pending", affinity=affinity),
        pod("prefers", affinity=preferred),
        pod("ended", "Failed", nodeSelector=selector),
        pod("waits", "Pending", "", nodeSelector=selector),
        pod("indifferent", affinity={}),
        pod("elsewhere", node="two", nodeSelector=selector),
    ]
    assert uninstall.held_labels(pods) == {
        ("one", SWAP): {"ns/selects", "ns/requires"},
        ("two", SWAP): {"ns/elsewhere"},
    }
