from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from swapwarden.api import names
from swapwarden.cli import documents, objects
from swapwarden.cli.kubectl.check import manifests
from swapwarden.cli.kubectl.check.catalogue import ClusterProblem
from swapwarden.cli.kubectl.cluster import snapshot

from tests.unit.objects import node, profile_object, reported_row, view

POLICY, LIMIT = "swapwarden.dev/swap-policy", "swapwarden.dev/swap-limit"
DEFAULT = "swapwarden.dev/default-swap-policy"
RECLAIM = names.RECLAIM_ANNOTATION
RESERVATION, LOW = names.MEMORY_RESERVATION_ANNOTATION, names.MEMORY_LOW_ANNOTATION
THROTTLING = names.MEMORY_THROTTLING_ANNOTATION
REFUSING = {"memoryQoS": {}, "overrides": [{"name": "quiet", "podSelector": {}, "memory": {"reservation": "None"}}]}


def judge(*objects: dict[str, Any], read: snapshot.ClusterSnapshot | None = None) -> list[ClusterProblem]:
    found = [documents.Found(documents.Place("f", number), one) for number, one in enumerate(objects, 1)]
    return list(manifests.judge(found, read))


def told(*objects: dict[str, Any], read: snapshot.ClusterSnapshot | None = None) -> list[tuple[str, str]]:
    return [(one.severity.value, f"{one.object}: {one.message}") for one in judge(*objects, read=read)]


def pod(annotations: dict[str, str], namespace: str = "default", **spec: Any) -> dict[str, Any]:
    meta = {"name": "web", "namespace": namespace, "annotations": annotations}
    containers = [{"name": "app", "resources": {"requests": {"memory": "1Gi"}}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": containers, **spec}}


def workload(kind: str, annotations: dict[str, str], namespace: str | None = "default") -> dict[str, Any]:
    group = "batch/v1" if kind in {"Job", "CronJob"} else "v1" if kind == "ReplicationController" else "apps/v1"
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "app"}]}}
    spec = {"jobTemplate": {"spec": {"template": template}}} if kind == "CronJob" else {"template": template}
    meta = {"name": "web", **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": group, "kind": kind, "metadata": meta, "spec": spec}


def namespace(name: str, policy: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {DEFAULT: policy}}}


def profile(name: str = "p", **spec: Any) -> dict[str, Any]:
    kind = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapProfile"}
    return {**kind, "metadata": {"name": name}, "spec": {"nodeSelector": {}, **spec}}


def test_manifests_without_problems() -> None:
    fine = [pod({POLICY: "Disabled"}), workload("Deployment", {LIMIT: "1Gi"}), namespace("a", "Avoid"), profile()]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    assert told(*fine, service, {"apiVersion": "x/v1", "kind": "Deployment"}) == []


def test_a_pod_that_would_be_refused() -> None:
    ((severity, text),) = told(pod({POLICY: "disabld"}))
    assert severity == "Error"
    assert text.startswith(f'f: document 1: metadata.annotations[{POLICY}]: Pod web: Unsupported value: "disabld"')
    assert text.endswith('did you mean "Disabled"?')
    ((_, text),) = told({**pod({}), "spec": {"containers": []}})
    assert text == "f: document 1: spec.containers: Pod web: Required value"


@pytest.mark.parametrize("wrong", [{LIMIT: "lots"}, {POLICY: "disable"}])
def test_misspelt_annotation_is_shown_beside_a_refusal(wrong: dict[str, str]) -> None:
    found = told(workload("Deployment", {"swapwarden.dev/swap-polcy": "Disabled", **wrong}))
    assert [severity for severity, _ in found] == ["Error", "Warning"]
    assert "swap-polcy" in found[1][1]


def test_misspelt_annotation_is_shown_beside_an_invalid_quantity() -> None:
    broken = pod({"swapwarden.dev/swap-polcy": "Disabled"})
    broken["spec"]["containers"][0]["resources"] = {"limits": {"memory": "lots"}}
    found = told(broken)
    assert [severity for severity, _ in found] == ["Error", "Warning"]
    assert "swap-polcy" in found[1][1]


