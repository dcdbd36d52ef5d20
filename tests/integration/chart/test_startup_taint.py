"""`startupTaint: true`: the rights to remove the taint, and when it is removed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.base import paths
from testbed.controlplane.servers import ControlPlane
from testbed.product import helm, manifests
from testbed.product.controller import Controller
from tests.integration.chart.agents import Agent
from tests.integration.conftest import Eventually, Json
from tests.integration.controller.cluster import FAST, STATES, Cluster

STARTUP: Json = {"key": "node.swapwarden.dev/agent-not-ready", "effect": "NoSchedule"}
OTHERS: list[Json] = [{"key": "pool", "value": "batch", "effect": "NoSchedule"}, {"key": "x", "effect": "NoExecute"}]
KINDS = {"Namespace", "ServiceAccount", "ConfigMap", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
KINDS |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Rights and policies of this value."""
    documents = manifests.read(helm.render("--set=startupTaint=true", "--set=namespace.create=true"))
    text = manifests.written([document for document in documents if document and document["kind"] in KINDS])
    with ControlPlane() as running:
        running.apply_crds(paths.CRDS)
        running.create_namespace(helm.NAMESPACE)
        running.apply(text)
        yield Cluster(running)


@pytest.fixture(autouse=True)
def _clean(cluster: Cluster) -> Iterator[None]:
    yield
    for path in ("/api/v1/nodes", STATES):
        for item in cluster.cp.get(path)["items"]:
            cluster.cp.request("DELETE", f"{path}/{item['metadata']['name']}")


@pytest.mark.parametrize(
    "before", [[STARTUP], [STARTUP, *OTHERS], [OTHERS[0], STARTUP, OTHERS[1]], [*OTHERS, STARTUP]], ids=len
)
def test_it_is_removed_once_the_agent_has_applied_a_state_and_all_others_stay(
    before: list[Json], cluster: Cluster, eventually: Eventually
) -> None:
    cluster.node("one")
    cluster.taint("one", *before)
    with Controller(cluster.cp, FAST, "--remove-startup-taint"):
        eventually(lambda: cluster.state("one"), "a state")
        assert STARTUP in cluster.taints("one")
        with Agent(cluster, "one"):
            eventually(lambda: STARTUP not in cluster.taints("one"), "the taint gone")
        assert cluster.taints("one") == [each for each in before if each != STARTUP]
        # A node that returns new.
        cluster.taint("one", *before)
        eventually(lambda: STARTUP not in cluster.taints("one"), "the taint gone again")


def test_it_waits_for_the_agent_of_this_node_and_not_of_an_earlier_one_of_the_name(
    cluster: Cluster, eventually: Eventually
) -> None:
    cluster.node("one")
    with Controller(cluster.cp, FAST, "--remove-startup-taint"):
        with Agent(cluster, "one") as agent:
            eventually(lambda: agent.modes, "a report")
        earlier = cluster.state("one")
        cluster.cp.request("DELETE", "/api/v1/nodes/one")
        node = cluster.node("one", swap=0)
        cluster.taint("one", STARTUP)
        cluster.node("marker")
        eventually(lambda: cluster.state("marker"), "the controller has seen what came before")
        assert cluster.state("one")["metadata"]["uid"] == earlier["metadata"]["uid"]
        assert STARTUP in cluster.taints("one")
        # As the garbage collector does.
        cluster.cp.request("DELETE", f"{STATES}/one")
        eventually(lambda: cluster.state("one"), "a state of its own")
        assert [one["uid"] for one in cluster.state("one")["metadata"]["ownerReferences"]] == [node["metadata"]["uid"]]
        assert STARTUP in cluster.taints("one")
        with Agent(cluster, "one"):
            eventually(lambda: STARTUP not in cluster.taints("one"), "the taint gone")


@pytest.mark.parametrize("reason", ["Incompatible", "Draining"])
def test_it_is_removed_where_nothing_more_can_be_done(reason: str, cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("one")
    cluster.taint("one", STARTUP)
    with (
        Controller(cluster.cp, FAST, "--remove-startup-taint"),
        Agent(cluster, "one", status="False", reason=reason),
    ):
        eventually(lambda: not cluster.taints("one"), "the taint gone")


def test_it_stays_while_something_is_amiss_or_nobody_asked_for_its_removal(
    cluster: Cluster, eventually: Eventually
) -> None:
    for name in ("failing", "fine"):
        cluster.node(name)
        cluster.taint(name, STARTUP)
    with (
        Controller(cluster.cp, FAST, "--remove-startup-taint"),
        Agent(cluster, "failing", status="False", reason="WriteFailed") as failing,
        Agent(cluster, "fine"),
    ):
        eventually(lambda: not cluster.taints("fine"), "the other taint gone")
        eventually(lambda: failing.modes, "a report")
    assert cluster.taints("failing") == [STARTUP]
    cluster.taint("fine", STARTUP)
    with Controller(cluster.cp, FAST) as controller:
        controller.leads()
        eventually(lambda: cluster.spec("fine").get("epoch", 0) >= 1, "a look")
    assert cluster.taints("fine") == [STARTUP]


@pytest.mark.parametrize(
    "spec",
    [
        {"taints": [STARTUP, *OTHERS, {"key": "new", "effect": "NoSchedule"}]},
        {"taints": [STARTUP, OTHERS[0]]},
        {"taints": [{**STARTUP, "effect": "NoExecute"}, *OTHERS]},
        {"taints": OTHERS, "unschedulable": True},
        {"providerID": "other"},
    ],
)
def test_the_controller_may_take_that_taint_and_touch_no_other(
    spec: Json, cluster: Cluster, eventually: Eventually
) -> None:
    cluster.node("one")
    cluster.taint("one", STARTUP, *OTHERS)
    token = cluster.cp.token(helm.NAMESPACE, "swapwarden-controller")

    def status() -> int:
        return int(cluster.cp.request("PATCH", "/api/v1/nodes/one?dryRun=All", {"spec": spec}, token=token)[0])

    eventually(lambda: status() == 403, "the policy in force")
    assert cluster.taints("one") == [STARTUP, *OTHERS]
    assert cluster.cp.request("PATCH", "/api/v1/nodes/one", {"spec": {"taints": OTHERS}}, token=token)[0] == 200
