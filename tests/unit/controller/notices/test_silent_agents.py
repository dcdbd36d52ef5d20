from __future__ import annotations

from swapwarden.controller import notices

from tests.unit.controller.known import Known
from tests.unit.objects import container, node, pod, state_row

NAMESPACE = "swapwarden-system"


def known() -> Known:
    """Three nodes: one with an agent that is Ready, one whose agent was there once, one that never had one."""
    made = Known(NAMESPACE)
    for name in ("answers", "silent", "without"):
        made.node_changed(name, None, node(name))
    for name in ("answers", "silent"):
        made.state_changed(name, None, state_row(name, observed=1))
    made.state_changed("without", None, state_row("without"))
    for name, ready in (("answers", True), ("silent", False)):
        row = pod(container(), key=name, name=f"agent-{name}", namespace=NAMESPACE, node=name, agent=ready)
        made.pod_changed(f"{NAMESPACE}/agent-{name}", None, row)
    return made


def silent(known: Known) -> list[str]:
    """Return the nodes in the gauges, which agree."""
    notices.measure_silent(known.inventory)
    names = [dict(sample.labels)["node"] for sample in notices.SILENT_BY_NAME.samples()]
    assert notices.SILENT.value() == len(names)
    return names


def test_a_node_is_silent_whose_agent_answered_and_is_not_ready_any_more() -> None:
    assert silent(known()) == ["silent"]


def test_one_that_is_gone_is_not() -> None:
    made = known()
    made.node_changed("silent", None, None)
    assert silent(made) == []


def test_a_node_is_silent_also_while_its_state_is_deleted_and_recreated() -> None:
    made = known()
    for name in made.nodes:
        made.state_changed(name, made.inventory.state_of(name), None)
    assert silent(made) == ["silent"]
    for name in made.nodes:
        made.wrote(state_row(name, version=9, uid="made anew"))
    assert silent(made) == ["silent"]
