"""Manifests that the documentation shows are what the product takes, without a refusal or a warning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from swapwarden.api import names, profile
from swapwarden.webhook import review

from hack.docs import commands
from hack.generate import chart
from testbed.base import paths
from tests.unit.webhook import reviews

Shown = tuple[str, dict[str, Any]]
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job")
FOREIGN = ("KubeletConfiguration", "Node", "Namespace")
FRAGMENT = {"apiVersion": names.API_VERSION, "kind": "NodeSwapProfile", "metadata": {"name": "shown"}}


def manifests() -> Iterator[Shown]:
    """Each document of each YAML block, with where it is."""
    for page in commands.pages():
        for block in commands.blocks(page):
            if block.language == "yaml":
                for document in yaml.safe_load_all(block.text):
                    yield f"{page}:{block.line}", document


def of_kind(*kinds: str) -> list[Shown]:
    return [(where, each) for where, each in manifests() if each.get("kind") in kinds]


def ids(shown: Shown) -> str:
    return shown[0]


def fragments() -> list[Shown]:
    """Parts of profiles: a spec alone."""
    return [(where, each) for where, each in manifests() if each.keys() == {"spec"}]


def values() -> list[Shown]:
    """Values of the chart."""
    return [(where, each) for where, each in manifests() if not each.keys() & {"kind", "spec", "metadata"}]


def test_each_document_is_of_a_kind_that_is_looked_at() -> None:
    annotated = {where for where, each in manifests() if each.keys() == {"metadata"}}
    looked_at = [*of_kind("NodeSwapProfile", "Pod", *WORKLOADS, *FOREIGN), *fragments(), *values()]
    assert {where for where, _ in manifests()} - {where for where, _ in looked_at} == annotated


@pytest.mark.parametrize("shown", [*of_kind("NodeSwapProfile"), *fragments()], ids=ids)
def test_profiles_are_accepted(shown: Shown) -> None:
    """By the models that the kind's schema and its rules are made from."""
    document = {**FRAGMENT, **shown[1]}
    document["spec"] = {"nodeSelector": {}, **document["spec"]}
    made = profile.NodeSwapProfile.model_validate_json(json.dumps(document), strict=True)
    assert made.metadata.name


def pods() -> list[Shown]:
    """Pods, the templates of workloads, and annotations alone."""
    found = of_kind("Pod")
    found += [(where, each["spec"]["template"]) for where, each in of_kind(*WORKLOADS)]
    return found + [(where, each) for where, each in manifests() if each.keys() == {"metadata"}]


@pytest.mark.parametrize("shown", pods(), ids=ids)
def test_pods_are_admitted_without_a_warning(shown: Shown) -> None:
    containers = {"containers": [{"name": "main", "image": "none"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": containers, **shown[1]}
    pod["metadata"] = {"name": "shown", "namespace": "default", **pod["metadata"]}
    answer = review.answer(review.decode(reviews.raw(pod)))
    assert answer.allowed, answer.status
    assert not answer.warnings


@pytest.mark.parametrize("shown", of_kind("Namespace"), ids=ids)
def test_namespaces_have_a_default_that_is_understood(shown: Shown) -> None:
    default = shown[1]["metadata"]["labels"].get(names.DEFAULT_POLICY_LABEL)
    assert default in set(names.Policy)


@pytest.mark.parametrize("shown", values(), ids=ids)
def test_values_are_those_of_the_chart(shown: Shown) -> None:
    known = {path: default for path, default, _ in chart.entries((paths.CHART / "values.yaml").read_text())}

    def unknown(found: dict[str, Any], above: str = "") -> Iterator[str]:
        for key, value in found.items():
            path = above + key
            if path in known:
                continue
            if isinstance(value, dict) and any(each.startswith(f"{path}.") for each in known):
                yield from unknown(value, f"{path}.")
            else:
                yield path

    assert list(unknown(shown[1])) == []


@pytest.mark.parametrize("shown", [each for each in values() if "profiles" in each[1]], ids=ids)
def test_profiles_in_values_are_accepted(shown: Shown) -> None:
    for spec in shown[1]["profiles"].values():
        assert profile.spec.ProfileSpec.model_validate_json(json.dumps(spec), strict=True)
