from __future__ import annotations

import asyncio

import pytest
from swapwarden.controller.nodes import stale_agents

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


def test_a_node_is_silent_whose_agent_answered_and_is_not_ready_any_more() -> None:
    assert stale_agents.silent(known().inventory) == ["silent"]


def test_one_that_is_gone_is_not() -> None:
    made = known()
    made.node_changed("silent", None, None)
    assert stale_agents.silent(made.inventory) == []


def test_a_node_is_silent_also_while_its_state_is_deleted_and_recreated() -> None:
    made = known()
    for name in made.nodes:
        made.state_changed(name, made.inventory.state_of(name), None)
    assert stale_agents.silent(made.inventory) == ["silent"]
    for name in made.nodes:
        made.wrote(state_row(name, version=9, uid="made anew"))
    assert stale_agents.silent(made.inventory) == ["silent"]


async def test_nothing_is_said_before_all_is_known() -> None:
    stale_agents.SILENT.set(0)
    stale_agents.BY_NAME.hold({})
    said: list[tuple[float, list[tuple[tuple[str, str], ...]]]] = []

    def ready() -> bool:
        said.append((stale_agents.SILENT.value(), [sample.labels for sample in stale_agents.BY_NAME.samples()]))
        if len(said) == 4:
            raise asyncio.CancelledError
        return len(said) == 3

    with pytest.raises(asyncio.CancelledError):
        await stale_agents.watch(known().inventory, ready, interval=0.0)
    assert said == [(0, []), (0, []), (0, []), (1, [(("node", "silent"),)])]
