"""A controller's metrics, in a form that Prometheus takes."""

from __future__ import annotations

import pytest

from testbed.product.controller import Controller
from tests.integration import scrapes
from tests.integration.conftest import Eventually
from tests.integration.controller.cluster import FAST, Cluster

pytestmark = pytest.mark.usefixtures("executed")


def scrape(controller: Controller) -> scrapes.Series:
    status, text = controller.health("/metrics")
    assert status == 200
    return scrapes.check(text, "controller")


def test_prometheus_takes_it_while_pods_come_and_go(cluster: Cluster, eventually: Eventually) -> None:
    with Controller(cluster.cp, FAST) as running:
        running.leads()
        for name in ("m-applied", "m-pending"):
            cluster.node(name, {"pool": "metrics"})
        cluster.profile("metrics", {"pool": "metrics"}, swap={"behavior": "NoSwap"})
        eventually(
            lambda: all(
                cluster.spec(name).get("profileRef", {}).get("name") == "metrics" for name in ("m-applied", "m-pending")
            ),
            "plans",
        )
        cluster.report("m-applied")
        eventually(lambda: running.metric("swapwarden_nodes", state="applied") == 1, "one has applied its plan")
        first = scrape(running)
        states = {"applied": 1, "pending": 0, "without_agent": 1, "incompatible": 0, "degraded": 0}
        assert scrapes.values(first, "swapwarden_nodes") == {
            (state,): count for state, count in (states | {"requirements_unmet": 0}).items()
        }
        assert scrapes.values(first, "swapwarden_leader") == {(): 1}

        pod = cluster.pod("m-applied", "waits")
        eventually(lambda: cluster.swap_max("m-applied", pod) == "0", "the state names the pod")
        cluster.report("m-applied")
        cluster.cp.request("DELETE", "/api/v1/namespaces/default/pods/waits?gracePeriodSeconds=0")
        eventually(lambda: cluster.swap_max("m-applied", pod) is None, "the pod is gone")
        second = scrape(running)
        assert scrapes.growing(first, second) > 0
