from __future__ import annotations

from typing import Any

import pytest
from swapwarden.api import state, values
from swapwarden.cli import documents, objects
from swapwarden.policy.observed import namespaces

PROFILE = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapProfile", "metadata": {"name": "p"}}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {"containers": [{"name": "app"}]},
}
NO_LABEL = "a name has at most 63 characters, of a-z, 0-9 and -, with a letter or digit at both ends"
NO_SUBDOMAIN = "a name has at most 253 characters, of a-z, 0-9, - and ., with a letter or digit at both ends"


def collect(*bodies: dict[str, Any]) -> tuple[objects.Inputs, documents.Log]:
    log = documents.Log()
    found = [documents.Found(documents.Place("f", number), one) for number, one in enumerate(bodies, 1)]
    return objects.collect(found, log), log


def problems(*bodies: dict[str, Any]) -> list[str]:
    return [str(problem).removeprefix("f: document 1: ") for problem in collect(*bodies)[1].problems]


def pod(metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {**POD, "metadata": {**POD["metadata"], **(metadata or {})}, "spec": {**POD["spec"], **spec}}


def profile(**spec: Any) -> dict[str, Any]:
    return {**PROFILE, "spec": {"nodeSelector": {}, **spec}}


def namespace(name: str, policy: str) -> dict[str, Any]:
    labels = {"swapwarden.dev/default-swap-policy": policy}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (pod({"name": None}), ["metadata.name: Required value"]),
        (pod({"name": False}), ["metadata.name: expected a string, got false: put it in quotes"]),
        (
            pod({"name": "Web"}),
            [f'metadata.name: Invalid value: "Web": {NO_SUBDOMAIN}'],
        ),
        (
            pod({"name": "w" * 254, "namespace": "a.b"}, containers=[{"name": "-"}]),
            [f'metadata.name: Invalid value: "{"w" * 79}...: {NO_SUBDOMAIN}'],
        ),
        (
            pod({"namespace": "a.b"}, containers=[{"name": "-"}, {"name": "a" * 64}]),
            [
                f"{path}: Invalid value: {value}: {NO_LABEL}"
                for path, value in (
                    ("metadata.namespace", '"a.b"'),
                    ("spec.containers[0].name", '"-"'),
                    ("spec.containers[1].name", f'"{"a" * 64}"'),
                )
            ],
        ),
        (
            pod(containers=[{"name": "a"}, {"name": "b"}], initContainers=[{"name": "b"}]),
            ['spec.containers[1].name: Duplicate value: "b"'],
        ),
        ({**pod(), "apiVersion": "v2"}, ['apiVersion: Unsupported value: "v2": supported values: "v1"']),
        (
            {**PROFILE, "metadata": {"name": "(built-in)"}, "spec": {"nodeSelector": {}}},
            [f'metadata.name: Invalid value: "(built-in)": {NO_SUBDOMAIN}'],
        ),
        ({**POD, "metadata": []}, ["metadata: expected a mapping, got a list"]),
        (
            pod({"annotations": {"a": 1, "b": "x", "c": True}, "labels": {"l": 0.5}}),
            [
                "metadata.labels[l]: expected a string, got 0.5: put it in quotes",
                "metadata.annotations[a]: expected a string, got 1: put it in quotes",
                "metadata.annotations[c]: expected a string, got true: put it in quotes",
            ],
        ),
        (
            pod({"labels": {"a": "x,y", "b=c": "x", "d": "w" * 64, "ok": ""}}),
            [
                f'metadata.labels[a]: Invalid value: "x,y": {values.LABEL_VALUE_REFUSAL}',
                f'metadata.labels: Invalid value: "b=c": {values.LABEL_KEY_REFUSAL}',
                f'metadata.labels[d]: Invalid value: "{"w" * 64}": {values.LABEL_VALUE_REFUSAL}',
            ],
        ),
        (pod({"annotations": "x"}), ["metadata.annotations: Expected object, got str"]),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}, ["spec: Required value"]),
        (pod(containers=[]), ["spec.containers: Required value"]),
        (pod(containers=[{}]), ["spec.containers[0].name: Required value"]),
        (pod(nodeName=5), ["spec.nodeName: Expected str, got int"]),
        (
            pod(containers=[{"name": "a", "resources": {"requests": {"memory": "1GB", "cpu": "x"}}}]),
            [
                (
                    "spec.containers[0].resources.requests.cpu: Invalid value: 'x' is not a"
                    " quantity: a number without a"
                    " sign, with a unit such as Mi, Gi or M"
                ),
                (
                    "spec.containers[0].resources.requests.memory: Invalid value: '1GB' is not a"
                    " quantity: a number without"
                    " a sign, with a unit such as Mi, Gi or M"
                ),
            ],
        ),
        ({**POD, "status": {"qosClass": "Gold"}}, ["status.qosClass: Invalid enum value 'Gold'"]),
        (
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"capacity": {"memory": "x"}}},
            [
                (
                    "status.capacity.memory: Invalid value: 'x' is not a quantity: a number without"
                    " a sign, with a unit such"
                    " as Mi, Gi or M"
                )
            ],
        ),
        (
            {"apiVersion": "swapwarden.dev/v2", "kind": "NodeSwapState", "metadata": {"name": "n"}},
            ['apiVersion: Unsupported value: "swapwarden.dev/v2": supported values: "swapwarden.dev/v1alpha1"'],
        ),
        (
            {
                "apiVersion": "swapwarden.dev/v1alpha1",
                "kind": "NodeSwapState",
                "metadata": {"name": "n"},
                "status": {"facts": {"cgroupVersion": 2, "swapController": True, "swapBytes": -1, "memoryBytes": 1}},
            },
            ["status.facts.swapBytes: Expected int >= 0"],
        ),
        (PROFILE, ["spec: Required value"]),
        ({**PROFILE, "spec": {}}, ["spec.nodeSelector: Required value"]),
        (
            {**profile(), "apiVersion": "swapwarden.dev/v1"},
            ['apiVersion: Unsupported value: "swapwarden.dev/v1": supported values: "swapwarden.dev/v1alpha1"'],
        ),
        (profile(memoryQuality={}), ["spec.memoryQuality: unknown field"]),
        (profile(mode="Audi"), ['spec.mode: Unsupported value: "Audi": supported values: "Enforce", "Audit"']),
        (
            profile(swap={"behavior": "Limited"}),
            [
                (
                    'spec.swap.behavior: Unsupported value: "Limited": supported values: "Kubelet",'
                    ' "NoSwap", "LimitedSwap",'
                    ' "WorkloadControlled"'
                )
            ],
        ),
        (profile(priority="100"), ['spec.priority: Invalid value: "100": Input should be a valid integer']),
        (
            profile(nodeSelector={"matchExpressions": [{"key": "a", "operator": "In"}]}),
            [
                (
                    "spec.nodeSelector.matchExpressions[0]: Invalid value: In and NotIn need"
                    " values; Exists and DoesNotExist"
                    " take none"
                )
            ],
        ),
        (
            profile(swap={"workloadControlled": {}}),
            [
                (
                    "spec.swap: Invalid value: workloadControlled has no effect unless behavior is WorkloadControlled:"
                    " set the behavior or remove the bounds"
                )
            ],
        ),
    ],
)
def test_errors_are_named_by_path(document: dict[str, Any], expected: list[str]) -> None:
    cleaned = {**document, "metadata": without_none(document["metadata"])}
    assert problems(cleaned) == expected


