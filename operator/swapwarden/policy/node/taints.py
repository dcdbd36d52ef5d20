"""Changes of the taints that keep pods off nodes with swap or under memory pressure, and of the startup taint.

Other taints are never touched, even if other writers change them at the same moment: each change is a JSON patch (RFC
6902) that first tests the values it was made for. If they differ, the API server refuses it with status 422.
"""

from __future__ import annotations

from typing import Any

from swapwarden.api import names
from swapwarden.policy.node import labels
from swapwarden.policy.node.settings import NodeOptions
from swapwarden.policy.observed import nodes
from swapwarden.policy.pressure.thresholds import Pressure
from swapwarden.policy.swap.settings import SwapOptions

Patch = list[dict[str, Any]]


def desired(
    own: NodeOptions, swap: SwapOptions, facts: nodes.NodeFacts, node: nodes.NodeRow, *, enforced: bool
) -> names.TaintEffect | None:
    """Return the effect of the taint that the node should carry; None for no taint.

    The taint appears once the agent enforces the profile. It remains while plans change, and while the agent's last
    report is unknown.
    """
    gives = labels.gives_swap(swap, facts) or labels.is_unknown(swap, facts)
    if not own.enforce or not gives:
        return None
    return own.taint_effect if enforced or node.place(names.SWAP_TAINT) is not None else None


def desired_under_pressure(
    own: NodeOptions, pressure: Pressure | None, node: nodes.NodeRow, *, pressed: bool, lately: bool
) -> names.TaintEffect | None:
    """Return the effect of the taint of memory pressure that the node should carry; None for no taint.

    `pressed` is whether the node is under pressure. The taint remains while it was so `lately`: else the scheduler
    would fill a node in the moment in which it has memory again.
    """
    if not own.enforce or pressure is None:
        return None
    return pressure.taint if pressed or (lately and node.place(names.PRESSURE_TAINT) is not None) else None


def change(node: nodes.NodeRow, key: str, effect: names.TaintEffect | None) -> Patch | None:
    """Return the patch that adds a taint with this effect, or removes it (None); None if nothing changes."""
    if effect is None:
        return remove(node, key)
    place = node.place(key)
    if place is None:
        return [_same(node), *_added(node, key, effect)]
    if node.taints[place].effect == effect:
        return None
    path = f"/spec/taints/{place}"
    return [_same(node), _test(f"{path}/key", key), {**_test(f"{path}/effect", effect), "op": "replace"}]


def remove(node: nodes.NodeRow, key: str) -> Patch | None:
    """Return the patch that removes a taint of this key; None if there is none."""
    place = node.place(key)
    if place is None:
        return None
    path = f"/spec/taints/{place}"
    return [_same(node), _test(f"{path}/key", key), {"op": "remove", "path": path}]


def _added(node: nodes.NodeRow, key: str, effect: names.TaintEffect) -> Patch:
    taint = {"key": key, "value": "true", "effect": effect.value}
    if node.taints:
        return [{"op": "add", "path": "/spec/taints/-", "value": taint}]
    # A test finds null where nothing exists.
    return [_test("/spec/taints", None), {"op": "add", "path": "/spec/taints", "value": [taint]}]


def _same(node: nodes.NodeRow) -> dict[str, Any]:
    return _test("/metadata/uid", node.uid)


def _test(path: str, value: Any) -> dict[str, Any]:
    return {"op": "test", "path": path, "value": value}
