from __future__ import annotations

from typing import Any

import pytest
from swapwarden.cli.kubectl.cluster import workloads

from tests.unit.cli.kubectl.explained import pod


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
        ([owner("StatefulSet", "db", "apps.kruise.io/v1beta1")], "statefulset.v1beta1.apps.kruise.io/db"),
        ([owner("Node", "batch-1", "v1")], "node/batch-1"),
        ([owner("--as", "root")], None),
        ([owner("StatefulSet", "--as=root")], None),
        ([], None),
    ],
)
def test_the_workload_by_the_pod_alone(owners: list[dict[str, Any]], guessed: str | None) -> None:
    made_by = workloads.workload(pod(ownerReferences=owners))
    assert (None if made_by is None else str(made_by)) == guessed


def test_a_replica_set_without_a_deployment() -> None:
    assert str(workloads.workload(pod(labels={}))) == "replicaset/report-6d5f8b7c9"


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({}, "the pod template of deployment/report"),
        ({"ownerReferences": [owner("Job", "once", "batch/v1")]}, "the pod template of job/once, recreated"),
        ({"ownerReferences": []}, "the pod, recreated"),
        ({"annotations": {"kubernetes.io/config.mirror": "hash"}}, "the pod's file on batch-1"),
    ],
)
def test_the_place_of_annotations(fields: dict[str, Any], place: str) -> None:
    assert workloads.place(pod(**fields)) == place
