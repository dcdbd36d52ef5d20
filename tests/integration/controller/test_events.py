"""Events of nodes and pods, where people look for them: in the output of kubectl describe for them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Eventually
from tests.integration.controller.cluster import STATES, Cluster

pytestmark = pytest.mark.usefixtures("controller")


DISABLED = {"swapwarden.dev/swap-policy": "Disabled"}
LIMIT = {"swapwarden.dev/swap-limit": "64Mi"}
SAID = "so it is"


def described(cluster: Cluster, kind: str, name: str) -> dict[str, str]:
    """By reason, the rest of each line below Events that is the controller's: source and message."""
    text = cluster.cp.kubectl("describe", kind, name).stdout.partition("\nEvents:")[2]
    lines = [line.split(maxsplit=3) for line in text.splitlines() if "swapwarden-controller" in line]
    return {reason: f"{type_} {message}" for type_, reason, _, message in lines}


def report(cluster: Cluster, node: str, *violations: dict[str, Any]) -> None:
    """Be the node's agent, and report these in place of its earlier ones."""
    code, answer = cluster.cp.request("PATCH", f"{STATES}/{node}/status", {"status": {"violations": violations}})
    assert code == 200, answer


def condition(kind: str, status: str, reason: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": SAID}


def test_a_node_has_events_about_problems_that_its_agent_finds(cluster: Cluster, eventually: Eventually) -> None:
    cluster.node("told")
    eventually(lambda: cluster.state("told"), "its state")
    cluster.report("told", condition("Drifted", "False", "Quiet"), condition("Degraded", "False", "AsExpected"))
    assert described(cluster, "node", "told") == {}
    amiss = [
        condition("Compatible", "False", "NoCgroupV2"),
        condition("Degraded", "True", "Polling"),
        condition("Drifted", "True", "OtherWriter"),
        condition("SettingsApplied", "False", "NotSupported"),
        condition("StrictInEffect", "False", "NotInForce"),
        condition("KubeletWillNotStart", "True", "FailSwapOn"),
    ]
    cluster.report("told", *amiss)
    expected = {
        "SwapIncompatible": "NoCgroupV2",
        "SwapDegraded": "Polling",
        "SwapLimitsContested": "OtherWriter",
        "SwapSettingsNotAsSpecified": "NotSupported",
        "SwapGuaranteeNotAsSpecified": "NotInForce",
        "KubeletWillNotStart": "FailSwapOn",
    }
    eventually(lambda: described(cluster, "node", "told").keys() == expected.keys(), "all of it")
    for reason, line in described(cluster, "node", "told").items():
        assert line.startswith("Warning swapwarden-controller")
        assert line.endswith(f"{expected[reason]}: {SAID}")


def test_a_pod_has_events_when_its_limit_does_not_hold_and_when_it_does(
    cluster: Cluster, eventually: Eventually
) -> None:
    cluster.node("home")
    uid = cluster.pod("home", "mine", DISABLED)["metadata"]["uid"]
    cluster.pod("home", "another", DISABLED)
    eventually(lambda: uid in cluster.spec("home").get("pods", {}), "the plan")
    cluster.report("home")
    for reason, event in (
        ("Draining", "SwapDraining"),
        ("WriteFailed", "SwapLimitNotWritten"),
        ("Yielded", "SwapLimitContested"),
    ):
        report(cluster, "home", {"pod": uid, "reason": reason, "desired": "0", "swapBytes": 4096})
        eventually(lambda event=event: event in described(cluster, "pod", "mine"), event)  # type: ignore[misc]  # mypy knows no lambda with a default
    exposed = {"pod": uid, "desired": "0", "swapBytes": 4096, "milliseconds": 7, "causes": ["OtherWriter"]}
    status = {"violations": None, "exposures": [{**exposed, "since": "2026-01-01T00:00:00.000000Z"}]}
    assert cluster.cp.request("PATCH", f"{STATES}/home/status", {"status": status})[0] == 200
    eventually(lambda: "SwappedAgainstPolicy" in described(cluster, "pod", "mine"), "that it swapped")
    stuck = {"pod": uid, "high": "4096", "since": "2026-01-01T00:00:00Z", "trips": 1, "guard": "Released"}
    assert cluster.cp.request("PATCH", f"{STATES}/home/status", {"status": {"throttled": [stuck]}})[0] == 200
    eventually(lambda: "StuckAtMemoryHigh" in described(cluster, "pod", "mine"), "that it stood still")
    found = described(cluster, "pod", "mine")
    assert found["SwapDrained"].startswith("Normal swapwarden-controller")
    assert "4096 bytes of this pod, which must not swap, went to swap on node home" in found["SwappedAgainstPolicy"]
    assert "(OtherWriter), for 7 ms" in found["SwappedAgainstPolicy"]
    assert len(found) == 6
    assert described(cluster, "pod", "another") == {}


def test_a_pod_has_an_event_with_the_reason_why_its_settings_have_no_effect(
    cluster: Cluster, eventually: Eventually
) -> None:
    for node, spec in (("limited", {"behavior": "LimitedSwap"}), ("none", {"behavior": "NoSwap"})):
        cluster.node(node)
        cluster.profile(node, {"group": node}, swap=spec)
    cluster.node("audited")
    cluster.profile("audited", {"group": "audited"}, mode="Audit", swap={"behavior": "NoSwap"})
    cluster.pod("limited", "besteffort", LIMIT)
    cluster.pod("none", "without", LIMIT)
    cluster.pod("audited", "disabled", DISABLED)
    cluster.pod("audited", "asking", LIMIT)
    cluster.pod("audited", "plain")
    for pod, reason, message in (
        ("besteffort", "QoSNotEligible", "this pod is BestEffort: its swap limit has no effect"),
        ("without", "ProfileNoSwap", "profile none gives no swap to pods on node none"),
        ("disabled", "Audit", "profile audited is in mode Audit on node audited: nothing is written"),
        ("asking", "Audit", "the swap policy and limits of this pod are not in force"),
    ):
        eventually(lambda pod=pod: described(cluster, "pod", pod), pod)  # type: ignore[misc]  # mypy knows no lambda with a default
        [(found, line)] = described(cluster, "pod", pod).items()
        assert (found, message in line) == (reason, True)
    assert described(cluster, "pod", "plain") == {}
