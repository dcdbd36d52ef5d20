"""Nodes and pods as commands that judge a cluster as a whole meet them."""

from __future__ import annotations

from tests.integration.cli.conftest import GIB, Cluster, healthy


def add_node(
    cluster: Cluster, short: str, behavior: str = "NoSwap", swap: int = GIB, labels: dict[str, str] | None = None
) -> str:
    """A node with swap, whose agent follows the built-in profile and knows the kubelet's configuration."""
    cluster.node(short, labels, swap=swap)
    status = healthy("(built-in)", swap)
    status["profileRef"]["generation"] = 0
    status["facts"]["kubelet"] = {"swapBehavior": behavior}
    cluster.state(short, {"profileRef": {"name": "(built-in)"}, "epoch": 1}, status)
    return cluster.name(short)


def add_pod(
    cluster: Cluster,
    name: str,
    node: str,
    limit: str = "",
    namespace: str = "",
    annotations: dict[str, str] | None = None,
) -> None:
    """A Burstable pod on a node; LIMIT is its swap limit."""
    resources = {"requests": {"memory": "1Gi"}}
    limited = {"swapwarden.dev/swap-limit": limit} if limit else {}
    body = {
        "metadata": {"name": name, "annotations": {**limited, **(annotations or {})}, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "app", "image": "none", "resources": resources}],
            "automountServiceAccountToken": False,
        },
    }
    cluster.control_plane.create(f"/api/v1/namespaces/{namespace or cluster.namespace}/pods", body)
