"""Takes reports of watches, writers and rollouts into the inventory and the planner, and returns the due nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, NoReturn

from swapwarden.api import state
from swapwarden.policy.fleet.inventory import NodeInventory
from swapwarden.policy.fleet.progress import Overdue, end_of, leaving, rollout_of, selections
from swapwarden.policy.fleet.view import Admissions, Planner
from swapwarden.policy.observed import namespaces, nodes, pods
from swapwarden.policy.observed.states import StateRow
from swapwarden.policy.profile import compiled

COALESCE_SECONDS: Final = 0.025
"""How long changes of a node's pods are gathered before a write: etcd stores the whole object with each write."""
PATIENT_SECONDS: Final = 1.0
"""Delay of a write if only containers of a pod started or ended: the pod's own limit holds already, and its containers
start one after the other."""


class Due(NamedTuple):
    """A node to reconcile."""

    node: str
    delay: float = COALESCE_SECONDS
    """How long the write may wait for further changes, in seconds."""
    urgent: bool = False
    """Whether it precedes others that are due."""
    owner: str = ""
    """The namespace whose pods need it; empty if no pod does."""


class Changes(NamedTuple):
    """The work that follows from a change."""

    due: tuple[Due, ...] = ()
    profiles: bool = False
    """Whether reports of agents, or the nodes that profiles select, may have changed."""

    def __bool__(self) -> NoReturn:
        raise TypeError("changes must be applied: they have no truth value")


