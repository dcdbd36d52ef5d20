from __future__ import annotations

import pytest
from swapwarden.api import names
from swapwarden.policy import labels

from tests.unit.policy import rows

NFD, OWN = "feature.node.kubernetes.io/memory-swap", "node.swapwarden.dev/swap"


@pytest.mark.parametrize("behavior", names.Behavior)
def test_a_node_with_swap(behavior: names.Behavior) -> None:
    own = None if behavior is names.Behavior.NO_SWAP else "true"
    assert labels.desired(rows.profile(behavior), rows.facts()) == {NFD: "true", OWN: own}


def test_swap_that_pods_cannot_get() -> None:
    facts = rows.facts(compatible=False)
    assert labels.desired(rows.profile(names.Behavior.KUBELET), facts) == {NFD: "true", OWN: None}


@pytest.mark.parametrize("behavior", names.Behavior)
def test_a_node_without_swap(behavior: names.Behavior) -> None:
    assert labels.desired(rows.profile(behavior), rows.facts(swap_bytes=0)) == {NFD: None, OWN: None}
