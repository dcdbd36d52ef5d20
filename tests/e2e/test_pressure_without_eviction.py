"""How the load of test_pressure.py ends where nobody evicts: the node is of no use afterwards."""

from __future__ import annotations

import os
import sys
import time

import pytest

from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.test_pressure import condition, growth, kills

pytestmark = pytest.mark.skipif(
    "E2E_WITHOUT_EVICTION" not in os.environ, reason="it takes a node of its own: `make e2e-without-eviction` runs it"
)


def test_a_pod_that_grows_without_swap_ends_in_an_oom_kill_or_takes_the_node_with_it(
    cluster: Provider, namespace: Namespace, node: Node, eventually: Wait, capsys: pytest.CaptureFixture[str]
) -> None:
    if not cluster.owns_swap:
        pytest.skip("the node's memory is this machine's")
    pods = f"/api/v1/namespaces/{namespace.name}/pods"

    def phases() -> set[str]:
        return {each["status"]["phase"] for each in cluster.get(pods)["items"]}

    def ready() -> bool:
        return condition(cluster, "Ready")["status"] == "True"

    before = kills(node)
    cluster.kubectl("create", "-f", "-", text=growth(cluster, namespace))
    eventually(lambda: phases() == {"Running"}, "the pod runs")
    begun = time.monotonic()
    eventually(lambda: not ready() or phases() != {"Running"}, "the pod has ended, or the node")
    took, lost = time.monotonic() - begun, not ready()
    how = "the node is not Ready" if lost else f"{kills(node) - before} OOM kills"
    with capsys.disabled():
        sys.stdout.write(f"\nafter {took:.0f} s: {how}\n")
    assert lost or kills(node) > before
