"""A pod as it is planned: what the words about it are made from."""

from __future__ import annotations

import msgspec

from swapwarden.api import names
from swapwarden.cli.kubectl import workloads
from swapwarden.policy import nodes, plan, pods, profiles, quantity


class Planned(msgspec.Struct, frozen=True):
    """A pod that is planned, and how."""

    pod: workloads.Pod
    row: pods.PodRow
    profile: profiles.Profile
    chosen: str
    """How the profile was chosen."""
    facts: nodes.NodeFacts
    reported: bool
    """Whether the facts are an agent's."""
    trace: plan.Trace

    @property
    def override(self) -> profiles.Override | None:
        """The override that selects the pod."""
        return None if self.trace.override is None else self.profile.overrides[self.trace.override]

    @property
    def override_name(self) -> str:
        """As it is found in the profile: overrides[1]."""
        return f"overrides[{self.trace.override}]"

    @property
    def has_whole_limit(self) -> bool:
        """Whether there is a limit on the pod as a whole under WorkloadControlled, its own or an override's."""
        named = self.override is not None and self.override.swap_limit is not None
        return self.row.swap_limit is not None or (named and not self.row.limited())

    @property
    def where(self) -> str:
        """Where annotations of the pod are written."""
        if self.pod.is_mirror:
            return f"the pod's file on {self.row.node}"
        workload = workloads.guess(self.pod)
        return f"the pod template of {workload}" if workload else "the pod, made anew"

    @property
    def edit(self) -> str:
        """The command that changes the profile."""
        return f"kubectl edit nodeswapprofile {self.profile.name}"


def own_limit(one: pods.ContainerRow) -> int | None:
    """A container's own limit in bytes: of its annotation and what it asks of the resource the smaller."""
    stated = [] if one.swap_limit is None else [quantity.capped(one.swap_limit)]
    stated += [] if one.swap_resource is None else [one.swap_resource]
    return min(stated, default=None)


def wrong_limits(row: pods.PodRow) -> list[tuple[str, str]]:
    """Annotations for limits that are no quantity, with their values."""
    stated = [(names.LIMIT_ANNOTATION, row.swap_limit)]
    stated += [(names.CONTAINER_LIMIT_PREFIX + one.name, one.swap_limit) for one in row.containers]
    return [(key, value) for key, value in stated if value is not None and not quantity.is_quantity(value)]
