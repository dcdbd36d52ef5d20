"""NodeFeature objects: Node Feature Discovery sets the labels that they ask for, in place of the controller.

nfd-master gives a node the labels of all NodeFeatures that name it, and records on the Node which ones are its own
(node-feature-discovery: pkg/nfd-master). There is one object per node, in the namespace of the release.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from swapwarden.api import state
from swapwarden.kube import decoding
from swapwarden.policy.observed import nodes

API: Final = "/apis/nfd.k8s-sigs.io/v1alpha1"
API_VERSION: Final = "nfd.k8s-sigs.io/v1alpha1"
KIND: Final = "NodeFeature"
PLURAL: Final = "nodefeatures"
NODE_NAME_LABEL: Final = "nfd.node.kubernetes.io/node-name"
OURS: Final = {"app.kubernetes.io/managed-by": "swapwarden-controller"}
SELECTOR: Final = {"labelSelector": ",".join(f"{key}={value}" for key, value in OURS.items())}
NO_FEATURES: Final[dict[str, Any]] = {"attributes": {}, "flags": {}, "instances": {}}
"""All kinds of features, all empty: early versions of Node Feature Discovery require them."""
LONGEST_NODE: Final = 63
"""Nodes with longer names cannot be named by a label."""


class _FeatureSpec(msgspec.Struct, frozen=True):
    labels: dict[str, str] = {}


class WireFeature(msgspec.Struct, frozen=True):
    """A NodeFeature as the API server sends it."""

    metadata: state.ObjectMeta
    spec: _FeatureSpec = _FeatureSpec()


class FeatureRow(msgspec.Struct, frozen=True):
    """A NodeFeature in the form in which it is kept."""

    name: str
    uid: str
    version: int
    owner: str
    """UID of the Node that owns it; empty if none does."""
    labels: dict[str, str]


def collection(namespace: str) -> str:
    """Return the path of the NodeFeatures of a namespace."""
    return f"{API}/namespaces/{namespace}/{PLURAL}"


def object_name(node: str) -> str:
    """Return the name of the node's NodeFeature."""
    return f"swapwarden-{node}"


def project(wire: WireFeature) -> FeatureRow:
    """Reduce a NodeFeature to its row."""
    meta = wire.metadata
    return FeatureRow(
        name=meta.name,
        uid=meta.uid,
        version=int(meta.resource_version),
        owner=next((owner.uid for owner in meta.owner_references if owner.kind == "Node"), ""),
        labels=wire.spec.labels,
    )


def decode(body: bytes) -> FeatureRow:
    """Make a row from the answer to a request. ValueError (msgspec.DecodeError is one) if it is no NodeFeature."""
    return project(decoding.decode(body, WireFeature))


def made(node: nodes.NodeRow, owners: list[dict[str, str]], labels: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a new NodeFeature that asks for these labels."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": object_name(node.name),
            "labels": {**OURS, NODE_NAME_LABEL: node.name},
            "ownerReferences": owners,
        },
        "spec": {
            "features": NO_FEATURES,
            "labels": {key: value for key, value in labels.items() if value is not None},
        },
    }
