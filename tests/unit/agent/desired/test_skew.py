"""A state that a controller of the next or the last minor version wrote, as this agent takes it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.agent.desired import spec
from swapwarden.api import names

ID = "0123456789abc"
CONTAINER = {"id": ID, "swapMax": "0"}
POD = {"reason": "NoLimit", "swapMax": "4096", "containerDefault": {"swapMax": "4096"}, "containers": {"a": CONTAINER}}
SPEC: dict[str, Any] = {
    "epoch": 7,
    "profileRef": {"name": "p", "generation": 3},
    "defaultReason": "LimitedSwap",
    "beforePlan": "Unmanaged",
    "kubepods": {"swapMax": "8192"},
    "units": {"a.slice": {"swapMax": "0"}},
    "pods": {"x": POD},
}


def taken(wire: dict[str, Any]) -> spec.NodeSpec:
    body = {"metadata": {"name": "n", "uid": "u", "generation": 4}, "spec": wire}
    return spec.parse(msgspec.json.decode(msgspec.json.encode(body), type=spec.ReceivedState), 4096)


def test_fields_and_reasons_of_a_newer_controller_are_passed_over() -> None:
    newer = {**SPEC, "novel": {"a": 1}, "defaultReason": "FromTheFuture"}
    newer["pods"] = {"x": {**POD, "reason": "FromTheFuture"}}
    assert taken(newer) == taken(SPEC)
    assert taken(SPEC).unsupported == ()


def test_an_eviction_changes_nothing_for_the_agent() -> None:
    headroom = {"belowBytes": 1, "clearBytes": 2, "forMilliseconds": 3}
    pressure = {"headroom": headroom, "stall": {"fullPermille": 4, "overMilliseconds": 5}}
    victim = {"uid": "u", "namespace": "a", "name": "p", "seq": 1}
    before = taken({**SPEC, "pressure": pressure})
    assert before.pressure is not None
    assert taken({**SPEC, "pressure": {**pressure, "victim": victim}}) == before


def test_settings_of_a_newer_controller_are_listed_once_each_and_the_others_hold() -> None:
    novel = {"memoryMax": "1"}
    newer = {
        **SPEC,
        "kubepods": {**SPEC["kubepods"], "memoryOom": "1"},
        "units": {"a.slice": {"swapMax": "0", "cpuWeight": 1}},
        "pods": {
            "x": {
                **POD,
                **novel,
                "containerDefault": {"swapMax": "4096", **novel},
                "containers": {"a": CONTAINER | novel},
            },
            "y": novel,
        },
    }
    parsed = taken(newer)
    assert parsed.unsupported == (
        spec.Unsupported("cpuWeight", "a.slice", 1),
        spec.Unsupported("memoryMax", "x", 4),
        spec.Unsupported("memoryOom", "kubepods", 1),
    )
    known = taken({**SPEC, "pods": {"x": POD, "y": {}}})
    assert msgspec.structs.replace(parsed, unsupported=()) == known


def test_what_an_older_controller_does_not_say_has_its_default() -> None:
    parsed = taken({"profileRef": {"name": "p"}, "pods": {"x": {"reason": "LimitedSwap"}}})
    assert (parsed.mode, parsed.before_plan, parsed.kubepods) == (names.Mode.ENFORCE, names.BeforePlan.NO_SWAP, None)
    assert parsed.guarantee is names.Guarantee.STANDARD
    assert parsed.pods == {"x": spec.PodEntry({}, {})}


def test_units_have_their_own_settings() -> None:
    units = {"a.slice": {"swapMax": "0"}, "b.service": {"ioLatencyMicroseconds": 25_000, "ioWeight": 800}}
    assert taken({**SPEC, "units": units}).units == {
        "a.slice": spec.UnitEntry(0),
        "b.service": spec.UnitEntry(None, 25_000, 800),
    }


def test_containers_are_found_by_the_beginning_of_their_id() -> None:
    containers = {"a": CONTAINER, "low": {"id": "f" * 13, "swapAtMost": "8192"}, "waits": {"swapMax": "0"}}
    pod = taken({**SPEC, "pods": {"x": {**POD, "containers": containers}}}).pods["x"]
    assert pod.container(ID + "d" * 51) == {"memory.swap.max": spec.FileSetting(0)}
    assert pod.container("f" * 64) == {"memory.swap.max": spec.FileSetting(8192, at_most=True)}
    assert pod.container("0" * 64) is None
    assert len(pod.containers) == 2, "one that does not run yet has no cgroup"


@pytest.mark.parametrize("field", ["mode", "guarantee", "beforePlan"])
def test_an_order_that_is_not_known_is_not_guessed_at(field: str) -> None:
    # The one before stays in force, and the agent says why.
    with pytest.raises(msgspec.ValidationError, match="FromTheFuture"):
        taken({**SPEC, field: "FromTheFuture"})


@pytest.mark.parametrize(
    "wire",
    [
        {"profile": {"name": "p"}, "pods": {"x": {"reason": "LimitedSwap", "swapMax": "0", "each": "0"}}},
        {**SPEC, "pods": []},
        {**SPEC, "pods": {"x": {"swapMax": "1Gi"}}},
        {**SPEC, "pods": {"x": {"containers": {"a": {"id": ID, "swapMax": "0", "swapAtMost": "0"}}}}},
    ],
    ids=["of an older form", "no map", "no value", "both"],
)
def test_a_state_that_is_not_understood_is_refused_as_a_whole(wire: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"swapAtMost|profileRef|Expected"):
        taken(wire)
