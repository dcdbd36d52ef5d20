"""A state that a controller of the next or the last minor version wrote, as this agent takes it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.agent.desired import spec
from swapwarden.api import names

SPEC: dict[str, Any] = {
    "epoch": 7,
    "profileRef": {"name": "p", "generation": 3},
    "beforePlan": "Unmanaged",
    "kubepods": {"swapMax": "8192"},
    "pods": {
        "x": {
            "reason": "LimitedSwap",
            "swapMax": "4096",
            "each": "4096",
            "containers": {"c": {"name": "a", "swapMax": "0"}},
        }
    },
}


def taken(wire: dict[str, Any]) -> spec.NodeSpec:
    body = {"metadata": {"name": "n", "uid": "u", "generation": 4}, "spec": wire}
    return spec.parse(msgspec.json.decode(msgspec.json.encode(body), type=spec.WireState), 4096)


def test_fields_and_reasons_of_a_newer_controller_are_passed_over() -> None:
    container = {"name": "a", "swapMax": "0", "novel": 1}
    pod = {**SPEC["pods"]["x"], "reason": "FromTheFuture", "novel": [], "containers": {"c": container}}
    newer = {**SPEC, "novel": {"a": 1}, "kubepods": {"swapMax": "8192", "novel": 1}, "pods": {"x": pod}}
    assert taken(newer) == taken(SPEC)


def test_what_an_older_controller_does_not_say_has_its_default() -> None:
    found = taken({"profileRef": {"name": "p"}, "pods": {"x": {"reason": "LimitedSwap"}}})
    assert (found.mode, found.before_plan, found.kubepods) == (names.Mode.ENFORCE, names.BeforePlan.NO_SWAP, None)
    assert found.guarantee is names.Guarantee.STANDARD
    assert found.pods == {"x": spec.PodSpec(None, {})}


def test_units_may_be_named_for_one_thing_or_another() -> None:
    def units(**fields: Any) -> spec.System | None:
        return taken({**SPEC, "system": {"units": ["a.slice"], **fields}}).system

    assert units(swapMax="0") == spec.System(0, ("a.slice",))
    assert units(ioLatencyMicroseconds=25_000, ioWeight=800) == spec.System(None, ("a.slice",), 25_000, 800)


@pytest.mark.parametrize("field", ["mode", "guarantee", "beforePlan"])
def test_an_order_that_is_not_known_is_not_guessed_at(field: str) -> None:
    # The one before stays in force, and the agent says why (state_watch.StateWatch).
    with pytest.raises(msgspec.ValidationError, match="FromTheFuture"):
        taken({**SPEC, field: "FromTheFuture"})
