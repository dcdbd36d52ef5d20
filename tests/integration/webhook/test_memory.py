"""Annotations about memory on a real API server: policies inside it judge them, in each of the chart's modes."""

from __future__ import annotations

import json

import pytest
from swapwarden.kube import errors
from swapwarden.policy.admission import pod_annotations

from testbed.controlplane.servers import ControlPlane
from tests.contract import pod_memory
from tests.integration.webhook import pods
from tests.integration.webhook.conftest import Admission


def body(case: pod_memory.Case, name: str = "web", **more: str) -> pods.Json:
    made = pods.pod(name, {**case.annotations, **more})
    return {**made, "spec": case.spec}


CASES = [*pod_memory.ACCEPTED, *pod_memory.WITHOUT_EFFECT, *pod_memory.REFUSED]


async def test_the_policies_alone_judge_pods_with_nothing_else(
    crds: ControlPlane, admission: Admission, namespace: str
) -> None:
    calls = admission.calls()
    asked = [("POST", pods.path(namespace), body(case)) for case in CASES]
    for case, answer in zip(CASES, await pods.many(crds, asked, dry_run=True), strict=True):
        if case not in pod_memory.REFUSED:
            assert not isinstance(answer, errors.ApiError), (case, answer)
            continue
        assert isinstance(answer, errors.ApiError), case
        assert answer.status == 403
        told = answer.message.replace("metadata.annotations[", "\nmetadata.annotations[").splitlines()[1:]
        assert {each.partition("[")[2].partition("]")[0] for each in told} == case.said.keys(), answer.message
        for key, reason in case.said.items():
            assert any(f"[{key}]: " in each and reason in each for each in told), (reason, answer.message)
    assert admission.calls() == calls


@pytest.mark.parametrize("case", pod_memory.REFUSED)
def test_beside_a_policy_about_swap_the_same_is_refused(
    crds: ControlPlane, admission: Admission, namespace: str, case: pod_memory.Case
) -> None:
    status, answer = pods.create(crds, namespace, body(case, **{pods.POLICY: "NoPreference"}), pods.DRY_RUN)
    assert status == admission.refuses_with
    for key, reason in case.said.items():
        assert f"[{key}]: " in answer["message"]
        assert reason in answer["message"]


@pytest.mark.parametrize("more", [{}, {pods.POLICY: "NoPreference"}])
@pytest.mark.parametrize("case", pod_memory.WITHOUT_EFFECT)
def test_a_value_without_effect_gets_one_warning(
    crds: ControlPlane, namespace: str, case: pod_memory.Case, more: dict[str, str]
) -> None:
    arguments = ("create", f"--namespace={namespace}", "--dry-run=server", "--validate=false", "-f", "-")
    said = crds.kubectl(*arguments, text=json.dumps(body(case, **more))).stderr
    for key, reason in case.said.items():
        assert said.count(f"metadata.annotations[{key}]: {reason}") == 1
    assert said.count("metadata.annotations[") == len(case.said)


def test_reclaim_of_a_pod_without_swap_gets_one_warning(crds: ControlPlane, namespace: str) -> None:
    case = pod_memory.Case({pod_memory.RECLAIM: "Startup"}, pod_memory.BARE)
    arguments = ("create", f"--namespace={namespace}", "--dry-run=server", "--validate=false", "-f", "-")
    said = crds.kubectl(*arguments, text=json.dumps(body(case, **{pods.POLICY: "Disabled"}))).stderr
    assert said.count(f"metadata.annotations[{pod_memory.RECLAIM}]: {pod_annotations.RECLAIMS_NOTHING}") == 1
    assert said.count("metadata.annotations[") == 1


def test_accepted_values_get_no_warning(crds: ControlPlane, namespace: str) -> None:
    for case in pod_memory.ACCEPTED:
        arguments = ("create", f"--namespace={namespace}", "--dry-run=server", "--validate=false", "-f", "-")
        assert crds.kubectl(*arguments, text=json.dumps(body(case))).stderr == ""


def test_they_cannot_change(crds: ControlPlane, namespace: str) -> None:
    (case, *_) = pod_memory.ACCEPTED
    assert pods.create(crds, namespace, body(case))[0] == 201
    path = pods.path(namespace, "web")
    for change in ({pod_memory.LOW: "1Mi"}, {pod_memory.LOW: None}, {pod_memory.APP_HIGH: "1Gi"}):
        status, answer = pods.patch(crds, path, {"metadata": {"annotations": change}})
        assert status == 403
        assert all(f"metadata.annotations[{key}]" in answer["message"] for key in change)
    assert pods.patch(crds, path, {"metadata": {"annotations": {"example.com/a": "b"}}})[0] == 200
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "web", "annotations": {pod_memory.HIGH: "1Gi"}},
        "target": {"kind": "Node", "name": "n"},
    }
    assert crds.request("POST", pods.path(namespace, "web", "binding"), binding)[0] == 403


def test_a_label_of_that_name_gets_a_warning(crds: ControlPlane, namespace: str) -> None:
    made = pods.pod("labelled")
    made["metadata"]["labels"] = {pod_memory.RESERVATION: "Soft"}
    said = crds.kubectl("create", f"--namespace={namespace}", "-f", "-", text=json.dumps(made)).stderr
    assert f"metadata.labels[{pod_memory.RESERVATION}]: {pod_annotations.AS_LABEL}" in said


def test_mirror_pods_are_admitted(crds: ControlPlane, namespace: str) -> None:
    mirror = {"kubernetes.io/config.mirror": "0123", "kubernetes.io/config.source": "file"}
    made = pods.pod("mirror", {**mirror, **dict.fromkeys(pod_memory.KEYS, "x")}, node="node-1")
    assert pods.create(crds, namespace, made)[0] == 201


def test_the_largest_pods_are_judged(crds: ControlPlane, namespace: str) -> None:
    highs = {f"memory-high.swapwarden.dev/c{number:04}": "1Mi" for number in range(400)}
    many = pod_memory.spec(*(pod_memory.container(f"c{number:04}", "1Mi", "2Mi") for number in range(400)))
    case = pod_memory.Case({**highs, pod_memory.LOW: "400Mi"}, many)
    status, answer = pods.create(crds, namespace, body(case), pods.DRY_RUN)
    assert status == 201, answer
    status, answer = pods.create(crds, namespace, body(case, **{pod_memory.LOW: "401Mi"}), pods.DRY_RUN)
    assert status == 403
    assert pod_annotations.ABOVE_REQUEST in answer["message"]


@pytest.mark.parametrize("count", [500, 5000])
def test_a_flood_is_refused_whatever_it_costs(crds: ControlPlane, namespace: str, count: int) -> None:
    flood = {f"memory-high.swapwarden.dev/c{number}": "1Gi" for number in range(count)}
    status, answer = pods.create(crds, namespace, pods.pod("web", flood))
    assert status == 403
    assert pod_annotations.NO_CONTAINER in answer["message"] or "exceeded" in answer["message"]
