from __future__ import annotations

from swapwarden.cli.kubectl.cluster import agents, snapshot


def agent(namespace: str, node: str) -> snapshot.ComponentPod:
    return snapshot.ComponentPod(snapshot.AGENT, namespace, f"agent-{node}", node, ready=True)


def test_pods_of_a_tenant_with_the_labels_of_agents_do_not_become_the_agents() -> None:
    impostors = [agent("tenant", "one"), agent("tenant", "two")]
    assert snapshot.ClusterSnapshot(parts=[*impostors, agent(agents.NAMESPACE, "one")]).agent_namespace() == (
        agents.NAMESPACE
    )
    assert snapshot.ClusterSnapshot(parts=[*impostors, agent("release", "one")]).agent_namespace() == "tenant"
    assert snapshot.ClusterSnapshot().agent_namespace() is None
