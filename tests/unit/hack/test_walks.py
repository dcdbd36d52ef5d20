"""The walks of `make count-walks` can be measured. Their sizes are printed beside the targets; no test pins them."""

from __future__ import annotations

import pathlib

from hack import walks

PACKAGES = {
    walks.VERIFIED: "agent/",
    walks.BOOKED: "agent/",
    walks.NEW_POD: "agent/",
    walks.COLLECTED: "agent/",
    walks.STATUS: "agent/",
    walks.RECONCILE: "controller/",
    walks.MODEL: "cli/kubectl/explain/",
    walks.SCREEN: "cli/kubectl/explain/",
}


async def test_each_walk_passes_its_modules(tmp_path: pathlib.Path) -> None:
    found = await walks.measure(tmp_path)
    assert all(each.calls for each in found.values())
    for event, package in PACKAGES.items():
        assert any(module.startswith(package) for module, _ in found[event].calls), event
    assert walks.TARGETS.keys() <= found.keys()


async def test_the_walk_of_a_repair_ends_when_its_value_was_read_back(tmp_path: pathlib.Path) -> None:
    calls = [name for _, name in (await walks.agent_walks(tmp_path))[walks.VERIFIED].calls]
    assert calls[0] == "NodeReconciler.catch_up"
    assert "Cgroups.read" in calls[calls.index("Cgroups.replace") :]
