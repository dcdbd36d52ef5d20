"""The label of a namespace: values that are not understood."""

from __future__ import annotations

import uuid

import pytest

from testbed.base.process import ProcessError
from testbed.controlplane.servers import ControlPlane
from tests.integration.webhook import pods
from tests.integration.webhook.conftest import Admission


@pytest.fixture(scope="module")
def old(crds: ControlPlane) -> str:
    """A namespace that got its bad label before Swapwarden was installed."""
    crds.wait_for_policies()  # an earlier module may just have deleted them
    name = f"old-{uuid.uuid4().hex[:8]}"
    body = {"metadata": {"name": name, "labels": {pods.LABEL: "Sometimes"}}}
    crds.create("/api/v1/namespaces", body)
    crds.create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
    return name


@pytest.fixture(scope="module", autouse=True)
def _installed(old: str, admission: Admission) -> None:
    assert old
    assert admission


@pytest.mark.parametrize("value", ["Sometimes", "disabled", ""])
def test_a_bad_value_is_refused_when_it_is_set(crds: ControlPlane, value: str) -> None:
    name = f"new-{uuid.uuid4().hex[:8]}"
    status, answer = crds.request(
        "POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": {pods.LABEL: value}}}
    )
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert (
        f'metadata.labels[swapwarden.dev/default-swap-policy]: Unsupported value: "{value}": '
        'supported values: "Avoid", "Disabled", "NoPreference", "Preferred", "Required"'
    ) in answer["message"]


def test_nor_can_it_be_changed_to_one(crds: ControlPlane) -> None:
    namespace = pods.new_namespace(crds, "Disabled")
    path = f"/api/v1/namespaces/{namespace}"
    bad = {"metadata": {"labels": {pods.LABEL: "Sometimes"}}}
    assert crds.request("PATCH", path, bad)[0] == 403
    assert crds.request("PATCH", f"{path}/status", bad)[0] == 403
    assert (
        crds.request("PUT", f"{path}/finalize", {**crds.get(path), "metadata": {"name": namespace, **bad["metadata"]}})[
            0
        ]
        == 403
    )
    for good in ("NoPreference", "Required", None):
        assert crds.request("PATCH", path, {"metadata": {"labels": {pods.LABEL: good}}})[0] == 200
    assert pods.LABEL not in crds.get(path)["metadata"]["labels"]


def test_a_namespace_that_has_one_from_before_can_still_be_edited(crds: ControlPlane, old: str) -> None:
    path = f"/api/v1/namespaces/{old}"
    assert crds.request("PATCH", path, {"metadata": {"labels": {"team": "a"}}})[0] == 200
    assert crds.request("PATCH", path, {"metadata": {"labels": {pods.LABEL: "Seldom"}}})[0] == 403


def test_its_pods_are_refused_with_the_label_and_the_accepted_values(crds: ControlPlane, old: str) -> None:
    status, answer = pods.create(crds, old, pods.pod("web"))
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert (
        f"namespace {old} has the label swapwarden.dev/default-swap-policy with the unsupported value"
        ' "Sometimes" (supported: "Avoid", "Disabled", "NoPreference", "Preferred", "Required")'
    ) in answer["message"]


def test_its_pods_with_a_policy_of_their_own_are_not(crds: ControlPlane, old: str) -> None:
    assert pods.create(crds, old, pods.pod("own", {pods.POLICY: "Disabled"}), pods.DRY_RUN)[0] == 201


def test_nor_are_its_mirror_pods(crds: ControlPlane, old: str) -> None:
    mirror = {"kubernetes.io/config.mirror": "0123"}
    assert pods.create(crds, old, pods.pod("mirror", mirror, node="node-1"), pods.DRY_RUN)[0] == 201


def test_kubectl_prints_it_readably(crds: ControlPlane) -> None:
    namespace = pods.new_namespace(crds)
    with pytest.raises(
        ProcessError, match=r"Error from server \(Forbidden\): namespaces .* is forbidden: .*Unsupported value"
    ):
        crds.kubectl("label", "namespace", namespace, f"{pods.LABEL}=Sometimes")
