from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.api import names
from swapwarden.policy.node import taints
from swapwarden.policy.observed import nodes
from swapwarden.policy.pressure import thresholds
from swapwarden.policy.profile import compiled

from tests.unit.objects import facts, profile

LIMITED, NO_SWAP = names.Behavior.LIMITED_SWAP, names.Behavior.NO_SWAP
NO_SCHEDULE, PREFER = names.TaintEffect.NO_SCHEDULE, names.TaintEffect.PREFER_NO_SCHEDULE
OTHER = nodes.WireTaint("pool", "NoExecute")
OWN = nodes.WireTaint(names.SWAP_TAINT, "NoSchedule")
UID = {"op": "test", "path": "/metadata/uid", "value": "uid-1"}


def node(*found: nodes.WireTaint) -> nodes.NodeRow:
    return nodes.NodeRow("n", "uid-1", {}, 2**30, 2**32, taints=found)


def desired(own: compiled.Profile, *seen: Any, enforced: bool) -> names.TaintEffect | None:
    return taints.desired(own.node, own.swap, *seen, enforced=enforced)


@pytest.mark.parametrize(
    ("fields", "found", "here", "enforced", "wanted"),
    [
        ({"taint_effect": NO_SCHEDULE}, {}, (), True, NO_SCHEDULE),
        ({"taint_effect": PREFER}, {}, (), True, PREFER),
        ({"taint_effect": NO_SCHEDULE}, {}, (), False, None),
        ({"taint_effect": NO_SCHEDULE}, {}, (OTHER, OWN), False, NO_SCHEDULE),
        ({"taint_effect": PREFER}, {}, (OWN,), False, PREFER),
        ({}, {}, (OWN,), True, None),
        ({"taint_effect": NO_SCHEDULE, "mode": names.Mode.AUDIT}, {}, (OWN,), True, None),
        ({"taint_effect": NO_SCHEDULE}, {"swap_bytes": 0}, (OWN,), True, None),
        ({"taint_effect": NO_SCHEDULE}, {"compatible": False}, (OWN,), True, None),
        # No agent has reported, so nothing is known that could take it away, or bring it.
        ({"taint_effect": NO_SCHEDULE}, {"swap_bytes": 0, "reported": False}, (OWN,), False, NO_SCHEDULE),
        ({"taint_effect": NO_SCHEDULE}, {"swap_bytes": 0, "reported": False}, (), False, None),
        ({}, {"swap_bytes": 0, "reported": False}, (OWN,), False, None),
    ],
)
def test_which_nodes_carry_it(
    fields: dict[str, Any],
    found: dict[str, Any],
    here: tuple[nodes.WireTaint, ...],
    enforced: bool,
    wanted: names.TaintEffect | None,
) -> None:
    assert desired(profile(LIMITED, **fields), facts(**found), node(*here), enforced=enforced) == wanted


def test_none_if_pods_get_no_swap() -> None:
    assert desired(profile(NO_SWAP, taint_effect=NO_SCHEDULE), facts(), node(), enforced=True) is None


PRESSURE = thresholds.Pressure("5%", "10%", 5, 40, 10, NO_SCHEDULE)
PRESSED = nodes.WireTaint(names.PRESSURE_TAINT, "NoSchedule")


@pytest.mark.parametrize(
    ("fields", "here", "pressed", "lately", "wanted"),
    [
        ({}, (), True, False, NO_SCHEDULE),
        ({}, (OTHER, OWN), False, False, None),
        ({}, (PRESSED,), False, True, NO_SCHEDULE),
        ({}, (PRESSED,), False, False, None),
        # A taint that was absent during the pressure is not added after it.
        ({}, (), False, True, None),
        ({"pressure": msgspec.structs.replace(PRESSURE, taint=None)}, (PRESSED,), True, True, None),
        ({"pressure": None}, (PRESSED,), True, True, None),
        ({"mode": names.Mode.AUDIT}, (PRESSED,), True, True, None),
    ],
)
def test_which_nodes_carry_the_taint_of_pressure(
    fields: dict[str, Any],
    here: tuple[nodes.WireTaint, ...],
    pressed: bool,
    lately: bool,
    wanted: names.TaintEffect | None,
) -> None:
    found = profile(LIMITED, **{"pressure": PRESSURE, **fields})
    assert (
        taints.desired_under_pressure(found.node, found.pressure, node(*here), pressed=pressed, lately=lately) == wanted
    )


def test_it_is_added_behind_others_or_where_there_is_none_at_all() -> None:
    taint = {"key": names.SWAP_TAINT, "value": "true", "effect": "NoSchedule"}
    assert taints.change(node(OTHER), names.SWAP_TAINT, NO_SCHEDULE) == [
        UID,
        {"op": "add", "path": "/spec/taints/-", "value": taint},
    ]
    assert taints.change(node(), names.SWAP_TAINT, NO_SCHEDULE) == [
        UID,
        {"op": "test", "path": "/spec/taints", "value": None},
        {"op": "add", "path": "/spec/taints", "value": [taint]},
    ]


def test_it_is_changed_and_removed_where_it_stands() -> None:
    tested = {"op": "test", "path": "/spec/taints/1/key", "value": names.SWAP_TAINT}
    found = node(OTHER, OWN, OTHER)
    assert taints.change(found, names.SWAP_TAINT, PREFER) == [
        UID,
        tested,
        {"op": "replace", "path": "/spec/taints/1/effect", "value": "PreferNoSchedule"},
    ]
    assert taints.change(found, names.SWAP_TAINT, None) == [UID, tested, {"op": "remove", "path": "/spec/taints/1"}]


def test_nothing_is_changed_without_need() -> None:
    assert taints.change(node(OTHER, OWN), names.SWAP_TAINT, NO_SCHEDULE) is None
    assert taints.change(node(OTHER), names.SWAP_TAINT, None) is None
    assert taints.remove(node(OTHER), names.STARTUP_TAINT) is None
