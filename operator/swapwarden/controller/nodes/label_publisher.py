"""Publishes node labels for one term: on the Nodes, or by NodeFeatures for Node Feature Discovery."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from swapwarden.controller.inventory.nodes import NodeInventory
from swapwarden.controller.nodes.label_grace import Change, Labels
from swapwarden.controller.planning.view import NodeView
from swapwarden.controller.watches.node_features import Features
from swapwarden.controller.writers import node_features as feature_writer
from swapwarden.controller.writers import nodes as node_writer
from swapwarden.controller.writers.fenced import Fenced, unless_superseded
from swapwarden.kube import errors
from swapwarden.policy.node import labels
from swapwarden.policy.observed import nodes

log = logging.getLogger(__name__)


class LabelPublisher:
    """Remembers since when labels should be gone."""

    def __init__(
        self,
        inventory: NodeInventory,
        features: Features,
        writes: Fenced,
        *,
        grace: float,
        attested: Mapping[str, str],
        again: Callable[[str, float], None],
        now: Callable[[], float],
    ) -> None:
        """`grace` is in seconds, see label_grace; `again(node, delay)` has a node's labels written once more.

        `attested` are the labels of nodes for which an administrator vouches; `now` is a monotonic clock in seconds.
        """
        self._inventory = inventory
        self._features = features
        self._writes = writes
        self._attested = attested
        self._again = again
        self._now = now
        # Of Nodes and of NodeFeatures.
        self._carried, self._asked = Labels(grace), Labels(grace)

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
        desired = labels.desired(view.profile, view.facts, attested=attested)
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
            written = await feature_writer.write(self._writes, self._features.path, node, row, change.labels)
        except errors.ApiError as error:
            if error.status == 404 and row is not None:
                self._features.lost(row)  # the watch may have reported that before an earlier write was answered
            raise
        self._features.wrote(written)
        log.info("labels asked for", extra={"node": node.name, "labels": change.labels})
        return True

    def _requeue_after(self, name: str, change: Change) -> None:
        if change.again is not None:
            self._again(name, change.again)
