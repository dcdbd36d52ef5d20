from __future__ import annotations

from swapwarden.policy.observed import namespaces


def test_its_labels_are_kept_and_its_name_is_always_one() -> None:
    wire = namespaces.WireNamespace(namespaces.WireMeta("shop", {"team": "a", "kubernetes.io/metadata.name": "other"}))
    assert namespaces.project(wire) == {"team": "a", "kubernetes.io/metadata.name": "shop"}
    assert namespaces.project(namespaces.WireNamespace(namespaces.WireMeta("shop"))) == {
        "kubernetes.io/metadata.name": "shop"
    }
