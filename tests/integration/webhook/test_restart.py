"""An API server that starts, and pods in the mode without webhook: a control plane of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from testbed.controlplane.servers import ControlPlane
from testbed.product import helm, manifests
from tests.integration import needs
from tests.integration.webhook import pods


@pytest.fixture
def alone() -> Iterator[ControlPlane]:
    with ControlPlane() as running:
        running.apply_crds(manifests.folder() / "01-crds.yaml")
        policies = helm.render("--set=admission.mode=Policy", "--show-only=templates/admission/without-webhook.yaml")
        running.apply(*manifests.other_manifests(), policies)
        yield running


@needs.MUTATING_POLICIES
def test_pods_without_a_key_of_ours_wait_for_nothing(
    alone: ControlPlane, eventually: Callable[[Callable[[], object], str], None]
) -> None:
    plain, given = pods.new_namespace(alone), pods.new_namespace(alone, "Required")

    def completed(namespace: str, body: pods.Json) -> bool:
        status, answer = pods.create(alone, namespace, body, pods.DRY_RUN)
        assert status in {201, 503}, answer
        return status == 201 and "nodeSelector" in answer["spec"]

    required = pods.pod("web", {pods.POLICY: "Required"})
    eventually(lambda: completed(plain, required), "the policies in force")
    alone.servers.stop_apiserver()
    alone.servers.start_apiserver()
    for number in range(50):
        status, answer = pods.create(alone, plain, pods.pod(f"plain-{number}", {"example.com/note": "x"}))
        assert status == 201, answer
    eventually(lambda: completed(plain, required), "pods with a policy are taken again")
    eventually(lambda: completed(given, pods.pod("web")), "and those that get one")
