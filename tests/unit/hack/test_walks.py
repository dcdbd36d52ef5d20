"""Few modules and calls lie between an event and its effect; the table is in docs/design/agent.md."""

from __future__ import annotations

import pathlib

from hack import walks

BOUNDS = {
    walks.VERIFIED: (6, 40),
    walks.BOOKED: (12, 69),
    walks.NEW_POD: (10, 90),
    walks.COLLECTED: (4, 26),
    walks.STATUS: (5, 36),
}
"""Modules and calls, with a margin of one call at most."""


async def test_events_go_through_few_modules_and_calls(tmp_path: pathlib.Path) -> None:
    found = await walks.measure(tmp_path)
    sizes = {event: found[event].size for event in BOUNDS}
    for event, (modules, calls) in BOUNDS.items():
        assert sizes[event][0] <= modules, (event, sorted({module for module, _ in found[event].calls}))
        assert sizes[event][1] <= calls, event


async def test_the_walk_of_a_repair_ends_when_its_value_was_read_back(tmp_path: pathlib.Path) -> None:
    calls = [name for _, name in (await walks.measure(tmp_path))[walks.VERIFIED].calls]
    assert calls[0] == "NodeReconciler.catch_up"
    assert calls.count("Cgroups.replace") == 1
    assert "Cgroups.read" in calls[calls.index("Cgroups.replace") :]
