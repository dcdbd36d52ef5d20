"""The objects that notices are about."""

from __future__ import annotations

from swapwarden.api import names
from swapwarden.kube.events import Regarding
from swapwarden.policy.observed import nodes, pods


def pod(row: pods.PodRow) -> Regarding:
    """A pod; of a static one, its mirror."""
    return Regarding("v1", "Pod", row.namespace, row.name, row.uid)


def node(row: nodes.NodeRow) -> Regarding:
    """A Node."""
    return Regarding("v1", "Node", "", row.name, row.uid)


def profile(name: str, uid: str) -> Regarding:
    """A NodeSwapProfile."""
    return Regarding(names.API_VERSION, names.PROFILE_KIND, "", name, uid)