@pytest.mark.parametrize("kind", [kind for _, kind in objects.TEMPLATES])
def test_templates_of_workloads(kind: str) -> None:
    ((severity, text),) = told(workload(kind, {POLICY: "disabld"}))
    path = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"
    assert severity == "Error"
    assert text.startswith(f"f: document 1: {path}.metadata.annotations[{POLICY}]: {kind} web: Unsupported value")


def test_a_workload_without_a_template() -> None:
    broken = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {}}
    assert told(broken) == [("Error", "f: document 1: spec.template: Deployment web: Required value")]


def test_a_daemon_set_cannot_require_swap() -> None:
    assert told(workload("Deployment", {POLICY: "Required"})) == []
    ((severity, text),) = told(workload("DaemonSet", {POLICY: "Required"}))
    assert (severity, "DaemonSet" in text) == ("Error", True)
    ((severity, text),) = told(workload("DaemonSet", {POLICY: "Preferred"}))
    assert severity == "Warning"
    assert "DaemonSet" in text


def test_names_that_do_not_exist() -> None:
    ((severity, text),) = told(workload("Deployment", {"swapwarden.dev/swap-polcy": "Disabled"}))
    assert severity == "Warning"
    assert text.startswith(
        "f: document 1: spec.template.metadata.annotations[swapwarden.dev/swap-polcy]: Deployment web: "
    )
    assert text.endswith(f'"{POLICY}"?')


def test_defaults_of_namespaces_count() -> None:
    ((severity, text),) = told(workload("Deployment", {LIMIT: "1Gi"}, "shop"), namespace("shop", "Disabled"))
    assert (severity, "Disabled" in text, "namespace" in text) == ("Warning", True, True)
    known = view(namespaces={"shop": {DEFAULT: "Disabled"}}, unread={"nodes": "forbidden"})
    assert len(told(workload("Deployment", {LIMIT: "1Gi"}, "shop"), read=known)) == 1
    wrong = told(pod({}, "shop"), namespace("shop", "disabled"))
    assert [severity for severity, _ in wrong] == ["Error", "Error"]
    assert wrong[0][1].startswith(f"f: document 1: Pod web: label {DEFAULT} of namespace shop: Unsupported value")
    assert wrong[1][1].startswith("f: document 2: metadata.labels: Namespace shop: ")


def test_objects_with_generated_names_and_of_the_context_s_namespace() -> None:
    made = pod({POLICY: "x"})
    made["metadata"] = {"generateName": "web-", "annotations": {POLICY: "x"}, "uid": "exported"}
    ((_, text),) = told(made)
    assert "Pod web-: Unsupported value" in text
    found = [documents.Found(documents.Place("f", 1), workload("Deployment", {LIMIT: "1Gi"}, None))]
    known = view(namespaces={"shop": {DEFAULT: "Disabled"}})
    assert len(list(manifests.judge(found, known, "shop"))) == 1
    assert list(manifests.judge(found, known)) == []


def test_a_profile_that_would_be_refused() -> None:
    found = told(profile(priority="high", swap={"behavior": "Guess"}))
    assert [text.split(": ")[2] for _, text in found] == ["spec.priority", "spec.swap.behavior"]
    assert {severity for severity, _ in found} == {"Error"}


def test_profiles_beside_those_of_the_cluster() -> None:
    read = view([node()], [], [reported_row()], [profile_object("old", priority=5)])
    tie = told(profile("new", priority=5), read=read)
    assert [text.split(": ", 3)[2:] for _, text in tie] == [
        ["NodeSwapProfile new", mock.ANY],
        ["NodeSwapProfile new", mock.ANY],
    ]
    assert ["old" in text for _, text in tie] == [True, True]
    assert "1 node" in tie[0][1]
    assert told(profile("new", priority=6), read=read) == []
    nowhere = told(profile("new", nodeSelector={"matchLabels": {"a": "b"}}), read=read)
    assert ["no node" in text for _, text in nowhere] == [True]


