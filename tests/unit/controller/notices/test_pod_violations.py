from __future__ import annotations

from swapwarden.controller.inventory import states
from swapwarden.controller.notices import pod_notices

from tests.unit.controller.notices.reports import told
from tests.unit.policy.rows import container, pod

PODS = [pod(container(), key=key, name=f"pod-{key}", node="n") for key in "xy"]


def reasons(old: states.StateRow, new: states.StateRow) -> list[tuple[str, str]]:
    return [(notice.regarding.name, notice.reason) for notice in pod_notices.violation_notices(old, new, PODS)]


def test_a_pod_has_a_notice_when_its_limit_does_not_hold_and_when_it_has_drained() -> None:
    draining = told(("x", "Draining"), ("x", "Draining"), ("z", "Draining"))
    assert reasons(told(), draining) == [("pod-x", "SwapDraining")]
    assert reasons(draining, draining) == []
    assert reasons(draining, told(("x", "Draining"), ("y", "WriteFailed"))) == [("pod-y", "SwapLimitNotWritten")]
    assert reasons(draining, told(("x", "Yielded"))) == [("pod-x", "SwapLimitContested"), ("pod-x", "SwapDrained")]
    assert reasons(draining, told()) == [("pod-x", "SwapDrained")]


def test_no_end_is_reported_if_it_is_unknown_or_nothing_is_enforced() -> None:
    draining = told(("x", "Draining"))
    assert reasons(draining, told(("y", "Draining"), omitted=1)) == [("pod-y", "SwapDraining")]
    assert reasons(draining, told(mode="Audit")) == []
    assert reasons(draining, told(("x", "Audit"), mode="Audit")) == []
