"""The report on all parts of the agent."""

from __future__ import annotations

import math
import time
import types
from typing import cast

import msgspec
import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.inventory import board
from swapwarden.agent.node import node_info, node_watch
from swapwarden.agent.pressure import sampler
from swapwarden.agent.report import holds, report
from swapwarden.api import names
from swapwarden.api import state as api

from tests.unit.agent.agent_node import Node, apply, state, until
from tests.unit.agent.fake_plugin import PluginOf


async def test_a_drop_in_file_is_missing_only_for_a_slice_that_the_state_keeps_from_swap(plain: Node) -> None:
    agent = plain.start()
    plain.reports.drop_ins[board.SLICES] = board.DropInStatus(
        visible=True, held=frozenset({"d.slice"}), missing=frozenset({"a.slice", "b.slice", "c.slice"})
    )
    no_watch = cast("node_watch.NodeWatch", None)  # settings come from the state and the board alone
    no_pressure = cast("sampler.Sampler", None)
    reported = report.Report(agent, no_watch, plain.reports, plain.cgroups, plain.ledger.runtime, pressure=no_pressure)

    def missing() -> list[str]:
        """Return the slices that the status names."""
        said = [each.message for each in reported.snapshot().settings or () if "drop-in files" in each.message]
        return [f"{each}.slice" for each in "abcd" if any(f"{each}.slice" in message for message in said)]

    assert missing() == [], "there is no state yet"
    kept, back, weighed = spec.UnitEntry(0), spec.UnitEntry(None), spec.UnitEntry(None, weight=800)
    apply(agent, msgspec.structs.replace(state(), units={"a.slice": kept, "b.slice": kept, "d.slice": kept}))
    assert missing() == ["a.slice", "b.slice"]
    apply(agent, msgspec.structs.replace(state(), units={"a.slice": kept, "b.slice": back, "c.slice": weighed}))
    assert missing() == ["a.slice"]
    apply(agent, state())
    assert missing() == []


@pytest.mark.parametrize("guarantee", names.Guarantee)
async def test_who_holds_a_pod_that_starts_is_looked_at_again_when_that_must_be_known(
    plain: Node, guarantee: names.Guarantee
) -> None:
    facts = api.Facts(2, swap_controller=True, swap_bytes=0, memory_bytes=1 << 30)
    watch = types.SimpleNamespace(facts=facts, look=node_info.NodeLook(), reported=lambda: facts)
    reported = report.Report(
        plain.start(msgspec.structs.replace(state({1: 0}), guarantee=guarantee), nri=True),
        cast("node_watch.NodeWatch", watch),
        plain.reports,
        plain.cgroups,
        plain.ledger.runtime,
        pressure=cast("sampler.Sampler", types.SimpleNamespace(report=None)),
    )
    agent = plain.agent
    assert agent is not None
    await PluginOf(agent).heeded()
    reported.build([])
    assert reported.passes_at == math.inf
    plain.tree.container(plain.tree.pod(1), "app")
    await until(lambda: len(agent.inventory.containers) == 1)
    status = reported.build([])
    soon = reported.passes_at - time.monotonic() <= holds.SETTLING_SECONDS
    assert soon is (guarantee is names.Guarantee.STRICT)
    verdicts = [each["reason"] for each in status["conditions"] if each["type"] == "StrictInEffect"]
    assert verdicts == ["AwaitingEvidence"] * soon
