from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from swapwarden.cli import wire
from swapwarden.cli.inputs import kinds
from swapwarden.cli.kubectl.cluster import workloads
from swapwarden.cli.kubectl.policy import command as patches

from tests.unit.cli.kubectl.explained import pod

POLICY = "swapwarden.dev/swap-policy"
LIMIT = "swapwarden.dev/swap-limit"


def kind(word: str) -> kinds.WorkloadKind:
    found = kinds.kind_of(word)
    assert found is not None
    return found


def workload(word: str = "deployment", spec: dict[str, Any] | None = None, **parts: Any) -> patches.Workload:
    template = {"metadata": {"annotations": parts.pop("annotations", None)}, "spec": {"containers": [{"name": "app"}]}}
    whole: dict[str, Any] = {"template": template}
    if word == "cronjob":
        whole = {"jobTemplate": {"spec": whole}}
    return patches.Workload(wire.Meta("web"), {**whole, **(spec or {})}, **parts)


def test_values() -> None:
    assert patches.wrong_value("Disabled") is None
    wrong = patches.wrong_value("disable")
    assert wrong is not None
    assert wrong.startswith('Unsupported value: "disable": supported values: "Avoid", "Disabled"')
    assert wrong.endswith('; did you mean "Disabled"?')


def test_the_patch() -> None:
    template = {"metadata": {"annotations": {POLICY: "Disabled"}}}
    assert patches.patch(kind("deployment"), "Disabled") == {"spec": {"template": template}}
    assert patches.patch(kind("cronjob"), "Disabled") == {"spec": {"jobTemplate": {"spec": {"template": template}}}}
    assert patches.patch(kind("sts"), None) == {"spec": {"template": {"metadata": {"annotations": {POLICY: None}}}}}


def test_the_commands_are_words_of_a_shell() -> None:
    change = patches.patch(kind("deployment"), "Disabled")
    command = patches.patch_command("deployment", "web", "shop", change, ["--context=a b"])
    words = shlex.split(command)
    assert words[:8] == ["kubectl", "--context=a b", "patch", "deployment", "web", "-n", "shop", "--type=merge"]
    assert json.loads(words[-1]) == change
    label = "swapwarden.dev/default-swap-policy"
    assert patches.label_command("shop", "Disabled") == f"kubectl label namespace shop {label}=Disabled --overwrite"
    assert patches.label_command("shop", None) == f"kubectl label namespace shop {label}-"


def test_a_pod_of_nobody_is_recreated() -> None:
    get, annotate, replace = patches.recreating(pod(name="solo"), "Disabled").split(" | ")
    assert get == "kubectl get pod solo -n batch -o yaml"
    assert annotate == f"kubectl annotate --local --overwrite -f - -o yaml {POLICY}=Disabled"
    assert replace == "kubectl replace --force -f -"
    defaulted = {POLICY: "Disabled", "swapwarden.dev/policy-source": "namespace"}
    assert (
        patches.recreating(pod(annotations=defaulted), "Avoid")
        .split(" | ")[1]
        .endswith(f" {POLICY}=Avoid swapwarden.dev/policy-source-")
    )
    assert (
        patches.recreating(pod(annotations=defaulted), None)
        .split(" | ")[1]
        .endswith(f" {POLICY}- swapwarden.dev/policy-source-")
    )


def test_an_owner_of_another_kind() -> None:
    owner = workloads.Owner("argoproj.io/v1alpha1", "Rollout", "web")
    command = patches.of_unknown(owner, "Disabled", "shop")
    assert command.startswith("kubectl patch rollout.v1alpha1.argoproj.io web -n shop --type=merge -p ")
    managed = patches.managed(kind("deployment"), workload(), owner)
    assert managed.startswith("deployment/web is managed by Rollout web (argoproj.io/v1alpha1), which may undo")


@pytest.mark.parametrize("word", ["deployment", "cronjob"])
def test_what_the_template_says_now(word: str) -> None:
    assert patches.current(kind(word), workload(word)) is None
    assert patches.current(kind(word), workload(word, annotations={POLICY: "Avoid"})) == "Avoid"
    assert patches.current(kind(word), patches.Workload(wire.Meta("web"))) is None


def test_what_admission_would_refuse() -> None:
    limited = workload(annotations={LIMIT: "1Gi"})
    (told,) = patches.problems(kind("deployment"), limited, "Disabled")
    assert told.startswith(f'metadata.annotations[{LIMIT}]: Invalid value: "1Gi": ')
    assert patches.problems(kind("deployment"), limited, "Avoid") == []
    assert patches.problems(kind("deployment"), workload(annotations={POLICY: "rubbish"}), None) == []
    required = patches.problems(kind("daemonset"), workload(), "Required")
    assert "DaemonSet" in required[0]
    assert patches.problems(kind("deployment"), workload(), "Required") == []


@pytest.mark.parametrize(
    ("word", "spec", "status", "words"),
    [
        (
            "deployment",
            {
                "replicas": 3,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": 1}},
            },
            {},
            ["3 pods", "(RollingUpdate, maxUnavailable 25%, maxSurge 1)"],
        ),
        ("deployment", {"strategy": {"type": "Recreate"}}, {}, ["1 pods", "(Recreate)"]),
        (
            "deployment",
            {"replicas": 2, "paused": True},
            {},
            ["2 pods", "(RollingUpdate)", "paused"],
        ),
        (
            "statefulset",
            {"replicas": 2, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}},
            {},
            ["2 pods", "(RollingUpdate, partition 1)"],
        ),
        (
            "daemonset",
            {"updateStrategy": {"type": "OnDelete"}},
            {"desiredNumberScheduled": 4},
            ["4 pods", "(OnDelete)"],
        ),
        ("replicaset", {"replicas": 2}, {}, ["2 pods", "delete"]),
        ("cronjob", {}, {}, ["jobs"]),
    ],
)
def test_the_consequence_of_a_change(word: str, spec: dict[str, Any], status: dict[str, Any], words: list[str]) -> None:
    text = patches.consequence(kind(word), workload(word, spec, status=status))
    assert all(each in text for each in words), text


def test_a_template_that_cannot_change() -> None:
    text = patches.of_immutable(kind("job"), "nightly", "Disabled")
    for words in ("job/nightly", "immutable", f"{POLICY}: Disabled", "spec.template.metadata.annotations"):
        assert words in text
    assert [each.word for each in kinds.KINDS if each.immutable] == ["job"]


def test_a_namespaces_default() -> None:
    assert len(list(patches.of_namespace("shop"))) == 1
    assert "kube-system" in list(patches.of_namespace("kube-system"))[1]
