from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.controller import exposures, rows

from tests.unit.policy.rows import container, pod

PODS = {
    "x": state.PodState(names.Reason.POLICY_DISABLED, "0"),
    "y": state.PodState(names.Reason.LIMITED_SWAP, "0"),
}


def told(**swapped: int) -> rows.StateRow:
    """A state of a node whose agent reports swap of these pods above their limits, in bytes."""
    violations: list[dict[str, Any]] = [
        {"pod": key, "reason": "Exposed", "swapBytes": size, "causes": ["Reload", "Resize"], "exposedMilliseconds": 7}
        for key, size in swapped.items()
    ]
    body = {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {"profile": {"name": "p"}, "pods": PODS},
        "status": {"violations": violations},
    }
    return rows.decode(msgspec.json.encode(body))


def news(old: rows.StateRow, new: rows.StateRow) -> list[tuple[str, str]]:
    known = [pod(container(), key=key, name=f"pod-{key}") for key in "xyz"]
    return [(regarding.name, message) for regarding, message in exposures.news(old, new, known)]


def test_only_pods_that_must_not_swap_and_did_are_told_of() -> None:
    ((name, message),) = news(told(), told(x=4096, y=4096, z=4096))
    assert name == "pod-x"
    assert message.startswith("4096 bytes of this pod")
    assert "(Reload, Resize), for 7 ms" in message


def test_what_was_told_is_not_told_again() -> None:
    assert news(told(x=4096), told(x=4096)) == []
    assert news(told(x=4096), told()) == []
    assert [name for name, _ in news(told(x=4096), told(x=8192))] == ["pod-x"]


def test_what_took_no_swap_or_has_no_cause_yet_is_no_news() -> None:
    body: dict[str, Any] = {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {"profile": {"name": "p"}, "pods": PODS},
        "status": {
            "violations": [
                {"pod": "x", "reason": "Exposed", "causes": ["Reload"]},
                {"pod": "x", "reason": "Exposed", "swapBytes": 5},
                {"pod": "x", "reason": "Draining", "swapBytes": 5, "causes": ["Reload"]},
            ]
        },
    }
    assert rows.decode(msgspec.json.encode(body)).swapped == ()


def holding(*violations: dict[str, Any], node: str = "n") -> rows.StateRow:
    body = {
        "metadata": {"name": node, "uid": "u", "resourceVersion": "1"},
        "spec": {"profile": {"name": "p"}, "pods": PODS},
        "status": {"violations": [{"reason": "Draining", "wanted": "0", **each} for each in violations]},
    }
    return rows.decode(msgspec.json.encode(body))


def test_what_disabled_pods_hold_in_swap_is_published() -> None:
    exposures.measure(
        "holder",
        holding(
            {"pod": "x", "swapBytes": 8192},
            {"pod": "x", "swapBytes": 4096, "container": "part of the pod's"},
            {"pod": "y", "swapBytes": 4096},
            {"pod": "not in the spec", "swapBytes": 4096},
        ),
    )
    assert exposures.HELD.value("holder") == 8192


@pytest.mark.parametrize(
    "row",
    [
        holding({"pod": "y", "swapBytes": 4096}),
        holding({"pod": "x", "swapBytes": 4096, "wanted": "4096"}),
        holding({"pod": "x", "swapBytes": 4096, "reason": "Exposed"}),
        holding(),
        None,
    ],
    ids=["not by its policy", "a limit above 0", "not in use now", "nothing", "no state"],
)
def test_a_node_without_such_pods_has_no_series(row: rows.StateRow | None) -> None:
    exposures.measure("was", holding({"pod": "x", "swapBytes": 4096}))
    assert ("node", "was") in [label for sample in exposures.HELD.samples() for label in sample.labels]
    exposures.measure("was", row)
    assert ("node", "was") not in [label for sample in exposures.HELD.samples() for label in sample.labels]
