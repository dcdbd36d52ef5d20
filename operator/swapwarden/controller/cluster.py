"""What is known of the cluster, and what follows from it for each node. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from swapwarden.api import names, state
from swapwarden.controller import rows
from swapwarden.policy import nodes, plan, pods, profiles, swap

COALESCE_SECONDS: Final = 0.025
"""How long changes of a node's pods gather before they are written: etcd stores the whole object with each write."""


class Governed(msgspec.Struct, frozen=True):
    """A node that a profile governs, and how far it is with it."""

    node: str
    applied: bool
    """Whether its agent says that the cgroups hold a plan by this generation of the profile."""
    degraded: str
    """What its agent says is wrong; empty where nothing is."""


class Cluster:
    """Rows of Nodes, Pods, states and profiles, and the index from nodes to their pods.

    `dirty(node, delay)` is called when the plan of a node may have become another, to look at in `delay` seconds;
    `reported()` when what agents or selections say of profiles may have.
    """

    def __init__(self, dirty: Callable[[str, float], None], reported: Callable[[], None]) -> None:
        self._dirty = dirty
        self._reported = reported
        self.restoring = False
        """Whether all nodes are to put back what was there, instead of their plans."""
        self.nodes: dict[str, nodes.NodeRow] = {}
        self._pods: dict[str, dict[str, pods.PodRow]] = {}
        self._states: dict[str, rows.StateRow] = {}
        self._written: dict[str, rows.StateRow] = {}
        self._profiles: dict[str, profiles.Profile] = {}
        self._selections: dict[str, profiles.Selection] = {}
        # Since which generation of its state a node's plan names the profile that it names now.
        self._since: dict[str, int] = {}

    # What the watches say

    def node_changed(self, name: str, _: nodes.NodeRow | None, new: nodes.NodeRow | None) -> None:
        """A Node is another now, or gone (None)."""
        self._selections.pop(name, None)
        if new is None:
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = new
        # One that is gone, too: what was remembered of it must go with it.
        self._dirty(name, COALESCE_SECONDS)
        self._reported()

    def pod_changed(self, key: str, old: pods.PodRow | None, new: pods.PodRow | None) -> None:
        """A Pod is another now, or gone (None); `key` is its namespace and name."""
        if old is not None and old.node and (new is None or new.node != old.node):
            self._pods[old.node].pop(key, None)
            if not self._pods[old.node]:
                del self._pods[old.node]
            self._dirty(old.node, COALESCE_SECONDS)
        if new is not None and new.node:
            self._pods.setdefault(new.node, {})[key] = new
            self._dirty(new.node, 0.0 if _is_urgent(new) else COALESCE_SECONDS)

    def state_changed(self, name: str, old: rows.StateRow | None, new: rows.StateRow | None) -> None:
        """A NodeSwapState is another now, or gone (None)."""
        before = self.state_of(name)
        if new is None:
            if old is not None:
                self.lost(name, old.uid)
        else:
            self._states[name] = new
            if name in self._written and new.version >= self._written[name].version:
                del self._written[name]
        after = self.state_of(name)
        self._note(name, before, after)
        awaited = self.is_awaited(name) and after is not None and after.settled
        if after is None or before is None or _planned_from(before) != _planned_from(after) or awaited:
            self._dirty(name, COALESCE_SECONDS)

    def profiles_changed(self, found: Mapping[str, profiles.Profile]) -> None:
        """These are the profiles now, by name."""
        if found == self._profiles:
            return
        self._profiles = dict(found)
        before, self._selections = self._selections, {}
        for name in self.nodes:
            if name not in before or before[name].profile != self.selection(name).profile:
                self._dirty(name, COALESCE_SECONDS)
        self._reported()

    # What this controller did

    def wrote(self, row: rows.StateRow) -> bool:
        """The API server's answer to a write, or to a GET; whether it is newer than what was known."""
        before = self.state_of(row.name)
        if before is not None and row.version <= before.version:
            return False
        self._written[row.name] = row
        self._note(row.name, before, row)
        return True

    def labelled(self, name: str, uid: str, labels: Mapping[str, str | None]) -> None:
        """This controller set these labels of a Node, or took them away (None); the watch is yet to tell."""
        node = self.nodes.get(name)
        if node is not None and node.uid == uid:
            merged = {key: value for key, value in {**node.labels, **labels}.items() if value is not None}
            self.nodes[name] = msgspec.structs.replace(node, labels=merged)

    def lost(self, name: str, uid: str) -> None:
        """The node's state with this uid is gone. One that was made since, of which the watch is yet to tell, stays."""
        for known in (self._states, self._written):
            if name in known and known[name].uid == uid:
                del known[name]
        if self.state_of(name) is None:
            self._since.pop(name, None)

    def _note(self, name: str, before: rows.StateRow | None, after: rows.StateRow | None) -> None:
        if after is not None and (before is None or before.uid != after.uid or before.profile != after.profile):
            self._since[name] = after.generation
        self._reported()

    # What follows

    def state_of(self, name: str) -> rows.StateRow | None:
        """The newest that is known of a node's state."""
        return self._written.get(name) or self._states.get(name)

    def is_awaited(self, name: str) -> bool:
        """Whether a node carries the startup taint: pods wait for its agent."""
        node = self.nodes.get(name)
        return node is not None and node.startup_taint is not None

    def largest_epoch(self) -> int:
        """The largest leadership term in any state; 0 where there is none."""
        return max((row.epoch for known in (self._states, self._written) for row in known.values()), default=0)

    def pods_on(self, name: str) -> Iterable[pods.PodRow]:
        """The pods of a node, ended ones included."""
        return self._pods.get(name, {}).values()

    def facts(self, name: str) -> nodes.NodeFacts:
        """What decisions about a known node are made from."""
        row = self.state_of(name)
        return nodes.facts(self.nodes[name], row.facts if row else None)

    def selection(self, name: str) -> profiles.Selection:
        """The profile that governs a known node."""
        found = self._selections.get(name)
        if found is None:
            found = self._selections[name] = profiles.select(self._profiles.values(), self.nodes[name].labels)
        return found

    def plan(self, name: str) -> state.StateSpec:
        """What a known node's state should say; the epoch is left at 0."""
        profile = self.selection(name).profile
        if self.restoring:
            return plan.restore_node(profile)
        return plan.plan_node(profile, self.facts(name), self.pods_on(name))

    def governed(self) -> Iterator[tuple[profiles.Selection, Governed]]:
        """Yield each node that a profile governs, the built-in one left out."""
        for name in self.nodes:
            selection = self.selection(name)
            if selection.profile.name == names.BUILT_IN_PROFILE:
                continue
            row = self.state_of(name)
            planned = row is not None and row.profile == plan.reference(selection.profile)
            applied = planned and row is not None and row.applied and row.observed >= self._since.get(name, 0)
            yield selection, Governed(name, applied=applied, degraded=row.degraded if row else "")


def _is_urgent(row: pods.PodRow) -> bool:
    """Whether the pod must not wait for others: each moment it could swap although it may not."""
    return swap.forbids_swap(row.policy)


def _planned_from(row: rows.StateRow) -> tuple[object, ...]:
    """The part of a state that a difference between plan and state can come from."""
    return row.uid, row.owner, row.spec, row.facts
