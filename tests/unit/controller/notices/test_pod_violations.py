from __future__ import annotations

from typing import Any

import msgspec
from swapwarden.api.notices import Notice
from swapwarden.policy.observed import states
from swapwarden.policy.verdict import pod_events

from tests.unit.controller.notices.reports import told
from tests.unit.objects import container, pod

PODS = [pod(container(), key=key, name=f"pod-{key}", node="n") for key in "xy"]


def reasons(old: states.StateRow, new: states.StateRow) -> list[tuple[str, str]]:
    return [(notice.regarding.name, notice.reason) for notice in pod_events.violation_notices(old, new, PODS)]


def test_a_pod_has_a_notice_when_its_limit_does_not_hold_and_when_it_has_drained() -> None:
    draining = told(("x", "Draining"), ("x", "Draining"), ("z", "Draining"))
    assert reasons(told(), draining) == [("pod-x", "SwapDraining")]
    assert reasons(draining, draining) == []
    assert reasons(draining, told(("x", "Draining"), ("y", "WriteFailed"))) == [("pod-y", "SwapLimitNotWritten")]
    assert reasons(draining, told(("x", "Yielded"))) == [("pod-x", "SwapLimitContested"), ("pod-x", "SwapDrained")]
    assert reasons(draining, told()) == [("pod-x", "SwapDrained")]


def test_a_violation_that_was_hidden_by_a_worse_one_is_not_reported_again() -> None:
    both = told(("x", "Draining"), ("x", "WriteFailed"))
    assert reasons(told(), both) == [("pod-x", "SwapLimitNotWritten")]
    assert reasons(both, told(("x", "Draining"))) == []
    assert reasons(both, told(("x", "WriteFailed"))) == [("pod-x", "SwapDrained")]


def test_no_end_is_reported_if_it_is_unknown_or_nothing_is_enforced() -> None:
    draining = told(("x", "Draining"))
    assert reasons(draining, told(("y", "Draining"), omitted=1)) == [("pod-y", "SwapDraining")]
    assert reasons(draining, told(mode="Audit")) == []
    assert reasons(draining, told(("x", "Audit"), mode="Audit")) == []


def stuck(*cgroups: dict[str, Any]) -> states.StateRow:
    """A state whose agent found these cgroups at a standstill."""
    body = {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {"profileRef": {"name": "p"}},
        "status": {"throttled": [{"high": "4096", "since": "t", **each} for each in cgroups]},
    }
    return states.decode(msgspec.json.encode(body))


def test_a_pod_has_a_notice_each_time_that_it_stood_still() -> None:
    def notices(old: states.StateRow, new: states.StateRow) -> list[Notice]:
        return list(pod_events.standstill_notices(old, new, PODS))

    one, throttled = {"pod": "x", "trips": 1, "guard": "Released"}, {"pod": "y", "count": 9}
    (found,) = notices(stuck(throttled), stuck(throttled, one, {"pod": "gone", "trips": 1}))
    assert (found.regarding.name, found.reason, found.key) == ("pod-x", "StuckAtMemoryHigh", "x//t/1")
    assert "4096 bytes) on node n" in found.message
    assert "no memory.high" in found.message
    assert notices(stuck(one), stuck(one | {"count": 9}, throttled)) == []
    assert notices(stuck(one), stuck()) == []
    (again,) = notices(stuck(one), stuck({"pod": "x", "trips": 2}))
    assert (again.key, "no memory.high" not in again.message) == ("x//t/2", True)
    (later,) = notices(stuck(one), stuck(one | {"since": "later"}))
    assert later.key == "x//later/1", "its agent was restarted"
    (container,) = notices(stuck(one), stuck(one, {"pod": "x", "container": "c" * 64, "trips": 1, "guard": "Odd"}))
    assert container.message.startswith("container ccccccccccccc of this pod stood still")
