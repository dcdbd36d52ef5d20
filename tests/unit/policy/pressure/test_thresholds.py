from __future__ import annotations

import msgspec
import pytest
from swapwarden.api import names
from swapwarden.policy import plan
from swapwarden.policy.observed import nodes
from swapwarden.policy.pressure import thresholds

from tests.unit.objects import GI, facts, profile

PRESSURE = thresholds.Pressure("5%", "2Gi", 5, 40, 10)
NODE = facts(memory_bytes=16 * GI)


def test_the_state_of_a_node_has_thresholds_in_bytes_and_milliseconds() -> None:
    spec = plan.plan_node(profile(names.Behavior.KUBELET, pressure=PRESSURE), NODE, ())
    assert msgspec.to_builtins(spec)["pressure"] == {
        "headroom": {"belowBytes": 16 * GI * 5 // 100, "clearBytes": 2 * GI, "forMilliseconds": 5000},
        "stall": {"fullPermille": 400, "overMilliseconds": 10_000},
    }


def test_reports_come_more_often_where_pods_are_evicted() -> None:
    pressure = msgspec.structs.replace(PRESSURE, enforce=True)
    assert msgspec.to_builtins(thresholds.of_node(pressure, NODE))["reportSeconds"] == 5


def test_the_smallest_threshold_is_in_the_state_as_well() -> None:
    found = thresholds.of_node(thresholds.Pressure("0%", "1%", 1, 1, 2), NODE)
    assert msgspec.to_builtins(found)["headroom"]["belowBytes"] == 0


def test_a_state_does_not_grow_without_pressure() -> None:
    assert "pressure" not in msgspec.to_builtins(plan.plan_node(profile(names.Behavior.KUBELET), NODE, ()))


@pytest.mark.parametrize("node", [facts(memory_bytes=0), facts(memory_bytes=16 * GI, compatible=False)])
def test_a_node_that_cannot_be_measured_has_no_thresholds(node: nodes.NodeFacts) -> None:
    assert thresholds.of_node(PRESSURE, node) is None


def test_nothing_is_reported_while_limits_are_restored() -> None:
    assert plan.restore_node(profile(names.Behavior.KUBELET, pressure=PRESSURE)).pressure is None
