"""`swapwarden await-daemonset` at a real API server; the test is the controller of DaemonSets."""

from __future__ import annotations

import time

import pytest
from swapwarden import __main__ as program

from testbed.controlplane.servers import ControlPlane
from tests.integration.conftest import Json
from tests.integration.webhook import pods

LABELS = {"app": "remover"}


@pytest.fixture
def namespace(crds: ControlPlane) -> str:
    return pods.new_namespace(crds)


def make(crds: ControlPlane, namespace: str, **status: int) -> Json:
    """A DaemonSet with a status of its generation."""
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    body = {"metadata": {"name": "remover"}, "spec": {"selector": {"matchLabels": LABELS}, "template": template}}
    made: Json = crds.create(path, body)
    if status:
        empty = {"currentNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0}
        patch = {"status": {**empty, "observedGeneration": 1, **status}}
        assert crds.request("PATCH", f"{path}/remover/status", patch)[0] == 200
    return made


def pod(crds: ControlPlane, namespace: str, daemons: Json, node: str, *, ready: bool) -> None:
    body = pods.pod(f"remover-{node}", node=node)
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "remover", "uid": daemons["metadata"]["uid"]}
    body["metadata"] = {"name": f"remover-{node}", "labels": LABELS, "ownerReferences": [owner]}
    assert pods.create(crds, namespace, body)[0] == 201
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    assert crds.request("PATCH", pods.path(namespace, f"remover-{node}", "status"), {"status": status})[0] == 200


def awaited(crds: ControlPlane, namespace: str, capsys: pytest.CaptureFixture[str], timeout: int) -> tuple[int, str]:
    status = program.main(
        ["await-daemonset", f"--namespace={namespace}", "--name=remover", "--selector=app=remover", "--task=work",
         f"--timeout={timeout}", f"--kubeconfig={crds.kubeconfig}"]
    )  # fmt: skip
    said = capsys.readouterr()
    return status, said.out + said.err


def test_it_ends_at_once_when_all_pods_are_ready(
    crds: ControlPlane, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(crds, namespace, desiredNumberScheduled=2, numberReady=2)
    begun = time.monotonic()
    assert awaited(crds, namespace, capsys, 300)[0] == 0
    assert time.monotonic() - begun < 60


def test_nodes_that_did_not_answer_are_named_and_nothing_hangs(
    crds: ControlPlane, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    daemons = make(crds, namespace, desiredNumberScheduled=3, numberReady=1)
    pod(crds, namespace, daemons, "node-a", ready=True)
    pod(crds, namespace, daemons, "node-b", ready=False)
    status, said = awaited(crds, namespace, capsys, 1)
    assert (status, "node-a" in said, "node-b" in said) == (0, False, True)


@pytest.mark.parametrize("made", [False, True])
def test_it_ends_well_if_no_controller_answers(
    crds: ControlPlane, namespace: str, capsys: pytest.CaptureFixture[str], *, made: bool
) -> None:
    if made:
        make(crds, namespace)
    status, said = awaited(crds, namespace, capsys, 1)
    assert (status, "work" in said) == (0, True)
