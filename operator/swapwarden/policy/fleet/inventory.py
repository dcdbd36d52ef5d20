"""Rows of Nodes, Pods and NodeSwapStates, and the index from nodes to their pods."""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from swapwarden.api import names, state
from swapwarden.policy.observed import nodes, pods, states


class KnownStates(NamedTuple):
    """The NodeSwapState of one node, in the three ways in which decisions read it."""

    state: states.StateRow | None
    """The newest known state; None if there is none."""
    report: states.StateRow | None
    """The newest known state, to read its agent's report; None while an earlier Node of that name owns it. The garbage
    collector will delete that state: a report about another machine does not apply here."""
    standing: states.StateRow | None
    """The state with its agent's last report, even if that state was deleted; None if none is known. If the state was
    recreated and its agent has yet to report, it has its own profile and the agent's earlier report."""


class NodeInventory:
    """All that is known of nodes. Agents are pods in the namespace `agent_pods`; None if agents are no pods."""

    def __init__(self, *, agent_pods: str | None = None) -> None:
        self._agent_pods = agent_pods
        self.nodes: dict[str, nodes.NodeRow] = {}
        self._pods: dict[str, dict[str, pods.PodRow]] = {}
        # How many pods of a node have not ended. Counting them for each new pod would, with 100,000 on one node,
        # delay everything else for minutes.
        self._unended: collections.Counter[str] = collections.Counter()
        self._states: dict[str, states.StateRow] = {}
        # The last reports of agents, while the present states have none: with the UID of the Node, and without the
        # plan itself.
        self.last_reports: dict[str, tuple[str, states.StateRow]] = {}
        self._written: dict[str, states.StateRow] = {}

    # Reports of the watches

    def put_node(self, name: str, new: nodes.NodeRow | None) -> None:
        """Keep a Node, or forget it (None)."""
        before = self.nodes.get(name)
        if new is None:
            self.nodes.pop(name, None)
            self.last_reports.pop(name, None)
            return
        self.nodes[name] = new
        if before is None or before.uid != new.uid:
            hosted = self._pods.get(name, {})
            hosted.update({key: row.on(new.uid) for key, row in hosted.items()})

    def put_pod(self, node: str, key: str, row: pods.PodRow | None) -> None:
        """Keep a pod of a node, or forget it (None)."""
        known, hosted = self.nodes.get(node), self._pods.setdefault(node, {})
        before = hosted.get(key)
        if row is not None:
            hosted[key] = row.on(known.uid) if known is not None else row
        else:
            hosted.pop(key, None)
        self._unended[node] += _has_not_ended(row) - _has_not_ended(before)
        if not hosted:
            del self._pods[node], self._unended[node]

    def put_state(self, name: str, new: states.StateRow) -> None:
        """Take in a state that the watch reports."""
        last = self.known(name).standing
        self._states[name] = new
        if name in self._written and new.version >= self._written[name].version:
            del self._written[name]
        self._keep(name, last)

    def lose_state(self, name: str, uid: str) -> None:
        """Forget the node's deleted state with this uid. One that was made since stays."""
        last = self.known(name).standing
        for known in (self._states, self._written):
            if name in known and known[name].uid == uid:
                del known[name]
        self._keep(name, last)

    # Writes of this controller

    def wrote_state(self, row: states.StateRow) -> KnownStates | None:
        """Take in the API server's answer to a write or a GET; return the previous state, None if it is no older."""
        before = self.known(row.name)
        if before.state is not None and row.version <= before.state.version:
            return None
        self._written[row.name] = row
        self._keep(row.name, before.standing)
        return before

    def labelled(self, before: nodes.NodeRow, labels: Mapping[str, str | None]) -> None:
        """Note that this controller set or removed (None) these labels of a Node, ahead of the watch.

        The write was decided from the row `before`. If the watch has reported another row meanwhile, that one counts:
        it may be newer than the answer, and would not be reported again.
        """
        merged = {key: value for key, value in {**before.labels, **labels}.items() if value is not None}
        self.rewrote(before, labels=merged)

    def rewrote(self, before: nodes.NodeRow, **fields: Any) -> None:
        """Note that a Node has these fields of its row after a write of this controller; as in labelled()."""
        if self.nodes.get(before.name) is before:
            self.nodes[before.name] = msgspec.structs.replace(before, **fields)

    # Questions

    def state_of(self, name: str) -> states.StateRow | None:
        """Return the newest known state of a node."""
        return self._written.get(name) or self._states.get(name)

    def known(self, name: str) -> KnownStates:
        """Return a node's state in the three ways in which decisions read it."""
        node, row = self.nodes.get(name), self._written.get(name) or self._states.get(name)
        report = row if node is not None and row is not None and row.owner in {"", node.uid} else None
        uid, last = self.last_reports.get(name, ("", None))
        if node is None or last is None or uid != node.uid:
            return KnownStates(row, report, report)
        if report is None:
            return KnownStates(row, None, last)
        facts = report.facts if report.facts is not None else last.facts
        if report.observed:
            return KnownStates(row, report, msgspec.structs.replace(report, facts=facts))
        asked = {"profile": report.profile, "before": report.before, "preview": report.preview}
        standing = msgspec.structs.replace(last, **asked, facts=facts, generation=last.observed + 1)
        return KnownStates(row, report, standing)

    def report_of(self, name: str) -> states.StateRow | None:
        """Return a node's state, to read its agent's report; see KnownStates."""
        return self.known(name).report

    def _keep(self, name: str, last: states.StateRow | None) -> None:
        """Keep the report of a node's former state until its agent has reported again."""
        row, node = self.report_of(name), self.nodes.get(name)
        anew = row is not None and row.observed and row.facts is not None
        if anew or node is None or last is None or not (last.observed or last.facts is not None):
            self.last_reports.pop(name, None)
        else:
            self.last_reports[name] = node.uid, msgspec.structs.replace(last, spec=b"")

    def naming(self, name: str) -> states.StateRow | None:
        """Return the state that names the profile a node follows, even if it was deleted; None if there is none."""
        known = self.known(name)
        return known.state or known.standing

    def pods_on(self, name: str) -> Collection[pods.PodRow]:
        """Return the pods of a node, ended ones included."""
        return self._pods.get(name, {}).values()

    def hosting(self, namespace: str) -> list[str]:
        """Return the known nodes with pods of a namespace."""
        return [
            name
            for name, hosted in self._pods.items()
            if name in self.nodes and any(row.namespace == namespace for row in hosted.values())
        ]

    def is_crowded(self, node: str) -> bool:
        """Return whether there are more pods than a state has room for; those that ended need none."""
        return self._unended[node] > state.MAX_PODS

    def is_awaited(self, name: str) -> bool:
        """Return whether a node carries the startup taint: pods wait for its agent."""
        node = self.nodes.get(name)
        return node is not None and node.place(names.STARTUP_TAINT) is not None

    def has_agent(self, name: str) -> bool:
        """Return whether an agent works on a node: its pod is Ready; outside of pods, it has reported."""
        if self._agent_pods is not None:
            return any(row.agent and row.namespace == self._agent_pods for row in self.pods_on(name))
        row = self.report_of(name)
        return row is not None and row.observed > 0

    def agent_on(self, row: pods.PodRow | None) -> str:
        """Return the node that a pod is a Ready agent on; empty if it is none."""
        return row.node if row is not None and row.agent and row.namespace == self._agent_pods else ""

    def largest_epoch(self) -> int:
        """Return the largest leadership term in any state; 0 if there is none."""
        return max((row.epoch for known in (self._states, self._written) for row in known.values()), default=0)


def _has_not_ended(row: pods.PodRow | None) -> bool:
    return row is not None and not row.terminal
