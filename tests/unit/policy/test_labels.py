from __future__ import annotations

import pytest
from swapwarden.api import names
from swapwarden.policy import labels

from tests.unit.policy import rows

NFD, OWN = "feature.node.kubernetes.io/memory-swap", "node.swapwarden.dev/swap"


@pytest.mark.parametrize("behavior", names.Behavior)
def test_a_node_with_swap(behavior: names.Behavior) -> None:
    own = None if behavior is names.Behavior.NO_SWAP else "true"
    assert labels.desired(rows.profile(behavior), rows.facts(), nfd=False) == {NFD: "true", OWN: own}


def test_swap_that_pods_cannot_get() -> None:
    facts = rows.facts(compatible=False)
    assert labels.desired(rows.profile(names.Behavior.KUBELET), facts, nfd=False) == {NFD: "true", OWN: None}


@pytest.mark.parametrize("behavior", names.Behavior)
def test_a_node_without_swap(behavior: names.Behavior) -> None:
    assert labels.desired(rows.profile(behavior), rows.facts(swap_bytes=0), nfd=False) == {NFD: None, OWN: None}


@pytest.mark.parametrize("swap_bytes", [0, 4096])
def test_a_label_of_nfds_is_left_to_it(swap_bytes: int) -> None:
    found = labels.desired(rows.profile(names.Behavior.KUBELET), rows.facts(swap_bytes=swap_bytes), nfd=True)
    assert found == {OWN: "true" if swap_bytes else None}
