"""A pod as it is planned: the input of all texts about it."""

from __future__ import annotations

import msgspec

from swapwarden.api import names, quantity
from swapwarden.cli.kubectl.cluster import workloads
from swapwarden.policy import plan
from swapwarden.policy.observed import namespaces, nodes, pods
from swapwarden.policy.observed.pods import WirePod, WirePodStatus
from swapwarden.policy.profile import compiled


class PlannedPod(msgspec.Struct, frozen=True):
    """A pod that is planned, and how."""

    pod: WirePod
    row: pods.PodRow
    profile: compiled.Profile
    chosen: str
    """How the profile was chosen."""
    facts: nodes.NodeFacts
    reported: bool
    """Whether the facts are an agent's."""
    trace: plan.Trace
    others: tuple[pods.PodRow, ...] = ()
    """The other pods of the node; empty if they were not read."""
    known: namespaces.Labels = {}
    """Labels of the pod's namespace, if they were read."""

    def recreated(self, pod: WirePod) -> PlannedPod:
        """Plan POD in this one's place once it is created: its template counts, its status does not."""
        bare = msgspec.structs.replace(pod, status=WirePodStatus())
        return self._planned(pod=bare, row=msgspec.structs.replace(pods.project(bare), node=self.row.node))

    def with_profile(self, **fields: object) -> PlannedPod:
        """Plan under the profile with other FIELDS."""
        return self._planned(profile=msgspec.structs.replace(self.profile, **fields))

    def with_swap(self, **fields: object) -> PlannedPod:
        """Plan under the profile with other FIELDS of its swap settings."""
        return self.with_profile(swap=msgspec.structs.replace(self.profile.swap, **fields))

    def on(self, facts: nodes.NodeFacts) -> PlannedPod:
        """Plan on a node with these facts."""
        return self._planned(facts=facts)

    def _planned(self, **fields: object) -> PlannedPod:
        changed = msgspec.structs.replace(self, **fields)
        trace = plan.trace_pod(changed.profile, changed.facts, changed.row, changed.others, changed.known)
        return msgspec.structs.replace(changed, trace=trace)

    @property
    def override(self) -> compiled.Override | None:
        """Return the override that selects the pod."""
        return None if self.trace.override is None else self.profile.overrides[self.trace.override]

    @property
    def override_name(self) -> str:
        """Return its name for messages: overrides[caches]."""
        return f"overrides[{self.override.name if self.override else ''}]"

    @property
    def has_whole_limit(self) -> bool:
        """Whether there is a limit on the pod as a whole under WorkloadControlled, its own or an override's."""
        named = self.override is not None and self.override.swap.limit is not None
        return self.row.swap_limit is not None or (named and not self.row.limited())

    @property
    def where(self) -> str:
        """Return the place where annotations of the pod are written."""
        if self.pod.is_mirror:
            return f"the pod's file on {self.row.node}"
        workload = workloads.guess(self.pod)
        return f"the pod template of {workload}" if workload else "the pod, recreated"


def own_limit(one: pods.ContainerRow) -> int | None:
    """Return a container's own limit in bytes: of its annotation and what it asks of the resource the smaller."""
    stated = [] if one.swap_limit is None else [quantity.capped(one.swap_limit)]
    stated += [] if one.swap_resource is None else [one.swap_resource]
    return min(stated, default=None)


def wrong_limits(row: pods.PodRow) -> list[tuple[str, str]]:
    """Return annotations for limits that are no quantity, with their values."""
    stated = [(names.LIMIT_ANNOTATION, row.swap_limit)]
    stated += [(names.CONTAINER_LIMIT_PREFIX + one.name, one.swap_limit) for one in row.containers]
    return [(key, value) for key, value in stated if value is not None and not quantity.is_quantity(value)]
