"""The report on all parts of the agent."""

from __future__ import annotations

from typing import cast

from swapwarden.agent.desired import spec
from swapwarden.agent.inventory import board
from swapwarden.agent.node import node_watch
from swapwarden.agent.pressure import sampler
from swapwarden.agent.report import report

from tests.unit.agent.agent_node import Node, apply, state


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
    apply(agent, state()._replace(units={"a.slice": kept, "b.slice": kept, "d.slice": kept}))
    assert missing() == ["a.slice", "b.slice"]
    apply(agent, state()._replace(units={"a.slice": kept, "b.slice": back, "c.slice": weighed}))
    assert missing() == ["a.slice"]
    apply(agent, state())
    assert missing() == []