def test_what_would_have_no_effect_on_this_cluster() -> None:
    none = view([node()], [], [reported_row()], [profile_object("p", swap={"behavior": "NoSwap"})])
    ((severity, text),) = told(pod({LIMIT: "1Gi"}), read=none)
    assert severity == "Warning"
    assert "Pod web: " in text
    assert text.endswith(" 1 node: ProfileNoSwap")
    ((_, text),) = told(pod({POLICY: "Required"}), read=none)
    assert "none of 1 node" in text
    assert told(pod({POLICY: "Disabled"}), read=none) == []
    # Namespaces and profiles in the manifests count.
    assert told(pod({LIMIT: "1Gi"}), profile("p", swap={"behavior": "WorkloadControlled"}), read=none) == []


def test_a_limit_above_the_bounds() -> None:
    swap = {"behavior": "WorkloadControlled", "workloadControlled": {"maxPerPod": "128Mi"}}
    read = view([node()], [], [reported_row()], [profile_object("p", swap=swap)])
    ((_, text),) = told(pod({LIMIT: "1Gi"}), read=read)
    assert text.endswith(" 1 node: Bounded")


def test_only_nodes_count_that_the_pod_may_run_on() -> None:
    pools = [profile_object("none", nodeSelector={"matchLabels": {"pool": "a"}}, swap={"behavior": "NoSwap"})]
    read = view([node(labels={"pool": "a"}), node("node-2")], [], [reported_row(), reported_row("node-2")], pools)
    assert told(pod({LIMIT: "1Gi"}), read=read) == []
    assert len(told(pod({LIMIT: "1Gi"}, nodeSelector={"pool": "a"}), read=read)) == 1


@pytest.mark.parametrize(
    ("memory", "annotations", "expected"),
    [
        ({}, {RESERVATION: "Soft"}, ["no protected memory on any of 1 node: NotOffered"]),
        ({}, {RESERVATION: "None"}, []),
        ({}, {THROTTLING: "Disabled"}, []),
        (
            {},
            {LOW: "1Gi", THROTTLING: "50%"},
            ["protected memory on any of 1 node: NotOffered", "memory.high on any of"],
        ),
        (REFUSING, {LOW: "1Gi", THROTTLING: "50%"}, ["no protected memory on any of 1 node: OverrideRefuses"]),
        ({"memoryQoS": {}}, {RESERVATION: "Soft"}, []),
    ],
)
def test_memory_that_no_node_offers(memory: dict[str, Any], annotations: dict[str, str], expected: list[str]) -> None:
    read = view([node()], [], [reported_row()], [profile_object("p", **memory)])
    limited = {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    found = told(pod(annotations, containers=[{"name": "app", "resources": limited}]), read=read)
    assert len(found) == len(expected)
    for (severity, text), part in zip(found, expected, strict=True):
        assert severity == "Warning"
        assert part in text
    # A profile in the manifests counts.
    offering = profile("p", memoryQoS={})
    assert told(pod(annotations, containers=[{"name": "app", "resources": limited}]), offering, read=read) == []


@pytest.mark.parametrize(
    ("fields", "annotations", "expected"),
    [
        ({}, {RECLAIM: "Startup"}, ["idle memory moved to swap on any of 1 node: NotOffered"]),
        ({}, {RECLAIM: "Off"}, []),
        ({}, {RECLAIM: "Startup", POLICY: "Disabled"}, ["no effect: a pod with the policy Disabled has no swap"]),
        ({"reclaim": {"mode": "Startup"}}, {RECLAIM: "Continuous"}, []),
        ({"reclaim": {"mode": "Startup"}, "swap": {"behavior": "NoSwap"}}, {RECLAIM: "Startup"}, ["1 node: NoSwap"]),
    ],
)
def test_reclaim_that_no_node_offers(fields: dict[str, Any], annotations: dict[str, str], expected: list[str]) -> None:
    read = view([node()], [], [reported_row()], [profile_object("p", **fields)])
    limited = [{"name": "app", "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}}]
    found = told(pod(annotations, containers=limited), read=read)
    assert len(found) == len(expected)
    assert all(text.endswith(part) for (_, text), part in zip(found, expected, strict=True))
