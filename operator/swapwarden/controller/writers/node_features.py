"""Writes NodeFeatures, which ask Node Feature Discovery for the labels of a node."""

from __future__ import annotations

from collections.abc import Mapping

from swapwarden.controller.inventory import node_features
from swapwarden.controller.writers.fenced import Writes, owned_by
from swapwarden.policy.observed import nodes


async def write(
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