class Cluster:
    """The inventory and the planner of one process."""

    def __init__(self, *, agent_pods: str | None = None) -> None:
        """Agents are pods in the namespace `agent_pods`, or run outside of pods if that is None."""
        self.inventory: Final = NodeInventory(agent_pods=agent_pods)
        self.planner: Final = Planner(self.inventory)

    def node_changed(self, name: str, new: nodes.NodeRow | None) -> Changes:
        """Take in a changed or deleted (None) Node; return the nodes that are due."""
        self.inventory.put_node(name, new)
        self.planner.node_changed(name)
        # Also a deleted Node: all memory of it must be dropped.
        return Changes((Due(name),), profiles=True)

    def pod_changed(self, key: str, old: pods.PodRow | None, new: pods.PodRow | None) -> Changes:
        """Take in a changed or deleted (None) Pod; return the nodes that are due. `key` is its namespace and name."""
        due = []
        if old is not None and old.node and (new is None or new.node != old.node):
            self.inventory.put_pod(old.node, key, None)
            due.append(Due(old.node, PATIENT_SECONDS, owner=old.namespace))
        if new is not None and new.node:
            self.inventory.put_pod(new.node, key, new)
            due.append(self._due_for(old, new))
        return Changes(tuple(due), profiles=self.inventory.agent_on(old) != self.inventory.agent_on(new))

    def _due_for(self, old: pods.PodRow | None, new: pods.PodRow) -> Due:
        urgent = self.planner.is_urgent(new) and (old is None or old.node != new.node)
        if self.inventory.is_crowded(new.node):
            # Each write moves a large object, and most of these pods never run: their creators must not occupy the
            # API server and this process with this node alone.
            return Due(new.node, PATIENT_SECONDS, urgent, new.namespace)
        if urgent:
            return Due(new.node, 0.0, urgent, new.namespace)
        # Under behavior Kubelet a container's own limit may be all that limits it.
        patient = old is not None and not new.limited() and pods.only_started(old, new)
        return Due(new.node, PATIENT_SECONDS if patient else COALESCE_SECONDS, owner=new.namespace)

    def state_changed(self, name: str, old: StateRow | None, new: StateRow | None) -> Changes:
        """Take in a changed or deleted (None) NodeSwapState; return the nodes that are due."""
        before = self.inventory.state_of(name)
        if new is not None:
            self.inventory.put_state(name, new)
        elif old is not None:
            self.inventory.lose_state(name, old.uid)
        after = self.inventory.state_of(name)
        if after is not None:
            self.planner.admissions.state_named(after)
        if after is None or before is None or _planned_from(before) != _planned_from(after):
            due = True
        else:
            awaited = self.inventory.is_awaited(name) and after.settled
            due = awaited or (after.enforced and self.planner.waits_to_show(name))
            if (before.pressure is None) != (after.pressure is None):
                due = due or self.planner.taints_pressure(name)
        return Changes((Due(name),) if due else (), profiles=True)

    def wrote(self, row: StateRow) -> Changes | None:
        """Take in the API server's answer to a write or a GET; None if it is no newer than the known state."""
        before = self.inventory.wrote_state(row)
        if before is None:
            return None
        self.planner.admissions.state_named(row)
        # Else the agent reported while the write was on its way: the written plan was made without that report.
        same = row.facts == (before.state.facts if before.state else None)
        return Changes(() if same else (Due(row.name),), profiles=True)

    def profiles_changed(
        self,
        profiles: Mapping[str, compiled.Profile],
        history: Mapping[state.ProfileRef, compiled.Profile] | None = None,
        ending: Mapping[str, compiled.Profile] | None = None,
    ) -> Changes:
        """Take in the profiles by name; `history` has their earlier generations.

        `ending` are those that are being deleted.
        """
        changed = self.planner.set_profiles(profiles, history or {}, ending or {})
        return Changes() if changed is None else Changes(_due(changed), profiles=True)

    def namespaces_known(self, known: namespaces.Labels | None) -> Changes:
        """Take in the labels of all Namespaces; None: they are unknown."""
        self.planner.namespaces = known
        if known is None:
            return Changes()
        return Changes(_due(filter(self.planner.asks_for_namespaces, self.inventory.nodes)))

    def namespace_changed(
        self, namespace: str, old: Mapping[str, str] | None, new: Mapping[str, str] | None
    ) -> Changes:
        """Take in a new, changed or deleted (None) Namespace."""
        if self.planner.namespaces is None:
            return Changes()
        return Changes(_due(self.planner.affected_by_labels(namespace, old, new), owner=namespace))

    def begin_term(self, admissions: Admissions) -> None:
        """Plan by the admissions of a term that begins."""
        self.planner.admissions = admissions

    def end_term(self) -> None:
        """Plan without admissions, until a term begins."""
        self.planner.admissions = Admissions()

    def admit(self, judged: compiled.Profile, ready: Collection[str], overdue: Overdue = frozenset()) -> Changes:
        """Let these nodes follow the profile as it was judged, if they would also be next now.

        Meanwhile the profile may have changed, or a node may have become degraded. If the profile is being deleted, the
        nodes may leave it.
        """
        if not ready:
            return Changes()
        if self.planner.ending.get(judged.name) == judged:
            progress = end_of(self.planner, judged, leaving(self.planner, judged), overdue)
            released = [name for name in progress.next if name in ready]
            self.planner.admissions.release(released, judged)
            return Changes(_due(released))
        if self.planner.profiles.get(judged.name) != judged:
            return Changes()
        members = [name for name, one in selections(self.planner) if one.profile.name == judged.name]
        progress = rollout_of(self.planner, judged, members, overdue)
        admitted = [name for name in progress.next if name in ready]
        self.planner.admissions.admit(admitted, judged)
        return Changes(_due(admitted))

    def restore(self, *, active: bool) -> Changes:
        """Begin or end that all nodes restore their original values (`active`)."""
        self.planner.restoring = active
        return Changes(_due(self.inventory.nodes, delay=0.0))

    def all_due(self) -> Changes:
        """Make all nodes due at once, first those with pods that must not swap."""
        return Changes(
            tuple(
                Due(name, 0.0, any(map(self.planner.is_urgent, self.inventory.pods_on(name))))
                for name in self.inventory.nodes
            ),
            profiles=True,
        )


def _due(names: Iterable[str], *, delay: float = COALESCE_SECONDS, owner: str = "") -> tuple[Due, ...]:
    return tuple(Due(name, delay, owner=owner) for name in names)


def _planned_from(row: StateRow) -> tuple[object, ...]:
    """Return the parts of a state by which its plan can differ from it."""
    return row.uid, row.owner, row.spec, row.facts
