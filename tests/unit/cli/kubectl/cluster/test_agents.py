from __future__ import annotations

from typing import Any

import msgspec
from swapwarden.cli.kubectl.cluster import agents
from swapwarden.policy.observed.pods import WirePod


def pod(name: str, node: str, namespace: str = "release", *, ready: bool = True, **meta: Any) -> WirePod:
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": namespace, **meta},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "agent", "ports": [{"name": "metrics", "containerPort": 9000}]}],
            },
            "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
        },
        WirePod,
    )


def test_a_ready_agent_has_precedence() -> None:
    found = agents.select_agents([pod("old", "n", ready=False), pod("new", "n"), pod("later", "n", ready=False)])
    assert found == {"n": agents.AgentPod("n", "release", "new", 9000, ready=True)}


def test_an_agent_that_is_going_is_not_ready() -> None:
    assert not agents.select_agents([pod("a", "n", deletionTimestamp="2026-01-01T00:00:00Z")])["n"].ready


def test_pods_of_others_with_the_labels_of_agents_are_not_asked() -> None:
    impostor = pod("impostor", "n", "tenant")
    assert agents.select_agents([impostor, pod("a", "n"), pod("b", "m")])["n"].name == "a"
    usual = pod("c", "n", agents.NAMESPACE)
    assert [each.name for each in agents.select_agents([impostor, pod("x", "m", "tenant"), usual]).values()] == ["c"]


def test_the_usual_port_if_none_has_the_name() -> None:
    bare = msgspec.convert({"metadata": {"name": "a"}, "spec": {"nodeName": "n"}}, WirePod)
    assert agents.select_agents([bare])["n"].port == 8082


def test_pods_without_a_node_and_no_pods() -> None:
    assert agents.select_agents([pod("a", "")]) == {}
    assert agents.select_agents([]) == {}
