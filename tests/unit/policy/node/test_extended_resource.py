from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names
from swapwarden.policy import plan
from swapwarden.policy.node import labels
from swapwarden.policy.observed import nodes, pods
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits

from tests.unit.objects import GI, MI, Kind, container, facts, pod, profile

WORKLOAD = names.Behavior.WORKLOAD_CONTROLLED


def offering(**fields: Any) -> compiled.Profile:
    return profile(WORKLOAD, **{"extended_resource": True, **fields})


def capacity(own: compiled.Profile, node: nodes.NodeFacts) -> int | None:
    return labels.swap_resource_capacity(own.node, own.swap, node)


def desired(own: compiled.Profile, *seen: Any, enforced: bool) -> int | None:
    return labels.desired_swap_resource(own.node, own.swap, *seen, enforced=enforced)


def node(offered: int | None = None) -> nodes.NodeRow:
    return nodes.NodeRow("n", "uid-1", {}, 4 * GI, 8 * GI, swap_resource=offered)


def asking(number: int, *amounts: tuple[Kind, int], **fields: Any) -> pods.PodRow:
    containers = [container(f"c{at}", kind=kind, swap_resource=amount) for at, (kind, amount) in enumerate(amounts)]
    return pod(*containers, uid=f"uid-{number}", name=f"pod-{number}", **fields)


@pytest.mark.parametrize(
    ("fields", "found", "wanted"),
    [
        ({}, {}, 4 * GI),
        ({"reserved": "25%"}, {}, 3 * GI),
        ({"reserved": "25%", "overcommit_percent": 150}, {}, 3 * GI * 3 // 2),
        ({"overcommit_percent": 50}, {}, 2 * GI),
        ({"reserved": "100%"}, {}, 0),
        ({"extended_resource": False}, {}, None),
        ({"mode": names.Mode.AUDIT}, {}, None),
        ({}, {"swap_bytes": 0}, None),
        ({}, {"compatible": False}, None),
    ],
)
def test_how_much_there_is(fields: dict[str, Any], found: dict[str, Any], wanted: int | None) -> None:
    assert capacity(offering(**fields), facts(**found)) == wanted


@pytest.mark.parametrize(
    ("offered", "enforced", "wanted"),
    [(None, False, None), (None, True, 4 * GI), (GI, False, 4 * GI), (0, False, 4 * GI), (4 * GI, True, 4 * GI)],
)
def test_it_appears_once_the_profile_is_enforced_and_stays(
    offered: int | None, enforced: bool, wanted: int | None
) -> None:
    assert desired(offering(), facts(), node(offered), [], enforced=enforced) == wanted


def test_it_is_removed_with_its_profile_whatever_pods_request() -> None:
    rows = [asking(1, (Kind.APP, GI))]
    assert desired(profile(WORKLOAD), facts(), node(4 * GI), rows, enforced=True) is None
    assert desired(offering(), facts(swap_bytes=0), node(4 * GI), rows, enforced=True) is None


def test_it_stays_as_it_is_while_no_agent_has_reported() -> None:
    unknown = facts(swap_bytes=0, reported=False)
    assert desired(offering(), unknown, node(GI), [], enforced=False) == GI
    assert desired(offering(), unknown, node(), [], enforced=False) is None
    assert desired(profile(WORKLOAD), unknown, node(GI), [], enforced=False) is None
    assert desired(offering(mode=names.Mode.AUDIT), unknown, node(GI), [], enforced=False) is None
    no_swap = profile(names.Behavior.NO_SWAP, extended_resource=True)
    assert desired(no_swap, unknown, node(GI), [], enforced=False) is None


def test_it_is_not_lowered_below_what_pods_there_ask_for() -> None:
    less = offering(overcommit_percent=25)
    rows = [
        asking(1, (Kind.INIT, 2 * GI), (Kind.APP, GI), (Kind.APP, 512 * MI)),
        asking(2, (Kind.SIDECAR, 256 * MI), (Kind.APP, 256 * MI)),
        asking(3, (Kind.APP, 8 * GI), terminal=True),
        pod(container(swap_limit="8Gi"), uid="uid-4"),
    ]
    assert desired(less, facts(), node(4 * GI), rows, enforced=True) == 2 * GI + 512 * MI
    assert desired(less, facts(), node(4 * GI), rows[1:], enforced=True) == GI
    # A missing resource is taken from nobody.
    assert desired(less, facts(), node(GI), rows, enforced=True) == GI
    assert desired(less, facts(), node(), rows, enforced=True) == GI


@given(
    st.integers(0, 2**40),
    st.integers(1, 300),
    st.lists(st.lists(st.integers(0, 2**34), min_size=1, max_size=3), max_size=8),
)
def test_what_the_scheduler_lets_in_is_never_cut(swap_bytes: int, percent: int, asked: list[list[int]]) -> None:
    """Pods that are packed by the resource get what they ask for: the overcommit leaves no less than it offers."""
    offers, found = offering(overcommit_percent=percent), facts(swap_bytes=swap_bytes)
    left, rows = capacity(offers, found) or 0, []
    for number, amounts in enumerate(asked):
        if sum(amounts) <= min(left, swap_bytes):
            left -= sum(amounts)
            rows.append(asking(number, *((Kind.APP, amount) for amount in amounts)))
    total = limits.overcommit_budget(offers.swap, found)
    assert total is not None
    planned = plan.plan_node(offers, found, rows).pods.values()
    assert sum(int(one.swap_max or 0) for one in planned) <= total
    assert {one.reason for one in planned} <= {None}, "the usual one"
