"""A policy's effect on the scheduler, as the pod is stored, also if another webhook changes it on its way."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from testbed.controlplane.servers import ControlPlane
from tests.integration.webhook import others, pods
from tests.integration.webhook.conftest import Admission

TOLERATION = {"key": pods.SWAP, "operator": "Exists"}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
OWN_TERM = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}


def preference(operator: str) -> dict[str, Any]:
    expression = {"key": pods.SWAP, "operator": operator, "values": ["true"]}
    return {"weight": 50, "preference": {"matchExpressions": [expression]}}


def created(control_plane: ControlPlane, namespace: str, policy: str | None, **spec: Any) -> Any:
    """The pod as it is stored."""
    body = pods.pod("web", None if policy is None else {pods.POLICY: policy})
    body["spec"].update(spec)
    status, answer = pods.create(control_plane, namespace, body)
    assert status == 201, answer
    assert control_plane.get(pods.path(namespace, "web"))["spec"] == answer["spec"]
    return answer


def test_required_needs_a_node_with_swap_and_tolerates_its_taint(crds: ControlPlane, namespace: str) -> None:
    spec = created(crds, namespace, "Required", nodeSelector={"pool": "batch"})["spec"]
    assert spec["nodeSelector"] == {"pool": "batch", pods.SWAP: "true"}
    assert spec["tolerations"].count(TOLERATION) == 1
    assert "affinity" not in spec


@pytest.mark.parametrize(("policy", "operator", "tolerates"), [("Preferred", "In", 1), ("Avoid", "NotIn", 0)])
def test_a_preference_is_one_more_term(
    crds: ControlPlane, namespace: str, policy: str, operator: str, tolerates: int
) -> None:
    affinity = {"nodeAffinity": {PREFERRED: [OWN_TERM]}}
    spec = created(crds, namespace, policy, affinity=affinity)["spec"]
    assert spec["affinity"] == {"nodeAffinity": {PREFERRED: [OWN_TERM, preference(operator)]}}
    assert spec["tolerations"].count(TOLERATION) == tolerates
    assert "nodeSelector" not in spec


@pytest.mark.parametrize("policy", ["Disabled", "NoPreference"])
def test_other_policies_place_nothing(crds: ControlPlane, namespace: str, policy: str) -> None:
    plain = created(crds, namespace, None)["spec"]
    crds.request("DELETE", pods.path(namespace, "web") + "?gracePeriodSeconds=0")
    pods.patch(crds, pods.path(namespace, "web"), {"metadata": {"finalizers": None}})
    spec = created(crds, namespace, policy)["spec"]
    keys = ("nodeSelector", "affinity", "tolerations")
    assert {key: spec.get(key) for key in keys} == {key: plain.get(key) for key in keys}


def test_a_default_places_in_the_same_call(crds: ControlPlane, admission: Admission) -> None:
    namespace = pods.new_namespace(crds, "Required")
    calls = admission.calls()
    pod = created(crds, namespace, None)
    assert pod["metadata"]["annotations"] == {pods.POLICY: "Required", pods.SOURCE: "namespace"}
    assert pod["spec"]["nodeSelector"] == {pods.SWAP: "true"}
    assert admission.calls() == calls + (admission.webhook is not None)


@pytest.mark.parametrize("policy", ["Required", "Preferred", "Avoid"])
def test_nothing_is_added_to_a_pod_that_has_its_node(crds: ControlPlane, namespace: str, policy: str) -> None:
    spec = created(crds, namespace, policy, nodeName="node-1")["spec"]
    assert "nodeSelector" not in spec
    assert "affinity" not in spec
    assert TOLERATION not in spec["tolerations"]


# --- with a foreign webhook after ours ---


class Once:
    """A patch of each pod at its first review, and the number of reviews."""

    def __init__(self, *operations: dict[str, Any]) -> None:
        self._operations = list(operations)
        self.seen = threading.Semaphore(0)

    def __call__(self, pod: dict[str, Any]) -> list[dict[str, Any]]:
        marked = "example.com/seen" in pod["metadata"].get("labels", {})
        if marked or pod["metadata"]["name"].startswith("probe"):
            return []
        self.seen.release()
        return [{"op": "add", "path": "/metadata/labels", "value": {"example.com/seen": "yes"}}, *self._operations]


def changed(control_plane: ControlPlane, namespace: str, policy: str | None, change: Once) -> tuple[int, Any]:
    """Ask for pods until the other webhook is in force, then the answer for the first that it changed."""
    with others.asked_after_ours(control_plane, namespace, change):
        for number in range(500):
            body = pods.pod(f"web-{number}", None if policy is None else {pods.POLICY: policy})
            status, answer = pods.create(control_plane, namespace, body, pods.DRY_RUN)
            if change.seen.acquire(blocking=False):
                return status, answer
    raise AssertionError("the other webhook was never asked")


@pytest.mark.parametrize("policy", ["Required", "Preferred", "Avoid"])
def test_asked_again_it_adds_nothing_twice(
    crds: ControlPlane, admission: Admission, namespace: str, policy: str
) -> None:
    toleration = {"key": "example.com/other", "operator": "Exists"}
    change = Once({"op": "add", "path": "/spec/tolerations", "value": [TOLERATION, toleration]})
    allowed, patched = (admission.calls(verdict=verdict) for verdict in ("allowed", "patched"))
    status, pod = changed(crds, namespace, policy, change)
    assert status == 201, pod
    if admission.webhook:
        assert admission.calls(verdict="patched") > patched
        assert admission.calls(verdict="allowed") == allowed + 1, "it was asked again, and had nothing to add"
    spec = pod["spec"]
    assert spec["tolerations"].count(TOLERATION) == 1
    assert toleration in spec["tolerations"]
    terms = spec.get("affinity", {}).get("nodeAffinity", {}).get(PREFERRED, [])
    wanted = {"Required": [], "Preferred": [preference("In")], "Avoid": [preference("NotIn")]}
    assert terms == wanted[policy]
    assert spec.get("nodeSelector") == ({pods.SWAP: "true"} if policy == "Required" else None)


def test_removed_placement_is_restored(crds: ControlPlane, admission: Admission) -> None:
    assert admission
    namespace = pods.new_namespace(crds, "Required")
    gone = [{"op": "remove", "path": path} for path in ("/metadata/annotations", "/spec/nodeSelector")]
    status, pod = changed(crds, namespace, None, Once(*gone))
    assert status == 201, pod
    assert pod["metadata"]["annotations"] == {pods.POLICY: "Required", pods.SOURCE: "namespace"}
    assert pod["spec"]["nodeSelector"] == {pods.SWAP: "true"}


def test_spoiled_annotations_are_refused(crds: ControlPlane, admission: Admission, namespace: str) -> None:
    spoiled = {"op": "add", "path": "/metadata/annotations", "value": {pods.POLICY: "disabled"}}
    status, answer = changed(crds, namespace, "Disabled", Once(spoiled))
    assert status == admission.refuses_with
    told = pods.causes(answer)[f"metadata.annotations[{pods.POLICY}]"]
    assert ('did you mean "Disabled"?' in told) is (admission.webhook is not None)
    # Of this pod ours was not asked before, and so is not asked now: the policy inside the API server still is.
    status, answer = changed(crds, namespace, None, Once(spoiled))
    assert status == 403
    assert "swapwarden-pod-values" in answer["message"]
    assert json.dumps("disabled") in answer["message"]
