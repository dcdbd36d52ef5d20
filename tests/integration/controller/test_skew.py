"""A controller beside one of another version, and at definitions of another one: neighbouring minor versions agree."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from testbed.base import paths
from testbed.product import manifests, part
from testbed.product.controller import Controller
from tests.integration import needs
from tests.integration.conftest import Eventually, Json
from tests.integration.controller import earlier
from tests.integration.controller.cluster import FAST, Cluster

CRDS = paths.CRDS
STATES_CRD = CRDS / "nodeswapstates.swapwarden.dev.yaml"
NOVEL: Json = {"type": "string", "default": "x"}


def older(schema: Json) -> None:
    """Fields that came later are not there: the API server drops them from writes."""
    del schema["properties"]["spec"]["properties"]["kubepods"]
    del schema["properties"]["spec"]["properties"]["pods"]["additionalProperties"]["properties"]["containerDefault"]
    del schema["properties"]["status"]["properties"]["violations"]


def newer(schema: Json) -> None:
    """Future fields, with defaults that the API server fills in."""
    for half in ("spec", "status"):
        schema["properties"][half]["properties"]["novel"] = NOVEL
    schema["properties"]["spec"]["properties"]["pods"]["additionalProperties"]["properties"]["novel"] = NOVEL


def without_a_reason(schema: Json) -> None:
    """A reason that came later is refused."""
    pod = schema["properties"]["spec"]["properties"]["pods"]["additionalProperties"]
    pod["properties"]["reason"]["enum"].remove("QoSNotEligible")


@pytest.fixture(params=[older, newer], ids=lambda change: change.__name__)
def other_version(request: pytest.FixtureRequest, cluster: Cluster, eventually: Eventually) -> Iterator[str]:
    """A cluster with the definitions of that version; which one it is."""
    crd = manifests.read(STATES_CRD.read_text(encoding="utf-8"))[0]
    (version,) = crd["spec"]["versions"]
    request.param(version["schema"]["openAPIV3Schema"])
    cluster.cp.apply(manifests.written([crd]))

    def in_force() -> bool:
        body = {"metadata": {"name": "probe"}, "spec": {"profileRef": {"name": "p"}, "kubepods": {"swapMax": "0"}}}
        path = "/apis/swapwarden.dev/v1alpha1/nodeswapstates?dryRun=All"
        made = cluster.cp.create(path, {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapState", **body})
        return ("novel" in made["spec"]) if request.param is newer else ("kubepods" not in made["spec"])

    eventually(in_force, "the other version")
    yield str(request.param.__name__)
    cluster.cp.apply(STATES_CRD)


def test_it_plans_and_does_not_write_for_ever(other_version: str, cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    cluster.profile("p", {"group": "one"}, swap={"behavior": "LimitedSwap", "reserved": "50%"})
    with Controller(cluster.cp, FAST) as controller:
        disabled = cluster.pod("one", "first", {"swapwarden.dev/swap-policy": "Disabled"})
        eventually(lambda: cluster.swap_max("one", disabled) == "0", "a plan")
        assert ("novel" if other_version == "newer" else "profileRef") in cluster.spec("one")
        cluster.report("one")
        before = controller.metric("swapwarden_controller_writes_total", object="state")
        pods = [cluster.pod("one", f"pod-{number}", {"swapwarden.dev/swap-policy": "Disabled"}) for number in range(5)]
        for pod in pods:
            eventually(lambda pod=pod: cluster.swap_max("one", pod) == "0", "the plan of a pod")  # type: ignore[misc]  # bound on purpose
        written = controller.metric("swapwarden_controller_writes_total", object="state") - before
        # Each change of a pod may be followed by one write; what the API server drops is not written again and again.
        assert 1 <= written <= 15
        assert controller.metric("swapwarden_controller_failures_total") == 0
        lacking = other_version == "older"
        assert controller.metric("swapwarden_controller_crd_fields_missing") == lacking
        assert ("is older than this controller and lacks spec.kubepods" in controller.process.output()) == lacking


def test_what_an_older_definition_refuses_of_one_pod_keeps_no_other_from_its_plan(
    cluster: Cluster, eventually: Eventually
) -> None:
    crd = manifests.read(STATES_CRD.read_text(encoding="utf-8"))[0]
    without_a_reason(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    cluster.node("one")
    cluster.profile("p", {"group": "one"}, swap={"behavior": "LimitedSwap"})
    novel = cluster.pod("one", "besteffort")
    try:
        cluster.cp.apply(manifests.written([crd]))
        eventually(lambda: not _takes(cluster, "QoSNotEligible"), "the older definition")
        with Controller(cluster.cp, FAST) as controller:
            disabled = cluster.pod("one", "first", {"swapwarden.dev/swap-policy": "Disabled"})
            eventually(lambda: cluster.swap_max("one", disabled) == "0", "a plan")
            assert novel["metadata"]["uid"] not in cluster.spec("one")["pods"]
            assert controller.metric("swapwarden_controller_crd_fields_missing") == 1
            said = f"lacks values of spec.pods.{novel['metadata']['uid']}"
            assert said in controller.process.output()
    finally:
        cluster.cp.apply(STATES_CRD)
        eventually(lambda: _takes(cluster, "QoSNotEligible"), "this version's definition")


def _takes(cluster: Cluster, reason: str) -> bool:
    spec = {"profileRef": {"name": "p"}, "pods": {"0" * 32: {"reason": reason}}}
    body = {
        "apiVersion": "swapwarden.dev/v1alpha1",
        "kind": "NodeSwapState",
        "metadata": {"name": "probe"},
        "spec": spec,
    }
    return cluster.cp.request("POST", "/apis/swapwarden.dev/v1alpha1/nodeswapstates?dryRun=All", body)[0] == 201


@needs.NODES_TELL_SWAP
def test_versions_that_lead_in_turn_undo_nothing_of_each_other(cluster: Cluster, eventually: Eventually) -> None:
    def planned() -> Json:
        found: Json = cluster.spec("one").get("pods", {}).get(uid, {})
        return found

    cluster.node("one")
    cluster.profile("p", {"group": "one"}, swap={"behavior": "LimitedSwap"})
    pod = cluster.pod("one", "app", memory="1Gi")
    uid = pod["metadata"]["uid"]
    runs: Json = {
        "name": "app",
        "containerID": "containerd://c1",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }
    runs |= {"image": "none", "imageID": "none", "ready": True, "restartCount": 0}
    path = "/api/v1/namespaces/default/pods/app/status"
    assert cluster.cp.request("PATCH", path, {"status": {"containerStatuses": [runs]}})[0] == 200
    versions = (part.INSTALLED, (earlier.__file__,))
    leader, terms, limits = Controller(cluster.cp, FAST, program=versions[1]), [], set()
    for turn in range(3):
        with leader:
            terms.append(leader.leads()["epoch"])
            last = cluster.pod("one", f"pod-{turn}", {"swapwarden.dev/swap-policy": "Disabled"})
            eventually(lambda last=last: cluster.swap_max("one", last) == "0", "a pod of this turn")  # type: ignore[misc]  # bound on purpose
            wanted = "containerDefault" if turn % 2 else "containers"
            eventually(lambda wanted=wanted: wanted in planned(), "its own form")  # type: ignore[misc]  # bound on purpose
            limits.add(planned()["swapMax"])
            # A new pod costs a write, and the plan of the other version costs one more at most.
            assert leader.metric("swapwarden_controller_writes_total", object="state") <= 3
            assert leader.metric("swapwarden_controller_failures_total") == 0
            following = Controller(cluster.cp, FAST, program=versions[turn % 2])
            eventually(lambda following=following: following.health("/readyz")[0] == 200, "the next one stands by")  # type: ignore[misc]  # bound on purpose
            leader.process.send_signal(signal.SIGKILL)
        leader = following
    leader.stop()
    assert terms == sorted(set(terms))
    assert len(limits) == 1
