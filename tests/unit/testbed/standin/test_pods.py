"""The stand-in's numbers and names are the kubelet's."""

from typing import Any

import pytest

from testbed.standin import nodetree, pods

MIB = 1 << 20


def test_a_swap_limit_seen_on_a_real_node() -> None:
    given = pods.swap_limit(256 * MIB, 0, 2060390400, 536866816, limited=True, qos="burstable", critical=False)
    assert int(given) // nodetree.PAGE * nodetree.PAGE == 69943296


@pytest.mark.parametrize(
    "change",
    [
        {"limited": False},
        {"qos": "guaranteed"},
        {"qos": "besteffort"},
        {"critical": True},
        {"request": 0},
        {"limit": 64 * MIB},
        {"request": 4096 * MIB},
    ],
)
def test_no_swap_where_the_kubelet_gives_none(change: dict[str, Any]) -> None:
    given: dict[str, Any] = {"request": 64 * MIB, "limit": 128 * MIB, "limited": True, "qos": "burstable"}
    given = given | {"critical": False} | change
    assert pods.swap_limit(memory=1024 * MIB, swap=1024 * MIB, **given) == "0"
