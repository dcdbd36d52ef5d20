"""The pods of a node under memory pressure: what each may use, and what forbids to evict it."""

from __future__ import annotations

from typing import Final

import msgspec

from swapwarden.api import names, state
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.observed.pods import WirePod
from swapwarden.policy.swap import limits

SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""The annotation by whose value false a pod's owner forbids evictions for the sake of the node."""
GRACE_SECONDS: Final = 30
"""The API server's default of terminationGracePeriodSeconds."""


class Candidate(msgspec.Struct, frozen=True):
    """A pod that has not ended. Sizes in bytes."""

    key: str
    """The UID in the name of its cgroup."""
    uid: str
    namespace: str
    name: str
    priority: int = 0
    request: int = 0
    """The memory that it requests, with its overhead."""
    swap: int = 0
    """The swap that it may use."""
    running: bool = True
    ending: bool = False
    """Whether it was deleted, and its containers may still run."""
    static: bool = False
    """Whether it is the mirror of a static pod. A kubelet runs none that only pretends to be one, whereas any pod may
    carry the annotation with its source."""
    critical: bool = False
    controller: str = ""
    """The kind of its controller, which replaces it; empty without one."""
    kept: bool = False
    """Whether its owner forbids evictions, by SAFE_TO_EVICT."""
    grace: int = GRACE_SECONDS
    """How many seconds it may take to end."""

    @property
    def grant(self) -> int:
        """Return the memory and swap within which it is never chosen."""
        return self.request + self.swap


def read(
    wire: WirePod, facts: nodes.NodeFacts, node_uid: str, planned: dict[str, state.PodSettings]
) -> Candidate | None:
    """Return a pod of the node; None if it has ended. QuantityError if a resource is no quantity.

    `planned` are the pods of its state.
    """
    row = pods.project(wire).on(node_uid)
    if row.terminal:
        return None
    grace = wire.spec.termination_grace_period_seconds
    return Candidate(
        key=row.key,
        uid=row.uid,
        namespace=row.namespace,
        name=row.name,
        priority=wire.spec.priority or 0,
        request=pods.pod_request(row),
        swap=accessible_swap(row, facts, planned.get(row.key)),
        running=wire.status.phase == "Running",
        ending=row.ending,
        static=names.CONFIG_MIRROR_ANNOTATION in wire.metadata.annotations,
        critical=row.critical,
        controller=next((one.kind for one in wire.metadata.owner_references if one.controller), ""),
        kept=wire.metadata.annotations.get(SAFE_TO_EVICT) == "false",
        grace=GRACE_SECONDS if grace is None else grace,
    )


def accessible_swap(row: pods.PodRow, facts: nodes.NodeFacts, planned: state.PodSettings | None) -> int:
    """Return the swap that a pod may use, in bytes.

    It is the pod's own number in the plan, else the sum of its containers'. Where the plan leaves a container to the
    kubelet, or without a limit, it is what LimitedSwap gives for its request: else such a pod would never exceed.
    """
    if not facts.compatible:
        return 0
    whole = state.PodSettings() if planned is None else planned
    if (own := _number(whole.swap_max)) is not None:
        return min(own, facts.swap_bytes)
    containers = resources.peak((one.kind, _of_container(one, facts, whole)) for one in row.containers)
    top = _number(whole.swap_at_most)
    return min(facts.swap_bytes, containers if top is None else min(containers, top))


def _of_container(one: pods.ContainerRow, facts: nodes.NodeFacts, planned: state.PodSettings) -> int:
    own = planned.containers.get(one.name) or planned.container_default or state.ContainerDefault()
    if (exact := _number(own.swap_max)) is not None:
        return exact
    usual = limits.container_swap(one.request, one.limit, facts.memory_bytes, facts.swap_bytes)
    top = _number(own.swap_at_most)
    return usual if top is None else min(usual, top)


def _number(limit: str | None) -> int | None:
    """Return bytes; None without a limit."""
    return None if limit is None or limit == names.MAX_SWAP else int(limit)
