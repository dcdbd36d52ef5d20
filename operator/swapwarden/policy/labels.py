"""The labels that a node should carry."""

from __future__ import annotations

from swapwarden.api import names
from swapwarden.policy import nodes, profiles


def desired(profile: profiles.Profile, facts: nodes.NodeFacts, *, nfd: bool) -> dict[str, str | None]:
    """Labels by key; None where the node should not carry it. `nfd`: one of the labels is NFD's, and left to it.

    NFD's key says that swap is on; the own key says that pods can get some. When to take a label away is not decided
    here: a kubelet that restarts fails running pods whose node selector no longer matches.
    """
    swap_is_on = facts.swap_bytes > 0
    usable = swap_is_on and facts.compatible and profile.behavior != names.Behavior.NO_SWAP
    own = {names.SWAP_LABEL: "true" if usable else None}
    return own if nfd else {names.NFD_SWAP_LABEL: "true" if swap_is_on else None, **own}
