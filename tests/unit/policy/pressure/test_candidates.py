from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.policy import plan
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.observed.resources import Kind
from swapwarden.policy.pressure import candidates

from tests.unit.objects import GI, MI, container, facts, pod, profile

NODE = facts()
"""8 GiB of memory, 4 GiB of swap: LimitedSwap gives half of a request."""


def wire(**fields: Any) -> WirePod:
    whole: dict[str, Any] = {
        "metadata": {
            "name": "p",
            "namespace": "a",
            "uid": "uid-1",
            "ownerReferences": [{"kind": "Gang"}, {"kind": "ReplicaSet", "controller": True}],
        },
        "spec": {
            "containers": [{"name": "app", "resources": {"requests": {"memory": "1Gi"}}}],
            "priority": 7,
            "overhead": {"memory": "10Mi"},
        },
        "status": {"phase": "Running"},
    }
    for part, more in fields.items():
        whole[part] = {**whole[part], **more}
    return msgspec.convert(whole, WirePod)


def read(**fields: Any) -> candidates.Candidate | None:
    return candidates.read(wire(**fields), NODE, "node-uid", {})


def test_the_fields_of_a_pod() -> None:
    assert read() == candidates.Candidate(
        key="uid-1",
        uid="uid-1",
        namespace="a",
        name="p",
        priority=7,
        request=GI + 10 * MI,
        swap=512 * MI,
        controller="ReplicaSet",
    )


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_have_ended_are_left_out(phase: str) -> None:
    assert read(status={"phase": phase}) is None


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"metadata": {"name": "p", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, "ending"),
        ({"metadata": {"name": "p", "uid": "u", "annotations": {names.CONFIG_MIRROR_ANNOTATION: "k"}}}, "static"),
        ({"metadata": {"name": "p", "uid": "u", "annotations": {candidates.SAFE_TO_EVICT: "false"}}}, "kept"),
        ({"spec": {"containers": [], "priority": 2_000_000_000}}, "critical"),
    ],
)
def test_what_forbids_an_eviction(fields: dict[str, Any], name: str) -> None:
    found, usual = read(**fields), read()
    assert found is not None
    assert usual is not None
    assert (getattr(found, name), getattr(usual, name)) == (True, False)


def test_a_pod_is_not_spared_for_a_source_that_it_claims() -> None:
    """The kubelet writes the annotation, over that of the API server's object, into its own copy of the pod."""
    found = read(metadata={"name": "p", "uid": "u", "annotations": {names.CONFIG_SOURCE_ANNOTATION: "file"}})
    assert found is not None
    assert not found.static


def test_a_pending_pod_does_not_run() -> None:
    found = read(status={"phase": "Pending"})
    assert found is not None
    assert not found.running


TWO = pod(container("a", request=GI), container("b", request=2 * GI))


@pytest.mark.parametrize(
    ("behavior", "fields", "granted"),
    [
        (names.Behavior.LIMITED_SWAP, {}, 3 * GI // 2),
        (names.Behavior.NO_SWAP, {}, 0),
        (names.Behavior.KUBELET, {}, 3 * GI // 2),
        (names.Behavior.KUBELET, {"swap_limit": "100Mi"}, 100 * MI),
        (names.Behavior.KUBELET, {"policy": "Disabled"}, 0),
        (names.Behavior.WORKLOAD_CONTROLLED, {"swap_limit": "1Gi"}, GI),
        (names.Behavior.WORKLOAD_CONTROLLED, {}, 0),
    ],
)
def test_accessible_swap_is_the_plans(behavior: names.Behavior, fields: dict[str, Any], granted: int) -> None:
    row = msgspec.structs.replace(TWO, **fields)
    spec = plan.plan_node(profile(behavior), NODE, [row])
    assert candidates.accessible_swap(row, NODE, spec.pods[row.key]) == granted


@pytest.mark.parametrize("limit", ["max", None])
def test_without_a_number_it_is_what_limited_swap_gives(limit: str | None) -> None:
    assert candidates.accessible_swap(TWO, NODE, state.PodSettings(swap_max=limit)) == 3 * GI // 2
    assert candidates.accessible_swap(TWO, NODE, None) == 3 * GI // 2
    best_effort = pod(container())
    assert candidates.accessible_swap(best_effort, NODE, state.PodSettings(swap_max=limit)) == 0


def test_containers_count_as_they_run_together() -> None:
    row = pod(container("i", kind=Kind.INIT, request=2 * GI), container("a", request=GI))
    planned = state.PodSettings(containers={"a": state.ContainerSettings(swap_max=str(300 * MI))})
    assert candidates.accessible_swap(row, NODE, planned) == GI
    planned = state.PodSettings(container_default=state.ContainerDefault(swap_at_most=str(300 * MI)))
    assert candidates.accessible_swap(row, NODE, planned) == 300 * MI


def test_no_pod_has_more_than_the_node() -> None:
    assert candidates.accessible_swap(TWO, NODE, state.PodSettings(swap_max=str(99 * GI))) == 4 * GI
    assert candidates.accessible_swap(TWO, facts(swap_bytes=0), None) == 0
    assert candidates.accessible_swap(TWO, facts(compatible=False), None) == 0
