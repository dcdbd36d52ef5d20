"""Fields of admitted pods that a pod lacks."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from swapwarden.api import names
from swapwarden.cli.kubectl.explain import model
from swapwarden.policy.admission import scheduling
from swapwarden.policy.observed.new_pods import NewPod, NewPodSpec, WirePodMeta
from swapwarden.policy.observed.pods import WirePod

from tests.unit.cli.kubectl.explained import container, pod

POLICY, LIMIT = "swapwarden.dev/swap-policy", "swapwarden.dev/swap-limit"
DISABLED = {"swapwarden.dev/default-swap-policy": "Disabled"}
DAEMON_SET = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "logs", "controller": True}]


def missing(labels: dict[str, str] | None = None, **fields: Any) -> str:
    found = pod(**fields)
    return model.missing(found, {} if labels is None else {found.metadata.namespace: labels})


def completed(policy: str) -> dict[str, Any]:
    """The parts of a spec that the webhook gives to a pod that has none of them."""
    spec: dict[str, Any] = {}
    for operation in scheduling.operations(NewPod(WirePodMeta(), NewPodSpec()), policy):
        spec[operation.path.split("/")[2]] = json.loads(msgspec.json.encode(operation.value))
    return spec


@pytest.mark.parametrize("policy", names.Policy)
def test_pod_that_admission_completed_lacks_nothing(policy: names.Policy) -> None:
    assert missing(DISABLED, annotations={POLICY: policy}, spec=completed(policy)) == ""


@pytest.mark.parametrize(
    ("policy", "lacks"),
    [
        ("Required", "spec.nodeSelector and spec.tolerations"),
        ("Preferred", "spec.affinity and spec.tolerations"),
        ("Avoid", "spec.affinity"),
    ],
)
def test_pod_that_no_admission_placed(policy: str, lacks: str) -> None:
    text = missing(annotations={POLICY: policy})
    assert f"{policy} " in text
    assert f" {lacks}: " in text
    # A pod that was made with a node, or before the installation, is not accused: the cause is left open.
    assert " or " in text.partition(": ")[2]
    assert "kubectl swap check --try-admission -n batch" in text


def test_part_of_what_admission_adds_is_not_enough() -> None:
    spec = completed("Required")
    del spec["tolerations"]
    assert " spec.tolerations: " in missing(annotations={POLICY: "Required"}, spec=spec)


@pytest.mark.parametrize("annotations", [{}, {POLICY: "Disabled"}, {POLICY: "NoPreference"}, {LIMIT: "1Gi"}])
def test_pods_to_which_admission_adds_nothing_lack_nothing(annotations: dict[str, str]) -> None:
    assert missing(annotations=annotations) == ""


@pytest.mark.parametrize("policy", ["Preferred", "Avoid"])
def test_pods_of_daemon_sets_are_placed_by_it(policy: str) -> None:
    assert missing(annotations={POLICY: policy}, ownerReferences=DAEMON_SET) == ""


def test_default_of_the_namespace_that_is_not_in_the_pod() -> None:
    assert missing(DISABLED).startswith("the default Disabled")
    assert missing(DISABLED, annotations={LIMIT: "1Gi"}).startswith("the default Disabled")
    assert missing(DISABLED, annotations={POLICY: "NoPreference"}) == ""
    given = {POLICY: "Disabled", "swapwarden.dev/policy-source": "namespace"}
    assert missing(DISABLED, annotations=given) == ""
    for labels in (None, {}, {"swapwarden.dev/default-swap-policy": "disabled"}):
        assert missing(labels) == ""


def test_contradiction_that_admission_would_refuse() -> None:
    text = missing(annotations={POLICY: "Disabled", LIMIT: "1Gi"})
    assert "metadata.annotations[swapwarden.dev/swap-limit]: Invalid value" in text
    # With a default it is none: the limit has no effect there.
    given = {POLICY: "Disabled", "swapwarden.dev/policy-source": "namespace", LIMIT: "1Gi"}
    assert missing(annotations=given) == ""


def test_many_mistakes_are_not_all_listed() -> None:
    each = {f"swap-limit.swapwarden.dev/none-{number}": "1Gi" for number in range(200)}
    assert missing(annotations=each).count("metadata.annotations[") == model.MAX_LISTED


def test_namespace_whose_pods_start_without_admission() -> None:
    text = missing(namespace="kube-system", annotations={POLICY: "Avoid"})
    assert "spec.affinity" in text
    assert "kube-system" in text.partition(": ")[2]
    assert "--try-admission" not in text, "the cause is known"
    assert "the default Disabled" in missing(DISABLED, namespace="kube-system")


def test_static_pod() -> None:
    mirror = {"kubernetes.io/config.mirror": "x"}
    text = missing(annotations={POLICY: "Required", **mirror})
    assert "static pod" in text.partition(": ")[2]
    assert "--try-admission" not in text, "the cause is known"
    assert missing(annotations={POLICY: "Disabled", **mirror}) == ""


def test_pod_with_null_where_lists_may_be() -> None:
    body = {
        "metadata": {"name": "a", "namespace": "b", "uid": "c", "annotations": {POLICY: "Required"}},
        "spec": {"containers": [container()], "nodeSelector": None, "affinity": None, "tolerations": None},
        "status": {"phase": "Running"},
    }
    found = msgspec.convert(body, WirePod)
    assert "spec.nodeSelector and spec.tolerations" in model.missing(found, {})
