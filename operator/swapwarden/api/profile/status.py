"""NodeSwapProfile.status: what the controller reports of a profile."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from swapwarden.api import conditions, rules

Count = Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)]
"""An int32, as counts are in the API of Kubernetes."""


class ProfileCondition(rules.Model):
    """A condition in the form of metav1.Condition."""

    type: str = pydantic.Field(max_length=316, pattern=conditions.TYPE_PATTERN)
    """Ready, Progressing, Conflicted, Degraded or RequirementsMet."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    reason: str = pydantic.Field(min_length=1, max_length=1024, pattern=conditions.REASON_PATTERN)
    """One word for programs."""
    message: str = pydantic.Field(max_length=32768)
    """A sentence for people."""
    last_transition_time: str = pydantic.Field(json_schema_extra={"format": "date-time"})
    """When status last changed."""
    observed_generation: int = pydantic.Field(default=0, ge=0)
    """Generation of the spec this is about."""


class NodeCounts(rules.Model):
    """How many nodes are in which state under this profile."""

    matched: Count = 0
    """Nodes that this profile governs."""
    updated: Count = 0
    """Matched nodes whose plan is made from this generation."""
    applied: Count = 0
    """Matched nodes whose agent applied the newest plan."""
    pending: Count = 0
    """Matched nodes whose agent has yet to apply the newest plan."""
    incompatible: Count = 0
    """Matched nodes without cgroup v2 or its swap controller: nothing is enforced."""
    without_agent: Count = 0
    """Matched nodes without a Ready agent, whatever an earlier agent reported."""
    degraded: Count = 0
    """Matched nodes whose agent reports a problem, or for which settings of the profile are unsafe; another count also
    includes them."""
    requirements_unmet: Count = 0
    """Matched nodes with swap that do not meet a requirement; another count also includes them."""


class PendingReclaim(rules.Model):
    """Swap that pods use above what the newest generation gives them, on nodes that do not have it yet."""

    nodes: Count = 0
    """Nodes with such pods."""
    pods: Count = 0
    """Pods."""
    bytes: int = pydantic.Field(default=0, ge=0)
    """Bytes."""


class ProfileStatus(rules.Model):
    """The controller's report about a profile."""

    observed_generation: int = pydantic.Field(default=0, ge=0)
    """Generation of the spec this status is about."""
    applied_generation: int = pydantic.Field(default=0, ge=0)
    """Newest generation of the spec that all nodes have applied at one moment."""
    pending_reclaim: PendingReclaim = PendingReclaim()
    """Swap in use that the newest generation has yet to take from pods."""
    nodes: NodeCounts = NodeCounts()
    """Counts of nodes: each is applied, pending, incompatible or without an agent."""
    conditions: Annotated[list[ProfileCondition], pydantic.Field(max_length=16)] = pydantic.Field(
        default=[], json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    )
    """Ready, Progressing, Conflicted, Degraded; RequirementsMet if the profile has requirements."""
