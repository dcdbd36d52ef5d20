from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.base import paths
from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests
from testbed.product.controller import Controller
from tests.integration.controller.cluster import FAST, Cluster

AUDITED = ["nodeswapstates.swapwarden.dev", "nodes", "nodeswapprofiles/status.swapwarden.dev"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One of this folder: nodes of other tests would also be planned."""
    with ControlPlane(audit=AUDITED) as running:
        running.apply_crds(paths.CRDS)
        running.apply(*manifests.other_manifests())
        running.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        yield Cluster(running)


@pytest.fixture(scope="module")
def allowed(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster with the rights that come with the chart's value `eviction`: the module's EVICTION."""
    with cluster.granted(f"eviction={request.module.EVICTION}", "policy-evictions"):
        yield cluster


@pytest.fixture(scope="module")
def controller(cluster: Cluster) -> Iterator[Controller]:
    """The controller of a module, as the leader."""
    with Controller(cluster.cp, FAST) as running:
        running.leads()
        yield running


@pytest.fixture(autouse=True)
def _clean(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.clear()
