from __future__ import annotations

import pytest
from swapwarden.api import names, state
from swapwarden.controller.nodes.reconciler import KEPT_SECONDS, PressureMemory
from swapwarden.policy import plan
from swapwarden.policy.observed import nodes
from swapwarden.policy.pressure import thresholds

from tests.unit.controller.known import Known
from tests.unit.objects import named_profile, node, state_row

EFFECT = names.TaintEffect.NO_SCHEDULE
TAINT = nodes.WireTaint(names.PRESSURE_TAINT, EFFECT)
PROFILE = named_profile(pressure=thresholds.Pressure("5%", "10%", 5, 40, 10, EFFECT))
SPEC = state.StateSpec(plan.reference(PROFILE), default_reason=names.Reason.KUBELET_DECIDES)
REPORT = state.PressureReport(1, "Headroom", "Node", 7)


class Node:
    """The node n, whose profile has the taint, and its memory."""

    def __init__(self) -> None:
        self.now, self.version = 100.0, 0
        self.again: list[tuple[str, float]] = []
        self.known = Known()
        self.known.profiles_changed({"p": PROFILE})
        self.tainted(False)
        self.leads()

    def leads(self) -> None:
        """Begin a term."""
        self.memory = PressureMemory(lambda name, delay: self.again.append((name, delay)), lambda: self.now)

    def tainted(self, has: bool) -> None:
        found = node("n", taints=(TAINT,) if has else ())
        self.known.node_changed("n", None, found)

    def reports(self, pressure: state.PressureReport | None, *, agent: bool = True) -> None:
        self.version += 1
        row = state_row("n", self.version, SPEC, observed=int(agent), pressure=pressure)
        self.known.state_changed("n", self.known.inventory.state_of("n"), row)

    def effect(self) -> names.TaintEffect | None:
        """The effect as it should be now; the node gets it."""
        view = self.known.planner.view("n")
        assert view is not None
        effect = self.memory.desired(view)
        self.tainted(effect is not None)
        return effect


@pytest.fixture
def one() -> Node:
    return Node()


def test_it_remains_for_five_minutes_after_the_pressure(one: Node) -> None:
    assert one.effect() is None
    one.reports(REPORT)
    assert one.effect() is EFFECT
    one.now += 10_000
    assert one.effect() is EFFECT
    assert one.again == []
    one.reports(None)
    assert one.effect() is EFFECT
    assert one.again == [("n", KEPT_SECONDS)]
    one.now += KEPT_SECONDS - 1
    assert one.effect() is EFFECT
    assert one.again[-1] == ("n", 1.0)
    one.now += 1
    assert one.effect() is None


def test_other_pressure_restarts_the_time(one: Node) -> None:
    one.reports(REPORT)
    one.effect()
    one.reports(None)
    one.effect()
    one.now += KEPT_SECONDS - 1
    one.reports(REPORT)
    assert one.effect() is EFFECT
    one.reports(None)
    one.now += KEPT_SECONDS - 1
    assert one.effect() is EFFECT
    one.now += KEPT_SECONDS - 1
    assert one.effect() is EFFECT


def test_a_new_leader_waits_for_the_whole_time(one: Node) -> None:
    one.tainted(True)
    one.reports(None)
    one.effect()
    one.now += KEPT_SECONDS - 1
    one.leads()
    assert one.effect() is EFFECT
    one.now += KEPT_SECONDS - 1
    assert one.effect() is EFFECT
    one.now += 1
    assert one.effect() is None


def test_the_last_report_of_an_agent_that_is_away_does_not_keep_it(one: Node) -> None:
    one.reports(REPORT)
    assert one.effect() is EFFECT
    one.reports(REPORT, agent=False)
    assert one.effect() is EFFECT
    one.now += KEPT_SECONDS
    assert one.effect() is None


def test_it_ends_with_the_profile(one: Node) -> None:
    one.reports(REPORT)
    assert one.effect() is EFFECT
    one.known.profiles_changed({})
    assert one.effect() is None
    assert one.again == []


def test_begin_and_end_of_pressure_have_the_node_reconciled(one: Node) -> None:
    one.reports(None)
    one.known.due.clear()
    one.reports(REPORT)
    assert [due.node for due in one.known.due] == ["n"]
    one.reports(state.PressureReport(2, "Headroom", "Node", 6))
    assert len(one.known.due) == 1
    one.reports(None)
    assert len(one.known.due) == 2


def test_without_a_taint_in_the_profile_pressure_needs_no_reconcile(one: Node) -> None:
    pressure = thresholds.Pressure("5%", "10%", 5, 40, 10)
    one.known.profiles_changed({"p": named_profile(pressure=pressure)})
    one.reports(None)
    one.known.due.clear()
    one.reports(REPORT)
    assert one.known.due == []
