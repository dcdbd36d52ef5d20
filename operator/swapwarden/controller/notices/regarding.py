"""The objects that notices are about."""

from __future__ import annotations

from swapwarden.api import names
from swapwarden.kube.events import Regarding
from swapwarden.policy.observed import nodes, pods


def pod(row: pods.PodRow) -> Regarding:
    """Return the reference to a pod; of a static one, to its mirror."""
    return Regarding("v1", "Pod", row.namespace, row.name, row.uid)


def node(row: nodes.NodeRow) -> Regarding:
    """Return the reference to a Node."""
    return Regarding("v1", "Node", "", row.name, row.uid)


def profile(name: str, uid: str) -> Regarding:
    """Return the reference to a NodeSwapProfile."""
    return Regarding(names.API_VERSION, names.PROFILE_KIND, "", name, uid)
