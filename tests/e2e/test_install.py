"""`helm install` with defaults: all parts start, and pods without a policy keep the kubelet's values."""

from __future__ import annotations

from typing import Any

import pytest
from swapwarden.policy.swap import limits

from tests.e2e import cgroups, release
from tests.e2e.cgroups import MIB, PAGE
from tests.e2e.conftest import Namespace, Wait
from tests.e2e.provider import Node, Provider
from tests.e2e.release import Release

REQUEST, LIMIT = 256 * MIB, 512 * MIB
RESOURCES = {"requests": {"memory": str(REQUEST)}, "limits": {"memory": str(LIMIT)}}
DISABLED = {"annotations": {"swapwarden.dev/swap-policy": "Disabled"}}
CALLS = "swapwarden_webhook_requests_total"


def test_everything_is_ready(cluster: Provider, swapwarden: Release, eventually: Wait) -> None:
    for component in ("agent", "controller", "nri", "webhook"):
        pods = swapwarden.pods(component)
        assert len(pods) == swapwarden.replicas(component)
        for pod in pods:
            assert {"type": "Ready", "status": "True"}.items() <= next(
                each.items() for each in pod["status"]["conditions"] if each["type"] == "Ready"
            ), pod["metadata"]["name"]
    eventually(lambda: swapwarden.condition("Compatible") == "True/Compatible", "the agent found what it needs")
    eventually(lambda: swapwarden.condition("Applied") == "True/AsSpecified", "the first plan is in force")
    state = swapwarden.state()
    assert state["spec"]["profileRef"]["name"] == "(built-in)"
    assert state["metadata"]["ownerReferences"][0]["name"] == cluster.node_name
    assert swapwarden.condition("Degraded") == "False/AsExpected"
    lease = cluster.get(f"/apis/coordination.k8s.io/v1/namespaces/{release.NAMESPACE}/leases/swapwarden-controller")
    assert lease["spec"]["holderIdentity"] in {pod["metadata"]["name"] for pod in swapwarden.pods("controller")}


@pytest.mark.usefixtures("swapwarden")
def test_the_policies_agree_with_the_types_of_what_they_are_about(cluster: Provider, eventually: Wait) -> None:
    def checked() -> dict[str, Any]:
        found = cluster.get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")["items"]
        own = [each for each in found if each["metadata"]["name"].startswith("swapwarden-")]
        return {each["metadata"]["name"]: each.get("status", {}).get("typeChecking") for each in own}

    # The controller manager checks each expression against the schemas of all kinds that a policy matches.
    eventually(lambda: None not in checked().values(), "all policies are checked")
    assert {"swapwarden-pod-values", "swapwarden-pod-immutable", "swapwarden-templates"} <= checked().keys()
    assert {name: found for name, found in checked().items() if found} == {}


@pytest.mark.parametrize("component", ["agent", "nri"])
def test_what_runs_on_nodes_has_nothing_but_uid_0(component: str, node: Node, swapwarden: Release) -> None:
    (pod,) = swapwarden.pods(component)
    scope = cgroups.of_container(node, pod, component)
    status = cgroups.status_of(node, cgroups.first_process(node, scope))
    assert status["Uid"].split() == ["0"] * 4
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_a_pod_without_policy_keeps_the_kubelets_number_and_no_webhook_is_asked(
    node: Node, swapwarden: Release, namespace: Namespace, eventually: Wait
) -> None:
    before = swapwarden.total("webhook", CALLS)
    with node.record() as recording:
        namespace.create_pod("plain", resources=RESOURCES)
        pod = namespace.wait_ready("plain")
        uid = pod["metadata"]["uid"]
        eventually(lambda: swapwarden.planned(uid) == "max", "the plan leaves the pod to the kubelet")
        eventually(lambda: swapwarden.condition("Applied") == "True/AsSpecified", "the plan is in force")
        folder, scope = cgroups.of_pod(node, pod), cgroups.of_container(node, pod)
        memory, total = cgroups.meminfo(node, "MemTotal"), cgroups.meminfo(node, "SwapTotal")
        expected = limits.floor_to_page(limits.container_swap(REQUEST, LIMIT, memory, total), PAGE)
        assert 0 < expected < total
        assert cgroups.swap_max(node, scope) == str(expected)
        eventually(lambda: cgroups.swap_max(node, folder) == "max", "the pod has no limit of its own")
        # The agent has written to the pod's file (0, until the plan came), and never to the container's.
        held = [each.max_bytes for each in recording.samples(cgroups.container_id(pod)) if each.event != "gone"]
        # As without Swapwarden: see test_node.py.
        assert set(held) <= {None, 0, expected}
        assert held[-1] == expected
        assert swapwarden.violations(uid) == []
    assert swapwarden.total("webhook", CALLS) == before
    # The same counter counts where a policy is asked for.
    namespace.create_pod("policy", metadata=DISABLED)
    assert swapwarden.total("webhook", CALLS) == before + 1
