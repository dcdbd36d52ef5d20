"""Publishes node labels for one term: on the Nodes, or by NodeFeatures for Node Feature Discovery."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from swapwarden.controller.term import Outcome, outcome
from swapwarden.controller.watches import node_features
from swapwarden.controller.writers import nodes as node_writer
from swapwarden.controller.writers.fenced import Fenced, Writes, owned_by, unless_superseded
from swapwarden.kube import errors
from swapwarden.policy.fleet.inventory import NodeInventory
from swapwarden.policy.fleet.view import NodeView
from swapwarden.policy.node import labels
from swapwarden.policy.observed import nodes

log = logging.getLogger(__name__)


class LabelChange(msgspec.Struct, frozen=True):
    """The next step for a node's labels."""

    labels: dict[str, str | None]
    """Labels to set, or to take away (None)."""
    again: float | None
    """Seconds after which to decide again; None if nothing is pending."""


class LabelGrace:
    """Remembers since when a label of a node should be gone. `grace` in seconds.

    A label is set at once, and removed only when it has been wrong for long: a kubelet that restarts fails running pods
    whose node selector no longer matches (k/k: pkg/kubelet/lifecycle). Swap that is off for a moment, or a silent
    agent, is no reason for that.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._unwanted: dict[tuple[str, str], float] = {}

    def decide(
        self, node: str, desired: Mapping[str, str | None], current: Mapping[str, str], now: float
    ) -> LabelChange:
        """Compare the desired labels of a node with its present ones; `now` is a monotonic clock in seconds."""
        labels: dict[str, str | None] = {}
        again: list[float] = []
        for key, value in desired.items():
            if value is not None:
                self._unwanted.pop((node, key), None)
                if current.get(key) != value:
                    labels[key] = value
            elif key not in current:
                self._unwanted.pop((node, key), None)
            else:
                left = self._unwanted.setdefault((node, key), now) + self._grace - now
                if left <= 0:
                    labels[key] = None
                else:
                    again.append(left)
        return LabelChange(labels, min(again, default=None))

    def forget(self, node: str) -> None:
        """Forget a deleted node."""
        for pending in [pending for pending in self._unwanted if pending[0] == node]:
            del self._unwanted[pending]


class LabelPublisher:
    """Plans label changes, and remembers since when labels should be gone."""

    def __init__(
        self,
        inventory: NodeInventory,
        features: node_features.Features,
        writes: Fenced,
        *,
        grace: float,
        attested: Mapping[str, str],
        again: Callable[[str, float], None],
        now: Callable[[], float],
    ) -> None:
        """`grace` is in seconds, see LabelGrace; `again(node, delay)` has a node's labels written once more.

        `attested` are the labels of nodes for which an administrator vouches; `now` is a monotonic clock in seconds.
        """
        self._inventory = inventory
        self._features = features
        self._writes = writes
        self._attested = attested
        self._again = again
        self._now = now
        # Of Nodes and of NodeFeatures.
        self._carried, self._asked = LabelGrace(grace), LabelGrace(grace)

    def forget(self, name: str) -> None:
        """Forget a deleted node."""
        self._carried.forget(name)
        self._asked.forget(name)

    async def write(self, view: NodeView) -> bool:
        """Make the node carry its labels, or its NodeFeature ask for them; return whether that took a request."""
        node, featured = view.node, self._features.serves(view.node.name)
        if featured is None:
            return False
        attested = labels.is_attested(self._attested, node)
        desired = labels.desired(view.profile.node, view.profile.swap, view.facts, attested=attested)
        asked = featured and await self._write_feature(node, labels.for_node_feature(desired))
        carried = await self._write_node(node, labels.for_node(desired, node, features=featured))
        return asked or carried

    async def _write_node(self, node: nodes.NodeRow, desired: labels.Labels) -> bool:
        change = self._carried.decide(node.name, desired, node.labels, self._now())
        self._requeue_after(node.name, change)
        if not change.labels:
            return False
        request = node_writer.change_labels(self._writes, node.name, node.uid, change.labels)
        if await unless_superseded(request) is not None:
            self._inventory.labelled(node, change.labels)
            log.info("labels changed", extra={"node": node.name, "labels": change.labels})
        return True

    async def _write_feature(self, node: nodes.NodeRow, desired: labels.Labels) -> bool:
        """Have the node's NodeFeature ask for its labels; errors.ApiError if it changed meanwhile."""
        row = self._features.of(node.name)
        change = self._asked.decide(node.name, desired, row.labels if row else {}, self._now())
        self._requeue_after(node.name, change)
        if not (change.labels or (row and row.owner != node.uid)):
            return False
        try:
            written = await _write_feature(self._writes, self._features.path, node, row, change.labels)
        except errors.ApiError as error:
            if outcome(error) is Outcome.GONE and row is not None:
                self._features.lost(row)  # the watch may have reported that before an earlier write was answered
            raise
        self._features.wrote(written)
        log.info("labels asked for", extra={"node": node.name, "labels": change.labels})
        return True

    def _requeue_after(self, name: str, change: LabelChange) -> None:
        if change.again is not None:
            self._again(name, change.again)


async def _write_feature(
    writes: Writes,
    path: str,
    node: nodes.NodeRow,
    row: node_features.FeatureRow | None,
    labels: Mapping[str, str | None],
) -> node_features.FeatureRow:
    """Make a node's NodeFeature, in the collection at `path`, ask for these labels, and no longer for those of None.

    `row` is the existing one; None to create it. Raise ApiError: 404 if it was deleted, 409 if it has changed.
    """
    if row is None:
        answer = await writes.create("feature", path, node_features.made(node, owned_by(node), labels))
    else:
        body = {"metadata": {"uid": row.uid, "ownerReferences": owned_by(node)}, "spec": {"labels": labels}}
        answer = await writes.merge_patch("feature", f"{path}/{row.name}", body)
    return node_features.decode(answer)