def without_none(metadata: Any) -> Any:
    return {key: value for key, value in metadata.items() if value is not None} if metadata else metadata


def test_all_problems_of_a_profile_at_once() -> None:
    found = problems(profile(mode="x", swap={"reserved": "ten"}, extra=1))
    assert [line.partition(":")[0] for line in found] == ["spec.mode", "spec.swap.reserved", "spec.extra"]


def test_other_kinds_are_ignored_with_a_note() -> None:
    read, log = collect(
        {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": 5}},
        {"apiVersion": "other.example/v1", "kind": "Node", "metadata": {"name": "n"}},
    )
    known = "only Node, Namespace, Pod, NodeSwapProfile, NodeSwapState, workloads count"
    assert [str(note) for note in log.notes] == [
        f"f: document 1: apps/v1 ControllerRevision is ignored: {known}",
        f"f: document 2: other.example/v1 Node is ignored: {known}",
    ]
    assert not log.problems
    assert read == objects.Inputs()


def test_of_objects_with_one_name_the_later_counts() -> None:
    read, log = collect(
        pod({"uid": "1"}), pod({"uid": "2", "namespace": "other"}), pod({"uid": "3", "namespace": "default"})
    )
    assert {key: wire.metadata.uid for key, wire in read.pods.items()} == {"default/web": "3", "other/web": "2"}
    assert [str(note) for note in log.notes] == ["f: document 3: Pod 'web' was read before; this one counts"]


@pytest.mark.parametrize(
    ("metadata", "policy"),
    [
        ({}, "Disabled"),
        ({"uid": "u"}, None),
        ({"annotations": {"swapwarden.dev/swap-policy": "NoPreference"}}, "NoPreference"),
        ({"annotations": {"kubernetes.io/config.mirror": "h"}}, None),
        ({"namespace": "other"}, None),
    ],
)
def test_the_namespaces_default_counts_for_pods_that_were_not_created_yet(
    metadata: dict[str, Any], policy: str | None
) -> None:
    read, _ = collect(pod(metadata), namespace("default", "Disabled"))
    assert [row.policy for row in objects.pod_rows(read)] == [policy]


def test_where_the_webhook_is_not_asked_no_default_counts() -> None:
    for name in namespaces.UNDEFAULTED:
        read, _ = collect(pod({"namespace": name}), namespace(name, "Disabled"))
        assert [row.policy for row in objects.pod_rows(read)] == [None]


def test_facts_of_a_state() -> None:
    facts = {"cgroupVersion": 1, "swapController": False, "swapBytes": 5, "memoryBytes": 6, "devices": []}
    document = {
        "apiVersion": "swapwarden.dev/v1alpha1",
        "kind": "NodeSwapState",
        "metadata": {"name": "n"},
        "spec": {"profileRef": {"name": "p"}, "pods": {"x": {"reason": "OfANewerVersion"}}},
        "status": {"facts": facts, "conditions": []},
    }
    read, log = collect(document, {**document, "metadata": {"name": "m"}, "status": {}})
    expected = state.Facts(cgroup_version=1, swap_controller=False, swap_bytes=5, memory_bytes=6)
    assert read.facts == {"n": expected, "m": None}
    assert log == documents.Log()
