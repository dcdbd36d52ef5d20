"""A controller at CustomResourceDefinitions of another version: each minor version works with its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from testbed import manifests
from testbed.controller import Controller
from tests.integration.controller.cluster import FAST, Cluster

Json = dict[str, Any]
Eventually = Callable[[Callable[[], object], str], None]

CRDS = manifests.FOLDER.parents[1] / "crds"
STATES_CRD = CRDS / "nodeswapstates.swapwarden.dev.yaml"
NOVEL: Json = {"type": "string", "default": "x"}


def older(schema: Json) -> None:
    """Fields that came later are not there: the API server drops them from what is written."""
    del schema["properties"]["spec"]["properties"]["kubepods"]
    del schema["properties"]["status"]["properties"]["violations"]


def newer(schema: Json) -> None:
    """Fields that are to come, with defaults that the API server fills in."""
    for part in ("spec", "status"):
        schema["properties"][part]["properties"]["novel"] = NOVEL
    schema["properties"]["spec"]["properties"]["pods"]["additionalProperties"]["properties"]["novel"] = NOVEL


@pytest.fixture(params=[older, newer], ids=lambda change: change.__name__)
def other_version(request: pytest.FixtureRequest, cluster: Cluster, eventually: Eventually) -> Iterator[str]:
    """A cluster with the definitions of that version; which one it is."""
    crd = yaml.safe_load(STATES_CRD.read_text(encoding="utf-8"))
    (version,) = crd["spec"]["versions"]
    request.param(version["schema"]["openAPIV3Schema"])
    cluster.cp.apply(yaml.safe_dump(crd))

    def in_force() -> bool:
        body = {"metadata": {"name": "probe"}, "spec": {"profile": {"name": "p"}, "kubepods": {"swapMax": "0"}}}
        path = "/apis/swapwarden.dev/v1alpha1/nodeswapstates?dryRun=All"
        made = cluster.cp.create(path, {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapState", **body})
        return ("novel" in made["spec"]) if request.param is newer else ("kubepods" not in made["spec"])

    eventually(in_force, "the other version")
    yield str(request.param.__name__)
    cluster.cp.apply(STATES_CRD)


def test_it_plans_and_does_not_write_for_ever(other_version: str, cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    cluster.profile("p", {"group": "one"}, swap={"behavior": "LimitedSwap", "systemReserved": "50%"})
    with Controller(cluster.cp, FAST) as controller:
        disabled = cluster.pod("one", "first", {"swapwarden.dev/swap-policy": "Disabled"})
        eventually(lambda: cluster.swap_max("one", disabled) == "0", "a plan")
        assert ("novel" if other_version == "newer" else "profile") in cluster.spec("one")
        cluster.report("one")
        before = controller.metric("swapwarden_controller_writes_total", object="state")
        pods = [cluster.pod("one", f"pod-{number}", {"swapwarden.dev/swap-policy": "Disabled"}) for number in range(5)]
        for pod in pods:
            eventually(lambda pod=pod: cluster.swap_max("one", pod) == "0", "the plan of a pod")  # type: ignore[misc]  # bound on purpose
        written = controller.metric("swapwarden_controller_writes_total", object="state") - before
        # Each change of a pod may be followed by one write; what the API server drops is not written again and again.
        assert 1 <= written <= 15
        assert controller.metric("swapwarden_controller_failures_total") == 0
