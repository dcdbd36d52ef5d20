"""`podConditions`: what pods with a policy say of it, what of others in their status, and who may write it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from swapwarden.api import names
from swapwarden.policy.observed import pods

from testbed.product.controller import ACCOUNT, NAMESPACE, Controller
from tests.integration.chart.agents import Agent
from tests.integration.conftest import Eventually, Json
from tests.integration.controller.cluster import FAST, STATES, Cluster

TYPE = "swapwarden.dev/SwapPolicyEnforced"
PODS = "/api/v1/namespaces/default/pods"
DISABLED = {"swapwarden.dev/swap-policy": "Disabled"}
STRATEGIC = "application/strategic-merge-patch+json"
KUBELETS: Json = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


@pytest.fixture(scope="module")
def allowed(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the rights that come with the chart's value."""
    with cluster.granted("podConditions=true", "policy-pods"):
        yield cluster


@pytest.fixture
def controller(allowed: Cluster) -> Iterator[Controller]:
    with Controller(allowed.cp, FAST, "--pod-conditions") as running:
        running.leads()
        yield running


def conditions(cluster: Cluster, pod: str) -> dict[str, Json]:
    found = cluster.cp.get(f"{PODS}/{pod}")["status"].get("conditions", [])
    return {each["type"]: each for each in found}


def said(cluster: Cluster, pod: str) -> tuple[str, str] | None:
    found = conditions(cluster, pod).get(TYPE)
    return None if found is None else (found["status"], found["reason"])


def as_kubelet(cluster: Cluster, pod: str, **status: Any) -> None:
    code, answer = cluster.cp.request("PATCH", f"{PODS}/{pod}/status", {"status": status})
    assert code == 200, answer


@pytest.mark.usefixtures("controller")
def test_conditions_of_pods_with_a_policy_report_whether_it_is_in_force(
    allowed: Cluster, eventually: Eventually
) -> None:
    allowed.node("one")
    allowed.pod("one", "disabled", DISABLED)
    as_kubelet(allowed, "disabled", phase="Running", podIP="192.0.2.7", conditions=[KUBELETS])
    allowed.pod("one", "plain")
    eventually(lambda: said(allowed, "disabled") == ("Unknown", "NoAgent"), "it is planned")
    with Agent(allowed, "one"):
        eventually(lambda: said(allowed, "disabled") == ("True", "PolicyDisabled"), "the agent has it in force")
    found = conditions(allowed, "disabled")
    assert found["PodScheduled"] == {**KUBELETS, "lastProbeTime": None}
    assert found[TYPE]["message"].endswith(pods.held_by(names.Holder.AGENT))
    assert allowed.cp.get(f"{PODS}/disabled")["status"]["podIP"] == "192.0.2.7"
    assert said(allowed, "plain") is None


@pytest.mark.usefixtures("controller")
def test_failures_of_the_agent_are_reported_and_missing_reports_take_nothing_back(
    allowed: Cluster, eventually: Eventually
) -> None:
    node = allowed.node("one")
    pod = allowed.pod("one", "disabled", DISABLED)
    with Agent(allowed, "one"):
        eventually(lambda: said(allowed, "disabled") == ("True", "PolicyDisabled"), "the agent has it in force")
    violation = {"pod": pod["metadata"]["uid"], "reason": "Draining", "desired": "0", "swapBytes": 4096}
    status = {"status": {"violations": [violation]}}
    assert allowed.cp.request("PATCH", f"{STATES}/one/status", status)[0] == 200
    eventually(lambda: said(allowed, "disabled") == ("False", "Draining"), "swap is in use")
    since = conditions(allowed, "disabled")[TYPE]["lastTransitionTime"]
    status = {"status": {"violations": [{**violation, "reason": "WriteFailed"}]}}
    assert allowed.cp.request("PATCH", f"{STATES}/one/status", status)[0] == 200
    eventually(lambda: said(allowed, "disabled") == ("False", "WriteFailed"), "the limit is refused")
    assert conditions(allowed, "disabled")[TYPE]["lastTransitionTime"] == since
    assert allowed.cp.request("PATCH", f"{STATES}/one/status", {"status": {"violations": None}})[0] == 200
    eventually(lambda: said(allowed, "disabled") == ("True", "PolicyDisabled"), "it is given back")
    before = allowed.state("one")["metadata"]["uid"]
    allowed.cp.request("DELETE", f"{STATES}/one")
    eventually(lambda: allowed.swap_max("one", pod) == "0", "the state exists again")
    assert allowed.state("one")["metadata"]["uid"] != before
    later = allowed.pod("one", "later", DISABLED)
    eventually(lambda: said(allowed, "later") == ("Unknown", "NoAgent"), "nobody reports of the new state")
    assert said(allowed, "disabled") == ("True", "PolicyDisabled")
    assert node["metadata"]["name"] == later["spec"]["nodeName"]


def test_a_new_leader_writes_no_condition_that_exists(allowed: Cluster, eventually: Eventually) -> None:
    allowed.node("one")
    allowed.pod("one", "disabled", DISABLED)
    with Agent(allowed, "one"):
        with Controller(allowed.cp, FAST, "--pod-conditions") as first:
            first.leads()
            eventually(lambda: said(allowed, "disabled") == ("True", "PolicyDisabled"), "the agent has it in force")
        version = allowed.cp.get(f"{PODS}/disabled")["metadata"]["resourceVersion"]
        with Controller(allowed.cp, FAST, "--pod-conditions") as second:
            second.leads()
            allowed.pod("one", "later", DISABLED)
            eventually(lambda: said(allowed, "later") == ("True", "PolicyDisabled"), "it looks at pods")
    assert allowed.cp.get(f"{PODS}/disabled")["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize(
    "body",
    [
        {"status": {"phase": "Failed"}},
        {"status": {"podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        {"status": {"conditions": [{"type": "PodScheduled", "$patch": "delete"}]}},
        {"metadata": {"labels": {"app": "other"}}},
        # Not one of Swapwarden's: another policy also refuses those, and either may answer.
        {"metadata": {"annotations": {"example.com/mine": "1Gi"}}},
        {"metadata": {"finalizers": ["example.com/stay"]}},
    ],
    ids=["phase", "address", "another condition", "no condition less", "labels", "annotations", "finalizers"],
)
def test_it_may_change_nothing_else_of_a_pod(allowed: Cluster, body: Json) -> None:
    allowed.node("one")
    allowed.pod("one", "disabled", DISABLED)
    as_kubelet(allowed, "disabled", phase="Running", conditions=[KUBELETS])
    token = allowed.cp.token(NAMESPACE, ACCOUNT)
    code, answer = allowed.cp.request("PATCH", f"{PODS}/disabled/status", body, token=token, content_type=STRATEGIC)
    assert code == 403, answer
    assert "swapwarden-controller-pods" in answer["message"]


def test_it_may_write_no_pod_itself(allowed: Cluster) -> None:
    allowed.node("one")
    allowed.pod("one", "disabled", DISABLED)
    token = allowed.cp.token(NAMESPACE, ACCOUNT)
    code, answer = allowed.cp.request("PATCH", f"{PODS}/disabled", {"metadata": {"labels": {"a": "b"}}}, token=token)
    assert code == 403
    assert "cannot patch" in answer["message"]
