from __future__ import annotations

from typing import Any

import pytest
from swapwarden.cli.inputs import kinds
from swapwarden.cli.kubectl.cluster import workloads

from tests.unit.cli.kubectl.explained import pod


@pytest.mark.parametrize("word", ["deployment", "Deployments", "deploy", "deployment.apps", "deployments.v1.apps"])
def test_words_for_a_kind(word: str) -> None:
    kind = kinds.kind_of(word)
    assert kind is not None
    assert (kind.name, kind.api, kind.version) == ("Deployment", "apis/apps/v1", "apps/v1")


def test_other_words() -> None:
    assert kinds.kind_of("pod") is None
    assert kinds.kind_of("deployment.example.com") is None
    assert [kind.api for kind in kinds.KINDS if not kind.group] == ["api/v1"]


def owner(kind: str, name: str, version: str = "apps/v1", *, controller: bool = True) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": name, "controller": controller}


@pytest.mark.parametrize(
    ("owners", "guessed"),
    [
        ([owner("ReplicaSet", "report-6d5f8b7c9")], "deployment/report"),
        ([owner("ReplicaSet", "report-other")], "replicaset/report-other"),
        ([owner("StatefulSet", "db")], "statefulset/db"),
        ([owner("Job", "nightly-1", "batch/v1")], "job/nightly-1"),
        ([owner("DaemonSet", "x", controller=False), owner("StatefulSet", "db")], "statefulset/db"),
        ([owner("StatefulSet", "db", "apps.kruise.io/v1beta1")], None),
        ([], None),
    ],
)
def test_the_workload_by_the_pod_alone(owners: list[dict[str, Any]], guessed: str | None) -> None:
    assert workloads.guess(pod(ownerReferences=owners)) == guessed


def test_a_replica_set_without_a_deployment() -> None:
    assert workloads.guess(pod(labels={})) == "replicaset/report-6d5f8b7c9"
