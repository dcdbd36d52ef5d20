"""The commands that `kubectl swap explain` prints can be copied into a shell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

import pytest
from swapwarden.api import names
from swapwarden.cli.kubectl.explain import advice, model

from tests.unit.cli.kubectl.explained import container, pod, profile, seen

POLICY = "swapwarden.dev/swap-policy"
LIMITS = {"swapwarden.dev/swap-limit": "1Gi", "swap-limit.swapwarden.dev/app": "1Gi"}
HOSTILE = "web; rm -rf $HOME | `id` '\""


def owner(kind: str, version: str, name: str = "web") -> list[dict[str, Any]]:
    return [{"apiVersion": version, "kind": kind, "name": name, "controller": True}]


def advised(policy: names.Policy = names.Policy.DISABLED, flags: Sequence[str] = (), **fields: Any) -> advice.Advice:
    found = pod(**fields)
    return advice.with_command(advice.policy(found, policy), found, "", flags)


def words(policy: names.Policy = names.Policy.DISABLED, **fields: Any) -> list[str]:
    """The words of the one command."""
    return shlex.split(advised(policy, **fields).command)


def patched(annotations: dict[str, str | None], *path: str) -> dict[str, Any]:
    patch: dict[str, Any] = {"metadata": {"annotations": annotations}}
    for part in reversed(path):
        patch = {part: patch}
    return patch


@pytest.mark.parametrize(
    ("kind", "version", "word", "path"),
    [
        ("StatefulSet", "apps/v1", "statefulset", ["spec", "template"]),
        ("DaemonSet", "apps/v1", "daemonset", ["spec", "template"]),
        ("ReplicationController", "v1", "replicationcontroller", ["spec", "template"]),
        ("CronJob", "batch/v1", "cronjob", ["spec", "jobTemplate", "spec", "template"]),
    ],
)
def test_a_pod_template_gets_a_strategic_merge_patch(kind: str, version: str, word: str, path: list[str]) -> None:
    *command, patch = words(ownerReferences=owner(kind, version))
    assert command == ["kubectl", "patch", word, "web", "-n", "batch", "-p"]
    assert json.loads(patch) == patched({POLICY: "Disabled"}, *path)


def test_kinds_that_kubernetes_does_not_have_get_a_merge_patch() -> None:
    *command, patch = words(ownerReferences=owner("Rollout", "argoproj.io/v1alpha1"))
    kind = "rollout.v1alpha1.argoproj.io"
    assert command == ["kubectl", "patch", kind, "web", "-n", "batch", "--type=merge", "-p"]
    assert json.loads(patch) == patched({POLICY: "Disabled"}, "spec", "template")


def test_disabled_removes_the_limits_that_admission_refuses_beside_it() -> None:
    annotations = {**LIMITS, "team": "shop"}
    found = advised(annotations=annotations)
    assert found.how == f"the policy Disabled in place of {', '.join(LIMITS)}, in the pod template of deployment/report"
    patch = json.loads(shlex.split(found.command)[-1])
    assert patch == patched({POLICY: "Disabled", **dict.fromkeys(LIMITS)}, "spec", "template")
    assert json.loads(words(names.Policy.AVOID, annotations=annotations)[-1]) == patched(
        {POLICY: "Avoid"}, "spec", "template"
    )


def test_a_first_limit_replaces_larger_ones_of_containers() -> None:
    small, large = "swap-limit.swapwarden.dev/small", "swap-limit.swapwarden.dev/app"
    annotations = {small: "1Mi", large: "1Gi", "swap-limit.swapwarden.dev/gone": "lots"}
    found = seen(pod(container("app"), container("small"), annotations=annotations), profile(names.Behavior.KUBELET))
    (less,) = (each for each in model.explain(found).changes if each.outcome == "less")
    assert less.how.startswith(f"annotation swapwarden.dev/swap-limit: 512Mi in place of {large}, in the pod template")
    patch = json.loads(shlex.split(less.command)[-1])
    assert patch == patched({large: None, "swapwarden.dev/swap-limit": "512Mi"}, "spec", "template")


def test_a_pod_that_nobody_manages_is_recreated() -> None:
    defaulted = {POLICY: "Disabled", "swapwarden.dev/policy-source": "namespace"}
    found = advised(names.Policy.NO_PREFERENCE, ownerReferences=[], annotations=defaulted)
    get, annotate, replace = map(shlex.split, found.command.split(" | "))
    assert get == shlex.split("kubectl get pod report-6d5f8b7c9-x2x4q -n batch -o yaml")
    changed = [f"{POLICY}=NoPreference", "swapwarden.dev/policy-source-"]
    assert annotate == ["kubectl", "annotate", "--local", "--overwrite", "-f", "-", "-o", "yaml", *changed]
    assert replace == shlex.split("kubectl replace --force -f -")
    limited = advised(ownerReferences=[], annotations=LIMITS)
    assert shlex.split(limited.command.split(" | ")[1])[-3:] == [f"{POLICY}=Disabled", *(f"{key}-" for key in LIMITS)]


@pytest.mark.parametrize(
    "fields",
    [{"ownerReferences": owner("Job", "batch/v1")}, {"annotations": {"kubernetes.io/config.mirror": "hash"}}],
)
def test_immutable_templates_and_static_pods_get_no_command(fields: dict[str, Any]) -> None:
    assert not advised(**fields).command


@pytest.mark.parametrize("name", [HOSTILE, "web\n-n other", "$(id)"])
def test_names_are_single_words_of_a_shell(name: str) -> None:
    command = words(ownerReferences=owner("StatefulSet", "apps/v1", name), namespace=name)
    assert command[:7] == ["kubectl", "patch", "statefulset", name, "-n", name, "-p"]
    assert len(command) == 8
    get = words(ownerReferences=[], name=name)
    assert get[:4] == ["kubectl", "get", "pod", name]


def test_commands_are_for_the_cluster_that_was_asked() -> None:
    flags = ["--kubeconfig=my config", "--context=prod"]
    alone: dict[str, Any] = {"ownerReferences": [], "name": HOSTILE}
    assert shlex.split(advised(flags=flags).command) == [*words(), *flags]
    every, pipe = words(**alone), [place for place, word in enumerate(words(**alone)) if word == "|"]
    first, second = pipe
    expected = [*every[:first], *flags, *every[first:second], *flags, *every[second:], *flags]
    assert shlex.split(advised(flags=flags, **alone).command) == expected
    assert advised(flags=flags, annotations={"kubernetes.io/config.mirror": "hash"}).command == ""
